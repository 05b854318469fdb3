"""Progress: one line that rewrites itself on a terminal, few lines elsewhere; the time left of the whole sweep."""

from __future__ import annotations

import io
import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import handmade
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

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
    ({"a": RUN}, [(0.0, 0), (1.0, 90), (10.0, 0, {"repeated": "slower"}), (20.0, 50)], 20.0),
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


def test_while_snapshots_are_evaluated_it_counts_them_and_knows_their_time(clock, monkeypatch):
    monkeypatch.setattr(progress, "EVALUATION", 0.2)
    stream = Terminal()
    shown = Progress({"a": RUN, "b": RUN}, stream=stream)
    reported(clock, shown, (0.0, 0), (8.0, 100))
    assert shown.left_s() == pytest.approx(2.0 + 10.0)  # as evaluating takes a fifth
    for seconds, count in ((8.0, 0), (12.0, 4), (16.0, 8)):
        clock[0] = seconds
        shown.update("a", {"pushes": 44, "seconds": 3.0, "accuracy": 0.5, "evaluating": [count, 16]})
        clock[0] += 0.01
        shown.update("a", {"pushes": 100, "seconds": 8.0})  # what comes late is no step back
    lines = [line for line in stream.getvalue().split("\r") if "evaluating" in line]
    assert [line.partition("evaluating ")[2].partition(";")[0] for line in lines] == ["4 of 16", "8 of 16"]
    assert shown.left_s() == pytest.approx(8.0 + 24.0, rel=0.01)  # in truth it takes two thirds, of the next one, too
    shown.end("a", 0.9, "5 s")
    shown.begin("b")
    assert shown.left_s() == pytest.approx(16.0, rel=0.01)


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


def test_records_say_what_a_push_took(tmp_path: Path):
    for seed, wall_s in enumerate((4.0, 8.0, 12.0)):
        handmade.curve(tmp_path, Run(pushes=8, seed=seed), [0.1, 0.5], wall_s=wall_s)
    handmade.curve(tmp_path, Run(pushes=8, engine="virtual", cluster="lab"), [0.1, 0.5, 0.6])  # an older record
    (tmp_path / "runs" / "0123").mkdir()
    (tmp_path / "runs" / "0123" / "manifest.json").write_text("{")
    assert taken_before(tmp_path) == takes(({}, 1.0), ({"engine": "virtual", "cluster": "lab"}, 0.25))


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
                    lambda each: st.lists(each, max_size=2) | st.dictionaries(st.text(max_size=4), each, max_size=2))
FACTS = ("digest", "run", "seconds", "wall_s", "pushes", "verdict", "outcome", "emulation_ok", "environment", "sha256")


@settings(max_examples=100, deadline=None)
@given(facts=st.dictionaries(st.sampled_from(FACTS), JSON, max_size=3), lacks=st.sampled_from(["", *FACTS]))
@example(facts={"pushes": 0}, lacks="")  # of an average whose only round is not complete
@example(facts={"pushes": 0}, lacks="wall_s")
@example(facts={"wall_s": float("nan")}, lacks="")
@example(facts={"wall_s": -1.0}, lacks="")
def test_nothing_in_another_record_keeps_a_sweep_from_starting(tmp_path_factory, facts, lacks):
    place = tmp_path_factory.mktemp("results") / "runs" / "0123"
    place.mkdir(parents=True)
    usual = {"run": RUN.plain(), "seconds": 1.0, "wall_s": 1.0, "pushes": 2, "outcome": "budget"}
    manifest = {name: value for name, value in {**usual, **facts}.items() if name != lacks}
    (place / "manifest.json").write_text(json.dumps(manifest))
    shown = Progress({"a": RUN}, taken=taken_before(place.parents[1]), shown=True, stream=io.StringIO())
    assert shown.left_s() is None or 0 < shown.left_s() < math.inf


# -- what is shown -----------------------------------------------------------------------------------


def test_a_terminal_sees_rate_and_time_left_of_the_sweep_in_one_line(clock):
    stream = Terminal()
    shown = Progress(dict.fromkeys("abc", RUN.but(sync="ssp:3", prune="std:2")), stream=stream)
    reported(clock, shown, (0.5, 5), (2.0, 20))
    line = "\r[1/3] ssp:3 std:2 W=4 seed 0: 20/100 pushes, 10/s; about 28 s left"
    first, *later = stream.getvalue()[1:].split("\r")
    assert first == "[1/3] ssp:3 std:2 W=4 seed 0: starts its processes"
    assert [each.rstrip() for each in later] == ["[1/3] ssp:3 std:2 W=4 seed 0: 5/100 pushes", line[1:]]
    shown.end("a", 0.975, "5.19 s of cluster time; took 164 s here")
    assert stream.getvalue().splitlines()[-1].split("\r")[-1].rstrip() == (
        "[1/3] ssp:3 std:2 W=4 seed 0: 97.50% after 5.19 s of cluster time; took 164 s here; about 3 s left")


def test_a_notebook_has_one_line_that_is_nothing_wrong(clock, monkeypatch, capsys):
    monkeypatch.setattr(progress, "has_front_end", lambda: True)
    shown = Progress(dict.fromkeys("abc", RUN), taken=takes(({}, 0.1)))
    for name in "ab":
        shown.begin(name)
        for _ in range(3):
            clock[0] += 1.0
            shown.update(name, {"pushes": 20, "seconds": 1.0})
        shown.end(name, 0.9, "1 s")
    shown.fail("c", ValueError("of one's own"))
    out, err = capsys.readouterr()
    assert err == ""
    assert out.count("\n") == 1  # what went wrong stays
    assert out.rpartition("\r")[2].rstrip() == "[3/3] bsp none W=4 seed 0: failed: ValueError: of one's own"
    assert all(len(new) >= len(old.rstrip()) for old, new in pairwise(out.split("\r")))  # nothing of it is left


def test_elsewhere_there_are_few_lines_and_no_carriage_returns(clock):
    stream = io.StringIO()
    shown = Progress({"a": Run(pushes=None, seconds=60.0)}, stream=stream)
    reported(clock, shown, *((float(second), second) for second in range(1, 31)))
    shown.update("a", {"pushes": 0, "seconds": 0.0, "repeated": "once again, slower"})
    shown.end("a", 0.5, "30 s")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 6
    assert lines[0] == "[run] bsp none W=4 seed 0: starts its processes"
    assert lines[1] == "[run] bsp none W=4 seed 0: 10 pushes, 1/s; about 50 s left"
    assert lines[4] == "[run] bsp none W=4 seed 0: once again, slower"
    assert "\r" not in stream.getvalue()


def test_news_of_an_evaluation_which_have_its_snapshots_pushes_are_no_step_back(clock):
    stream = Terminal()
    shown = Progress({"a": RUN}, stream=stream)
    reported(clock, shown, (1.0, 10), (2.0, 20), (3.0, 8, {"accuracy": 0.5, "loss": 1.0}), (4.0, 40))
    far = [line.rpartition("0: ")[2].partition(" pushes")[0] for line in stream.getvalue().split("\r")[2:]]
    assert far == ["10/100", "20/100", "20/100", "40/100"]
    shown.update("a", {"pushes": 0, "seconds": 0.0, "repeated": "once again, slower"})
    clock[0] = 5.0
    shown.update("a", {"pushes": 4, "seconds": 0.1})
    assert "4/100 pushes" in stream.getvalue().split("\r")[-1]


def test_before_a_sweep_begins_it_says_how_long_such_runs_took(clock):
    stream = io.StringIO()
    for runs in ({"a": RUN, "b": Run(pushes=300)}, {"a": RUN}, {"a": RUN.but(model="cnn")}):
        Progress(runs, taken=takes(({}, 0.5)), stream=stream)
    assert stream.getvalue().splitlines() == ["2 runs: about 3 min, as such runs took before",
                                              "[run] bsp none W=4 seed 0: about 50 s, as such runs took before",
                                              "[run] bsp none W=4 seed 0: about 50 s, by what other runs took"]


@pytest.mark.parametrize("batch", [False, True], ids=["not wanted", "by the batch"])
def test_nothing_is_shown_if_it_is_not_wanted_or_the_batch_reads_a_journal(clock, tmp_path, monkeypatch, batch):
    if batch:
        monkeypatch.setenv(journal.JOURNAL, str(tmp_path / "journal"))
    stream = Terminal()
    shown = Progress({"a": TEN, "b": TEN}, taken=takes(({}, 1.0)), shown=None if batch else False, stream=stream)
    reported(clock, shown, *((tenth / 10, 5 if tenth else 0) for tenth in range(30)))
    shown.end("a", 0.1, "3 s")
    notes = [entry["progress"] for entry in journal.entries(tmp_path / "journal")]
    assert stream.getvalue() == ""
    assert [note["done"] for note in notes] == ([0, 0, 0, 1] if batch else [])
    assert [note["left_s"] for note in notes[:1]] == [20.0][:batch]


def test_half_a_line_of_a_journal_is_no_entry(tmp_path: Path):
    path = tmp_path / "journal"
    path.write_text(json.dumps({"read": ["a"]}) + "\n" + json.dumps({"read": ["b", "a"]}) + "\n" + '{"figu')
    assert journal.collected(journal.entries(path), "read") == ["a", "b"]
    assert journal.entries(tmp_path / "none") == []
