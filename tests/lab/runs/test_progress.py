"""Progress: one bar, a line for each ended run, and the time left of the whole sweep."""

from __future__ import annotations

import io
import json
import math
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


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda each: st.lists(each, max_size=2) | st.dictionaries(st.text(max_size=4), each, max_size=2),
)
FACTS = ("digest", "run", "seconds", "wall_s", "pushes", "verdict", "outcome", "emulation_ok", "environment", "sha256")


@settings(max_examples=30, deadline=None)
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


def test_records_say_what_a_push_took(tmp_path: Path):
    for seed, wall_s in enumerate((4.0, 8.0, 12.0)):
        handmade.curve(tmp_path, Run(pushes=8, seed=seed), [0.1, 0.5], wall_s=wall_s)
    handmade.curve(tmp_path, Run(pushes=8, engine="virtual", cluster="lab"), [0.1, 0.5, 0.6])  # an older record
    assert taken_before(tmp_path) == takes(({}, 1.0), ({"engine": "virtual", "cluster": "lab"}, 0.25))


# -- what is shown -----------------------------------------------------------------------------------


def test_a_terminal_sees_one_bar_with_the_time_left_and_a_line_for_each_ended_run(clock):
    stream = Terminal()
    with Progress(dict.fromkeys("abc", RUN.but(sync="ssp:3", prune="std:2")), stream=stream) as shown:
        reported(clock, shown, (0.5, 5), (2.0, 20))
        shown.end("a", 0.975, "5.19 s of cluster time; took 164 s here")
        shown.fail("b", ValueError("of one's own"))
    drawn = [part.strip() for line in stream.getvalue().splitlines() for part in line.split("\r") if part.strip()]
    assert "[1/3] ssp:3 std:2 W=4 seed 0: 97.50% after 5.19 s of cluster time; took 164 s here" in drawn
    assert "[2/3] ssp:3 std:2 W=4 seed 0: failed: ValueError: of one's own" in drawn
    assert drawn[-1].startswith("67%|#############3      | [2/3] ssp:3 std:2 W=4 seed 0: ended")


def test_a_notebook_has_one_bar_and_what_went_wrong(clock, monkeypatch, capsys):
    monkeypatch.setattr(progress, "has_front_end", lambda: True)
    with Progress(dict.fromkeys("abc", RUN), taken=takes(({}, 0.1))) as shown:
        for name in "ab":
            shown.begin(name)
            shown.update(name, {"pushes": 20, "seconds": 1.0})
            shown.end(name, 0.9, "1 s")
        shown.fail("c", ValueError("of one's own"))
    out, err = capsys.readouterr()
    assert err == ""
    assert out.replace("\r", "\n").count("after 1 s") == 0
    assert "[3/3] bsp none W=4 seed 0: failed: ValueError: of one's own" in out
    assert "100%|" in out


def test_where_the_batch_reads_a_journal_nothing_is_shown(clock, tmp_path, monkeypatch):
    monkeypatch.setenv(journal.JOURNAL, str(tmp_path / "journal"))
    stream = Terminal()
    with Progress({"a": TEN, "b": TEN}, taken=takes(({}, 1.0)), stream=stream) as shown:
        reported(clock, shown, *((tenth / 10, 5 if tenth else 0) for tenth in range(30)))
        shown.end("a", 0.1, "3 s")
    notes = [entry["progress"] for entry in journal.entries(tmp_path / "journal")]
    assert (stream.getvalue(), [note["done"] for note in notes], notes[0]["left_s"]) == ("", [0, 0, 0, 1], 20.0)
