"""run and sweep: what is finished is not run again, and everything is checked before anything starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import tiny

import pslab.engines.local.engine
from pslab.errors import ConfigError
from pslab.lab.runs.run import run, sweep


@pytest.fixture
def executed(monkeypatch):
    """The digests of the runs that really ran."""
    seen = []
    real = pslab.engines.local.engine.execute

    def counted(experiment, on_progress):
        seen.append(experiment.run.digest)
        return real(experiment, on_progress)

    monkeypatch.setattr(pslab.engines.local.engine, "execute", counted)
    return seen


def test_a_finished_run_is_never_run_twice(tmp_path, executed):
    first = run(tiny(), results=tmp_path, progress=False)
    second = run(tiny(), results=tmp_path, progress=False)
    assert (first.cached, second.cached) == (False, True)
    assert executed == [tiny().digest]
    assert second.accuracy.equals(first.accuracy)


def test_one_changed_parameter_is_one_run(tmp_path, executed):
    runs = [tiny(sync=sync) for sync in ("bsp", "ssp:1", "asp")]
    sweep(runs, results=tmp_path, progress=False)
    changed = [*runs[:2], tiny(sync="asp", seed=1)]
    results = sweep([*changed, changed[0]], results=tmp_path, progress=False)
    assert len(executed) == 4
    assert [r.digest for r in results] == [r.digest for r in [*changed, changed[0]]]


def test_nothing_runs_if_one_of_them_cannot(tmp_path, executed):
    with pytest.raises(ConfigError):
        sweep([tiny(), tiny(sync="bps")], results=tmp_path, progress=False)
    assert executed == []


def test_an_object_without_source_is_run_again(tmp_path, executed):
    made: dict = {}
    exec("from pslab.policies.sync.asp import ASP\nclass Made(ASP): pass", made)
    for _ in range(2):
        run(tiny(sync=made["Made"]()), results=tmp_path, progress=False)
    assert len(executed) == 2


SCRIPT = """
import sys
from pslab import Run, run
from pslab.policies.sync.asp import ASP

class Mine(ASP):
    pass

result = run(Run.of({"sync": Mine(), "data": "tiny:digits", "model": "tiny:net", "workers": 2, "batch_size": 16,
                     "pushes": 8}), results=sys.argv[1], progress=False)
print("pushed", result.manifest["pushes"])
"""


def test_a_script_needs_no_guard_around_its_main(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "support")}
    done = subprocess.run([sys.executable, str(script), str(tmp_path)], env=environment, capture_output=True, text=True,
                          check=True, timeout=120)  # fmt: skip
    assert done.stdout.splitlines() == ["pushed 8"]


def test_loading_a_record_needs_no_torch(tmp_path):
    made = run(tiny(model="tiny:net", data="tiny:digits"), results=tmp_path, progress=False)
    script = (
        "import sys; from pslab import Run, sweep; from pslab.lab.records.record import load;"
        f"r = load({str(made.path)!r}); again = sweep([r.run], results={str(tmp_path)!r})[0];"
        "assert again.cached and len(again.accuracy); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
