"""Rules for what the replay of a run's arrivals does not see: instants, phases, bytes, faults, evaluations.

Each rule returns its violations in words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from pslab.config.cluster import OF_FRAMES, Fault
from pslab.engines.emulation.compute_times import ComputeTimes
from pslab.engines.emulation.faults import BOTH, DUPLICATE, KILL, LISTED, NO_RANGE, Faults, Row
from pslab.engines.emulation.links import UP
from pslab.protocol.messages import Pull, Push
from pslab.tensors.compression.uncompressed import START
from tools.audit.reading import REPORTED, SLACK_S, Reading, report, report_cells

EXACT = 1e-9  # relative: what a sum of two instants loses


# --- the cluster's plan -----------------------------------------------------------------------------------------------


def moves(r: Reading) -> list[str]:
    """Workers leave and join when the cluster says so, or die, or where a new process takes their place."""
    arrivals, cluster, phases, found = r.arrivals, r.cluster, r.phases, list[str]()
    died = [(int(death["worker"]), float(death["seconds"])) for death in r.facts["deaths"]]
    due = {"leave": [*cluster.leave.items(), *died, *r.replaced], "join": [*cluster.join.items(), *r.replaced]}
    rows = np.flatnonzero((arrivals.kind == "leave") | (arrivals.kind == "join"))
    for row in rows.tolist():
        name, at_s = (arrivals.kind[row], int(arrivals.worker[row])), arrivals.seconds[row]
        planned = min((at for worker, at in due[name[0]] if worker == name[1]), default=None)
        if planned is None or at_s < planned - SLACK_S:
            due_s = f"never {name[0]}s" if planned is None else f"{name[0]}s at {planned:.6g} s"
            found.append(f"at {at_s:.6g} s the server was notified {arrivals.name(row)}; by the record it {due_s}")
        else:
            due[name[0]].remove((name[1], planned))  # once each
    left = set(arrivals.worker[arrivals.kind == "leave"].tolist())
    found += [f"worker {worker} died at {at:.6g} s, and the server was not notified"
              for worker, at in died if worker not in left]  # fmt: skip
    last_s = phases.begin_s[phases.phase == "push"].max(initial=-np.inf)  # sent then, dealt with later
    left |= {fault[2] for fault in r.all("faulted") if fault[0] == KILL}  # the dead do not take their leave
    return found + [f"worker {worker} leaves at {at:.6g} s, and the server was not notified"
                    for worker, at in cluster.leave.items() if at < last_s and worker not in left]  # fmt: skip


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
    if found or len(rows) == LISTED:
        return found
    missing = sorted(_due(r) - {row[:5] for row in rows})
    found += report(range(len(missing)), lambda at: (
        f"worker {missing[at][2]}'s frame of iteration {missing[at][3]} came; by the cluster's plan it was to meet "
        f"a fault, {missing[at][0]}, which the record does not have"))  # fmt: skip
    survived = sorted(_to_die(r) - {row[2:4] for row in rows if row[0] == KILL})
    found += report(
        range(len(survived)),
        lambda at: f"worker {survived[at][0]} pushed iteration {survived[at][1]}, before which a fault was to kill it",
    )
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


# --- phases -----------------------------------------------------------------------------------------------------------


def chain(r: Reading) -> list[str]:
    """An iteration is computed once its weights have arrived, and pushed once it is computed, but for steps that
    follow its push.

    Layer by layer, its computation ends once all weights have arrived, its last push comes once it is computed; the
    last two iterations may be incomplete.
    """
    p = r.phases
    began, done, pushed = p.first("compute", "begin_s"), p.last("compute", "end_s"), p.first("push", "begin_s")
    if r.traits.overlap:
        done = p.first("compute", "end_s")
    if r.layered:
        done[:, -2:] = np.nan
        done[:, :-2][np.isnan(began[:, 2:])] = np.nan
        pushed = p.last("push", "begin_s")
    found = report_cells(pushed < done - SLACK_S, lambda worker, at: (
        f"worker {worker} pushed iteration {at} at {pushed[worker, at]:.6g} s, before it was computed, at "
        f"{done[worker, at]:.6g} s"))  # fmt: skip
    arrived = np.fmax(p.last("pull", "end_s"), p.last("decode", "end_s"))
    if r.layered:
        began = done
    return found + report_cells(began[:, 1:] < arrived[:, :-1] - SLACK_S, lambda worker, at: (
        f"worker {worker} began iteration {at + 1} at {began[worker, at + 1]:.6g} s, before its weights arrived, at "
        f"{arrived[worker, at]:.6g} s"))  # fmt: skip


def received(r: Reading) -> list[str]:
    """A push that arrived was computed before, and was handled when the phases say; its answer came after the request.

    Layer by layer, a part of a worker's last iteration is not recorded.
    """
    p = r.phases
    computed, came = p.first("compute", "begin_s"), r.arrivals.came_s("push", p.iterations)
    known = np.ones(p.workers, bool)
    known[sorted(p.movers)] = False
    missing = np.isnan(computed) & ~np.isnan(came) & known[:, None]
    if r.layered:
        last = np.where(np.isnan(computed), -1, np.arange(p.iterations)).max(axis=1, keepdims=True)
        missing &= np.arange(p.iterations) < last
    found = report_cells(missing, lambda _, worker, at: (
        f"worker {worker} pushed iteration {at}, which was never computed"))  # fmt: skip
    taken, answered = p.cells("apply", "begin_s"), p.cells("wait", "end_s")
    wrong = (np.abs(taken - came) > SLACK_S) | (np.isnan(came) & ~np.isnan(taken))
    found += report_cells(wrong, lambda index, worker, at: (
        f"worker {worker}'s push of iteration {at} was dealt with at {taken[index, worker, at]:.6g} s; it arrived at "
        f"{came[index, worker, at]:.6g} s"))  # fmt: skip
    early = came < computed - SLACK_S
    found += report_cells(early, lambda index, worker, at: (
        f"worker {worker}'s push of iteration {at} arrived at {came[index, worker, at]:.6g} s; its computation began "
        f"at {computed[worker, at]:.6g} s"))  # fmt: skip
    asked = r.arrivals.came_s("pull", p.iterations + 1)[:, :, 1:]
    return found + report_cells(~(answered >= asked - SLACK_S) & ~np.isnan(answered), lambda index, worker, at: (
        f"worker {worker} was answered for iteration {at + 1} at {answered[index, worker, at]:.6g} s; its request "
        f"arrived at {asked[index, worker, at]:.6g} s"))  # fmt: skip


def newest(r: Reading) -> list[str]:
    """A worker that starts gets the newest weights, and none that are made later."""
    p, h = r.phases, r.pushes
    started = p.of_pushes(p.cells("wait", "end_s"), h, back=r.traits.rotation.fragments)
    made, replaced = np.empty(h.size), np.empty(h.size)  # when the version on which it was computed came, and went
    for rows in h.by_range:
        made_s = h.made_s(rows)
        made[rows], replaced[rows] = made_s[h.pulled[rows]], made_s[h.pulled[rows] + 1]
    found = report(np.flatnonzero(made > started + SLACK_S), lambda i: (
        f"{h.name(i)} was computed on version {h.pulled[i]}, which was made at {made[i]:.6g} s: the worker had started "
        f"before, at {started[i]:.6g} s"))  # fmt: skip
    older = (replaced < started - SLACK_S) & h.each(r.traits.fetches)
    return found + report(np.flatnonzero(older), lambda i: (
        f"{h.name(i)} was computed on version {h.pulled[i]}, but version {h.pulled[i] + 1} was made at "
        f"{replaced[i]:.6g} s, before the worker started, at {started[i]:.6g} s"))  # fmt: skip


def beyond(r: Reading) -> list[str]:
    """No worker starts an iteration before every worker has pushed the iteration one window earlier."""
    p, window = r.phases, r.traits.window
    if window is None:
        return []
    came, started = r.arrivals.came_s("push", p.iterations), p.cells("wait", "end_s")
    came = np.where(np.isnan(came), np.inf, came)
    came[:, sorted(p.movers)] = -np.inf
    need = np.full((p.ranges, p.iterations), -np.inf)  # when all pushes that an answer requires had come
    if (ahead := (window - 1) * r.traits.rotation.fragments) < p.iterations:
        need[:, ahead:] = came.max(axis=1)[:, : p.iterations - ahead]
    return report_cells(need[:, None] > started + SLACK_S, lambda index, worker, at: (
        f"worker {worker} started iteration {at + 1} of range {index} at {started[index, worker, at]:.6g} s, more than "
        f"{window - 1} iterations ahead, and a window of {window} allows no more"))  # fmt: skip


def joints(r: Reading) -> list[str]:
    """Each phase begins where the one before it ends, and neither is recorded without the other."""
    p, found = r.phases, list[str]()
    if not r.layered:
        rows = np.flatnonzero(~p.moved & (p.phase != "compute"))
        names = zip(p.phase[rows], p.worker[rows], p.iteration[rows], p.range[rows], strict=True)
        twice = [name for name, count in Counter(names).items() if count > 1]
        found += report(range(len(twice)), lambda at: (
            f"worker {twice[at][1]}'s {twice[at][0]} of iteration {twice[at][2]} is recorded twice"))  # fmt: skip
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
    if r.modelled or not r.traits.eager:  # whose process decodes when the next iteration starts
        yield "pull", "decode", False
    if not r.traits.eager:
        yield "apply", "wait", True
    if not r.layered:
        yield "compute", "select", True
        if r.sparse:
            yield "select", "encode", True
        if r.modelled and not r.traits.eager and r.phases.ranges == 1:
            yield ("encode" if r.sparse else "select"), "push", False


# --- times and evaluations --------------------------------------------------------------------------------------------


def computing(r: Reading) -> list[str]:
    """In virtual time an iteration's computation takes what the cluster's seeded stream says; on a machine, no less.

    It takes no less layer by layer, either: a rule's work on one layer's gradient comes before the next layer's pass.
    Of a worker's last iteration a part may not be recorded there, nor what would have followed its push.
    """
    p = r.phases
    rows = p.rows("compute")
    spent_s = np.zeros((p.workers, p.iterations))
    np.add.at(spent_s, (p.worker[rows], p.iteration[rows]), p.end_s[rows] - p.begin_s[rows])
    done = np.full(p.workers, -int(r.in_parts))
    np.maximum.at(done, p.worker[rows], p.iteration[rows] + 1 - r.in_parts)
    due_s = spent_s.copy()
    meets = not r.cluster.faults or not r.in_parts  # else a fault may meet any of its parts
    plan, began = Faults(r.cluster, r.run.seed), p.first("compute", "begin_s")
    for worker in np.flatnonzero(done > 0).tolist():
        times = ComputeTimes(r.cluster, r.run.seed, worker)
        for iteration in range(done[worker]):
            draws = r.gradients(worker, iteration)
            drawn_s = sum(times.draw() for _ in range(draws)) + draws * float(r.facts.get("inner_s", 0.0))
            due_s[worker, iteration] = drawn_s
            if r.cluster.faults and meets:
                at_s = float(began[worker, iteration])
                due_s[worker, iteration] += plan.pause_s(worker, iteration, at_s, at_s + drawn_s)
    lost = {row[2:4] for row in plan.rows} - {(row[2], row[3]) for row in r.all("faulted")}
    if r.modelled and lost and sum(r.facts["faults"].values()) < LISTED:
        return [f"the plan stops worker {who} in iteration {at}; the record has no such fault" for who, at in lost]
    slack_s = EXACT * (1 + float(p.end_s.max())) if r.modelled else SLACK_S
    exact = r.modelled and not r.layered and meets
    wrong = np.abs(spent_s - due_s) > slack_s if exact else spent_s < due_s - slack_s
    return report_cells(wrong, lambda worker, at: (
        f"worker {worker} computed iteration {at} for {spent_s[worker, at]:.9g} s; the cluster's is "
        f"{due_s[worker, at]:.9g} s"))  # fmt: skip


def travelling(r: Reading) -> list[str]:
    """A message on a worker's link takes at least its latency and the time of its bytes at the highest bandwidth."""
    h, c, p = r.pushes, r.cluster, r.phases
    if c.colocated or c.aggregate == "allreduce" or r.traits.eager:
        return []
    speeds = [bit_s or np.inf for bit_s in (c.bandwidth_bit_s, *c.bandwidth_at.values())]
    found = list[str]()
    for phase, column in (("push", "bytes_up"), ("pull", "bytes_down")):
        took_s = p.of_pushes(p.cells(phase, "end_s") - p.cells(phase, "begin_s"), h)
        size = r.numbers[column]
        least_s = np.where(size > 0, c.latency_s + 8 * size / max(speeds), 0.0)
        for row in np.flatnonzero(took_s < least_s - SLACK_S)[:REPORTED]:
            found.append(f"the {phase} of {h.name(row)} was on its way for {took_s[row]:.6g} s; the cluster's links "
                         f"take {least_s[row]:.6g} s")  # fmt: skip
    return found


def inside(r: Reading) -> list[str]:
    """No clock runs backwards; and nothing is dealt with, applied or answered after the run."""
    end_s, p, h = float(r.facts["seconds"]), r.phases, r.pushes
    found = report(np.flatnonzero(~(p.end_s >= p.begin_s - SLACK_S)), lambda i: f"{p.name(i)} ends before it begins")
    found += report(np.flatnonzero(np.diff(h.seconds) < 0) + 1, lambda i: (
        f"{h.name(i)} was applied at {h.seconds[i]:.6g} s, before push {h.push[i - 1]}, which was applied at "
        f"{h.seconds[i - 1]:.6g} s"))  # fmt: skip
    # in virtual time, a server ends what it has begun before the time is up, the target is reached or a worker diverges
    if not r.modelled or r.facts["outcome"] not in ("seconds", "target", "diverged"):
        late = np.flatnonzero(r.arrivals.seconds > end_s + SLACK_S)
        found += report(late, lambda i: f"{r.arrivals.name(i)} came at {r.arrivals.seconds[i]:.6g} s, after the run")
        late = np.flatnonzero(h.seconds > end_s + SLACK_S)
        found += report(late, lambda i: f"{h.name(i)} was applied at {h.seconds[i]:.6g} s, after the run")
    late = np.flatnonzero((p.end_s > end_s + SLACK_S) & (np.isin(p.phase, ["apply", "wait", "serve"]) | r.modelled))
    return found + report(late, lambda i: f"{p.name(i)} ends at {p.end_s[i]:.6g} s, after the run")


def evaluations(r: Reading) -> list[str]:
    """Weights are evaluated at the start, after each period, and at the end."""
    several = r.several_servers  # they copy their weights behind the same step, each in its own time
    if not r.trained or (several and not r.run.evaluation_period):
        return []
    table = r.tables["accuracy"].sort_values("pushes", kind="stable")
    due, here = list(_due_evaluations(r)), list(zip(table.pushes.tolist(), table.seconds.tolist(), strict=True))
    slack = (0.0, np.inf if several else SLACK_S)
    for at in range(max(len(due), len(here))):
        wanted, is_there = due[at : at + 1], here[at : at + 1]
        if not wanted or not is_there or (np.abs(np.subtract(wanted, is_there)) > slack).any():
            return [f"evaluation {at + 1} (pushes, seconds) is {is_there or 'missing'}; it is due: {wanted or 'never'}"]
    return []


def _due_evaluations(r: Reading) -> Iterator[tuple[int, float]]:
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
    size = p["bytes_up_raw"] / r.itemsize
    entries = p["density"] * size
    k = np.round(entries)
    wrong = (np.abs(entries - k) > EXACT * size) | (k < 0) | (k > size)
    found = report(np.flatnonzero(wrong), lambda i: (
        f"{h.name(i)} has a density of {p['density'][i]:g}: no whole number of the {size[i]:g} entries"))  # fmt: skip
    if found or (r.sparse and not r.trained):
        return found
    sent = h.each(r.traits.pushes)
    if not r.sparse:
        least = most = np.where(k == size, START + size * r.itemsize, np.nan)  # all of them, always
    else:
        least, most = np.where((k == 0) & r.keyed, 0, START - 16), _largest(k, r.itemsize)
    nothing = np.where(k == 0, 0, np.nan)  # what is pushed now and then
    least, most = np.where(sent, least, nothing), np.where(sent, most, nothing)
    wrong = ~((p["bytes_up"] >= least) & (p["bytes_up"] <= most))
    return report(np.flatnonzero(wrong), lambda i: (
        f"{h.name(i)} took {p['bytes_up'][i]:g} bytes with {k[i]:g} of {size[i]:g} entries; a frame of those takes "
        f"{least[i]:g} to {most[i]:g}"))  # fmt: skip


def _largest(k: np.ndarray, itemsize: int) -> np.ndarray:
    """The most bytes of a frame of k values, with their positions and the head of each piece."""
    return np.asarray(4096 + (k + 2048) * (itemsize + 5))


def bytes_down(r: Reading) -> list[str]:
    """A pull of all weights is a dense frame; every pull but each worker's last was answered."""
    h, down, raw = r.pushes, r.numbers["bytes_down"], r.numbers["bytes_down_raw"]
    size = r.numbers["bytes_up_raw"] / r.itemsize
    last = np.ones(h.size, bool)
    last[h.followed()] = False
    answered = (raw == size * r.itemsize) & ((down >= START) | r.keyed)
    if r.run.downlink == "none" and r.run.pull == "whole" and not getattr(r.prune, "tells", False):
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


RULES = (faults, moves, chain, received, newest, beyond, joints, computing, travelling, inside, evaluations, bytes_up,
         bytes_down)  # fmt: skip
