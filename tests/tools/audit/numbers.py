"""A record's numbers: losses, evaluations, bytes, times that the cluster models, and instants inside the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from pslab.config.metric import metric_of
from pslab.engines.emulation.compute_times import ComputeTimes
from pslab.engines.emulation.faults import LISTED, Faults
from pslab.engines.local.pace import KEPT_SHARE
from pslab.policies.partition import servers_of
from pslab.tensors.compression.uncompressed import START
from tools.audit.reading import REPORTED, SLACK_S, Reading, columns, report, report_cells

EXACT = 1e-9  # relative: what a sum of two instants loses
LEAST = 8  # computations, from which on it is no chance that all are exact
LINGERING_S = 0.5  # for which a worker's process lives on after its run, at the most that is believed


# --- losses and evaluations -------------------------------------------------------------------------------------------


def losses(r: Reading) -> list[str]:
    """The mean loss of a batch is a number, at least 0 unless it is a user's loss; another would have ended the run."""
    h, loss = r.pushes, r.numbers["loss"]
    wrong = ~(loss >= r.least_loss) if r.trained else ~np.isnan(loss)
    return report(np.flatnonzero(wrong), lambda i: f"{h.name(i)} has a loss of {loss[i]:g}")


def evaluations(r: Reading) -> list[str]:
    """Weights are evaluated at the start, after each period, and at the end; accuracies lie in 0 to 1."""
    table = r.tables.get("accuracy")
    if table is None or not r.trained:
        return []
    values = columns(table, "accuracy", ["pushes"], ["seconds", "accuracy", "loss"])
    share = values["accuracy"]
    beyond = ~((share >= 0) & (share <= 1)) & metric_of(r.run).share
    found = report(np.flatnonzero(beyond), lambda i: (
        f"the accuracy after {values['pushes'][i]} pushes is {share[i]:g}"))  # fmt: skip
    order = np.argsort(values["pushes"], kind="stable")
    lost = np.isnan(values["loss"][order]) & (r.facts["outcome"] != "diverged")
    if (lost[:-1] & ~lost[1:]).any() or (values["loss"] < r.least_loss).any():
        found.append("an evaluation has a loss that is too low, or no number before another one is")
    several = r.several_servers  # they copy their weights behind the same step, each in its own time
    if not r.known or r.interrupted or (several and not r.run.evaluation_period):
        return found
    slack, due = (0.0, np.inf if several else SLACK_S), list(_due(r))
    here = list(zip(values["pushes"][order].tolist(), values["seconds"][order].tolist(), strict=True))
    for at in range(max(len(due), len(here))):
        wanted, is_there = due[at : at + 1], here[at : at + 1]
        if not wanted or not is_there or (np.abs(np.subtract(wanted, is_there)) > slack).any():
            says = f"is after {is_there[0][0]} pushes, at {is_there[0][1]:.6g} s" if is_there else "is missing"
            expected = f"due after {wanted[0][0]} pushes, at {wanted[0][1]:.6g} s" if wanted else "not due"
            return [*found, f"evaluation {at + 1} {says}; it is {expected}"]
    return found


def _due(r: Reading) -> Iterator[tuple[int, float]]:
    """(pushes, seconds) of each evaluation, as the server counts what it has applied."""
    run, h, period = r.run, r.pushes, r.run.evaluation_period
    step, last, applied = period if period is not None else (run.seconds or 1.0) / 20, 0, 0
    due, parts, complete = step, Counter[tuple[int, int]](), False
    yield 0, 0.0
    ends = (np.diff(h.applied, append=-1) != 0) | (np.diff(h.range, append=-1) != 0)
    rows = zip(h.worker.tolist(), h.iteration.tolist(), h.seconds.tolist(), ends.tolist(), strict=True)
    for worker, iteration, now, ended in rows:
        parts[worker, iteration] += 1
        if parts[worker, iteration] == len(r.exchanged(iteration)):
            applied, complete = applied + r.gradients(worker, iteration), True
        if ended and complete:
            measure, complete = applied if period is not None else now, False
            if measure >= due:
                due, last = (measure // step + 1) * step, applied
                yield applied, now
    if applied > last:
        yield applied, float(r.facts["seconds"])


# --- bytes ------------------------------------------------------------------------------------------------------------


def bytes_up(r: Reading) -> list[str]:
    """A dense frame has one length; a sparse or quantized one has bounds that follow from its number of entries."""
    h, p = r.pushes, r.numbers
    size = _sizes(r)
    if size is None:
        return ["the pushes of a range differ in bytes_up_raw, which is the size of the range"]
    entries = p["density"] * size
    k = np.round(entries)
    wrong = (np.abs(entries - k) > EXACT * size) | (k < 0) | (k > size)
    found = report(np.flatnonzero(wrong), lambda i: (
        f"{h.name(i)} has a density of {p['density'][i]:g}: no whole number of the {size[i]:g} entries"))  # fmt: skip
    if r.sparse is None or found or (r.sparse and not r.trained):
        return found
    held = h.each(r.traits.pushes)
    if not r.sparse:
        least = most = np.where(k == size, START + size * r.itemsize, np.nan)  # all of them, always
    else:
        least, most = np.where((k == 0) & r.keyed, 0, START - 16), _largest(k, r.itemsize)
    nothing = np.where(k == 0, 0, np.nan)  # what is pushed now and then
    least, most = np.where(held, least, nothing), np.where(held, most, nothing)
    wrong = ~((p["bytes_up"] >= least) & (p["bytes_up"] <= most))
    return report(np.flatnonzero(wrong), lambda i: (
        f"{h.name(i)} took {p['bytes_up'][i]:g} bytes with {k[i]:g} of {size[i]:g} entries; a frame of those takes "
        f"{least[i]:g} to {most[i]:g}"))  # fmt: skip


def _largest(k: np.ndarray, itemsize: int) -> np.ndarray:
    """The most bytes of a frame of k values, with their positions and the head of each piece."""
    found: np.ndarray = 4096 + (k + 2048) * (itemsize + 5)
    return found


def bytes_down(r: Reading) -> list[str]:
    """A pull of all weights is a dense frame; every pull but each worker's last was answered."""
    h, down, raw, size = r.pushes, r.numbers["bytes_down"], r.numbers["bytes_down_raw"], _sizes(r)
    assert size is not None  # bytes_up has seen to it
    last = np.ones(h.size, bool)
    last[h.predecessors()[1]] = False
    answered = (raw == size * r.itemsize) & ((down >= START) | r.keyed)
    told = r.known and getattr(r.prune, "tells", False)
    if r.run.downlink == "none" and r.run.pull == "whole" and not told:
        answered &= down == START + size * r.itemsize
    elif r.keyed:  # values in the request's order, without positions
        k = (down - START) / r.itemsize
        answered &= (down == 0) | ((k == np.round(k)) & (k > 0) & (k <= size))
    else:
        answered &= down <= _largest(size, r.itemsize)
    fetched = h.each(r.traits.fetches, 1)
    answered = (answered & (fetched | h.moved)) | (~fetched & (raw == size * r.itemsize) & (down == 0))
    wrong = ~(answered | ((raw == 0) & (down == 0) & (last | h.moved)))
    return report(np.flatnonzero(wrong), lambda i: (
        f"the pull after {h.name(i)} took {down[i]:g} bytes of {raw[i]:g}; the range has {size[i] * r.itemsize:g}, and "
        f"pull={r.run.pull}"))  # fmt: skip


def network(r: Reading) -> list[str]:
    """The bytes that crossed the network are the table's, without those between a worker and a server beside it.

    Requests for keys come on top, and messages that are not in the table.
    """
    stated, h, p, size = r.facts.get("network_bytes"), r.pushes, r.numbers, _sizes(r)
    assert size is not None  # bytes_up has seen to it
    sizes = np.zeros(r.arrivals.ranges, np.int64)
    sizes[h.range] = size
    if stated is None or not sizes.all():
        return []
    server_of = range(len(sizes)) if r.keyed else servers_of(sizes.tolist(), r.run.servers)
    far = (np.array(list(server_of))[h.range] != h.worker) | (not r.cluster.colocated)
    least = float((p["bytes_up"] + p["bytes_down"])[far].sum())
    unlisted = np.isin(r.arrivals.kind, ["push", "pull"]).sum() - h.size - np.count_nonzero(p["bytes_down_raw"])
    most = least + r.facts.get("requested_bytes", 0) + unlisted * _largest(sizes.max(), r.itemsize)
    if least <= stated <= most:
        return []
    return [f"{stated} bytes crossed the network; by the pushes and their answers it was {least:.0f} to {most:.0f}"]


def _sizes(r: Reading) -> np.ndarray | None:
    """Per push the entries of its range; None if the pushes of a range do not agree on it."""
    size = r.numbers["bytes_up_raw"] / r.itemsize
    for _, rows in r.pushes.by_range:
        if (size[rows] != size[rows[0]]).any() or size[rows[0]] < 1 or size[rows[0]] % 1:
            return None
    return np.asarray(size)


# --- times ------------------------------------------------------------------------------------------------------------


def computing(r: Reading) -> list[str]:
    """In virtual time an iteration's computation takes what the cluster's seeded stream says; on a machine, no less.

    It takes no less layer by layer, either: a rule's work on one layer's gradient comes before the next layer's pass.
    Of a worker's last iteration a part may not be recorded there, nor what would have followed its push.
    """
    p = r.phases
    if not r.known:
        return []
    rows = p.rows("compute")
    spent_s = np.zeros((p.workers, p.iterations))
    np.add.at(spent_s, (p.worker[rows], p.iteration[rows]), p.end_s[rows] - p.begin_s[rows])
    done = np.full(p.workers, -int(r.in_parts))
    np.maximum.at(done, p.worker[rows], p.iteration[rows] + 1 - r.in_parts)
    due_s = spent_s.copy()
    meets = not r.cluster.faults or not r.in_parts  # else a fault may meet any of its parts
    faults, began = Faults(r.cluster, r.run.seed), p.first("compute", "begin_s")
    for worker in np.flatnonzero(done > 0).tolist():
        times = ComputeTimes(r.cluster, r.run.seed, worker)
        for iteration in range(done[worker]):
            draws = r.gradients(worker, iteration)
            drawn_s = sum(times.draw() for _ in range(draws)) + draws * float(r.facts.get("inner_s", 0.0))
            due_s[worker, iteration] = drawn_s
            if r.cluster.faults and meets:
                at_s = float(began[worker, iteration])
                due_s[worker, iteration] += faults.pause_s(worker, iteration, at_s, at_s + drawn_s)
    lost = {row[2:4] for row in faults.rows} - {(row[2], row[3]) for row in r.all("faulted")}
    if r.modelled and lost and sum(r.facts["faults"].values()) < LISTED:
        return [f"the plan stops worker {who} in iteration {at}; the record has no such fault" for who, at in lost]
    slack_s = EXACT * (1 + float(p.end_s.max())) if r.modelled else SLACK_S
    exact = r.modelled and not r.layered and meets
    wrong = np.abs(spent_s - due_s) > slack_s if exact else spent_s < due_s - slack_s
    if not r.modelled and not r.layered and not wrong.any():
        return _measured(r, spent_s, due_s)
    return report_cells(wrong, lambda worker, at: (
        f"worker {worker} computed iteration {at} for {spent_s[worker, at]:.9g} s; the cluster's is "
        f"{due_s[worker, at]:.9g} s"))  # fmt: skip


def _measured(r: Reading, spent_s: np.ndarray, due_s: np.ndarray) -> list[str]:
    """A machine's clock is never right to the last bit, and the time that computations took too long is in the shares.

    [workers, iterations]: the seconds that each computation took, and those of the cluster. A worker's process lives a
    little longer than the run: its shares are of that time.
    """
    late_s = (spent_s - due_s)[(spent_s > 0) & (due_s > 0)]
    if late_s.size >= LEAST and bool((np.abs(late_s) <= EXACT * (1 + float(r.phases.end_s.max()))).all()):
        return [f"all {late_s.size} computations took the cluster's seconds to the last bit: they are of virtual time"]
    total_s, longest_s = float(late_s.sum()), r.run.workers * (2 * float(r.facts["seconds"]) + LINGERING_S)
    recorded = not (r.cluster.faults or r.facts.get("resumed"))
    if recorded and r.facts.get("emulation_ok") and total_s > KEPT_SHARE * longest_s:
        return [f"emulation_ok is True; by the phases, computations took {total_s:.3g} s longer than the cluster's"]
    return []


def travelling(r: Reading) -> list[str]:
    """A message on a worker's link takes at least its latency and the time of its bytes at the highest bandwidth."""
    h, c, p = r.pushes, r.cluster, r.phases
    if c.colocated or not r.in_turn:
        return []
    slack_s = SLACK_S + 2 * r.facts.get("clock_bound_s", 0.0)  # a message leaves by one clock and arrives by another
    speeds = [bit_s or np.inf for bit_s in (c.bandwidth_bit_s, *c.bandwidth_at.values())]
    found = list[str]()
    for phase, column in (("push", "bytes_up"), ("pull", "bytes_down")):
        took_s = p.of_pushes(p.cells(phase, "end_s") - p.cells(phase, "begin_s"), h)
        size = r.numbers[column]
        least_s = np.where(size > 0, c.latency_s + 8 * size / max(speeds), 0.0)
        for row in np.flatnonzero(took_s < least_s - slack_s)[:REPORTED]:
            found.append(f"the {phase} of {h.name(row)} was on its way for {took_s[row]:.6g} s; the cluster's links "
                         f"take {least_s[row]:.6g} s")  # fmt: skip
    return found


def joints(r: Reading) -> list[str]:
    """Each phase begins where the one before it ends, and neither is recorded without the other."""
    p = r.phases
    if not r.layered:
        rows = np.flatnonzero(~p.moved & (p.phase != "compute"))
        order = rows[np.lexsort((p.range[rows], p.iteration[rows], p.worker[rows], p.phase[rows].astype(str)))]
        same = [column[order[1:]] == column[order[:-1]] for column in (p.phase, p.worker, p.iteration, p.range)]
        if (twice := order[1:][np.logical_and.reduce(same)]).size:
            return report(twice, lambda i: f"{p.name(i)} is recorded twice")
    found = list[str]()
    for before, after, must in _pairs(r):
        first = before == "compute" and r.traits.overlap > 0  # the others follow its push
        ended, began = p.cells(before, "end_s", np.fmin if first else np.fmax), p.cells(after, "begin_s", np.fmin)
        wrong = np.abs(began - ended) > SLACK_S
        if must:
            wrong |= np.isnan(began) != np.isnan(ended)
        found += report_cells(wrong, lambda index, worker, at, pair=(before, after), ends=ended, begins=began: (
            f"worker {worker}'s {pair[0]} of iteration {at} ends at {ends[index, worker, at]:.6g} s, its {pair[1]} "
            f"begins at {begins[index, worker, at]:.6g} s"))  # fmt: skip
    return found


def _pairs(r: Reading) -> Iterator[tuple[str, str, bool]]:
    """Phases that follow each other without a gap, and whether neither is ever recorded alone."""
    yield from [("push", "apply", True), ("wait", "serve", True), ("serve", "pull", True)]
    if r.modelled or not (r.known and r.traits.eager):  # whose process decodes when the next iteration starts
        yield "pull", "decode", False
    if r.in_turn:
        yield "apply", "wait", True
    if not r.layered and r.sparse is not None:
        yield "compute", "select", True
        if r.sparse:
            yield "select", "encode", True
        if r.modelled and r.in_turn and r.phases.ranges == 1:
            yield ("encode" if r.sparse else "select"), "push", False


def inside(r: Reading) -> list[str]:
    """Nothing is dealt with, applied or answered after the run."""
    end_s, p, h = float(r.facts["seconds"]), r.phases, r.pushes
    found = list[str]()
    # in virtual time, a server ends what it has begun before the time is up, the target is reached or a worker diverges
    if not r.modelled or r.facts["outcome"] not in ("seconds", "interrupted", "target", "diverged"):
        late = np.flatnonzero(r.arrivals.seconds > end_s + SLACK_S)
        found += report(late, lambda i: f"{r.arrivals.name(i)} came at {r.arrivals.seconds[i]:.6g} s, after the run")
        late = np.flatnonzero(h.seconds > end_s + SLACK_S)
        found += report(late, lambda i: f"{h.name(i)} was applied at {h.seconds[i]:.6g} s, after the run")
    by_server = np.isin(p.phase, ["apply", "wait", "serve"])
    late = np.flatnonzero((p.end_s > end_s + SLACK_S) & (by_server | r.modelled))
    return found + report(late, lambda i: f"{p.name(i)} ends at {p.end_s[i]:.6g} s, after the run")
