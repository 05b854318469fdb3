"""A record's numbers: losses, bytes, times that the cluster models, evaluations, instants inside the run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pslab.config.cluster import Cluster
from pslab.config.metric import metric_of
from pslab.config.run import Run
from pslab.config.spec import resolve
from pslab.config.table import find
from pslab.engines.emulation.compute_times import ComputeTimes
from pslab.engines.emulation.faults import LISTED, Faults
from pslab.engines.local.pace import KEPT_SHARE
from pslab.errors import ConfigError
from pslab.lab.judge.phases import Phases
from pslab.lab.judge.pushes import History
from pslab.lab.judge.report import REPORTED, SLACK_S, columns, report, report_cells
from pslab.policies.partition import servers_of
from pslab.tensors.codec.frames import START, largest_frame_bytes
from pslab.tensors.pruning.rules import Dense

FLOATS = ["loss", "density", "bytes_up", "bytes_up_raw", "bytes_down", "bytes_down_raw"]
EXACT = 1e-9  # relative: what a sum of two instants loses


@dataclass(frozen=True)
class Numbers:
    """A record's tables and facts, whose order has been judged."""

    run: Run
    cluster: Cluster
    facts: Mapping[str, Any]
    history: History
    phases: Phases
    pushes: Mapping[str, np.ndarray]  #: the columns FLOATS
    accuracy: pd.DataFrame | None

    @property
    def least(self) -> float:
        """The lowest value of the loss: a user's may have any."""
        return 0.0 if find("loss", self.run.loss) is not None else -math.inf

    @classmethod
    def of(
        cls, run: Run, cluster: Cluster, facts: Mapping[str, Any], history: History, phases: Phases,
        tables: Mapping[str, pd.DataFrame],
    ) -> Numbers:  # fmt: skip
        """Read what the history has not.

        Raises:
            Unreadable: nothing can be judged from it.
        """
        values = columns(tables.get("pushes"), "pushes", [], FLOATS)
        return cls(run, cluster, facts, history, phases, values, tables.get("accuracy"))

    @property
    def itemsize(self) -> int:
        """Bytes of a weight."""
        return int(np.dtype(self.run.dtype).itemsize)

    @property
    def trained(self) -> bool:
        """Whether gradients were computed and weights evaluated."""
        return self.run.engine != "timing"

    @property
    def modelled(self) -> bool:
        """Whether time was virtual, and is what the cluster says."""
        return self.run.engine != "local"

    @property
    def keyed(self) -> bool:
        """Whether just the keys of batches travel, and nothing where a range has none of them."""
        return self.run.pull == "keys"

    @property
    def sparse(self) -> bool | None:
        """Whether gradients travel as frames of chosen entries; None if the record does not determine it."""
        try:
            return self.keyed or not isinstance(resolve("prune", self.run.prune), Dense)
        except ConfigError:
            return None


# --- losses and evaluations -------------------------------------------------------------------------------------------


def losses(n: Numbers) -> list[str]:
    """The mean loss of a batch is a number, at least 0 unless the loss is a user's. What is not finite has ended the
    run."""
    h, loss = n.history, n.pushes["loss"]
    wrong = ~(loss >= n.least) if n.trained else ~np.isnan(loss)
    return report(np.flatnonzero(wrong), lambda r: f"{h.name(r)} has a loss of {loss[r]:g}")


def evaluations(n: Numbers) -> list[str]:
    """Weights are evaluated at the start, after each period, and at the end; accuracies lie in 0 to 1."""
    table = n.accuracy
    if table is None or not n.trained:
        return []
    values = columns(table, "accuracy", ["pushes"], ["seconds", "accuracy", "loss"])
    share = values["accuracy"]
    beyond = ~((share >= 0) & (share <= 1)) & metric_of(n.run).share
    found = report(np.flatnonzero(beyond), lambda r: (
        f"the accuracy after {values['pushes'][r]} pushes is {share[r]:g}"))  # fmt: skip
    order = np.argsort(values["pushes"], kind="stable")
    lost = np.isnan(values["loss"][order]) & (n.facts["outcome"] != "diverged")
    if (lost[:-1] & ~lost[1:]).any() or (values["loss"] < n.least).any():
        found.append("an evaluation has a loss that is too low, or no number before another one is")
    apart = n.history.rules.apart  # several servers copy their weights behind the same step, each in its own time
    if not n.history.rules.known or n.facts["outcome"] == "interrupted" or (apart and not n.run.evaluation_period):
        return found
    slack, due = (0.0, np.inf if apart else SLACK_S), list(_due(n))
    here = list(zip(values["pushes"][order].tolist(), values["seconds"][order].tolist(), strict=True))
    for at in range(max(len(due), len(here))):
        wanted, is_there = due[at : at + 1], here[at : at + 1]
        if not wanted or not is_there or (np.abs(np.subtract(wanted, is_there)) > slack).any():
            says = f"is after {is_there[0][0]} pushes, at {is_there[0][1]:.6g} s" if is_there else "is missing"
            expected = f"due after {wanted[0][0]} pushes, at {wanted[0][1]:.6g} s" if wanted else "not due"
            return [*found, f"evaluation {at + 1} {says}; it is {expected}"]
    return found


def _due(n: Numbers) -> Iterator[tuple[int, float]]:
    """(pushes, seconds) of each evaluation, as the server counts what it has applied."""
    run, h, period = n.run, n.history, n.run.evaluation_period
    step, last, applied = period if period is not None else (run.seconds or 1.0) / 20, 0, 0
    due, parts, complete = step, Counter[tuple[int, int]](), False
    yield 0, 0.0
    ends = (np.diff(h.applied, append=-1) != 0) | (np.diff(h.range, append=-1) != 0)
    rows = zip(h.worker.tolist(), h.iteration.tolist(), h.seconds.tolist(), ends.tolist(), strict=True)
    for worker, iteration, now, ended in rows:
        parts[worker, iteration] += 1
        if parts[worker, iteration] == h.arrivals.ranges:
            applied, complete = applied + h.rules.traits.gradients(iteration), True
        if ended and complete:
            measure, complete = applied if period is not None else now, False
            if measure >= due:
                due, last = (measure // step + 1) * step, applied
                yield applied, now
    if applied > last:
        yield applied, float(n.facts["seconds"])


# --- bytes ------------------------------------------------------------------------------------------------------------


def bytes_up(n: Numbers) -> list[str]:
    """A dense frame has one length; that of a sparse one follows from its entries, but for how their places lie."""
    h, p, codec = n.history, n.pushes, n.run.codec
    size = _sizes(n)
    if size is None:
        return ["the pushes of a range differ in bytes_up_raw, which is the size of the range"]
    entries = p["density"] * size
    k = np.round(entries)
    wrong = (np.abs(entries - k) > EXACT * size) | (k < 0) | (k > size)
    found = report(np.flatnonzero(wrong), lambda r: (
        f"{h.name(r)} has a density of {p['density'][r]:g}: no whole number of the {size[r]:g} entries"))  # fmt: skip
    if n.sparse is None or found or (n.sparse and not n.trained):
        return found
    held = np.array([h.rules.traits.pushes(iteration) for iteration in h.iteration.tolist()], bool)
    if not n.sparse:
        least = most = np.where(k == size, START + size * n.itemsize, np.nan)  # all of them, always
    else:
        low, high = _positions(k, size, codec)
        start = np.where((k == 0) & n.keyed, 0, START)
        least, most = start + k * n.itemsize + low, start + k * n.itemsize + high
    nothing = np.where(k == 0, 0, np.nan)  # what is pushed now and then
    least, most = np.where(held, least, nothing), np.where(held, most, nothing)
    wrong = ~((p["bytes_up"] >= least) & (p["bytes_up"] <= most))
    return report(np.flatnonzero(wrong), lambda r: (
        f"{h.name(r)} took {p['bytes_up'][r]:g} bytes with {k[r]:g} of {size[r]:g} entries; a frame of those takes "
        f"{least[r]:g} to {most[r]:g}"))  # fmt: skip


def bytes_down(n: Numbers) -> list[str]:
    """A pull of all weights is a dense frame; every pull was answered, but for each worker's last."""
    h, down, raw, size = n.history, n.pushes["bytes_down"], n.pushes["bytes_down_raw"], _sizes(n)
    assert size is not None  # bytes_up has seen to it
    last = np.ones(h.size, bool)
    last[h.predecessors()[1]] = False
    answered = (raw == size * n.itemsize) & ((down >= START) | n.keyed)
    if n.run.pull == "whole":
        answered &= down == START + size * n.itemsize
    elif n.keyed:  # values in the request's order, without places
        k = (down - START) / n.itemsize
        answered &= (down == 0) | ((k == np.round(k)) & (k > 0) & (k <= size))
    else:
        answered &= down <= [largest_frame_bytes(int(each), n.itemsize) for each in size]
    fetched = np.array([h.rules.traits.fetches(iteration + 1) for iteration in h.iteration.tolist()], bool)
    answered = (answered & (fetched | h.moved)) | (~fetched & (raw == size * n.itemsize) & (down == 0))
    wrong = ~(answered | ((raw == 0) & (down == 0) & (last | h.moved)))
    return report(np.flatnonzero(wrong), lambda r: (
        f"the pull after {h.name(r)} took {down[r]:g} bytes of {raw[r]:g}; the range has {size[r] * n.itemsize:g}, and "
        f"pull={n.run.pull}"))  # fmt: skip


def network(n: Numbers) -> list[str]:
    """What has crossed the network is what the table adds up to, less what workers and the servers on their machines
    exchanged. Requests for keys come on top, and messages that are not in the table."""
    said, h, p, size = n.facts.get("network_bytes"), n.history, n.pushes, _sizes(n)
    assert size is not None  # bytes_up has seen to it
    sizes = np.zeros(h.arrivals.ranges, np.int64)
    sizes[h.range] = size
    if said is None or not sizes.all():
        return []
    server_of = range(len(sizes)) if n.keyed else servers_of(sizes.tolist(), n.run.servers)
    far = (np.array(list(server_of))[h.range] != h.worker) | (not n.cluster.colocated)
    least = float((p["bytes_up"] + p["bytes_down"])[far].sum())
    unlisted = np.isin(h.arrivals.kind, ["push", "pull"]).sum() - h.size - np.count_nonzero(p["bytes_down_raw"])
    most = least + n.facts.get("requested_bytes", 0) + unlisted * largest_frame_bytes(int(sizes.max()), n.itemsize)
    if least <= said <= most:
        return []
    return [f"{said} bytes crossed the network; by the pushes and their answers it was {least:.0f} to {most:.0f}"]


def _sizes(n: Numbers) -> np.ndarray | None:
    """Per push the entries of its range; None if the pushes of a range do not agree on it."""
    size = n.pushes["bytes_up_raw"] / n.itemsize
    for _, rows in n.history.ranges():
        if (size[rows] != size[rows[0]]).any() or size[rows[0]] < 1 or size[rows[0]] % 1:
            return None
    return np.asarray(size)


def _positions(k: np.ndarray, size: np.ndarray, codec: str) -> tuple[np.ndarray, np.ndarray]:
    """The least and the most bytes that a codec writes for the places of k of so many entries."""
    gaps = size - k  # entries that are left out, in all
    long = sum(np.minimum(k, gaps // 2**bits) for bits in (7, 14, 21, 28))  # bytes of varints beyond the first of each
    bounds = {"coordinates": (4 * k, 4 * k), "bitmap": (np.ceil(size / 8), np.ceil(size / 8)), "varint": (k, k + long),
              "runs": (8 * np.minimum(1, k), 8 * np.minimum(k, gaps + 1)), "dense": (0 * k, 0 * k)}  # fmt: skip
    if codec != "auto":
        return bounds[codec]
    low, high = (np.minimum.reduce([bounds[name][at] for name in bounds if name != "dense"]) for at in (0, 1))
    return np.where(k == size, 0, low), np.where(k == size, 0, high)


# --- times ------------------------------------------------------------------------------------------------------------


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


NUMBERS_JUDGED: dict[str, Callable[[Numbers], list[str]]] = {
    "losses": losses,
    "bytes of pushes": bytes_up,
    "bytes of pulls": bytes_down,
    "bytes on the network": network,
    "times of computation": computing,
    "times on links": travelling,
    "no gap between phases": joints,
    "evaluations": evaluations,
    "instants inside the run": inside,
}
