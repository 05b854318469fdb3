"""A record in Chrome's trace format, for ui.perfetto.dev and chrome://tracing.

The trace has two processes: the workers, with a thread for each worker, and the server, with a thread for its messages
and a thread for the versions of each range. Flows lead from a push to the version that contains it, and from a push to
the wait that it ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from pslab.lab.records import intervals

Event = dict[str, Any]
WORKERS, SERVER = 1, 2  # pids, in the order in which they are shown
ORDER = {"M": -1, "X": 0, "s": 1, "f": 2}  # order of events at one instant: a flow binds to the last span before it


def trace(result: Any) -> Event:
    """Return the trace of a Result as the format's JSON object; times are microseconds since the run's start."""
    sizes = result.pushes.groupby(["worker", "iteration"])[["bytes_up", "bytes_down"]].sum().to_dict("index")
    spans = []
    for row in intervals.records(intervals.spans(result)):
        args = {name: int(getattr(row, name)) for name in ("worker", "iteration", "waits_for")}
        args |= sizes.get((row.worker, row.iteration), {}) if row.phase in ("push", "pull") else {}
        spans.append(_span(row.phase, row.begin_s, row.end_s, args))
    threads = [(WORKERS, f"worker {worker}", [span for span in spans if span["args"]["worker"] == worker])
               for worker in sorted(result.phases.worker.unique())]  # fmt: skip
    threads.append((SERVER, "server", [span for span in spans if span["name"] in intervals.AT_SERVER]))
    for index, steps in intervals.steps(result).groupby("range"):
        rows: list[Any] = steps.to_dict("records")
        made = [_span(f"version {row['version']}", row["at_s"], next_["at_s"], row) for row, next_ in
                pairwise([*rows, {"at_s": intervals.duration(result)}])]  # fmt: skip
        threads.append((SERVER, f"range {index}: versions", made))
    events = [_name("process_name", pid, 0, name) for pid, name in ((WORKERS, repr(result)), (SERVER, "server"))]
    for pid, name, table in threads:
        table.sort(key=lambda span: (span["ts"], -span["dur"]))
        ends = [round(span["ts"] + span["dur"], 3) for span in table]
        rows_of = intervals.rows_of([span["ts"] for span in table], ends, nested=pid == SERVER)
        first = len(events) + SERVER  # a number that no other thread has
        # several threads, if spans of several ranges overlap
        events += [_name("thread_name", pid, first + row, f"{name} ({row + 1})" if row else name) for row in {*rows_of}]
        events += [{**span, "pid": pid, "tid": first + row} for span, row in zip(table, rows_of, strict=True)]
    events += _flows(result, [event for event in events if event["ph"] == "X"])
    events.sort(key=lambda event: (event["ts"], ORDER[event["ph"]], -event.get("dur", 0.0)))
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _span(name: str, begin_s: float, end_s: float, args: Event) -> Event:
    begin_ns, end_ns = round(1e9 * begin_s), round(1e9 * end_s)
    return {"ph": "X", "name": name, "ts": begin_ns / 1000, "dur": (end_ns - begin_ns) / 1000, "args": args}


def _name(what: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}


def _flows(result: Any, spans: list[Event]) -> Iterator[Event]:
    # start and end of a flow for each push that became part of a version, and for each release
    begun: dict[Any, list[Event]] = {}
    for span in spans:
        args, name = span["args"], span["name"] if span["pid"] == WORKERS else "served"
        key = (args["range"], args["version"]) if "version" in args else (name, args["worker"], args["iteration"])
        begun.setdefault(key, []).append(span)

    def last(at_s: float, *key: Any) -> Event | None:
        until = [span for span in begun.get(key, ()) if span["ts"] <= round(1e9 * at_s) / 1000]
        return max(until, key=lambda span: float(span["ts"]), default=None)

    pairs: list[Any] = [("application", last(push.seconds, "push", push.worker, push.iteration),
                         begun[push.range, push.version_applied][0], None)
                        for push in intervals.records(result.pushes)]  # fmt: skip
    pairs += [("release", last(record.at_s, "apply", record.by, record.by_iteration),
               last(record.begin_s, "wait", record.worker, record.iteration), round(1e9 * record.at_s) / 1000)
              for record in intervals.records(intervals.releases(result))]  # fmt: skip
    for number, (name, source, target, ts) in enumerate(pairs):
        for ph, span, at in (("s", source, None), ("f", target, ts)) if source and target else ():
            yield {"ph": ph, "bp": "e", "name": name, "cat": name, "id": number, "pid": span["pid"],
                   "tid": span["tid"], "ts": span["ts"] if at is None else at}  # fmt: skip
