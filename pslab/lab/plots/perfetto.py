"""A record as Chrome trace events, which ui.perfetto.dev and chrome://tracing open.

Three processes: the workers, a thread for each; the server, with a thread for what it does and one for the versions of
each range; the links, up and down of each worker. Flows lead from a push to the version that it became part of, and
from the push that ended a waiting to the worker that it released. Counters: staleness, and bytes on the links.
Format: Trace Event Format (catapult project).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pslab.lab.plots import labels
from pslab.lab.records import intervals
from pslab.lab.records.disk import write_file

if TYPE_CHECKING:
    from pslab.lab.records.record import Result

Event = dict[str, Any]
WORKERS, SERVER, LINKS = 1, 2, 3  # pids, in the order in which they are shown
WAYS = {"push": "up", "pull": "down"}
AT_ONE_TIME = {"X": 0, "C": 1, "s": 2, "f": 3}  # what a flow binds to comes before it


class _Span(NamedTuple):
    name: str
    begin_ns: int
    end_ns: int
    args: Event


class _Thread(NamedTuple):
    pid: int
    tid: int  #: not used by any other thread or process
    name: str
    spans: list[_Span]


def perfetto(result: Result, begin_s: float | None = None, end_s: float | None = None) -> dict[str, Any]:
    """The trace of a run as the format's JSON object, in microseconds of the run with three decimals.

    Given an instant, only what lies wholly between the two.
    """
    last_s = intervals.duration(result)
    low, high = 0.0 if begin_s is None else begin_s, last_s if end_s is None else end_s
    threads = _threads(result, low, high)
    timed = [*_spans(threads), *_flows(result, threads), *_counters(result, low, high)]
    timed.sort(key=lambda event: (event["ts"], AT_ONE_TIME[event["ph"]], -event.get("dur", 0.0)))
    return {
        "traceEvents": [*_names(result, threads), *timed],
        "displayTimeUnit": "ms",
        "otherData": {"digest": result.digest, "run": json.dumps(result.run.plain(), sort_keys=True)},
    }


def write_perfetto(
    result: Result, path: Path | str, begin_s: float | None = None, end_s: float | None = None
) -> Path:
    """`perfetto` into a file, which is complete or does not exist.

    Raises:
        ExportError: the disk is full or the directory cannot be written to.
    """
    text = json.dumps(perfetto(result, begin_s, end_s), separators=(",", ":"), ensure_ascii=False)
    return write_file(Path(path), text.encode())


# -- threads ---------------------------------------------------------------------------------------


def _threads(result: Result, begin_s: float, end_s: float) -> list[_Thread]:
    """Every thread with its spans."""
    phases = intervals.spans(result)
    phases = phases[(phases.begin_s >= begin_s) & (phases.end_s <= end_s)]
    sent = _sent(result)
    by_worker: dict[int, list[_Span]] = {}
    for row in intervals.records(phases):
        by_worker.setdefault(int(row.worker), []).append(_span(row, sent))
    tids = count(LINKS + 1)
    ways = intervals.WAYS if intervals.overlapped(result) else {"": tuple(set(phases.phase))}
    found = []
    for worker, own in by_worker.items():
        for way, names in ways.items():
            found += _laid(WORKERS, f"worker {worker} {way}".strip(), [s for s in own if s.name in names], tids)
    served = [span for own in by_worker.values() for span in own if span.name in intervals.AT_SERVER]
    found += _laid(SERVER, "server", served, tids, nested=True)
    found += [_Thread(SERVER, next(tids), f"range {index}: versions", own)
              for index, own in _versions(result, begin_s, end_s).items()]  # fmt: skip
    for worker, own in by_worker.items():
        for phase, way in WAYS.items():
            found += _laid(LINKS, f"worker {worker} {way}", [span for span in own if span.name == phase], tids)
    return found


def _span(row: Any, sent: dict[tuple[str, int, int], Event]) -> _Span:
    worker, iteration = int(row.worker), int(row.iteration)
    args: Event = {"worker": worker, "iteration": iteration}
    if row.phase == "wait" and row.waits_for != intervals.NOBODY:
        args["waits_for"] = int(row.waits_for)
    args |= sent.get((row.phase, worker, iteration), {})
    return _Span(str(row.phase), _ns(row.begin_s), _ns(row.end_s), args)


def _laid(pid: int, name: str, found: Iterable[_Span], tids: Iterator[int], nested: bool = False) -> list[_Thread]:
    """A thread of these spans, or several where they overlap, as those of several ranges do."""
    ordered = sorted(found, key=lambda span: (span.begin_ns, -span.end_ns))
    rows = intervals.rows_of([s.begin_ns for s in ordered], [s.end_ns for s in ordered], nested=nested)
    threads = [_Thread(pid, next(tids), f"{name} ({row + 1})" if row else name, []) for row in range(len(set(rows)))]
    for span, row in zip(ordered, rows, strict=True):
        threads[row].spans.append(span)
    return threads


def _versions(result: Result, begin_s: float, end_s: float) -> dict[int, list[_Span]]:
    """By range: a span for each version, from the step that makes it to the next step or the end."""
    found: dict[int, list[_Span]] = {}
    steps = intervals.steps(result)
    for index, made in steps[steps.at_s.between(begin_s, end_s)].groupby("range", sort=True):
        rows = intervals.records(made)
        ends = [*(row.at_s for row in rows[1:]), end_s]
        found[int(str(index))] = [
            _Span(f"version {int(row.version)}", _ns(row.at_s), _ns(until_s), {
                "range": int(row.range), "version": int(row.version), "pushes": int(row.pushes),
                "staleness": int(row.staleness)})
            for row, until_s in zip(rows, ends, strict=True)
        ]  # fmt: skip
    return found


def _sent(result: Result) -> dict[tuple[str, int, int], Event]:
    """What each iteration's pushes and pulls took on the wire, all ranges together, and the largest staleness."""
    groups = result.pushes.groupby(["worker", "iteration"], as_index=False)
    table = groups.agg(up=("bytes_up", "sum"), down=("bytes_down", "sum"), staleness=("staleness", "max"))
    found: dict[tuple[str, int, int], Event] = {}
    for row in intervals.records(table):
        found["push", int(row.worker), int(row.iteration)] = {"bytes": int(row.up), "staleness": int(row.staleness)}
        found["pull", int(row.worker), int(row.iteration)] = {"bytes": int(row.down)}
    return found


def _ns(seconds: float) -> int:
    return round(1e9 * seconds)


# -- events ----------------------------------------------------------------------------------------


def _names(result: Result, threads: Iterable[_Thread]) -> list[Event]:
    """Metadata: what each process and thread is called, and their order."""
    run = f"{labels.name('sync', result.run.sync)}, {labels.name('prune', result.run.prune)}".replace(labels.SPACE, " ")
    roles = {WORKERS: f"workers ({run})", SERVER: "server", LINKS: "links"}
    found = []
    for pid, name in roles.items():
        found.append(_meta("process_name", pid, pid, {"name": name}))
        found.append(_meta("process_sort_index", pid, pid, {"sort_index": pid}))
    for thread in threads:
        found.append(_meta("thread_name", thread.pid, thread.tid, {"name": thread.name}))
        found.append(_meta("thread_sort_index", thread.pid, thread.tid, {"sort_index": thread.tid}))
    return found


def _meta(name: str, pid: int, tid: int, args: Event) -> Event:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "ts": 0, "args": args}


def _spans(threads: Iterable[_Thread]) -> Iterator[Event]:
    for thread in threads:
        for span in thread.spans:
            yield {"ph": "X", "name": span.name, "cat": "phase", "pid": thread.pid, "tid": thread.tid,
                   "ts": span.begin_ns / 1000, "dur": (span.end_ns - span.begin_ns) / 1000,
                   "args": span.args}  # fmt: skip


def _flows(result: Result, threads: Iterable[_Thread]) -> Iterator[Event]:
    """A start and an end for each push that became part of a version, and for each release."""
    own: dict[tuple[str, int, int], list[tuple[int, _Thread]]] = {}  # a worker's spans of an iteration, by their start
    made: dict[tuple[int, int], tuple[int, _Thread]] = {}
    for thread in threads:
        for span in thread.spans:
            if thread.pid == WORKERS:
                own.setdefault((span.name, span.args["worker"], span.args["iteration"]), []).append(
                    (span.begin_ns, thread))
            elif "version" in span.args:
                made[span.args["range"], span.args["version"]] = span.begin_ns, thread
    ids = count(1)
    for push in intervals.records(result.pushes):
        version = made.get((int(push.range), int(push.version_applied)))
        before = _last(own.get(("push", int(push.worker), int(push.iteration)), []), _ns(push.seconds))
        if version and before:
            args = {"push": int(push.push), "staleness": int(push.staleness)}
            yield from _flow("application", next(ids), before, version, args)
    for release in intervals.records(intervals.releases(result)):
        at_ns = _ns(release.at_s)
        waited = own.get(("wait", int(release.worker), int(release.iteration)), [])
        before = _last(own.get(("apply", int(release.by), int(release.by_iteration)), []), at_ns)
        there = _last(waited, _ns(release.begin_s))
        if before and there:
            yield from _flow("release", next(ids), before, (at_ns, there[1]), {"by": int(release.by)})


def _last(found: Iterable[tuple[int, _Thread]], until_ns: int) -> tuple[int, _Thread] | None:
    """The last span that has started by then."""
    return max((each for each in found if each[0] <= until_ns), key=lambda each: each[0], default=None)


def _flow(
    name: str, number: int, source: tuple[int, _Thread], target: tuple[int, _Thread], args: Event
) -> Iterator[Event]:
    for phase, (at_ns, thread) in (("s", source), ("f", target)):
        event = {"ph": phase, "name": name, "cat": name, "id": number, "pid": thread.pid, "tid": thread.tid,
                 "ts": at_ns / 1000}  # fmt: skip
        # bp: it ends at the span around it, not at the next one
        yield {**event, "bp": "e"} if phase == "f" else {**event, "args": args}


def _counters(result: Result, begin_s: float, end_s: float) -> Iterator[Event]:
    """Staleness of what is applied, the largest at one time; bytes of the pushes and pulls that are under way."""
    steps = intervals.steps(result)
    for at_s, stale in steps[steps.at_s.between(begin_s, end_s)].groupby("at_s").staleness.max().items():
        yield _count("staleness", SERVER, _ns(float(str(at_s))), {"of the push": int(stale)})
    moving, sent = dict.fromkeys(WAYS.values(), 0), _sent(result)
    changes: dict[int, list[tuple[str, int]]] = {}
    phases = intervals.spans(result)
    groups = phases[phases.phase.isin(WAYS)].groupby(["worker", "iteration", "phase"], as_index=False)
    for row in intervals.records(groups.agg(begin_s=("begin_s", "min"), end_s=("end_s", "max"))):
        size = sent.get((row.phase, int(row.worker), int(row.iteration)), {"bytes": 0})["bytes"]
        if size and begin_s <= row.begin_s and row.end_s <= end_s:
            changes.setdefault(_ns(row.begin_s), []).append((WAYS[row.phase], size))
            changes.setdefault(_ns(row.end_s), []).append((WAYS[row.phase], -size))
    for at_ns, changed in sorted(changes.items()):
        for way, size in changed:
            moving[way] += size
        yield _count("bytes in flight", LINKS, at_ns, dict(moving))


def _count(name: str, pid: int, at_ns: int, values: dict[str, int]) -> Event:
    return {"ph": "C", "name": name, "pid": pid, "tid": pid, "ts": at_ns / 1000, "args": values}
