"""The live view without a browser: the drafts that it reads, what its widgets show and start, and its figures."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
import weakref
from collections import deque
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import handmade
import numpy as np
import plotly.graph_objects as go
import pytest
from tiny import digits, net

from pslab.config.run import Run
from pslab.config.table import ROWS
from pslab.errors import ConfigError
from pslab.lab.live import figure as live_figure
from pslab.lab.live.controls import WRONG
from pslab.lab.live.figure import DARK_PAGE, LIGHT_PAGE, Session
from pslab.lab.live.state import FINISHED, INTERRUPTED, LOST, SILENT, SILENT_S, UNDER_WAY, Doing, Point, Track, Watcher
from pslab.lab.live.view import Live, follow, notes_under, row_of
from pslab.lab.plots.theme import Look, looks
from pslab.lab.records.drafts import LIVE, Draft
from pslab.lab.records.record import TABLES, find
from pslab.lab.runs.background import current
from pslab.policies.sync.ssp import SSP

TINY: dict[str, Any] = {"model": net, "data": digits, "batch_size": 16, "pushes": 40, "learning_rate": 0.2,
                        "cluster": "free"}  # fmt: skip
RUN = Run(workers=2, pushes=100)
POINT = {"index": 0, "pushes": 5, "seconds": 0.5, "accuracy": 0.6, "loss": 1.0}
DOING = [{"doing": "waiting", "for": [1], "iteration": 5}, {"doing": "computing", "for": [], "iteration": 3}]
BUSY = {"pushes": 8, "seconds": 1.0, "workers": DOING}
MADE = handmade.bsp()
GIVEN = {name: getattr(MADE, name) for name in TABLES}, np.zeros(3), {"pushes": 4, "seconds": 5.0, "outcome": "budget"}


def noted(run: Run, results: Path, *news: dict[str, Any], here: bool = True) -> Draft:
    """A run under way that this process writes, or another one."""
    draft = Draft(run, results)
    if not here:
        draft.path = draft.path.rename(draft.path.with_name(draft.path.name.replace(f".{os.getpid()}.", ".1.")))
    for line in news:
        draft.note(line)
    return draft


# -- what it reads ---------------------------------------------------------------------------------


def test_a_run_of_another_process_is_seen_followed_and_begun_again(tmp_path: Path):
    watcher = Watcher(tmp_path)
    assert not watcher.poll()
    draft = noted(RUN, tmp_path, BUSY)
    assert watcher.poll()
    (track,) = watcher.under_way
    assert (track.run, track.digest, track.state, track.pushes) == (RUN, RUN.digest, UNDER_WAY, 8)
    assert [kept[-1] for kept in track.workers] == [Doing("waiting", (1,), 5), Doing("computing", (), 3)]
    assert not watcher.poll()
    for pushes in (20, 10):  # evaluated later, taken sooner
        draft.note({**POINT, "pushes": pushes})
    for half, pushes in (('{"pushes": 50, ', 20), ('"seconds": 2.5}\n', 50)):  # no half line is read
        with (draft.path / LIVE).open("a") as file:
            file.write(half)
        assert watcher.poll()
        assert ([p.pushes for p in track.points], track.pushes) == ([10, 20], pushes)
    draft.note({"pushes": 0, "seconds": 0.0, "repeated": "the machine did not keep the pace: once again, slower"})
    watcher.poll()
    assert (track.pushes, track.seconds, track.points, track.again) == (0, 0.0, [], "once again, slower")


@pytest.mark.parametrize("run", [RUN, RUN.but(pushes=None, seconds=5.0)])
def test_rate_and_time_left_are_by_this_machines_clock_and_not_by_the_clusters(run: Run):
    """40 % after 2 s of cluster time; the next 20 % take 30 s here."""
    track = Track(run, run.digest, pushes=40, seconds=2.0)
    assert track.pace(100.0) is None, "one look says nothing of a pace"
    track.seen = 100.0, track.fraction, track.pushes
    track.take({"pushes": 60, "seconds": 3.0})
    assert track.pace(130.0) == pytest.approx((20 / 30, 60.0))


@pytest.mark.parametrize(("end", "state", "points"), [
    (Draft.save, FINISHED, [0]), (Draft.set_aside, INTERRUPTED, [0]), (Draft.drop, LOST, [5])])  # fmt: skip
def test_an_ended_runs_record_takes_the_drafts_place_and_not_what_an_earlier_run_left(tmp_path, end, state, points):
    watcher, old = Watcher(tmp_path), Draft(RUN, tmp_path).set_aside(*GIVEN)
    os.utime(old.path / "manifest.json", (1e9, 1e9))
    draft = noted(RUN, tmp_path, POINT)
    watcher.poll()
    made = end(draft, *(GIVEN if state != LOST else ()))
    assert watcher.poll()
    track = watcher.tracks[RUN.digest]
    assert (track.state, [p.pushes for p in track.points], track.path) == (state, points, made and made.path)
    assert not watcher.poll()


def test_finished_runs_are_shown_when_they_are_chosen_and_drafts_of_the_dead_are_not(tmp_path: Path):
    watcher, dead = Watcher(tmp_path), Draft(RUN.but(seed=2), tmp_path)
    Draft(RUN, tmp_path).save(*GIVEN)
    os.utime(dead.path / LIVE, (time.time() - 2 * SILENT_S,) * 2)
    watcher.poll()
    assert watcher.tracks == {}
    watcher.show([RUN, RUN.but(seed=1)])
    assert [track.state for track in watcher.tracks.values()] == [FINISHED]


def test_a_run_that_falls_silent_is_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    watcher, strange, draft = Watcher(tmp_path), Draft(RUN.but(seed=1), tmp_path), Draft(RUN, tmp_path)
    (strange.path / LIVE).write_text('{"digest": "0", "run": {"colour": "red"}}\n')  # which is left alone
    watcher.poll()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + SILENT_S + 1)
    assert watcher.poll()
    assert [track.state for track in watcher.tracks.values()] == [SILENT]
    draft.note(BUSY)
    watcher.poll()
    assert watcher.tracks[RUN.digest].state == UNDER_WAY


# -- a view ----------------------------------------------------------------------------------------


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


def texts(view: Live) -> str:
    shown = [text for trace in view.strips.data for text in (*(trace.y or ()), *(trace.text or ()))]
    return "\n".join([view.message.value, view.table.value, *shown]).replace("\u00a0", " ")


def chip(view: Live, label: str) -> Any:
    return next(each for chips in view.controls.chips.values() for each, _ in chips if each.description == label)


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
    noted(RUN, tmp_path, BUSY, POINT)
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
        noted(RUN, tmp_path, BUSY)
        await asyncio.sleep(0)
        assert "8 of 100" not in texts(view)
        view.page.shown = True
        assert "8 of 100" in texts(view)
        following.cancel()

    asyncio.run(watch())


def test_a_view_survives_whatever_cannot_be_drawn_and_says_it(view: Live, tmp_path: Path):
    draft = noted(RUN, tmp_path, {**POINT, "accuracy": "none\nat all"})
    view.refresh()
    view.refresh()
    assert "cannot be drawn: ValueError: " in texts(view)
    draft.drop()
    view.refresh()
    view.clear()
    noted(RUN, tmp_path, POINT)
    view.refresh()
    assert "cannot be drawn" not in texts(view)
    assert drawn(view) == ["BSP, dense"]


def test_controls_make_the_next_runs(view: Live):
    chip(view, "BSP").value = False
    chip(view, "static 1\u00a0%").value = True
    view.controls.others["sync"].value = "ssp:2 asp"
    given = {"workers": 2, "learning_rate": 0.1, "schedule": "linear", "pushes": 20, "seed": 3}
    for name, value in given.items():
        view.controls.scalars[name].value = value
    runs = view.controls.runs()
    assert [(run.prune, run.sync) for run in runs] == [
        ("none", "ssp:2"), ("none", "asp"), ("static:1%", "ssp:2"), ("static:1%", "asp")]  # fmt: skip
    for name, value in {**given, "cluster": "free", "batch_size": 16}.items():
        assert [getattr(run, name) for run in runs] == [value] * 4


@pytest.mark.parametrize(("kind", "name", "value", "hint"), [
    ("scalars", "workers", 0, "from 1 to 1024"), ("others", "sync", "spp:3", "did you mean 'ssp'"),
    ("others", "prune", "statik:1%", "did you mean 'static'"),
])  # fmt: skip
def test_wrong_value_is_shown_at_its_control(view: Live, tmp_path: Path, kind: str, name: str, value: Any, hint: str):
    widget = getattr(view.controls, kind)[name]
    widget.value = value
    view.start()
    view.wait()
    assert hint in view.error
    assert f"{name}=" in view.message.value
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
    points = {**POINT, "pushes": 0, "accuracy": 0.1}, POINT
    draft = noted(Run(workers=2, sync="ssp:1", pushes=100), tmp_path, BUSY, *points, here=False)
    view.refresh()
    shown = texts(view)
    assert all(words in shown for words in ("started elsewhere", "waits for 1", "(+2)", "8 of 100"))
    assert "8 %, started elsewhere" in shown, "one look says nothing of a pace"
    draft.note({**BUSY, "pushes": 12, "seconds": 1.5})
    view.refresh()
    assert re.search("12 %, [0-9]+ pushes/s, [0-9]+ s left", texts(view))
    assert drawn(view) == ["SSP, s\u00a0=\u00a01, dense"]
    draft.drop()
    view.refresh()
    assert "ended without a record" in texts(view)
    view.clear()
    assert drawn(view) == []


def test_own_runs_come_first_and_those_of_others_under_one_line(view: Live, tmp_path: Path):
    for seed in (41, 42):
        noted(Run(model="mlp:8", seed=seed, pushes=100), tmp_path, POINT, here=False)
    view.refresh()
    assert len(drawn(view)) == 2  # there is nothing else to be seen
    assert view.others_button.layout.display == "none"
    noted(Run(model="cnn", sync="asp", pushes=100), tmp_path, POINT)  # by another view of this notebook
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
    noted(Run(sync="<i>x</i>", pushes=100), tmp_path, BUSY)
    view.controls.others["sync"].value = "<i>y</i>"
    view.start()
    view.wait()
    assert "&lt;i&gt;x&lt;/i&gt;" in view.table.value.lower()
    assert "<i>" not in texts(view).lower()


# -- its parts -------------------------------------------------------------------------------------


def track(**fields: Any) -> Track:
    return Track(Run(workers=20, pushes=100), "0", **fields)


def test_strip_ends_now_and_names_whom_a_worker_waits_for():
    shown = [track(workers=[deque([Doing("computing", (), 1)] * 3 + [Doing("waiting", (2, 7), 1)] * 9)])]
    computing, _, waiting, _ = live_figure.strips(shown, Session().names(shown)).data
    assert (list(computing.base), list(computing.x)) == (pytest.approx([-2.4]), pytest.approx([0.6]))
    assert (list(waiting.base), list(waiting.x)) == (pytest.approx([-1.8]), pytest.approx([1.8]))
    assert list(waiting.text) == ["2,7"]
    assert waiting.y[0].replace("\u00a0", " ").startswith("worker 0, iteration 1, waiting 75 %, waits for 2, 7")


def test_what_is_wrong_with_a_run_is_said_in_the_list_and_marked_at_its_curve():
    points = [Point(0, 0.0, 0.1, 1.0), Point(5, 1.0, 0.5, 1.0)]
    ended, missed, kept = (track(state=FINISHED, points=points, manifest={"dilation": 2.0, **facts}) for facts in (
        {"outcome": "diverged"}, {"emulation_ok": False}, {"emulation_ok": True}))  # fmt: skip
    slower = ", emulated 2 times slower"
    assert [[row_of(each, "BSP", True)[name] for name in ("run", "state")] for each in (ended, missed, kept)] == [
        ["BSP", f"diverged{slower}"], ["BSP*", f"finished{slower}"], ["BSP", f"finished{slower}"]]  # fmt: skip
    assert "* the machine was too slow" in notes_under([kept, missed])
    assert "too slow" not in notes_under([kept])
    assert live_figure.curves([missed], Session().names([missed])).data[0].name.endswith("*")


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
