"""The live view without a browser: what its widgets show and start, and what is done where nobody looks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
from tiny import digits, net

from pslab.config.run import Run
from pslab.errors import ConfigError
from pslab.lab.live import figure as live_figure
from pslab.lab.live import look as live_look
from pslab.lab.live.state import FINISHED, SAMPLES, Doing, Point, Track
from pslab.lab.live.view import Live, has_front_end
from pslab.lab.plots.theme import DENSE, SYNCS
from pslab.lab.records.record import Draft, find
from pslab.lab.runs.background import current

TINY: dict[str, Any] = {"model": net, "data": digits, "batch_size": 16, "pushes": 40, "learning_rate": 0.2,
                        "cluster": "free"}  # fmt: skip


@pytest.fixture(autouse=True)
def _nothing_stays_under_way() -> Iterator[None]:
    yield
    if (running := current()) is not None:
        running.stop()
        running.wait(60)


def drawn(view: Live) -> list[str]:
    return [trace.name for trace in view.figure.data[: live_figure.SLOTS] if trace.visible]


def texts(view: Live) -> str:
    return view._said.value + view._progress.value + view._workers.value + view._list.value


def chip(view: Live, label: str) -> Any:
    return next(each for chips in view._controls._chips.values() for each, _ in chips if each.description == label)


# -- a view ----------------------------------------------------------------------------------------


def test_it_runs_what_is_chosen_and_draws_it(tmp_path: Path):
    view = Live(sync=["bsp", "asp"], live=True, results=tmp_path, **TINY)
    assert drawn(view) == []
    view.start()
    assert view._start.disabled
    results = view.wait()
    assert [(r.run.sync, r.run.evaluate, r.manifest["disturbed"]) for r in results] == [
        ("bsp", "beside", True), ("asp", "beside", True)]  # fmt: skip
    assert drawn(view) == ["BSP", "ASP"]
    colours = [trace.line.color for trace in view.figure.data[:2]]
    assert colours == [SYNCS["bsp"][0], SYNCS["asp"][0]]
    first = results[0].accuracy
    assert list(view.figure.data[0].x) == list(first.pushes / 4)
    assert list(view.figure.data[live_figure.SLOTS].x) == list(first.seconds)
    assert texts(view).count("finished") == 2
    assert (view._start.disabled, view._stop.disabled) == (False, True)


def test_what_is_set_is_what_runs_next(tmp_path: Path):
    view = Live(sync=["bsp"], live=True, results=tmp_path, **TINY)
    chip(view, "BSP").value = False
    chip(view, "static 1\u00a0%").value = True
    view._controls._others["sync"].value = "ssp:2 asp"
    for name, value in {"workers": 2, "learning_rate": 0.1, "schedule": "linear", "pushes": 20, "seed": 3}.items():
        view._controls._scalars[name].value = value
    fields = ("sync", "prune", "workers", "learning_rate", "schedule", "pushes", "seed", "cluster", "batch_size")
    assert [tuple(getattr(run, name) for name in fields) for run in view._controls.runs()] == [
        ("ssp:2", "none", 2, 0.1, "linear", 20, 3, "free", 16), ("asp", "none", 2, 0.1, "linear", 20, 3, "free", 16),
        ("ssp:2", "static:1%", 2, 0.1, "linear", 20, 3, "free", 16),
        ("asp", "static:1%", 2, 0.1, "linear", 20, 3, "free", 16)]  # fmt: skip


@pytest.mark.parametrize(("control", "value", "field", "hint"), [
    ("_scalars/workers", 0, "workers", "from 1 to 1024"),
    ("_others/sync", "spp:3", "sync", "did you mean 'ssp'"),
    ("_others/prune", "statik:1%", "prune", "did you mean 'static'"),
])  # fmt: skip
def test_what_is_wrong_is_said_beside_its_control(tmp_path: Path, control: str, value: Any, field: str, hint: str):
    view = Live(sync=["bsp"], live=True, results=tmp_path, **TINY)
    kind, name = control.split("/")
    widget = getattr(view._controls, kind)[name]
    widget.value = value
    view.start()
    view.wait()
    assert hint in view.error
    assert f"{field}=" in view._said.value
    assert "pslab-wrong" in widget._dom_classes
    assert list(tmp_path.glob("runs/*")) == []
    widget.value = {"workers": 2}.get(name, "")
    view.start()
    assert "pslab-wrong" not in widget._dom_classes
    assert len(view.wait()) == 1
    assert view.error == ""


def test_nothing_chosen_is_said(tmp_path: Path):
    view = Live(sync=["bsp"], live=True, results=tmp_path, **TINY)
    chip(view, "BSP").value = False
    view.start()
    assert "choose at least one" in view._said.value


def test_parameters_are_refused_at_once(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"no such field; .*did you mean 'optimizer'"):
        Live(optimiser="sgd", live=True, results=tmp_path)
    with pytest.raises(ConfigError, match="live"):
        Live(live="yes", results=tmp_path)  # type: ignore[arg-type]


def test_runs_of_others_are_shown_and_listed(tmp_path: Path):
    view = Live(sync=["bsp"], live=True, results=tmp_path, **TINY)
    draft = Draft(Run(workers=2, sync="ssp:1", pushes=100), tmp_path)
    doing = [{"doing": "waiting", "for": [1], "iteration": 5}, {"doing": "computing", "for": [], "iteration": 3}]
    draft.note({"pushes": 8, "seconds": 1.0, "workers": doing})
    for pushes, accuracy in ((0, 0.1), (5, 0.6)):
        draft.note({"index": 0, "pushes": pushes, "seconds": 0.5, "accuracy": accuracy, "loss": 1.0})
    view.refresh()
    shown = texts(view)
    assert "started elsewhere" in shown
    assert "waits for 1" in shown
    assert "(+2)" in shown
    assert "8/100 pushes · 8 pushes/s · 1.0 s · 12 s left" in shown
    assert drawn(view) == ["SSP, s\u00a0=\u00a01, dense"]
    draft.drop()
    view.refresh()
    assert "ended without a record" in texts(view)
    view.clear()
    assert drawn(view) == []


def test_a_policy_of_the_readers_own_has_a_chip(tmp_path: Path):
    from pslab.policies.sync.ssp import SSP

    class Mine(SSP):
        pass

    view = Live(sync=[Mine(2)], live=True, results=tmp_path, **TINY)
    assert chip(view, "Mine, staleness 2").value
    assert not chip(view, "BSP").value
    assert view._controls.runs()[0].sync == Mine(2)


def test_text_of_others_cannot_become_markup(tmp_path: Path):
    view = Live(sync=["bsp"], live=True, results=tmp_path, **TINY)
    Draft(Run(sync="<i>x</i>", pushes=100), tmp_path).note({"pushes": 8, "seconds": 1.0})
    view._controls._others["sync"].value = "<i>y</i>"
    view.start()
    view.wait()
    assert "&lt;i&gt;x&lt;/i&gt;" in view._list.value.lower()
    assert "<i>" not in texts(view).lower()


# -- its parts -------------------------------------------------------------------------------------


def track(**fields: Any) -> Track:
    run = Run(workers=20, pushes=100)
    return Track(run, run.digest, **fields)


def test_a_strip_ends_now_and_names_whom_one_waits_for():
    kept = [Doing("computing", (), 1)] * 3 + [Doing("waiting", (2, 7), 1)] * 9
    strip = live_look._strip(kept)
    flexes = [int(part.split(" ")[0]) for part in strip.split("flex:")[1:]]
    assert flexes == [SAMPLES - 12, 3, 9]
    assert ">2,7<" in strip


def test_many_workers_are_counted():
    crowd = track(workers=[deque([Doing("computing", (), 0)]) for _ in range(20)])
    assert live_look.workers(crowd).count("<b>worker") == live_look.WORKERS_SHOWN
    assert "and 4 more workers" in live_look.workers(crowd)


def test_a_dead_worker_has_no_iteration():
    shown = live_look.workers(track(workers=[deque([Doing("dead", (), None)]), deque([Doing("computing", (), 4)])]))
    assert "dead" in shown
    assert "iteration None" not in shown


def test_a_run_that_diverged_is_said_to_have():
    ended = track(state=FINISHED, manifest={"outcome": "diverged"})
    assert "diverged" in live_look.runs([(ended, "BSP", DENSE, True)])


def test_the_frame_follows_the_best_curve():
    def at(*heights: float) -> Track:
        return track(points=[Point(i, i, height, 0.0) for i, height in enumerate(heights)])

    assert live_figure.frame([]) == (0.0, 100.0)
    assert live_figure.frame([at(0.1, 0.3)])[0] == 0.0
    low, high = live_figure.frame([at(0.1, 0.96), at(0.1, 0.2)])
    assert low == 50.0
    assert 96 < high <= 100


# -- without a front end ---------------------------------------------------------------------------


def test_where_nobody_looks_it_runs_at_once_and_draws_a_still_figure(tmp_path: Path, capsys: pytest.CaptureFixture):
    view = Live(sync=["bsp", "asp"], live=False, results=tmp_path, **TINY)
    assert [(r.run.sync, r.run.evaluate, r.manifest["disturbed"]) for r in view.results] == [
        ("bsp", "after", False), ("asp", "after", False)]  # fmt: skip
    assert type(view.figure) is go.Figure
    assert "[2/2] asp none W=4 seed 0" in capsys.readouterr().err
    assert find(view.results[0].run, tmp_path) is not None


def test_nobody_looks_at_a_script():
    assert not has_front_end()


def test_it_needs_no_torch_to_look(tmp_path: Path):
    Draft(Run(pushes=100), tmp_path).note({"pushes": 8, "seconds": 1.0})
    script = (
        "import sys; from pslab.lab.live.view import Live;"
        f"view = Live(live=True, results={json.dumps(str(tmp_path))}); view.refresh();"
        "assert 'elsewhere' in view._list.value; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
