"""Progress: one line that rewrites itself on a terminal, few lines elsewhere; the time left of the whole sweep."""

from __future__ import annotations

import io
import json
from itertools import pairwise
from pathlib import Path

import handmade
import pytest

from pslab.config.run import Run
from pslab.lab.records import journal
from pslab.lab.runs import progress
from pslab.lab.runs.progress import Progress, kind_of, taken_before, work


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress, "EVALUATION", 0.0)  # the pages below count pushes alone
    return now


def test_a_terminal_sees_rate_and_time_left_of_the_sweep_in_one_line(clock):
    stream = Terminal()
    run = Run(pushes=100, sync="ssp:3", prune="std:2")
    shown = Progress(dict.fromkeys("abc", run), stream=stream)
    shown.begin("a")
    clock[0] = 0.5
    shown.update("a", {"pushes": 5, "seconds": 0.5})
    clock[0] = 2.0
    shown.update("a", {"pushes": 20, "seconds": 40.0})  # of the cluster's own
    line = "\r[1/3] ssp:3 std:2 W=4 seed 0: 20/100 pushes, 10/s; about 28 s left"
    assert stream.getvalue() == "\r[1/3] ssp:3 std:2 W=4 seed 0: 5/100 pushes" + line
    shown.end("a", 0.975)
    assert stream.getvalue().splitlines()[-1].split("\r")[-1].rstrip() == (
        "[1/3] ssp:3 std:2 W=4 seed 0: 97.50% after 2.0 s; about 3 s left")


def test_a_run_that_begins_again_says_so_and_counts_from_nothing(clock):
    stream = io.StringIO()
    shown = Progress({"a": Run(pushes=100)}, stream=stream)
    shown.begin("a")
    shown.update("a", {"pushes": 90, "seconds": 1.0})
    shown.update("a", {"pushes": 0, "seconds": 0.0, "repeated": "once again, slower"})
    assert "seed 0: once again, slower\n" in stream.getvalue()
    assert shown._shares["a"] == 0.0


def test_what_a_checkpoint_has_is_not_counted_as_done_now(clock):
    shown = Progress({"a": Run(pushes=100)}, stream=io.StringIO())
    shown.begin("a")
    shown.update("a", {"pushes": 0, "seconds": 0.0, "checkpoint": "goes on after 50 pushes"})
    clock[0] = 1.0
    shown.update("a", {"pushes": 50, "seconds": 5.0})
    clock[0] = 2.0
    shown.update("a", {"pushes": 60, "seconds": 6.0})
    assert shown.left_s() == pytest.approx(4.0)  # ten a second


def test_while_snapshots_are_evaluated_it_counts_them_and_knows_their_time(clock, monkeypatch):
    monkeypatch.setattr(progress, "EVALUATION", 0.2)
    stream = Terminal()
    shown = Progress({"a": Run(pushes=100), "b": Run(pushes=100)}, stream=stream)
    shown.begin("a")
    shown.update("a", {"pushes": 0, "seconds": 0.0})
    clock[0] = 8.0
    shown.update("a", {"pushes": 100, "seconds": 8.0})
    assert shown.left_s() == pytest.approx(2.0 + 10.0)  # as evaluating takes a fifth
    for seconds, count in ((8.0, 0), (12.0, 4), (16.0, 8)):
        clock[0] = seconds
        shown.update("a", {"pushes": 44, "seconds": 3.0, "accuracy": 0.5, "evaluating": [count, 16]})
        clock[0] += 0.01
        shown.update("a", {"pushes": 100, "seconds": 8.0})  # what comes late is no step back
    lines = [line for line in stream.getvalue().split("\r") if "evaluating" in line]
    assert [line.partition("evaluating ")[2].partition(";")[0] for line in lines] == ["4 of 16", "8 of 16"]
    assert shown.left_s() == pytest.approx(8.0 + 24.0, rel=0.01)  # in truth it takes two thirds, of the next one, too
    shown.end("a", 0.9)
    shown.begin("b")
    assert shown.left_s() == pytest.approx(16.0, rel=0.01)


def test_a_notebook_has_one_line_that_is_nothing_wrong(clock, monkeypatch, capsys):
    monkeypatch.setattr(progress, "has_front_end", lambda: True)
    shown = Progress(dict.fromkeys("abc", Run(pushes=100)), taken={kind_of(Run().plain()): 0.1})
    for name in "ab":
        shown.begin(name)
        for _ in range(3):
            clock[0] += 1.0
            shown.update(name, {"pushes": 20, "seconds": 1.0})
        shown.end(name, 0.9)
    shown.fail("c", ValueError("of one's own"))
    out, err = capsys.readouterr()
    assert err == ""
    assert out.count("\n") == 1  # what went wrong stays
    assert out.rpartition("\r")[2].rstrip() == "[3/3] bsp none W=4 seed 0: failed: ValueError: of one's own"
    assert all(len(new) >= len(old.rstrip()) for old, new in pairwise(out.split("\r")))  # nothing of it is left


def test_elsewhere_there_are_few_lines_and_no_carriage_returns(clock):
    stream = io.StringIO()
    shown = Progress({"a": Run(pushes=None, seconds=60.0)}, stream=stream)
    shown.begin("a")
    for second in range(1, 31):
        clock[0] = float(second)
        shown.update("a", {"pushes": second, "seconds": float(second)})
    shown.end("a", 0.5)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 4
    assert lines[0] == "[run] bsp none W=4 seed 0: 10 pushes, 1/s; about 50 s left"
    assert "\r" not in stream.getvalue()


def test_former_runs_say_how_long_it_takes_until_the_sweeps_own_pace_does(clock):
    runs = {"a": Run(pushes=100), "b": Run(pushes=300)}
    shown = Progress(runs, taken={kind_of(runs["a"].plain()): 0.5}, shown=False)
    shown.begin("a")
    assert shown.left_s() == 200
    shown.update("a", {"pushes": 0, "seconds": 0.0})
    clock[0] = 100.0  # twice as slow as expected
    shown.update("a", {"pushes": 100, "seconds": 100.0})
    assert 150 < shown.left_s() < 300
    assert shown.left_s() == pytest.approx(150 * (100 + 40) / (50 + 40))
    shown.update("b", {"pushes": 300, "seconds": 1.0})
    assert shown.left_s() == 0


def test_starting_processes_is_no_part_of_the_pace(clock):
    shown = Progress({"a": Run(pushes=10), "b": Run(pushes=10)}, shown=False)
    assert shown.left_s() is None
    shown.begin("a")
    clock[0] = 50.0
    shown.update("a", {"pushes": 0, "seconds": 0.0})
    assert shown.left_s() is None
    clock[0] = 51.0
    shown.update("a", {"pushes": 10, "seconds": 1.0})
    assert shown.left_s() == pytest.approx(1.0)


def test_virtual_runs_go_several_at_a_time_and_unknown_kinds_count_as_the_most_alike():
    taken = {kind_of(run.plain()): seconds for run, seconds in (
        (Run(engine="virtual"), 0.01), (Run(), 0.1), (Run(model="cnn"), 1.0))}  # fmt: skip
    runs = {"v": Run(engine="virtual", pushes=100), "w": Run(engine="virtual", pushes=100, batch_size=32),
            "l": Run(pushes=100, model="cnn", batch_size=8), "t": Run(engine="timing", pushes=100)}  # fmt: skip
    assert work(runs, taken, at_once=2) == {"v": 0.5, "w": 0.5, "l": 100.0, "t": 10.0}


def test_records_say_what_a_push_took(tmp_path: Path):
    for seed, wall_s in enumerate((4.0, 8.0, 12.0)):
        handmade.curve(tmp_path, Run(pushes=8, seed=seed), [0.1, 0.5], wall_s=wall_s)
    handmade.curve(tmp_path, Run(pushes=8, engine="virtual"), [0.1, 0.5, 0.6])  # an older record
    (tmp_path / "runs" / "0123").mkdir()
    (tmp_path / "runs" / "0123" / "manifest.json").write_text("{")
    local, virtual = (kind_of(Run(engine=engine).plain()) for engine in ("local", "virtual"))
    assert taken_before(tmp_path) == {local: 1.0, virtual: 0.25}


def test_what_a_push_takes_depends_on_the_cluster_first_and_on_the_policy_last():
    slow = {"preset": "lab", "slow": {0: 4.0}}
    taken = {kind_of(Run(**fields).plain()): seconds for fields, seconds in (
        ({"cluster": "lab"}, 0.1), ({"cluster": "lab", "sync": "asp"}, 0.05), ({"cluster": slow}, 1.0),
        ({"cluster": slow, "workers": 8}, 0.5))}  # fmt: skip
    wanted = {"known": Run(cluster="lab", sync="asp", pushes=100), "slow": Run(cluster=slow, sync="asp", pushes=100),
              "other": Run(cluster=slow, workers=8, prune="std:2", pushes=100)}  # fmt: skip
    assert work(wanted, taken) == {"known": 5.0, "slow": 100.0, "other": 50.0}


def test_before_a_sweep_begins_it_says_how_long_such_runs_took(clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    runs, stream = {"a": Run(pushes=100), "b": Run(pushes=300)}, io.StringIO()
    taken = {kind_of(runs["a"].plain()): 0.5}
    Progress(runs, taken=taken, stream=stream)
    assert stream.getvalue() == "2 runs: about 3 min, as such runs took before\n"
    Progress({"a": runs["a"]}, taken=taken, stream=stream)
    assert stream.getvalue().splitlines()[1] == "[run] bsp none W=4 seed 0: about 50 s, as such runs took before"
    monkeypatch.setenv(journal.JOURNAL, str(tmp_path / "journal"))
    Progress(runs, taken=taken, stream=stream)
    (note,) = journal.entries(tmp_path / "journal")
    assert note["progress"] == {"done": 0, "of": 2, "left_s": 200.0}
    assert len(stream.getvalue().splitlines()) == 2


def test_nothing_is_shown_if_it_is_not_wanted(clock):
    stream = Terminal()
    shown = Progress({"a": Run()}, shown=False, stream=stream)
    shown.begin("a")
    clock[0] = 100.0
    shown.update("a", {"pushes": 1, "seconds": 1.0})
    shown.end("a", 0.1)
    assert stream.getvalue() == ""


def test_the_batch_reads_progress_from_the_journal_instead(clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(journal.JOURNAL, str(tmp_path / "journal"))
    stream = Terminal()
    shown = Progress({"a": Run(pushes=10), "b": Run(pushes=10)}, stream=stream)
    shown.begin("a")
    for tenth in range(30):
        clock[0] = tenth / 10
        shown.update("a", {"pushes": 5 if tenth else 0, "seconds": clock[0]})
    shown.end("a", 0.1)
    notes = [entry["progress"] for entry in journal.entries(tmp_path / "journal")]
    assert stream.getvalue() == ""
    assert [note["done"] for note in notes] == [0, 0, 1]
    assert notes[-1] == {"done": 1, "of": 2, "left_s": pytest.approx(2.9)}


def test_half_a_line_of_a_journal_is_no_entry(tmp_path: Path):
    path = tmp_path / "journal"
    path.write_text(json.dumps({"read": ["a"]}) + "\n" + json.dumps({"read": ["b", "a"]}) + "\n" + '{"figu')
    assert journal.collected(journal.entries(path), "read") == ["a", "b"]
    assert journal.entries(tmp_path / "none") == []
