"""Trace events: exact times, spans that nest, flows with both ends; and a strict reading of the format."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import handmade
import pytest

from pslab.config.run import Run
from pslab.errors import ExportError
from pslab.lab.records.record import Result
from pslab.lab.records.trace import SERVER, WORKERS, trace

REQUIRED = {"X": {"name", "pid", "tid", "ts", "dur", "args"}, "M": {"name", "pid", "tid", "args"},
            "s": {"name", "cat", "id", "pid", "tid", "ts"},
            "f": {"name", "cat", "id", "pid", "tid", "ts", "bp"}}  # fmt: skip

RUNS = {"bsp": handmade.bsp, "asp": handmade.asp,
        "two ranges, bsp": lambda: handmade.two_ranges(handmade.bsp()),
        "two ranges, asp": lambda: handmade.two_ranges(handmade.asp()),
        "empty": lambda: handmade.record(None, Run(workers=2), [], [])}  # fmt: skip


def events(result: Result) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = trace(result)["traceEvents"]
    return found


def names(found: list[dict[str, Any]]) -> dict[int, str]:
    """The threads' names."""
    return {e["tid"]: e["args"]["name"] for e in found if e["ph"] == "M" and e["name"] == "thread_name"}


def spans_of(found: list[dict[str, Any]], pid: int, thread: str) -> list[tuple[str, float, float]]:
    tids = {tid for tid, name in names(found).items() if name == thread}
    return [(e["name"], e["ts"], e["dur"]) for e in found if e["ph"] == "X" and e["pid"] == pid and e["tid"] in tids]


def around(found: list[dict[str, Any]], flow: dict[str, Any]) -> dict[str, Any]:
    """What a reader binds the flow to: the last span of its thread that has begun, in the file's order."""
    before = found[: found.index(flow)]
    span = [e for e in before if e["ph"] == "X" and (e["pid"], e["tid"]) == (flow["pid"], flow["tid"])][-1]
    assert span["ts"] <= flow["ts"] <= span["ts"] + span["dur"]
    return span


def flows(found: list[dict[str, Any]], name: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The spans that each flow of this name joins."""
    ends = {(e["ph"], e["id"]): e for e in found if e["ph"] in "sf" and e["name"] == name}
    return [(around(found, e), around(found, ends["f", number])) for (ph, number), e in ends.items() if ph == "s"]


# -- the format ------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", RUNS)
def test_a_trace_is_what_the_format_requires(run: str):
    """Events in the order of time, spans apart or nested, flows with both ends, forward in time, each at a span."""
    found, open_ = events(RUNS[run]()), dict[tuple[int, int], list[float]]()
    for event in found:
        assert set(event) >= REQUIRED[event["ph"]]
        assert (type(event["name"]), type(event["pid"]), type(event.get("tid", 0))) == (str, int, int)
        assert [*event["args"]] == ["name"] if event["ph"] == "M" else event["ts"] >= 0
        assert event.get("dur", 0.0) >= 0
    times = [e["ts"] for e in found if e["ph"] != "M"]
    assert times == sorted(times)
    for event in (e for e in found if e["ph"] == "X"):
        stack, end = open_.setdefault((event["pid"], event["tid"]), []), round(event["ts"] + event["dur"], 3)
        while stack and stack[-1] <= event["ts"]:
            stack.pop()
        assert not stack or (end <= stack[-1] and event["pid"] == SERVER)
        stack.append(end)
    ends = Counter((e["id"], e["ph"]) for e in found if e["ph"] in "sf")
    assert set(ends.values()) <= {1}
    assert {number for number, ph in ends if ph == "s"} == {number for number, ph in ends if ph == "f"}
    begin = {e["id"]: e["ts"] for e in found if e["ph"] == "s"}
    assert all(e["bp"] == "e" and e["ts"] >= begin[e["id"]] for e in found if e["ph"] == "f")
    for name in ("application", "release"):
        flows(found, name)


# -- what it says ----------------------------------------------------------------------------------


def test_times_are_exact_microseconds_and_a_version_lasts_to_the_next():
    found = events(handmade.asp())
    assert spans_of(found, WORKERS, "worker 1") == [
        ("compute", 0.0, 1e6), ("push", 1e6, 1e6), ("apply", 2e6, 1e5), ("serve", 2.1e6, 1e5), ("pull", 2.2e6, 8e5),
        ("compute", 3e6, 5e5), ("push", 3.5e6, 1e6), ("apply", 4.5e6, 1e5), ("serve", 4.6e6, 1e5),
        ("pull", 4.7e6, 8e5)]  # fmt: skip
    assert spans_of(found, SERVER, "range 0: versions") == [
        ("version 1", 2.05e6, 2.5e6), ("version 2", 4.55e6, 0.5e6), ("version 3", 5.05e6, 0.95e6)]  # fmt: skip
    assert [e["args"] for e in found if e["ph"] == "X" and e["name"] == "version 3"][-1] == {
        "range": 0, "version": 3, "at_s": 5.05, "pushes": 1, "staleness": 2}  # fmt: skip
    assert flows(found, "release") == []


def test_answers_lie_in_what_they_interrupt_and_flows_lead_to_versions_and_to_who_goes_on():
    found = events(handmade.bsp())
    assert spans_of(found, SERVER, "server") == [
        ("apply", 2e6, 1e5), ("apply", 4e6, 3e5), ("serve", 4.2e6, 1e5), ("serve", 4.3e6, 1e5),
        ("apply", 7e6, 1e5), ("apply", 9.6e6, 4e5), ("serve", 9.9e6, 1e5), ("serve", 10e6, 1e5)]  # fmt: skip
    said = {(e["name"], e["args"]["worker"], e["args"]["iteration"]): e["args"] for e in found
            if e["ph"] == "X" and e["pid"] == WORKERS}  # fmt: skip
    assert said["wait", 0, 0] == {"worker": 0, "iteration": 0, "waits_for": 1}
    assert said["wait", 1, 0]["waits_for"] == -1  # nobody
    assert said["push", 1, 1] == {"worker": 1, "iteration": 1, "waits_for": -1, "bytes_up": 100, "bytes_down": 30}
    assert [(a["name"], a["args"]["worker"], a["args"]["iteration"], b["name"]) for a, b in flows(
        found, "application")] == [("push", 0, 0, "version 1"), ("push", 1, 0, "version 1"),
                                   ("push", 1, 1, "version 2"), ("push", 0, 1, "version 2")]  # fmt: skip
    assert [(a["name"], a["args"]["worker"], a["pid"], b["name"], b["args"]["worker"], b["ts"]) for a, b in flows(
        found, "release")] == [("apply", 1, WORKERS, "serve", 0, 4.2e6),
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
