"""Rules for the arrivals at the server, and for recorded faults, which must follow the cluster's plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from pslab.config.cluster import OF_FRAMES, Fault
from pslab.engines.emulation.faults import BOTH, DUPLICATE, KILL, LISTED, NO_RANGE, Faults, Row
from pslab.engines.emulation.links import UP
from pslab.protocol.messages import Pull, Push
from tools.audit.reading import REPORTED, SLACK_S, Reading, report

KINDS = ("push", "pull", "leave", "join")
FEW = 1000  # iterations, beside those that have an arrival: tables of them stay small


def rows_are_possible(r: Reading) -> list[str]:
    """Every row is of a known kind and of a worker of the run, and has the numbers that its kind has."""
    a = r.arrivals
    message = (a.kind == "push") | (a.kind == "pull")
    wrong = ~np.isin(a.kind, KINDS) | (a.worker < 0) | (a.worker >= a.workers)
    wrong |= (message | (a.kind == "join")) & (a.iteration < 0) | message & ((a.range < 0) | (a.version < 0))
    wrong |= (a.range >= r.ranges) | (a.iteration > FEW + len(a.kind))
    return report(np.flatnonzero(wrong), lambda i: (
        f"arrival {i + 1} is a {a.kind[i]} of worker {a.worker[i]}, range {a.range[i]}, iteration {a.iteration[i]}, "
        f"version {a.version[i]}: there are {', '.join(KINDS)} of workers 0 to {a.workers - 1}, ranges 0 to "
        f"{r.ranges - 1}"))  # fmt: skip


def in_order(r: Reading) -> list[str]:
    """The server handles one arrival after another; a worker that joins takes none of its time."""
    a = r.arrivals
    rows = np.flatnonzero(a.kind != "join")
    if not np.isfinite(a.seconds).all() or (a.seconds < 0).any():
        return ["something arrived at a time outside the run"]
    wrong = np.flatnonzero(np.diff(a.seconds[rows]) < -SLACK_S) + 1
    return report(rows[wrong], lambda i: f"{a.name(i)} was dealt with at {a.seconds[i]:.6g} s, before earlier arrivals")


# --- faults on the way ------------------------------------------------------------------------------------------------


def faults(r: Reading) -> list[str]:
    """Every recorded fault is part of the plan, every frame that came met its planned faults, and deaths are kills."""
    rows, counts = [tuple(row) for row in r.all("faulted")], dict(r.facts.get("faults", {}))
    if not r.cluster.faults:
        return ["faults are recorded, and the cluster has none"] if rows or counts else []
    happened = Counter(row[0] for row in rows)
    wrong = [row for row in rows if not _planned(r, row)]
    if len(rows) < LISTED and happened != +Counter(counts):
        return [f"the manifest counts {counts} as faults; it lists {dict(happened)}"]
    found = report(range(len(wrong)), lambda at: f"the fault {wrong[at]} is none of the cluster's plan")
    if r.modelled:
        killed = {row[2] for row in rows if row[0] == KILL}
        found += [f"worker {death['worker']} died at {death['seconds']:.6g} s, and no fault killed it"
                  for death in r.facts["deaths"] if death["worker"] not in killed]  # fmt: skip
    if found or len(rows) == LISTED or not r.known:
        return found
    missing = sorted(_due(r) - {row[:5] for row in rows})
    found += report(range(len(missing)), lambda at: (
        f"worker {missing[at][2]}'s frame of iteration {missing[at][3]} came; by the cluster's plan it was to meet "
        f"a fault, {missing[at][0]}, which the record does not have"))  # fmt: skip
    survived = sorted(_to_die(r) - {row[2:4] for row in rows if row[0] == KILL})
    found += report(range(len(survived)), lambda at: (
        f"worker {survived[at][0]} pushed iteration {survived[at][1]}, before which a fault was to kill it"))
    return found + _performed(r, rows)


def _to_die(r: Reading) -> set[tuple[int, int]]:
    """(worker, iteration) of the pushes that came although the plan kills their workers before them."""
    plan, came = Faults(r.cluster, r.run.seed), r.arrivals.kind == "push"
    names = sorted({*zip(r.arrivals.worker[came].tolist(), r.arrivals.iteration[came].tolist(), strict=True)})
    return {name for name in names if plan.kills(*name)}


def _performed(r: Reading, rows: list[Row]) -> list[str]:
    """A recorded fault of a frame with a push shows in when the push came, and how often."""
    # pushes and requests are frames of their own there, or are not about the first range
    if r.layered or r.several_servers or r.traits.eager or r.traits.rotation.fragments > 1:
        return []
    arrivals, found = r.arrivals, list[str]()
    iterations = int(arrivals.iteration.max(initial=0)) + 2
    came, asked = (arrivals.came_s(kind, iterations)[0] for kind in ("push", "pull"))
    pushes = Counter(zip(*(column[(arrivals.kind == "push") & (arrivals.range == 0)].tolist()
                           for column in (arrivals.worker, arrivals.iteration)), strict=True))  # fmt: skip
    for what, direction, worker, at, _, now in rows:
        if direction != UP or worker in arrivals.movers or not 0 <= at < iterations - 2:
            continue
        least_s = min(fault.for_s for fault in r.cluster.faults if fault.what == what)
        if what == DUPLICATE and not np.isnan(came[worker, at + 1]) and pushes[worker, at] < 2:
            found.append(f"worker {worker}'s push of iteration {at} was duplicated, and came once")
        elif what != DUPLICATE and asked[worker, at + 1] < now + least_s - SLACK_S:
            found.append(f"worker {worker}'s frame of iteration {at} met a {what} at {now:.6g} s, and came at "
                         f"{asked[worker, at + 1]:.6g} s, sooner than {least_s:.6g} s later")  # fmt: skip
    return found[:REPORTED]


def _planned(r: Reading, row: Row) -> bool:
    """Whether a recorded fault can be one of the cluster's plan."""
    what, direction, worker, iteration, index, now = row

    def is_it(fault: Fault) -> bool:
        return (fault.what == what and fault.worker in (worker, None) and fault.iteration in (iteration, None)
                and (fault.at_s is None or now >= fault.at_s - SLACK_S)
                and (fault.direction in (direction, BOTH) if what in OF_FRAMES else index == NO_RANGE))  # fmt: skip

    return any(map(is_it, r.cluster.faults))


def _due(r: Reading) -> set[tuple[Any, ...]]:
    """The faults that the plan has for the frames that came from workers, without those at an instant."""
    plan = Faults(r.cluster, r.run.seed)
    if not plan.of_frames:
        return set()
    asked = {(life["worker"], life.get("joined")) for life in r.all("lives")}  # by the server itself: no frame came
    for worker, message in _frames(r):
        if type(message) is Pull and (worker, message.iteration) in asked:
            continue
        plan.fate(UP, worker, [message], -np.inf)  # before any instant
    return {row[:5] for row in plan.rows}


def _frames(r: Reading) -> Iterator[tuple[int, Push | Pull]]:
    """The last message of each frame that came.

    A frame is about all ranges that an iteration exchanges, and a request after that iteration, too, unless requests go
    layer by layer; with several servers each has one range then.
    """
    a = r.arrivals
    separate, alone = r.layered or r.traits.eager, r.layered or r.several_servers
    for kind, worker, index, iteration in zip(a.kind.tolist(), a.worker.tolist(), a.range.tolist(),
                                              a.iteration.tolist(), strict=True):  # fmt: skip
        if kind == "push" and separate and (alone or index == r.exchanged(iteration)[-1]):
            yield worker, Push(worker, index, iteration, 0)
        elif kind == "pull" and (alone or index == r.exchanged(iteration - 1)[-1]):
            yield worker, Pull(worker, index, iteration, 0)
