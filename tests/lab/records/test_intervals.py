"""What a record tells of who did what when, against records written by hand; and its trace, strictly read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import handmade
import pytest

from pslab.config.run import Run
from pslab.errors import ExportError
from pslab.lab.records import intervals as spans
from pslab.lab.records.record import Result
from pslab.lab.records.server_states import pulling
from pslab.lab.records.trace import SERVER, WORKERS, trace
from pslab.lab.runs.run import sweep


def test_a_release_by_a_worker_that_died_names_no_push():
    result = handmade.record(None, Run(workers=2), [row for row in handmade.BSP if row[0] == 0], handmade.BSP_PUSHES)
    assert spans.releases(result)[["by", "by_iteration"]].to_numpy().tolist() == [[1, -1]]


@pytest.mark.parametrize(("made", "window", "share"), [
    (handmade.bsp, (2.1, 4.1), 0.5), (handmade.bsp, (1.1, 3.1), 0.25), (handmade.bsp, (0.0, 2.0), 0.0),
    (handmade.bsp, (), (2.1 / 10.6 + 2.8 / 10.5) / 2),  # of each worker's own time
    (handmade.asp, (5.6,), 0.0),  # worker 1 has ended
    (handmade.eager, (0.0, 12.5), 0.5 / 12.5),  # a worker that computes does not wait
    (lambda: handmade.record(None, Run(workers=2), [], []), (), 0.0),
])  # fmt: skip
def test_waiting_is_a_share_of_all_workers_time(made: Callable, window: tuple, share: float):
    assert spans.waiting(made(), *window) == pytest.approx(share)


# -- the window ------------------------------------------------------------------------------------


def steady(waits: dict[int, float], count: int = 40) -> Result:
    """Worker 1 takes a second for each iteration; worker 0 waits in some of them, for so much of the second."""
    rows = []
    for i in range(count):
        ends = i + 1.0 - waits.get(i, 0.0)
        rows += [(1, i, "compute", float(i), i + 1.0, -1), (0, i, "compute", float(i), ends, -1)]
        rows += [(0, i, "wait", ends, i + 1.0, 1)] if i in waits else []
    return handmade.record(None, Run(workers=2), rows, [(1, 0, 0, 0, 1, 0, 1.0)])


def test_the_window_is_of_the_middle_waits_as_much_as_the_whole_and_ends_with_the_shortest_run():
    assert spans.window([steady(dict.fromkeys(range(40), 0.5))]) == pytest.approx((19.0, 25.0))
    result = steady({12: 0.65, **dict.fromkeys(range(30, 36), 0.6)})  # 4.25 s of 80 s, 0.65 s of 12 s
    begin_s, end_s = spans.window([result])
    assert begin_s <= 12 < end_s == pytest.approx(begin_s + 6.0)
    begin_s, end_s = spans.window([result], iterations=3)
    assert end_s - begin_s == pytest.approx(3.0)
    begin_s, end_s = spans.window([steady({}), steady({}, count=12)])
    assert 0 <= begin_s < end_s <= 12


@pytest.mark.parametrize(("sync", "speeds", "pushes", "lead"), [
    ("bsp", (1, 3), 200, 0), ("ssp:3", (1, 3), 203, 3), ("asp", (1, 3), 400, 201),
    ("dssp:3,12,literal", (1, 1, 1, 2), 1050, 151),
])  # fmt: skip
def test_leads_and_pushes_in_300_seconds_known_by_hand(sync, speeds, pushes, lead, tmp_path: Path):
    cluster = {"compute_s": 1.0, "slow": dict(enumerate(map(float, speeds)))}
    run = Run(sync=sync, engine="timing", workers=len(speeds), pushes=None, seconds=300.0, cluster=cluster)
    # what starts at the last instant has no end: the lead is seen a second later
    result, later = sweep([run, run.but(seconds=301.0)], results=tmp_path, progress=False)
    assert abs(int(result.manifest["accepted"]) - pushes) <= (1 if sync == "bsp" else 0)  # before the last barrier
    assert spans.lead(later) == lead


def test_common_starts_are_the_barriers_of_elastic_bsp(tmp_path: Path):
    """Workers of 2 and 3 s that look 4 iterations ahead meet every 12 s."""
    run = Run(sync="elastic:4", engine="timing", workers=2, pushes=None, seconds=40.0,
              cluster={"compute_s": 2.0, "slow": {1: 1.5}})  # fmt: skip
    elastic, free = sweep([run, run.but(sync="asp")], results=tmp_path, progress=False)
    assert list(spans.common_starts(elastic).at_s)[:2] == pytest.approx([12.0, 24.0])
    assert len(spans.common_starts(free)) <= 1


def test_an_instant_counts_once_and_parts_of_spans_lie_in_computations():
    result = handmade.eager()
    seconds = spans.budget(result).set_index("phase").seconds.to_dict()
    # pushes and pulls within computations cost nothing; of the last wait half a second is left
    assert seconds == pytest.approx({"compute": 11.5, "pull": 0.5, "wait": 0.5, "gap": 0.0})
    found = {phase: list(spans.computed_over(result.phases, phase).round(9)) for phase in ("pull", "push", "wait")}
    assert found == {"pull": [1.8, 3.8], "push": [2.0, 1.5], "wait": [0.0, 0.0, 3.4]}


# -- the two states of a server ----------------------------------------------------------------------


def test_each_range_has_a_state_of_its_own_unless_a_policy_decides_on_all_together():
    found = {}
    for sync in ("bsp", "mine#0123456789abcdef", "unheard-of", "elastic:15"):
        made = handmade.record(None, Run(sync=sync, workers=2), handmade.BSP, handmade.BSP_PUSHES)
        found[sync] = pulling(handmade.two_ranges(made)).round(6).to_numpy().tolist()
    each = [[0, 4.2, 4.4, 2], [0, 9.9, 10.1, 2], [1, 4.45, 4.65, 2], [1, 10.15, 10.35, 2]]
    assert found["bsp"] == found["mine#0123456789abcdef"] == found["unheard-of"] == each  # of an unknown one, too
    together = found["elastic:15"]
    assert [row[1:] for row in together if row[0] == 0] == [row[1:] for row in together if row[0] == 1]
    assert each[0] not in together  # range 1 was asked, and answers, after range 0


# -- traces ----------------------------------------------------------------------------------------

REQUIRED = {"X": {"name", "pid", "tid", "ts", "dur", "args"}, "M": {"name", "pid", "tid", "args"},
            "s": {"name", "cat", "id", "pid", "tid", "ts"},
            "f": {"name", "cat", "id", "pid", "tid", "ts", "bp"}}  # fmt: skip
Event = dict[str, Any]


def spans_of(events: list[Event], pid: int, thread: str) -> list[tuple[str, float, float]]:
    tids = {e["tid"] for e in events if e["name"] == "thread_name" and e["args"]["name"] == thread}
    return [(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["pid"] == pid and e["tid"] in tids]


def flows(events: list[Event], name: str) -> list[tuple[Event, Event]]:
    """The spans that each flow of this name joins: of its thread the last that has begun, in the file's order."""
    open_, joined = dict[tuple[int, int], Event](), dict[int, list[Event]]()
    for event in events:
        thread = event["pid"], event["tid"]
        if event["ph"] == "X":
            open_[thread] = event
        elif event["ph"] in "sf" and event["name"] == name:
            assert event["ts"] <= open_[thread]["ts"] + open_[thread]["dur"]
            joined.setdefault(event["id"], []).append(open_[thread])
    return [(source, target) for source, target in joined.values()]


@pytest.mark.parametrize("result", [
    handmade.bsp(), handmade.asp(), handmade.two_ranges(handmade.bsp()), handmade.two_ranges(handmade.asp()),
    handmade.record(None, Run(workers=2), [], []),
], ids=["bsp", "asp", "two ranges", "asp, two ranges", "empty"])  # fmt: skip
def test_a_trace_is_what_the_format_requires(result: Result):
    """Events in the order of time, spans apart or nested, flows with both ends, forward in time, each at a span."""
    events, open_ = trace(result)["traceEvents"], dict[tuple[int, int], list[float]]()
    for event in events:
        assert set(event) >= REQUIRED[event["ph"]]
        assert (type(event["name"]), type(event["pid"]), type(event["tid"])) == (str, int, int)
        assert event["ph"] != "f" or event["bp"] == "e"
        assert [*event["args"]] == ["name"] if event["ph"] == "M" else event["ts"] >= 0
        assert event.get("dur", 0.0) >= 0
    times = [e["ts"] for e in events if e["ph"] != "M"]
    assert times == sorted(times)
    for event in (e for e in events if e["ph"] == "X"):
        stack, end = open_.setdefault((event["pid"], event["tid"]), []), round(event["ts"] + event["dur"], 3)
        while stack and stack[-1] <= event["ts"]:
            stack.pop()
        assert not stack or (end <= stack[-1] and event["pid"] == SERVER)
        stack.append(end)
    ends = dict[int, str]()
    for event in (e for e in events if e["ph"] in "sf"):
        ends[event["id"]] = ends.get(event["id"], "") + event["ph"]
    assert {*ends.values()} <= {"sf"}  # in the order of time
    for name in ("application", "release"):
        flows(events, name)


# -- what it says ----------------------------------------------------------------------------------


def test_times_are_exact_microseconds_a_version_lasts_to_the_next_and_flows_lead_to_who_goes_on():
    events = trace(handmade.asp())["traceEvents"]
    assert spans_of(events, SERVER, "range 0: versions") == [
        ("version 1", 2.05e6, 2.5e6), ("version 2", 4.55e6, 0.5e6), ("version 3", 5.05e6, 0.95e6)]  # fmt: skip
    assert [e["args"] for e in events if e["name"] == "version 3"] == [
        {"range": 0, "version": 3, "at_s": 5.05, "pushes": 1, "staleness": 2}]  # fmt: skip
    assert flows(events, "release") == []
    events = trace(handmade.bsp())["traceEvents"]
    assert spans_of(events, SERVER, "server") == [
        ("apply", 2e6, 1e5), ("apply", 4e6, 3e5), ("serve", 4.2e6, 1e5), ("serve", 4.3e6, 1e5),
        ("apply", 7e6, 1e5), ("apply", 9.6e6, 4e5), ("serve", 9.9e6, 1e5), ("serve", 10e6, 1e5)]  # fmt: skip
    args = {(e["name"], e["args"]["worker"], e["args"]["iteration"]): e["args"] for e in events
            if e["ph"] == "X" and e["pid"] == WORKERS}  # fmt: skip
    assert args["wait", 0, 0] == {"worker": 0, "iteration": 0, "waits_for": 1}
    assert args["push", 1, 1] == {"worker": 1, "iteration": 1, "waits_for": -1, "bytes_up": 100, "bytes_down": 30}
    assert [(a["name"], a["args"]["worker"], a["args"]["iteration"], b["name"]) for a, b in flows(
        events, "application")] == [("push", 0, 0, "version 1"), ("push", 1, 0, "version 1"),
                                    ("push", 1, 1, "version 2"), ("push", 0, 1, "version 2")]  # fmt: skip
    assert [(a["name"], a["args"]["worker"], a["pid"], b["name"], b["args"]["worker"], b["ts"]) for a, b in flows(
        events, "release")] == [("apply", 1, WORKERS, "serve", 0, 4.2e6),
                                ("apply", 0, WORKERS, "serve", 1, 9.9e6)]  # fmt: skip


# -- the file --------------------------------------------------------------------------------------


def test_a_run_is_written_beside_the_records_or_where_it_is_said(tmp_path: Path):
    result = handmade.bsp(tmp_path)
    path = result.trace()
    assert path == tmp_path / "traces" / f"{result.digest}.json"
    assert json.loads(path.read_text()) == json.loads(json.dumps(trace(result)))
    assert result.trace(tmp_path / "here.json").read_bytes() == path.read_bytes()
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="cannot be written"):
        result.trace(tmp_path / "file" / "trace.json")
