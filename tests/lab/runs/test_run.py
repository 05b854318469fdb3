"""run and sweep: what is finished is not run again, and everything is checked before anything starts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import handmade
import pytest
from ownpolicies import AtMost, Silent
from tiny import Raises, tiny

import pslab.engines.local.engine
import pslab.lab.runs.run
from pslab.config.run import Run
from pslab.errors import ConfigError, RecordError, StartFailed, SweepFailed, Unwritable, WorkerFailed, in_a_sentence
from pslab.lab.records.disk import Damaged
from pslab.lab.records.results import load
from pslab.lab.records.summary import applied
from pslab.lab.runs.background import Background, current
from pslab.lab.runs.grid import grid
from pslab.lab.runs.run import InvalidRun, NobodyWaited, NotFoundAgain, NothingApplied, run, sweep
from pslab.policies.sync.asp import ASP


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


def test_a_finished_run_is_never_run_twice_and_nothing_runs_if_one_of_them_cannot(tmp_path, executed):
    with pytest.raises(ConfigError):
        sweep([tiny(), tiny(sync="bps")], results=tmp_path, progress=False)
    assert executed == []
    first = run(tiny(), results=tmp_path, progress=False)
    wanted = [tiny(), tiny(seed=1), tiny()]
    second, *others = sweep(wanted, results=tmp_path, progress=False)
    assert executed == [tiny().digest, tiny(seed=1).digest]
    assert [first.cached, second.cached] == [False, True]
    assert second.accuracy.equals(first.accuracy)
    assert [result.digest for result in (second, *others)] == [each.digest for each in wanted]


@pytest.mark.parametrize(("computing", "held"), [(0, False), (3, True)])  # whether it counts the first iteration
def test_a_policy_of_ones_own_that_holds_nobody_back_warns(tmp_path, computing, held, recwarn):
    wanted = tiny(sync=AtMost(2, computing), engine="virtual", workers=3, cluster={"compute_s": 0.01, "slow": {0: 3.0}})
    result = run(wanted, results=tmp_path, progress=False)
    found = [str(each.message) for each in recwarn if issubclass(each.category, NobodyWaited)]
    assert result.manifest["verdict"] == "valid"
    assert found == [] if held else "Iteration 0 starts without an event Asked" in found[0]


def test_a_policy_that_answers_nothing_says_so(tmp_path):
    wanted = tiny(sync=Silent(), engine="virtual", cluster="lab")
    with pytest.warns(InvalidRun, match=r"every worker waited, .*let the policy answer more pushes \(Apply"):
        assert run(wanted, results=tmp_path, progress=False).manifest["pushes"] == 0


@pytest.fixture
def unkept(tmp_path):
    """A record whose emulation was not kept, and one that is well."""
    bad, good = (handmade.curve(tmp_path, tiny(seed=seed), [0.1, 0.9], emulation_ok=seed > 0) for seed in (0, 1))
    return [bad, good]


def test_what_was_not_emulated_in_time_is_run_again_where_it_is_asked_for(tmp_path, executed, unkept):
    runs = [result.run for result in unkept]
    sweep(runs, results=tmp_path, progress=False)
    assert executed == []
    new, other = sweep(runs, results=tmp_path, progress=False, again=True)
    assert executed == [runs[0].digest]
    assert (new.cached, new.manifest["emulation_ok"], other.cached) == (False, True, True)
    (old,) = (tmp_path / "replaced").iterdir()
    assert old.name.startswith(f"{runs[0].digest}-")
    assert load(old).accuracy.accuracy.tolist() == [0.1, 0.9]  # whole
    with pytest.raises(RecordError, match="was changed since"):  # who held the old one reads no mixture
        _ = unkept[0].accuracy
    assert sweep(runs, results=tmp_path, progress=False, again=True)[0].cached


def test_an_interrupted_second_attempt_keeps_the_first(tmp_path, executed, unkept, monkeypatch):
    def interrupted(experiment, on_progress):
        raise KeyboardInterrupt

    monkeypatch.setattr(pslab.engines.local.engine, "execute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(unkept[0].run, results=tmp_path, progress=False, again=True)
    assert unkept[0].accuracy.accuracy.tolist() == [0.1, 0.9]
    assert not (tmp_path / "replaced").exists()


def test_what_a_result_makes_unwanted_is_not_begun_and_what_was_recorded_is_told_first(tmp_path, executed):
    runs, told = [tiny(pushes=4, seed=seed) for seed in range(4)], []
    run(runs[3], results=tmp_path, progress=False)

    def ended(result):
        told.append((result.run.seed, result.cached))
        return [runs[1].digest] if result.run.seed == 3 else [runs[2].digest, runs[3].digest]

    found = sweep(runs, results=tmp_path, progress=False, ended=ended)
    assert told == [(3, True), (0, False)]
    assert executed == [runs[3].digest, runs[0].digest]
    assert [result.run.seed for result in found] == [0, 3]  # what is recorded is there


@pytest.fixture
def failing(monkeypatch):
    """Makes runs of seed 1 fail with an error."""
    real = pslab.engines.local.engine.execute

    def of(error):
        def execute(experiment, on_progress):
            if experiment.run.seed == 1:
                raise error
            return real(experiment, on_progress)

        monkeypatch.setattr(pslab.engines.local.engine, "execute", execute)

    return of


@pytest.mark.parametrize("error", [WorkerFailed("worker 1", 3, "Traceback\nValueError: mine"), MemoryError("of 9 GB"),
                                   ConfigError("data", "folder:x", "gone"), ZeroDivisionError()],
                         ids=["raised", "memory", "refused", "policy"])  # fmt: skip
def test_a_run_that_fails_for_its_own_reason_does_not_stop_the_others(tmp_path, failing, error, capsys):
    failing(error)
    runs = grid(tiny(pushes=8), sync=["bsp", "ssp:1"], seed=[0, 1])
    with pytest.raises(SweepFailed, match="2 of 4 runs failed; the others are recorded") as failed:
        sweep(runs, results=tmp_path, progress=True)
    lines = [f"{{}}, seed 1 ({run.digest}): {in_a_sentence(error)}" for run in runs.run[[1, 3]]]
    wanted = [line.format(f"sync {sync}") for line, sync in zip(lines, ("bsp", "ssp:1"), strict=True)]
    assert [line.strip() for line in str(failed.value).splitlines()[1:]] == wanted
    assert all(each is error for each in failed.value.failures.values())
    assert failed.value.results[["sync", "seed"]].to_numpy().tolist() == [["bsp", 0], ["ssp:1", 0]]
    assert "[2/4] bsp none W=4 seed 1: failed: " in capsys.readouterr().err
    assert not list((tmp_path / "runs").glob(".*"))


@pytest.mark.parametrize("name", ["manifest.json", "pushes.csv", ""])
def test_a_damaged_record_is_set_aside_and_its_run_executed_again(tmp_path, executed, name):
    place = run(tiny(), results=tmp_path, progress=False).path
    if name:  # as after a loss of power
        os.truncate(place / name, 99)
    else:
        shutil.rmtree(place)
        place.symlink_to("nowhere")
    with pytest.warns(Damaged, match=rf"{place}.* was moved to {tmp_path / 'damaged'}"):
        found = sweep([tiny(), tiny(seed=1)], results=tmp_path, progress=False)
    assert executed == [tiny().digest, tiny().digest, tiny(seed=1).digest]
    assert [each.cached for each in found] == [False, False]
    assert [path.name[:16] for path in (tmp_path / "damaged").iterdir()] == [tiny().digest]
    assert sweep([tiny()], results=tmp_path, progress=False)[0].cached


def test_a_record_that_cannot_be_opened_keeps_no_other_run_from_being_tried(tmp_path, executed):
    place = run(tiny(), results=tmp_path, progress=False).path
    os.truncate(place / "manifest.json", 2**43)  # without a byte on disk
    with pytest.raises(SweepFailed, match=r"1 of 2 runs failed; the others are recorded:\n.* do not fit in the memory"):
        sweep([tiny(), tiny(seed=1)], results=tmp_path, progress=False)
    assert executed == [tiny().digest, tiny(seed=1).digest]
    assert place.is_dir()


def test_what_cannot_be_written_ends_a_sweep(tmp_path, executed, failing):
    failing(Unwritable("there is no room"))
    with pytest.raises(Unwritable, match="no room"):
        sweep([tiny(pushes=8, seed=1), tiny(pushes=8)], results=tmp_path, progress=False)
    assert executed == []


def test_an_object_whose_content_is_unknown_is_run_again_and_says_so(tmp_path):
    sync = Remembers()
    for _ in range(2):
        with pytest.warns(NotFoundAgain, match="sync: a generator in it cannot be sent"):
            run(Run(engine="timing", cluster="lab", sync=sync, pushes=4), results=tmp_path, progress=False)
    with pytest.raises(ConfigError, match=r"sync=.*cannot be sent to a worker's process"):
        run(tiny(engine="virtual", cluster="lab", sync=sync), results=tmp_path, progress=False)
    assert len(list((tmp_path / "runs").iterdir())) == 2


class Remembers(ASP):
    """ASP with something in it that only this process knows."""

    def __init__(self) -> None:
        object.__setattr__(self, "chance", (each for each in range(3)))


TESTS = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS / "support"), str(TESTS.parent)])}
SCRIPT = """
import sys
from pslab import Run, run
from pslab.policies.sync.asp import ASP

class Mine(ASP):
    pass

result = run(Run.of({"sync": Mine(), "data": "tiny:digits", "model": "tiny:net", "workers": 1, "batch_size": 16,
                     "pushes": 8}), results=sys.argv[1], progress=False)
print("pushed", result.manifest["pushes"])
"""


@pytest.mark.slow
def test_a_script_needs_no_guard_around_its_main(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(script), str(tmp_path)], env=ENVIRONMENT, capture_output=True, text=True,
                          check=True, timeout=120)  # fmt: skip
    assert done.stdout.splitlines() == ["pushed 8"]


@pytest.mark.parametrize(("sync", "least"), [("bsp", 4), ("diloco:8", 32), ("local:3", 12)])
def test_a_run_that_ends_before_its_first_step_says_so_with_the_least_budget(tmp_path: Path, sync: str, least: int):
    wanted = tiny(engine="virtual", sync=sync, cluster={"compute_s": 0.01}, pushes=least // 2, learning_rate=0.01)
    with pytest.warns(NothingApplied, match=f"equally fast workers need {least} for a step$"):
        result = run(wanted, results=tmp_path, progress=False)
    assert (applied(result), result.remarks) == (0, ["no step was applied: the weights are the initial weights"])
    assert run(wanted.but(pushes=least), results=tmp_path, progress=False).manifest["pushes"] == least


# -- in a thread -------------------------------------------------------------------------------------

LIMIT_S = 60.0
LONG = {"pushes": 100_000, "cluster": {"compute_s": 0.005}, "evaluate": "beside"}


@pytest.fixture
def pushed(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once the first round of a run's four workers is applied: pushes are counted before that."""
    seen, real = threading.Event(), pslab.engines.local.engine.execute

    def watched(experiment: object, on_progress: Callable[[dict], None]):
        def heard(news: dict) -> None:
            if news.get("pushes", 0) >= 4:
                seen.set()
            on_progress(news)

        return real(experiment, heard)

    monkeypatch.setattr(pslab.engines.local.engine, "execute", watched)
    return seen


def test_runs_in_the_background_end_and_one_that_fails_is_said_beside_what_is_completed(tmp_path: Path, failing):
    failing(MemoryError("of 9 GB"))
    wanted = [tiny(sync="asp"), tiny()]
    background = Background([*wanted, tiny(seed=1)], tmp_path)
    assert current() is background
    assert background.wait(LIMIT_S)
    assert [result.digest for result in background.finished] == [each.digest for each in wanted]
    assert (background.alive, background.note, current()) == (False, "", None)
    assert background.error.startswith("1 of 3 runs failed; the others are recorded:")


def test_a_second_one_is_refused_and_a_stop_ends_the_run_in_order_and_keeps_it(tmp_path, pushed: threading.Event):
    background = Background([tiny(**LONG), tiny(**LONG, seed=1)], tmp_path)
    try:
        with pytest.raises(StartFailed, match="executed in this notebook already"):
            Background([tiny()], tmp_path)
        assert pushed.wait(LIMIT_S)
        with pytest.raises(StartFailed, match="in the background"):
            run(tiny(seed=5), results=tmp_path, progress=False)
    finally:
        background.stop()
        assert background.wait(LIMIT_S)
    assert (background.finished, background.error) == ([], "")
    assert "kept in" in background.note
    (kept,) = (tmp_path / "interrupted").iterdir()
    assert (load(kept).run.seed, len(load(kept).accuracy) > 0) == (0, True)
    assert list((tmp_path / "runs").iterdir()) == []
    assert run(tiny(), results=tmp_path, progress=False).manifest["pushes"] == 40


@pytest.mark.parametrize(("fields", "field", "words"), [
    ({"sync": "bps"}, "sync", "did you mean 'bsp'"), ({"model": Raises}, "", "the model broke here"),
])  # fmt: skip
def test_what_is_wrong_is_said_with_its_field(tmp_path: Path, fields: dict, field: str, words: str):
    background = Background([tiny(**fields)], tmp_path)
    assert background.wait(LIMIT_S)
    assert background.field == field
    assert words in background.error
