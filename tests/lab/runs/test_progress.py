"""Progress: one bar, a line for each ended run, and the time left of the whole sweep."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import handmade
import pytest

from pslab.config.run import Run
from pslab.lab.records import journal
from pslab.lab.runs import progress
from pslab.lab.runs.progress import Progress, kind_of, taken_before, work

RUN, TEN = Run(pushes=100), Run(pushes=10)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress, "EVALUATION", 0.0)  # the pages below count pushes alone
    return now


def reported(clock: list[float], shown: Progress, *events: tuple[Any, ...]) -> None:
    """The run "a" begins, and is so far at these instants."""
    shown.begin("a")
    for at_s, pushes, *more in events:
        clock[0] = at_s
        shown.update("a", {"pushes": pushes, "seconds": at_s, **(more[0] if more else {})})


def takes(*runs: tuple[dict[str, Any], float]) -> dict[Any, float]:
    """What a push of such runs took."""
    return {kind_of(Run(**fields).plain()): seconds for fields, seconds in runs}


# -- the time left -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("runs", "events", "left_s"), [
    ({"a": TEN, "b": TEN}, [], None), ({"a": TEN, "b": TEN}, [(50.0, 0)], None),  # processes are started
    ({"a": TEN, "b": TEN}, [(50.0, 0), (51.0, 10)], 1.0),
    ({"a": RUN}, [(0.0, 0, {"checkpoint": "goes on after 50"}), (1.0, 50), (2.0, 60)], 4.0),  # ten a second
    ({"a": RUN}, [(0.0, 0), (1.0, 90), (10.0, 0, {"repeated": "slower"}), (20.0, 50), (30.0, 75)], 10.0),
], ids=["before", "starting", "half", "from a checkpoint", "again"])  # fmt: skip
def test_the_time_left_is_at_the_pace_of_the_sweep(clock, runs, events, left_s):
    shown = Progress(runs, shown=False)
    reported(clock, shown, *events)
    assert shown.left_s() == (None if left_s is None else pytest.approx(left_s))


def test_former_runs_say_how_long_it_takes_until_the_sweeps_own_pace_does(clock):
    shown = Progress({"a": RUN, "b": Run(pushes=300)}, taken=takes(({}, 0.5)), shown=False)
    assert shown.left_s() == 200
    reported(clock, shown, (0.0, 0), (100.0, 100))  # twice as slow as expected
    assert 150 < shown.left_s() < 300
    assert shown.left_s() == pytest.approx(150 * (100 + 40) / (50 + 40))
    shown.update("b", {"pushes": 300, "seconds": 1.0})
    assert shown.left_s() == 0


SLOW = {"preset": "lab", "slow": {0: 4.0}}


@pytest.mark.parametrize(("taken", "wanted"), [
    ([({"engine": "virtual"}, 0.01), ({}, 0.1), ({"model": "cnn"}, 1.0)],
     [({"engine": "virtual"}, 0.5), ({"engine": "virtual", "batch_size": 32}, 0.5),  # two at a time
      ({"model": "cnn", "batch_size": 8}, 100.0), ({"engine": "timing"}, 10.0)]),
    ([({"cluster": "lab"}, 0.1), ({"cluster": "lab", "sync": "asp"}, 0.05), ({"cluster": SLOW}, 1.0),
      ({"cluster": SLOW, "workers": 8}, 0.5)],
     [({"cluster": "lab", "sync": "asp"}, 5.0), ({"cluster": SLOW, "sync": "asp"}, 100.0),
      ({"cluster": SLOW, "workers": 8, "prune": "std:2"}, 50.0)]),
], ids=["engine and model", "the cluster first, the policy last"])  # fmt: skip
def test_a_push_takes_as_long_as_those_of_the_most_alike_runs(taken, wanted):
    runs = {str(number): Run(pushes=100, **fields) for number, (fields, _) in enumerate(wanted)}
    assert [*work(runs, takes(*taken), at_once=2).values()] == [seconds for _, seconds in wanted]


@pytest.mark.parametrize("facts", [
    {"pushes": 0}, {"pushes": 0, "wall_s": None},  # of an average whose only round is not complete
    {"wall_s": float("nan")}, {"wall_s": -1.0}, {"wall_s": float("inf")}, {"seconds": "1", "wall_s": None},
    {"pushes": [2]}, {"pushes": 1e-300, "wall_s": 1e300}, {"run": None}, {"run": 3}, {"run": {"model": 1}},
], ids=str)  # fmt: skip
def test_nothing_in_another_record_keeps_a_sweep_from_starting(tmp_path: Path, facts: dict[str, Any]):
    (record := tmp_path / "runs" / "0123").mkdir(parents=True)
    usual = {"run": RUN.plain(), "seconds": 1.0, "wall_s": 1.0, "pushes": 2, "outcome": "budget", **facts}
    manifest = {name: value for name, value in usual.items() if value is not None}
    (record / "manifest.json").write_text(json.dumps(manifest))
    shown = Progress({"a": RUN}, taken=taken_before(tmp_path), shown=True, stream=io.StringIO())
    assert shown.left_s() is None


def test_records_say_what_a_push_took(tmp_path: Path):
    for seed, wall_s in enumerate((4.0, 8.0, 12.0)):
        handmade.curve(tmp_path, Run(pushes=8, seed=seed), [0.1, 0.5], wall_s=wall_s)
    handmade.curve(tmp_path, Run(pushes=8, cluster="lab"), [0.1, 0.5, 0.6])  # an older record
    assert taken_before(tmp_path) == takes(({}, 1.0), ({"cluster": "lab"}, 0.25))


# -- what is shown -----------------------------------------------------------------------------------


@pytest.mark.parametrize("notebook", [False, True])
def test_one_bar_is_shown_and_a_line_for_each_ended_run_but_in_a_notebook_for_what_went_wrong(
    notebook: bool, clock, monkeypatch, capsys
):
    monkeypatch.setattr(progress, "has_front_end", lambda: notebook)
    terminal = Terminal()
    with Progress(dict.fromkeys("abc", RUN.but(sync="ssp:3")), stream=None if notebook else terminal) as shown:
        reported(clock, shown, (0.5, 5), (2.0, 20))
        shown.end("a", 0.975, "5.19 s of cluster time; took 164 s here")
        shown.fail("b", ValueError("of one's own"))
    out, err = capsys.readouterr()
    assert err == ""
    drawn = [part.strip() for part in re.split("[\n\r]", out + terminal.getvalue()) if part.strip()]
    ended = "[1/3] ssp:3 none W=4 seed 0: 97.50% after 5.19 s of cluster time; took 164 s here"
    assert (ended in drawn) == (not notebook)
    assert "[2/3] ssp:3 none W=4 seed 0: failed: ValueError: of one's own" in drawn
    assert re.match(r"67%\|#+3 +\| \[2/3\] ssp:3 none W=4 seed 0: ended|67%\|█+", drawn[-1])


def test_where_the_batch_reads_a_journal_nothing_is_shown(clock, tmp_path, monkeypatch):
    monkeypatch.setenv(journal.JOURNAL, str(tmp_path / "journal"))
    stream = Terminal()
    with Progress({"a": TEN, "b": TEN}, taken=takes(({}, 1.0)), stream=stream) as shown:
        reported(clock, shown, *((tenth / 10, 5 if tenth else 0) for tenth in range(30)))
        shown.end("a", 0.1, "3 s")
    notes = [entry["progress"] for entry in journal.entries(tmp_path / "journal")]
    assert (stream.getvalue(), [note["done"] for note in notes], notes[0]["left_s"]) == ("", [0, 0, 0, 1], 20.0)
