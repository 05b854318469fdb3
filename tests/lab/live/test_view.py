"""The live view without a browser: what its widgets show and start, and what is done without a front end."""

from __future__ import annotations

import asyncio
import json
import os
import re
import weakref
from collections import deque
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
from tiny import digits, net

from pslab.config.run import Run
from pslab.config.table import ROWS
from pslab.errors import ConfigError
from pslab.lab.live import figure as live_figure
from pslab.lab.live.controls import WRONG
from pslab.lab.live.figure import DARK_PAGE, LIGHT_PAGE, Session
from pslab.lab.live.state import FINISHED, Doing, Point, Track
from pslab.lab.live.view import Live, follow, notes_under, row_of
from pslab.lab.plots.theme import Look, looks
from pslab.lab.records.drafts import Draft
from pslab.lab.records.record import find
from pslab.lab.runs.background import current
from pslab.policies.sync.ssp import SSP

TINY: dict[str, Any] = {"model": net, "data": digits, "batch_size": 16, "pushes": 40, "learning_rate": 0.2,
                        "cluster": "free"}  # fmt: skip


@pytest.fixture(autouse=True)
def _nothing_stays_under_way() -> Iterator[None]:
    yield
    if (running := current()) is not None:
        running.stop()
        running.wait(60)


@pytest.fixture
def view(tmp_path: Path) -> Live:
    return Live(sync=["bsp"], live=True, results=tmp_path, **TINY)


def drawn(view: Live) -> list[str]:
    """The curves that the page has, against pushes; those against seconds are the same."""
    names = [trace["name"] for trace in json.loads(view.page.curves)["data"]]
    assert names[: len(names) // 2] == names[len(names) // 2 :]
    return names[: len(names) // 2]


def foreign(run: Run, place: Path) -> Draft:
    """What another process writes."""
    draft = Draft(run, place)
    draft.path = draft.path.rename(draft.path.with_name(draft.path.name.replace(f".{os.getpid()}.", ".1.")))
    return draft


def texts(view: Live) -> str:
    shown = [text for trace in view.strips.data for text in (*(trace.y or ()), *(trace.text or ()))]
    return "\n".join([view.message.value, view.table.value, *shown]).replace("\u00a0", " ")


def chip(view: Live, label: str) -> Any:
    return next(each for chips in view.controls.chips.values() for each, _ in chips if each.description == label)


# -- a view ----------------------------------------------------------------------------------------


def test_start_runs_what_is_chosen_and_draws_it(tmp_path: Path):
    view = Live(sync=["bsp", "asp"], live=True, results=tmp_path, **TINY)
    assert drawn(view) == []
    view.start()
    assert view.start_button.disabled
    results = view.wait()
    assert [(r.run.sync, r.run.evaluate, r.manifest["disturbed"]) for r in results.result] == [
        ("bsp", "beside", True), ("asp", "beside", True)]  # fmt: skip
    assert [name.strip("*") for name in drawn(view)] == ["BSP†", "ASP†"]
    colours = [trace.line.color for trace in view.figure.data[:2]]
    assert colours == [ROWS["sync"]["bsp"].colour, ROWS["sync"]["asp"].colour]
    first = results.result[0].accuracy
    assert list(view.figure.data[0].x) == list(first.pushes / 4)
    assert list(view.figure.data[2].x) == list(first.seconds)
    assert texts(view).count("finished") == 2
    assert (view.start_button.disabled, view.stop_button.disabled) == (False, True)


def test_a_dark_page_has_light_lines_and_letters(view: Live, tmp_path: Path):
    draft = Draft(Run(workers=2, pushes=100), tmp_path)
    draft.note({"pushes": 8, "seconds": 1.0, "workers": [{"doing": "computing", "for": [], "iteration": 3}]})
    draft.note({"index": 0, "pushes": 5, "seconds": 0.5, "accuracy": 0.6, "loss": 1.0})
    view.refresh()
    for ground in (LIGHT_PAGE, DARK_PAGE, LIGHT_PAGE):
        view.page.dark = ground.is_dark
        for sent in (view.page.curves, view.page.strips):
            layout = json.loads(sent)["layout"]["template"]["layout"]
            assert layout["font"]["color"] == ground.template.layout.font.color
            assert layout["paper_bgcolor"] == "rgba(0,0,0,0)"
        assert view.strips.data[0].marker.color == ground.doing["computing"]
        bsp = Look(ROWS["sync"]["bsp"].colour)
        assert view.figure.data[0].line.color == (bsp.dark if ground.is_dark else bsp).colour


def test_a_view_that_no_page_shows_any_more_waits_for_one(view: Live, tmp_path: Path):
    async def watch() -> None:
        following = asyncio.get_running_loop().create_task(follow(weakref.ref(view)))
        view.page.shown = False
        Draft(Run(workers=2, pushes=100), tmp_path).note({"pushes": 8, "seconds": 1.0})
        await asyncio.sleep(0)
        assert "8 of 100" not in texts(view)
        view.page.shown = True
        assert "8 of 100" in texts(view)
        following.cancel()

    asyncio.run(watch())


def test_a_view_survives_whatever_cannot_be_drawn_and_says_it(
    view: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: Any) -> go.Figure:
        raise ValueError("Invalid value\nof a marker")

    draft = Draft(Run(workers=2, pushes=100), tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr(live_figure, "curves", refuse)
        draft.note({"index": 0, "pushes": 5, "seconds": 0.5, "accuracy": 0.6, "loss": 1.0})
        view.refresh()
        view.refresh()
    assert "cannot be drawn: ValueError: Invalid value<" in texts(view)
    view.refresh()
    assert "cannot be drawn" not in texts(view)
    assert drawn(view) == ["BSP, dense"]


def test_controls_make_the_next_runs(view: Live):
    chip(view, "BSP").value = False
    chip(view, "static 1\u00a0%").value = True
    view.controls.others["sync"].value = "ssp:2 asp"
    for name, value in {"workers": 2, "learning_rate": 0.1, "schedule": "linear", "pushes": 20, "seed": 3}.items():
        view.controls.scalars[name].value = value
    fields = ("sync", "prune", "workers", "learning_rate", "schedule", "pushes", "seed", "cluster", "batch_size")
    assert [tuple(getattr(run, name) for name in fields) for run in view.controls.runs()] == [
        ("ssp:2", "none", 2, 0.1, "linear", 20, 3, "free", 16), ("asp", "none", 2, 0.1, "linear", 20, 3, "free", 16),
        ("ssp:2", "static:1%", 2, 0.1, "linear", 20, 3, "free", 16),
        ("asp", "static:1%", 2, 0.1, "linear", 20, 3, "free", 16)]  # fmt: skip


@pytest.mark.parametrize(("control", "value", "field", "hint"), [
    ("scalars/workers", 0, "workers", "from 1 to 1024"),
    ("others/sync", "spp:3", "sync", "did you mean 'ssp'"),
    ("others/prune", "statik:1%", "prune", "did you mean 'static'"),
])  # fmt: skip
def test_wrong_value_is_shown_at_its_control(
    view: Live, tmp_path: Path, control: str, value: Any, field: str, hint: str
):
    kind, name = control.split("/")
    widget = getattr(view.controls, kind)[name]
    widget.value = value
    view.start()
    view.wait()
    assert hint in view.error
    assert f"{field}=" in view.message.value
    assert WRONG in widget._dom_classes
    assert list(tmp_path.glob("runs/*")) == []
    widget.value = {"workers": 2}.get(name, "")
    view.start()
    assert WRONG not in widget._dom_classes
    assert len(view.wait()) == 1
    assert view.error == ""


def test_choosing_nothing_and_wrong_arguments_are_refused(view: Live, tmp_path: Path):
    chip(view, "BSP").value = False
    view.start()
    assert "needs at least one value" in view.message.value
    for wrong, words in (({"optimiser": "sgd", "live": True}, "did you mean 'optimizer'"), ({"live": "yes"}, "live")):
        with pytest.raises(ConfigError, match=words):
            Live(results=tmp_path, **wrong)


def test_runs_of_others_are_shown_and_listed(view: Live, tmp_path: Path):
    draft = foreign(Run(workers=2, sync="ssp:1", pushes=100), tmp_path)
    doing = [{"doing": "waiting", "for": [1], "iteration": 5}, {"doing": "computing", "for": [], "iteration": 3}]
    draft.note({"pushes": 8, "seconds": 1.0, "workers": doing})
    for pushes, accuracy in ((0, 0.1), (5, 0.6)):
        draft.note({"index": 0, "pushes": pushes, "seconds": 0.5, "accuracy": accuracy, "loss": 1.0})
    view.refresh()
    shown = texts(view)
    assert "started elsewhere" in shown
    assert "waits for 1" in shown
    assert "(+2)" in shown
    assert "8 of 100" in shown
    assert "8 %, started elsewhere" in shown, "one look says nothing of a pace"
    draft.note({"pushes": 12, "seconds": 1.5, "workers": doing})
    view.refresh()
    assert re.search("12 %, [0-9]+ pushes/s, [0-9]+ s left", texts(view))
    assert drawn(view) == ["SSP, s\u00a0=\u00a01, dense"]
    draft.drop()
    view.refresh()
    assert "ended without a record" in texts(view)
    view.clear()
    assert drawn(view) == []


def test_own_runs_come_first_and_those_of_others_under_one_line(view: Live, tmp_path: Path):
    point = {"index": 0, "pushes": 5, "seconds": 0.5, "accuracy": 0.6, "loss": 1.0}
    for seed in (41, 42):
        foreign(Run(model="mlp:8", seed=seed, pushes=100), tmp_path).note(point)
    view.refresh()
    assert len(drawn(view)) == 2  # there is nothing else to be seen
    assert view.others_button.layout.display == "none"
    Draft(Run(model="cnn", sync="asp", pushes=100), tmp_path).note(point)  # by another view of this notebook
    view.refresh()
    assert drawn(view) == ["ASP, dense"]
    assert "elsewhere" not in texts(view)
    assert view.others_button.layout.display is None
    assert view.others_button.description == "2 runs started elsewhere, 2 of them under way"
    view.others_button.value = True
    assert [name.partition(",")[0] for name in drawn(view)] == ["ASP", "BSP", "BSP"]
    assert texts(view).count("started elsewhere") == 2


def test_policy_object_has_a_chip(tmp_path: Path):
    class Mine(SSP):
        pass

    view = Live(sync=[Mine(2)], live=True, results=tmp_path, **TINY)
    assert (chip(view, "Mine, staleness\u00a02").value, chip(view, "BSP").value) == (True, False)
    assert view.controls.runs()[0].sync == Mine(2)


def test_names_from_records_are_escaped(view: Live, tmp_path: Path):
    Draft(Run(sync="<i>x</i>", pushes=100), tmp_path).note({"pushes": 8, "seconds": 1.0})
    view.controls.others["sync"].value = "<i>y</i>"
    view.start()
    view.wait()
    assert "&lt;i&gt;x&lt;/i&gt;" in view.table.value.lower()
    assert "<i>" not in texts(view).lower()


# -- its parts -------------------------------------------------------------------------------------


def track(**fields: Any) -> Track:
    run = Run(workers=20, pushes=100)
    return Track(run, run.digest, **fields)


def strips(*tracks: Track) -> Any:
    return live_figure.strips(tracks, Session().names(tracks))


def test_strip_ends_now_and_names_whom_a_worker_waits_for():
    kept = deque([Doing("computing", (), 1)] * 3 + [Doing("waiting", (2, 7), 1)] * 9)
    computing, _, waiting, _ = strips(track(workers=[kept])).data
    assert (list(computing.base), list(computing.x)) == (pytest.approx([-2.4]), pytest.approx([0.6]))
    assert (list(waiting.base), list(waiting.x)) == (pytest.approx([-1.8]), pytest.approx([1.8]))
    assert list(waiting.text) == ["2,7"]
    assert waiting.y[0].replace("\u00a0", " ").startswith("worker 0, iteration 1, waiting 75 %, waits for 2, 7")


def test_what_is_wrong_with_a_run_is_said_in_the_list_and_marked_at_its_curve():
    ended = track(state=FINISHED, manifest={"outcome": "diverged"})
    assert row_of(ended, "BSP", True)["state"] == "diverged"
    points = [Point(0, 0.0, 0.1, 1.0), Point(5, 1.0, 0.5, 1.0)]
    missed, kept = (track(state=FINISHED, points=points, manifest={"emulation_ok": ok, "dilation": 2.0})
                    for ok in (False, True))  # fmt: skip
    assert row_of(missed, "BSP", True)["run"] == "BSP*"
    assert row_of(missed, "BSP", True)["state"] == "finished, emulated 2 times slower"
    assert row_of(kept, "BSP", True)["run"] == "BSP"
    assert "* the machine was too slow" in notes_under([kept, missed])
    assert "too slow" not in notes_under([kept])
    assert live_figure.curves([missed], Session().names([missed])).data[0].name.endswith("*")


# -- without a front end ---------------------------------------------------------------------------


def test_without_a_front_end_runs_are_executed_at_once(tmp_path: Path, capsys: pytest.CaptureFixture):
    view = Live(sync=["bsp", "asp"], live=False, results=tmp_path, **TINY)
    assert [(r.run.sync, r.run.evaluate, r.manifest["disturbed"]) for r in view.results.result] == [
        ("bsp", "after", False), ("asp", "after", False)]  # fmt: skip
    assert isinstance(view.figure, go.Figure)
    assert "[2/2] asp none W=4 seed 0" in capsys.readouterr().err
    assert find(view.results.run[0], tmp_path) is not None


# -- how curves look -------------------------------------------------------------------------------


SYNCS, PRUNES = ("bsp", "ssp:3", "asp", "ssp:1"), ("none", "static:10%", "static:1%", "dgc:1%")


def looks_of(session: Session, runs: list[Run]) -> list[Look]:
    return [named.look for named in session.names([Track(run, run.digest) for run in runs])]


def test_runs_look_as_in_the_other_figures_and_keep_their_looks_whatever_comes_and_goes():
    class Mine:
        pass

    by_sync, by_prune = ([Run(**{field: each}) for each in values] for field, values in (
        ("sync", SYNCS), ("prune", PRUNES)))  # fmt: skip
    assert looks_of(Session(), by_sync) == looks([{"sync": each} for each in SYNCS])
    assert looks_of(Session(), by_prune) == looks([{"prune": each} for each in PRUNES])
    every = [*by_sync, *by_prune[1:], Run(sync=Mine()), Run(seed=1), Run(seed=2)]
    for first in (every[:1], every[:3], every[4:6]):
        session, known = Session(), {}
        for shown in (first, every, every[3:], every[::-1], [], every[:2], every[5:]):
            for run, look in zip(shown, looks_of(session, shown), strict=True):
                assert known.setdefault(run.digest, look) == look


def test_a_policy_keeps_its_colour_when_a_pruning_joins_it():
    for first in permutations(SYNCS[:3], 2):
        session = Session()
        colours = [look.colour for look in looks_of(session, [Run(sync=sync) for sync in first])]
        for sync, colour in zip(first, colours, strict=True):
            pair = [Run(sync=sync, prune=prune) for prune in ("none", "static:1%")]
            assert [look.colour for look in looks_of(session, pair)] == [colour] * 2
