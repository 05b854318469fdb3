"""What a record says of faults must be what its cluster's plan says: nothing else went wrong, and all of it did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pslab.config.cluster import OF_FRAMES, Cluster, Fault
from pslab.config.run import Run
from pslab.engines.emulation.faults import BOTH, KILL, LISTED, NO_RANGE, Faults, Row
from pslab.engines.emulation.links import UP
from pslab.lab.judge.arrivals import Arrivals
from pslab.lab.judge.capabilities import Rules
from pslab.lab.judge.report import SLACK_S, report
from pslab.protocol.messages import Pull, Push


def faults(run: Run, cluster: Cluster, facts: Mapping[str, Any], arrivals: Arrivals, rules: Rules) -> list[str]:
    """Every recorded fault is one of the plan, every frame that came met what the plan says, deaths are kills."""
    rows, counts = [tuple(row) for row in facts.get("faulted", ())], dict(facts.get("faults", {}))
    if not cluster.faults:
        return ["faults are recorded, and the cluster has none"] if rows or counts else []
    try:
        happened = Counter(str(row[0]) for row in rows)
        wrong = [row for row in rows if not _planned(cluster, row)]
        if len(rows) < LISTED and happened != Counter(counts):
            return [f"the manifest counts {counts} as faults; it lists {dict(happened)}"]
    except (TypeError, ValueError, IndexError):
        return ["the list of faults cannot be read"]
    found = report(range(len(wrong)), lambda at: f"the fault {wrong[at]} is none of the cluster's plan")
    if run.engine != "local":
        killed = {row[2] for row in rows if row[0] == KILL}
        found += [f"worker {death['worker']} died at {death['seconds']:.6g} s, and no fault killed it"
                  for death in facts["deaths"] if death["worker"] not in killed]  # fmt: skip
    if len(rows) == LISTED or not rules.known:
        return found
    missing = sorted(_due(run, cluster, arrivals, rules) - {row[:5] for row in rows})
    return found + report(range(len(missing)), lambda at: (
        f"worker {missing[at][2]}'s frame of iteration {missing[at][3]} came; by the cluster's plan it was to meet "
        f"a fault, {missing[at][0]}, of which the record says nothing"))  # fmt: skip


def _planned(cluster: Cluster, row: Row) -> bool:
    what, direction, worker, iteration, index, now = row

    def is_it(fault: Fault) -> bool:
        return (fault.what == what and fault.worker in (worker, None) and fault.iteration in (iteration, None)
                and (fault.at_s is None or now >= fault.at_s - SLACK_S)
                and (fault.direction in (direction, BOTH) if what in OF_FRAMES else index == NO_RANGE))  # fmt: skip

    return any(map(is_it, cluster.faults))


def _due(run: Run, cluster: Cluster, arrivals: Arrivals, rules: Rules) -> set[tuple[Any, ...]]:
    """What the frames that came from workers have met by the plan, but for what comes at an instant."""
    timeless = [fault for fault in cluster.faults if fault.what in OF_FRAMES]
    if not timeless:
        return set()
    plan = Faults(cluster, run.seed)
    for worker, message in _frames(arrivals, rules):
        plan.fate(UP, worker, [message], -np.inf)  # before any instant
    return {row[:5] for row in plan.rows}


def _frames(a: Arrivals, rules: Rules) -> Iterator[tuple[int, Push | Pull]]:
    """The last message of each frame that came: a frame is about all ranges, unless requests go layer by layer."""
    apart = rules.layered or rules.traits.eager
    for kind, worker, index, iteration in zip(a.kind.tolist(), a.worker.tolist(), a.range.tolist(),
                                              a.iteration.tolist(), strict=True):  # fmt: skip
        if kind == "push" and apart and (rules.layered or index == a.ranges - 1):
            yield worker, Push(worker, index, iteration, 0)
        elif kind == "pull" and (rules.layered or index == a.ranges - 1):
            yield worker, Pull(worker, index, iteration, 0)
