"""What the server was handed, in the order in which it dealt with it: messages, and workers that leave and join; and
what a record says of faults on the way, which must be what its cluster's plan says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from pslab.config.cluster import OF_FRAMES, Cluster, Fault
from pslab.config.run import Run
from pslab.engines.emulation.faults import BOTH, DUPLICATE, KILL, LISTED, NO_RANGE, Faults, Row
from pslab.engines.emulation.links import UP
from pslab.lab.judge.capabilities import Rules
from pslab.lab.judge.report import REPORTED, SLACK_S, columns, report
from pslab.protocol.messages import Pull, Push

KINDS = ("push", "pull", "leave", "join")
FEW = 1000  # ranges or iterations, beside those that have an arrival: tables of them stay small


@dataclass(frozen=True)
class Arrivals:
    """The table as arrays, one entry a row; times in seconds, -1 where a row has no range, iteration or version."""

    workers: int
    present: frozenset[int]  #: the workers at the start
    replaced: frozenset[int]  #: those that had more than one process
    kind: np.ndarray
    worker: np.ndarray
    range: np.ndarray
    iteration: np.ndarray
    version: np.ndarray
    seconds: np.ndarray

    @classmethod
    def of(
        cls, table: pd.DataFrame | None, workers: int, present: Collection[int], replaced: Collection[int] = ()
    ) -> Arrivals:
        """Read the table.

        Raises:
            Unreadable: nothing can be judged from it.
        """
        values = columns(table, "arrivals", ["worker", "range", "iteration", "version"], ["seconds"], ["kind"])
        return cls(workers, frozenset(present), frozenset(replaced), **values)

    @property
    def size(self) -> int:
        """The number of rows."""
        return len(self.kind)

    @cached_property
    def movers(self) -> frozenset[int]:
        """The workers that were not present all the time, in one process: what they did in between is not recorded."""
        moved = self.worker[(self.kind == "leave") | (self.kind == "join")]
        return frozenset(moved.tolist()) | self.replaced | (frozenset(range(self.workers)) - self.present)

    @cached_property
    def ranges(self) -> int:
        """How many ranges there are."""
        return int(self.range.max(initial=0)) + 1

    def came_s(self, kind: str, iterations: int) -> np.ndarray:
        """[ranges, workers, iterations]: when the first such message came, which counts; NaN where none did."""
        found = np.full((self.ranges, self.workers, iterations), np.nan)
        rows = np.flatnonzero((self.kind == kind) & (self.iteration < iterations))[::-1]
        found[self.range[rows], self.worker[rows], self.iteration[rows]] = self.seconds[rows]
        return found

    def name(self, row: int) -> str:
        """An arrival in words."""
        if self.kind[row] in ("leave", "join"):
            return f"that worker {self.worker[row]} {self.kind[row]}s"
        on = f" of range {self.range[row]}" if self.ranges > 1 else ""
        return f"worker {self.worker[row]}'s {self.kind[row]}{on} for iteration {self.iteration[row]}"


def rows_are_possible(a: Arrivals) -> list[str]:
    """Every row is of a kind that there is, of a worker of the run, and names what its kind has."""
    message = (a.kind == "push") | (a.kind == "pull")
    wrong = ~np.isin(a.kind, KINDS) | (a.worker < 0) | (a.worker >= a.workers)
    wrong |= (message | (a.kind == "join")) & (a.iteration < 0) | message & ((a.range < 0) | (a.version < 0))
    wrong |= np.maximum(a.range, a.iteration) > FEW + a.size
    return report(np.flatnonzero(wrong), lambda r: (
        f"arrival {r + 1} is a {a.kind[r]} of worker {a.worker[r]}, range {a.range[r]}, iteration {a.iteration[r]}, "
        f"version {a.version[r]}: there are {', '.join(KINDS)} of workers 0 to {a.workers - 1}"))  # fmt: skip


def in_order(a: Arrivals) -> list[str]:
    """The server deals with one arrival after another; that a worker joins needs no dealing with."""
    rows = np.flatnonzero(a.kind != "join")
    if not np.isfinite(a.seconds).all() or (a.seconds < 0).any():
        return ["something arrived at a time outside the run"]
    wrong = np.flatnonzero(np.diff(a.seconds[rows]) < -SLACK_S) + 1
    return report(rows[wrong], lambda r: f"{a.name(r)} was dealt with at {a.seconds[r]:.6g} s, before earlier arrivals")


ARRIVALS_JUDGED: dict[str, Callable[[Arrivals], list[str]]] = {
    "arrivals": rows_are_possible,
    "the order of arrivals": in_order,
}


# --- faults on the way ------------------------------------------------------------------------------------------------


def faults(run: Run, cluster: Cluster, facts: Mapping[str, Any], arrivals: Arrivals, rules: Rules) -> list[str]:
    """Every recorded fault is one of the plan, every frame that came met what the plan says, deaths are kills."""
    rows, counts = [tuple(row) for row in facts.get("faulted", ())], dict(facts.get("faults", {}))
    if not cluster.faults:
        return ["faults are recorded, and the cluster has none"] if rows or counts else []
    happened = Counter(row[0] for row in rows)
    wrong = [row for row in rows if not _planned(cluster, row)]
    if len(rows) < LISTED and happened != +Counter(counts):
        return [f"the manifest counts {counts} as faults; it lists {dict(happened)}"]
    found = report(range(len(wrong)), lambda at: f"the fault {wrong[at]} is none of the cluster's plan")
    if run.engine != "local":
        killed = {row[2] for row in rows if row[0] == KILL}
        found += [f"worker {death['worker']} died at {death['seconds']:.6g} s, and no fault killed it"
                  for death in facts["deaths"] if death["worker"] not in killed]  # fmt: skip
    if found or len(rows) == LISTED or not rules.known:
        return found
    asked = {(life["worker"], life.get("joined")) for life in facts.get("lives", ())}
    missing = sorted(_due(run, cluster, arrivals, rules, asked) - {row[:5] for row in rows})
    found += report(range(len(missing)), lambda at: (
        f"worker {missing[at][2]}'s frame of iteration {missing[at][3]} came; by the cluster's plan it was to meet "
        f"a fault, {missing[at][0]}, of which the record says nothing"))  # fmt: skip
    survived = sorted(_to_die(run, cluster, arrivals) - {row[2:4] for row in rows if row[0] == KILL})
    found += report(range(len(survived)), lambda at: (
        f"worker {survived[at][0]} pushed iteration {survived[at][1]}, before which a fault was to kill it"))
    return found + _performed(cluster, rows, arrivals, rules)


def _to_die(run: Run, cluster: Cluster, arrivals: Arrivals) -> set[tuple[int, int]]:
    """(worker, iteration) of pushes that came, though their workers were to be killed before."""
    plan, rows = Faults(cluster, run.seed), np.flatnonzero(arrivals.kind == "push")
    names = sorted({(int(arrivals.worker[row]), int(arrivals.iteration[row])) for row in rows})
    return {name for name in names if plan.kills(*name)}


def _performed(cluster: Cluster, rows: list[Row], arrivals: Arrivals, rules: Rules) -> list[str]:
    """What is recorded of a frame with a push shows in when and how often that came."""
    if rules.layered or rules.apart or rules.traits.eager:  # pushes and requests are frames of their own there
        return []
    iterations, found = int(arrivals.iteration.max(initial=0)) + 2, list[str]()
    came, asked = (arrivals.came_s(kind, iterations)[0] for kind in ("push", "pull"))
    pushes = Counter(zip(*(column[(arrivals.kind == "push") & (arrivals.range == 0)].tolist()
                           for column in (arrivals.worker, arrivals.iteration)), strict=True))  # fmt: skip
    for what, direction, worker, at, _, now in rows:
        if direction != UP or worker in arrivals.movers or not 0 <= at < iterations - 2:
            continue
        least_s = min(fault.for_s for fault in cluster.faults if fault.what == what)
        if what == DUPLICATE and not np.isnan(came[worker, at + 1]) and pushes[worker, at] < 2:
            found.append(f"worker {worker}'s push of iteration {at} was duplicated, and came once")
        elif what != DUPLICATE and asked[worker, at + 1] < now + least_s - SLACK_S:
            found.append(f"worker {worker}'s frame of iteration {at} met a {what} at {now:.6g} s, and came at "
                         f"{asked[worker, at + 1]:.6g} s, sooner than {least_s:.6g} s later")  # fmt: skip
    return found[:REPORTED]


def _planned(cluster: Cluster, row: Row) -> bool:
    what, direction, worker, iteration, index, now = row

    def is_it(fault: Fault) -> bool:
        return (fault.what == what and fault.worker in (worker, None) and fault.iteration in (iteration, None)
                and (fault.at_s is None or now >= fault.at_s - SLACK_S)
                and (fault.direction in (direction, BOTH) if what in OF_FRAMES else index == NO_RANGE))  # fmt: skip

    return any(map(is_it, cluster.faults))


def _due(
    run: Run, cluster: Cluster, arrivals: Arrivals, rules: Rules, asked: Collection[tuple[int, int]]
) -> set[tuple[Any, ...]]:
    """What the frames that came from workers have met by the plan, but for what comes at an instant.

    Args:
        asked: (worker, iteration) for which the server itself has asked, on behalf of a successor: no frame came.
    """
    plan = Faults(cluster, run.seed)
    if not plan.of_frames:
        return set()
    for worker, message in _frames(arrivals, rules):
        if type(message) is Pull and (worker, message.iteration) in asked:
            continue
        plan.fate(UP, worker, [message], -np.inf)  # before any instant
    return {row[:5] for row in plan.rows}


def _frames(a: Arrivals, rules: Rules) -> Iterator[tuple[int, Push | Pull]]:
    """The last message of each frame that came: one is about all ranges, unless requests go layer by layer; of several
    servers, each has one range then."""
    apart, alone = rules.layered or rules.traits.eager, rules.layered or rules.apart
    for kind, worker, index, iteration in zip(a.kind.tolist(), a.worker.tolist(), a.range.tolist(),
                                              a.iteration.tolist(), strict=True):  # fmt: skip
        if kind == "push" and apart and (alone or index == a.ranges - 1):
            yield worker, Push(worker, index, iteration, 0)
        elif kind == "pull" and (alone or index == a.ranges - 1):
            yield worker, Pull(worker, index, iteration, 0)
