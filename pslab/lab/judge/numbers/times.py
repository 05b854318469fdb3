"""Times that the cluster models, phases without gaps, and instants inside the run."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pslab.engines.emulation.compute_times import ComputeTimes
from pslab.engines.emulation.faults import LISTED, Faults
from pslab.engines.local.pace import KEPT_SHARE
from pslab.lab.judge.numbers.given import EXACT, Numbers
from pslab.lab.judge.report import REPORTED, SLACK_S, report, report_cells

LEAST = 8  # computations, from which on it is no chance that all are exact
LINGERING_S = 0.5  # for which a worker's process lives on after its run, at the most that is believed


def computing(n: Numbers) -> list[str]:
    """In virtual time an iteration's computation takes what the cluster's seeded stream says; on a machine, no less.

    Nor layer by layer: there a rule's work on one layer's gradient comes before the next layer's pass.
    """
    p, h = n.phases, n.history
    if not h.rules.known:
        return []
    rows = np.flatnonzero((p.phase == "compute") & ~np.isin(p.worker, list(p.movers)))
    spent_s = np.zeros((p.workers, p.iterations))
    np.add.at(spent_s, (p.worker[rows], p.iteration[rows]), p.end[rows] - p.begin[rows])
    done = np.full(p.workers, -int(h.rules.layered))  # layer by layer, a part of the last one is not recorded
    np.maximum.at(done, p.worker[rows], p.iteration[rows] + 1 - h.rules.layered)
    due_s, skips = spent_s.copy(), {(worker, at): count for worker, at, count in n.facts.get("skips", ())}
    modelled = np.full(due_s.shape, n.modelled and not h.rules.layered)
    for worker, at in skips:  # the cluster's costs of what was computed and not sent are in it, too
        modelled[worker, at : at + 1] = False
    faults, began = Faults(n.cluster, n.run.seed), p.first("compute", "begin")
    for worker in np.flatnonzero(done > 0).tolist():
        times = ComputeTimes(n.cluster, n.run.seed, worker)
        for iteration in range(done[worker]):
            draws = h.rules.traits.gradients(iteration) * (1 + skips.get((worker, iteration), 0))
            due_s[worker, iteration] = drawn_s = sum(times.draw() for _ in range(draws))
            if n.cluster.faults and not h.rules.layered:  # of whose passes a fault may meet any
                at_s = float(began[worker, iteration])
                due_s[worker, iteration] += faults.pause_s(worker, iteration, at_s, at_s + drawn_s)
    lost = {row[2:4] for row in faults.rows} - {(row[2], row[3]) for row in n.facts.get("faulted", ())}
    if n.modelled and lost and sum(n.facts["faults"].values()) < LISTED:
        return [f"worker {worker} stood still in iteration {at}: the record says nothing of it" for worker, at in lost]
    slack_s = EXACT * (1 + float(p.end.max())) if n.modelled else SLACK_S
    wrong = np.where(modelled, np.abs(spent_s - due_s) > slack_s, spent_s < due_s - slack_s)
    if not n.modelled and not h.rules.layered and not wrong.any():
        return _measured(n, spent_s, due_s)
    return report_cells(wrong, lambda worker, at: (
        f"worker {worker} computed iteration {at} for {spent_s[worker, at]:.9g} s; the cluster's is "
        f"{due_s[worker, at]:.9g} s"))  # fmt: skip


def _measured(n: Numbers, spent_s: np.ndarray, due_s: np.ndarray) -> list[str]:
    """A machine's clock is never right to the last bit; what computations took too long, the emulation's shares have.

    [workers, iterations]: the seconds that each computation took, and those of the cluster. A worker's process lives a
    little longer than the run: its shares are of that time.
    """
    late_s = (spent_s - due_s)[(spent_s > 0) & (due_s > 0)]
    if late_s.size >= LEAST and bool((np.abs(late_s) <= EXACT * (1 + float(n.phases.end.max()))).all()):
        return [f"all {late_s.size} computations took the cluster's seconds to the last bit: they are of virtual time"]
    total_s, longest_s = float(late_s.sum()), n.run.workers * (2 * float(n.facts["seconds"]) + LINGERING_S)
    recorded = not (n.cluster.faults or n.facts.get("skips") or n.facts.get("resumed"))
    if recorded and n.facts.get("emulation_ok") and total_s > KEPT_SHARE * longest_s:
        return [f"emulation_ok is True; by the phases, computations took {total_s:.3g} s longer than the cluster's"]
    return []


def travelling(n: Numbers) -> list[str]:
    """What crosses a worker's link takes its latency, and the time that its bytes need there when it is fastest."""
    h, c, p = n.history, n.cluster, n.phases
    if c.colocated or not (h.rules.known and not h.rules.traits.eager):
        return []
    slack_s = SLACK_S + 2 * n.facts.get("clock_bound_s", 0.0)  # a message leaves by one clock and arrives by another
    speeds = [bit_s or np.inf for bit_s in (c.bandwidth_bit_s, *c.bandwidth_at.values())]
    found = list[str]()
    for phase, column in (("push", "bytes_up"), ("pull", "bytes_down")):
        took_s = p.of_pushes(p.cells(phase, "end") - p.cells(phase, "begin"), h)
        size = n.pushes[column]
        least_s = np.where(size > 0, c.latency_s + 8 * size / max(speeds), 0.0)
        for row in np.flatnonzero(took_s < least_s - slack_s)[:REPORTED]:
            found.append(f"the {phase} of {h.name(row)} was on its way for {took_s[row]:.6g} s; the cluster's links "
                         f"take {least_s[row]:.6g} s")  # fmt: skip
    return found


def joints(n: Numbers) -> list[str]:
    """Each phase begins where the one before it ends, and neither is recorded without the other."""
    p, rules = n.phases, n.history.rules
    rows = np.flatnonzero(~np.isin(p.worker, list(p.movers)) & (p.phase != "compute"))
    if not rules.layered:
        order = rows[np.lexsort((p.range[rows], p.iteration[rows], p.worker[rows], p.phase[rows].astype(str)))]
        same = [column[order[1:]] == column[order[:-1]] for column in (p.phase, p.worker, p.iteration, p.range)]
        if (twice := order[1:][np.logical_and.reduce(same)]).size:
            return report(twice, lambda r: f"{p.name(r)} is recorded twice")
    found = list[str]()
    for before, after, must in _pairs(n):
        ended, began = p.cells(before, "end"), p.cells(after, "begin", np.fmin)
        wrong = np.abs(began - ended) > SLACK_S
        if must:
            wrong |= np.isnan(began) != np.isnan(ended)
        found += report_cells(wrong, lambda index, worker, at, pair=(before, after), ends=ended, begins=began: (
            f"worker {worker}'s {pair[0]} of iteration {at} ends at {ends[index, worker, at]:.6g} s, its {pair[1]} "
            f"begins at {begins[index, worker, at]:.6g} s"))  # fmt: skip
    return found


def _pairs(n: Numbers) -> Iterator[tuple[str, str, bool]]:
    """Phases that follow each other without a gap, and whether the one is never without the other."""
    rules, sparse = n.history.rules, n.sparse
    yield from [("push", "apply", True), ("wait", "serve", True), ("serve", "pull", True)]
    if n.modelled or not (rules.known and rules.traits.eager):  # whose process decodes when the next iteration starts
        yield "pull", "decode", False
    if rules.known and not rules.traits.eager:
        yield "apply", "wait", True
    if not rules.layered and sparse is not None:
        yield "compute", "select", True
        if sparse:
            yield "select", "encode", True
        if n.modelled and rules.known and not rules.traits.eager and n.phases.ranges == 1:
            yield ("encode" if sparse else "select"), "push", False


def inside(n: Numbers) -> list[str]:
    """Nothing is dealt with, applied or answered after the run."""
    end_s, p, h = float(n.facts["seconds"]), n.phases, n.history
    found = list[str]()
    # in virtual time, a server ends what it has begun before the time is up, the target is reached or a worker diverges
    if not n.modelled or n.facts["outcome"] not in ("seconds", "interrupted", "target", "diverged"):
        late = np.flatnonzero(h.arrivals.seconds > end_s + SLACK_S)
        found += report(late, lambda r: f"{h.arrivals.name(r)} came at {h.arrivals.seconds[r]:.6g} s, after the run")
        late = np.flatnonzero(h.seconds > end_s + SLACK_S)
        found += report(late, lambda r: f"{h.name(r)} was applied at {h.seconds[r]:.6g} s, after the run")
    by_server = np.isin(p.phase, ["apply", "wait", "serve"])
    late = np.flatnonzero((p.end > end_s + SLACK_S) & (by_server | n.modelled))
    return found + report(late, lambda r: f"{p.name(r)} ends at {p.end[r]:.6g} s, after the run")
