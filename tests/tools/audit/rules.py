"""The audit of a finished run: its replay, and rules for what the replay does not see: phases, bytes, faults, times.

Each rule returns its violations in words. What is allowed follows from the policy object, never from its name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pslab.config.run import Run
from pslab.engines.emulation.compute_times import ComputeTimes
from pslab.engines.emulation.faults import DUPLICATE, KILL, LISTED, Faults, Row
from pslab.engines.emulation.links import UP
from pslab.engines.experiment.experiment import Outcome
from pslab.lab.judge import judge, tables_of
from pslab.protocol.messages import Pull, Push
from pslab.tensors.compression.uncompressed import START
from tools.audit.reading import REPORTED, SLACK_S, Reading, report, report_cells, report_rows

EXACT = 1e-9  # relative: what a sum of two instants loses


class Verdict(NamedTuple):
    """The verdict on a run, "valid", "invalid" or "unknown", and why it is not valid: who, when, what was expected."""

    verdict: str
    violations: tuple[str, ...] = ()


def audit(run: Run, tables: Mapping[str, pd.DataFrame], facts: Mapping[str, Any]) -> Verdict:
    """Return whether a run's tables ("arrivals", "pushes", "phases", "accuracy") and facts are what they must be."""
    replayed = judge(run, tables, facts)
    if replayed.verdict == "unknown" or not len(tables["pushes"]):
        return Verdict(replayed.verdict, (replayed.why,) if replayed.why else ())
    record, found = Reading(run, tables, facts), [replayed.why] if replayed.why else []
    for rule in RULES:
        try:
            found += rule(record)
        except IndexError:  # of a version or an iteration that does not exist, which the replay has named
            if replayed.verdict == "valid":
                raise
    return Verdict("invalid" if found else "valid", tuple(found))


def judged(run: Run, outcome: Outcome) -> Verdict:
    """Return the audit's verdict on what an engine has left of a run."""
    tables, _, facts = tables_of(run, outcome)
    return audit(run, tables, facts)


# --- the cluster's plan -----------------------------------------------------------------------------------------------


def moves(r: Reading) -> list[str]:
    """Workers leave and join when the cluster says so, or die, or where a new process takes their place."""
    a, p, cluster, found = r.arrivals, r.phases, r.cluster, list[str]()
    died = [(int(death["worker"]), float(death["seconds"])) for death in r.facts["deaths"]]
    due = {"leave": [*cluster.leave.items(), *died, *r.replaced], "join": [*cluster.join.items(), *r.replaced]}
    for row in np.flatnonzero((a.kind == "leave") | (a.kind == "join")).tolist():
        kind, who, at_s = a.kind[row], int(a.worker[row]), a.seconds[row]
        planned = min((at for worker, at in due[kind] if worker == who), default=None)
        if planned is None or at_s < planned - SLACK_S:
            due_s = f"never {kind}s" if planned is None else f"{kind}s at {planned:.6g} s"
            found.append(f"at {at_s:.6g} s the server was notified {r.arrival(row)}; by the record it {due_s}")
        else:
            due[kind].remove((who, planned))  # once each
    left = {*a.worker[a.kind == "leave"].tolist()}
    found += [f"worker {worker} died at {at:.6g} s, and the server was not notified"
              for worker, at in died if worker not in left]  # fmt: skip
    last_s = p.begin_s[p.phase == "push"].max(initial=-np.inf)  # sent then, dealt with later
    left |= {fault[2] for fault in r.all("faulted") if fault[0] == KILL}  # the dead do not take their leave
    return found + [f"worker {worker} leaves at {at:.6g} s, and the server was not notified"
                    for worker, at in cluster.leave.items() if at < last_s and worker not in left]  # fmt: skip


def faults(r: Reading) -> list[str]:
    """The manifest counts its faults, every frame that came met its planned faults, and deaths are kills."""
    rows, counts = [tuple(row) for row in r.all("faulted")], dict(r.facts.get("faults", {}))
    happened = Counter(row[0] for row in rows)
    if len(rows) < LISTED and happened != +Counter(counts):
        return [f"the manifest counts {counts} as faults; it lists {dict(happened)}"]
    if not r.cluster.faults or len(rows) == LISTED:
        return []
    killed = {row[2:4] for row in rows if row[0] == KILL}
    found = [f"worker {death['worker']} died at {death['seconds']:.6g} s, and no fault killed it"
             for death in r.facts["deaths"]
             if r.modelled and death["worker"] not in {who for who, _ in killed}]  # fmt: skip
    a, plan = r.arrivals, Faults(r.cluster, r.run.seed)
    asked = {(life["worker"], life.get("joined")) for life in r.all("lives")}  # by the server itself: no frame came
    for message in _frames(r) if plan.of_frames else ():
        if type(message) is Push or (message.worker, message.iteration) not in asked:
            plan.fate(UP, message.worker, [message], -np.inf)  # before any instant
    missing = sorted({row[:5] for row in plan.rows} - {row[:5] for row in rows})
    found += report(f"worker {who}'s frame of iteration {at} came; by the cluster's plan it was to meet a fault, "
                    f"{what}, which the record does not have" for what, _, who, at, _ in missing)  # fmt: skip
    ours, plan = a.kind == "push", Faults(r.cluster, r.run.seed)
    came = sorted({*zip(a.worker[ours].tolist(), a.iteration[ours].tolist(), strict=True)} - killed)
    found += report(f"worker {who} pushed iteration {at}, before which a fault was to kill it"
                    for who, at in came if plan.kills(who, at))  # fmt: skip
    return found + _performed(r, rows)


def _performed(r: Reading, rows: list[Row]) -> list[str]:
    """A recorded fault of a frame with a push shows in when the push came, and how often."""
    # pushes and requests are frames of their own there, or are not about the first range
    if r.layered or r.run.servers > 1 or r.traits.eager or r.traits.rotation.fragments > 1:
        return []
    a, found = r.arrivals, list[str]()
    iterations = int(a.iteration.max(initial=0)) + 2
    came, asked = (r.came_s(kind, iterations)[0] for kind in ("push", "pull"))
    ours = (a.kind == "push") & (a.range == 0)
    pushes = Counter(zip(a.worker[ours].tolist(), a.iteration[ours].tolist(), strict=True))
    for what, direction, worker, at, _, now in rows:
        if direction != UP or worker in r.movers or not 0 <= at < iterations - 2:
            continue
        least_s = min(fault.for_s for fault in r.cluster.faults if fault.what == what)
        if what == DUPLICATE and not np.isnan(came[worker, at + 1]) and pushes[worker, at] < 2:
            found.append(f"worker {worker}'s push of iteration {at} was duplicated, and came once")
        elif what != DUPLICATE and asked[worker, at + 1] < now + least_s - SLACK_S:
            found.append(f"worker {worker}'s frame of iteration {at} met a {what} at {now:.6g} s, and came at "
                         f"{asked[worker, at + 1]:.6g} s, sooner than {least_s:.6g} s later")  # fmt: skip
    return found[:REPORTED]


def _frames(r: Reading) -> Iterator[Push | Pull]:
    """Yield the last message of each frame that came.

    A frame is about all ranges that an iteration exchanges, and a request after that iteration, too, unless requests go
    layer by layer; with several servers each has one range then.
    """
    a = r.arrivals
    separate, alone = r.layered or r.traits.eager, r.layered or r.run.servers > 1
    columns = (column.tolist() for column in (a.kind, a.worker, a.range, a.iteration))
    for kind, worker, index, iteration in zip(*columns, strict=True):
        if kind == "push" and separate and (alone or index == r.exchanged(iteration)[-1]):
            yield Push(worker, index, iteration, 0)
        elif kind == "pull" and (alone or index == r.exchanged(iteration - 1)[-1]):
            yield Pull(worker, index, iteration, 0)


# --- phases -----------------------------------------------------------------------------------------------------------


def chain(r: Reading) -> list[str]:
    """An iteration is computed once its weights have arrived, and pushed once it is computed, but for steps that
    follow its push.

    Layer by layer, its computation ends once all weights have arrived, its last push comes once it is computed; the
    last two iterations may be incomplete.
    """
    began, done, pushed = r.first("compute", "begin_s"), r.last("compute", "end_s"), r.first("push", "begin_s")
    if r.traits.overlap:
        done = r.first("compute", "end_s")
    if r.layered:
        done[:, -2:] = np.nan
        done[:, :-2][np.isnan(began[:, 2:])] = np.nan
        pushed, began = r.last("push", "begin_s"), done
    arrived = np.fmax(r.last("pull", "end_s"), r.last("decode", "end_s"))[:, :-1]
    found = report_cells(pushed < done - SLACK_S, "pushed iteration {} before it was computed", pushed, done)
    began = began[:, 1:]
    return found + report_cells(began < arrived - SLACK_S, "went on from {} before its weights came", began, arrived)


def received(r: Reading) -> list[str]:
    """A push that arrived was computed before, and was handled when the phases say; its answer came after the request.

    Layer by layer, a part of a worker's last iteration is not recorded.
    """
    computed, came = r.first("compute", "begin_s"), r.came_s("push", r.iterations)
    missing = np.isnan(computed) & ~np.isnan(came)
    missing[:, r.gaps] = False
    if r.layered:
        last = np.where(np.isnan(computed), -1, np.arange(r.iterations)).max(axis=1, keepdims=True)
        missing &= np.arange(r.iterations) < last
    found = report_cells(missing, "pushed iteration {}, which was never computed")
    taken, answered = r.cells("apply", "begin_s"), r.cells("wait", "end_s")
    wrong = (np.abs(taken - came) > SLACK_S) | (np.isnan(came) & ~np.isnan(taken))
    found += report_cells(wrong, "pushed iteration {}, which was not dealt with as it arrived", taken, came)
    found += report_cells(came < computed - SLACK_S, "pushed iteration {} before it computed", came, computed)
    asked = r.came_s("pull", r.iterations + 1)[:, :, 1:]
    wrong = ~(answered >= asked - SLACK_S) & ~np.isnan(answered)
    return found + report_cells(wrong, "was answered after iteration {} before it had asked", answered, asked)


def joints(r: Reading) -> list[str]:
    """Each phase begins where the one before it ends, and neither is recorded without the other."""
    p, found = r.phases, list[str]()
    if not r.layered:
        rows = np.flatnonzero(~np.isin(p.worker, r.gaps) & (p.phase != "compute"))
        names = zip(p.phase[rows], p.worker[rows], p.iteration[rows], p.range[rows], strict=True)
        found += report(f"worker {worker}'s {phase} of iteration {at} is recorded twice"
                        for (phase, worker, at, _), count in Counter(names).items() if count > 1)  # fmt: skip
    for before, after, must in _pairs(r):
        first = before == "compute" and r.traits.overlap > 0  # the others follow its push
        ended, began = r.cells(before, "end_s", np.fmin if first else np.fmax), r.cells(after, "begin_s", np.fmin)
        wrong = np.abs(began - ended) > SLACK_S
        if must:
            wrong |= np.isnan(began) != np.isnan(ended)
        found += report_cells(wrong, f"ends {before} and begins {after} of iteration {{}}", ended, began)
    return found


def _pairs(r: Reading) -> Iterator[tuple[str, str, bool]]:
    """Yield phases that follow each other without a gap, and whether neither is ever recorded alone."""
    yield from [("push", "apply", True), ("wait", "serve", True), ("serve", "pull", True)]
    if r.modelled or not r.traits.eager:  # whose process decodes when the next iteration starts
        yield "pull", "decode", False
    if not r.traits.eager:
        yield "apply", "wait", True
    if not r.layered:
        yield "compute", "select", True
        if r.sparse:
            yield "select", "encode", True
        if r.modelled and not r.traits.eager and r.ranges == 1:
            yield ("encode" if r.sparse else "select"), "push", False


# --- times and evaluations --------------------------------------------------------------------------------------------


def computing(r: Reading) -> list[str]:
    """In virtual time an iteration's computation takes what the cluster's seeded stream says; on a machine, no less.

    It takes no less layer by layer, either: a rule's work on one layer's gradient comes before the next layer's pass.
    Of a worker's last iteration a part may not be recorded there, nor what would have followed its push.
    """
    p, rows = r.phases, r.rows("compute")
    spent_s = np.zeros((r.run.workers, r.iterations))
    np.add.at(spent_s, (p.worker[rows], p.iteration[rows]), p.end_s[rows] - p.begin_s[rows])
    done = np.full(r.run.workers, -int(r.in_parts))
    np.maximum.at(done, p.worker[rows], p.iteration[rows] + 1 - r.in_parts)
    due_s = spent_s.copy()
    meets = not r.cluster.faults or not r.in_parts  # else a fault may meet any of its parts
    plan, began = Faults(r.cluster, r.run.seed), r.first("compute", "begin_s")
    for worker in np.flatnonzero(done > 0).tolist():
        times = ComputeTimes(r.cluster, r.run.seed, worker)
        for iteration in range(done[worker]):
            draws, at_s = r.gradients(worker, iteration), float(began[worker, iteration])
            drawn_s = sum(times.draw() for _ in range(draws)) + draws * float(r.facts.get("inner_s", 0.0))
            paused_s = plan.pause_s(worker, iteration, at_s, at_s + drawn_s) if r.cluster.faults and meets else 0.0
            due_s[worker, iteration] = drawn_s + paused_s
    lost = {row[2:4] for row in plan.rows} - {(row[2], row[3]) for row in r.all("faulted")}
    if r.modelled and lost and sum(r.facts["faults"].values()) < LISTED:
        return [f"the plan stops worker {who} in iteration {at}; the record has no such fault" for who, at in lost]
    slack_s = EXACT * (1 + float(p.end_s.max())) if r.modelled else SLACK_S
    exact = r.modelled and not r.layered and meets
    wrong = np.abs(spent_s - due_s) > slack_s if exact else spent_s < due_s - slack_s
    return report_cells(wrong, "computed iteration {} for another time than the cluster's", spent_s, due_s)


def inside(r: Reading) -> list[str]:
    """No clock runs backwards; and nothing is dealt with, applied or answered after the run."""
    end_s, a, p, h = float(r.facts["seconds"]) + SLACK_S, r.arrivals, r.phases, r.pushes
    found = report_rows(~(p.end_s >= p.begin_s - SLACK_S), r.phase, "ends before it begins", p.end_s, p.begin_s)
    found += report_rows(np.diff(h.seconds, prepend=0) < 0, r.push, "was applied before the last one", h.seconds)
    # in virtual time, a server ends what it has begun before the time is up, the target is reached or a worker diverges
    if not r.modelled or r.facts["outcome"] not in ("seconds", "target", "diverged"):
        found += report_rows(a.seconds > end_s, r.arrival, "came after the run", a.seconds)
        found += report_rows(h.seconds > end_s, r.push, "was applied after the run", h.seconds)
    late = (p.end_s > end_s) & (np.isin(p.phase, ["apply", "wait", "serve"]) | r.modelled)
    return found + report_rows(late, r.phase, "ends after the run", p.end_s)


def evaluations(r: Reading) -> list[str]:
    """Weights are evaluated at the start, after each period, and at the end."""
    several = r.run.servers > 1  # they copy their weights behind the same step, each in its own time
    if not r.trained or (several and not r.run.evaluation_period):
        return []
    due = list(_due_evaluations(r))
    here = list(zip(r.evaluations.pushes.tolist(), r.evaluations.seconds.tolist(), strict=True))
    slack = (0.0, np.inf if several else SLACK_S)
    for at in range(max(len(due), len(here))):
        wanted, is_there = due[at : at + 1], here[at : at + 1]
        if not wanted or not is_there or (np.abs(np.subtract(wanted, is_there)) > slack).any():
            return [f"evaluation {at + 1} (pushes, seconds) is {is_there or 'missing'}; it is due: {wanted or 'never'}"]
    return []


def _due_evaluations(r: Reading) -> Iterator[tuple[int, float]]:
    """Yield (pushes, seconds) of each evaluation, as the server counts what it has applied."""
    run, h, period = r.run, r.pushes, r.run.evaluation_period
    step, last, applied = period if period is not None else (run.seconds or 1.0) / 20, 0, 0
    due, parts, complete = step, Counter[tuple[int, int]](), False
    yield 0, 0.0
    ends = (np.diff(h.version_applied, append=-1) != 0) | (np.diff(h.range, append=-1) != 0)
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
    h, size = r.pushes, r.pushes.bytes_up_raw / r.itemsize
    entries = h.density * size
    k = np.round(entries)
    wrong = (np.abs(entries - k) > EXACT * size) | (k < 0) | (k > size)
    found = report_rows(wrong, r.push, "has a density that is no whole number of entries", h.density, size)
    if found or (r.sparse and not r.trained):
        return found
    if not r.sparse:
        least = most = np.where(k == size, START + size * r.itemsize, np.nan)  # all of them, always
    else:
        least, most = np.where((k == 0) & r.keyed, 0, START - 16), _largest(k, r.itemsize)
    sent, nothing = r.each(r.traits.pushes), np.where(k == 0, 0, np.nan)  # what is pushed now and then
    least, most = np.where(sent, least, nothing), np.where(sent, most, nothing)
    wrong = ~((h.bytes_up >= least) & (h.bytes_up <= most))
    return report_rows(wrong, r.push, "took bytes that its entries do not take", h.bytes_up, k, least, most)


def _largest(k: np.ndarray, itemsize: int) -> np.ndarray:
    """Return the most bytes of a frame of k values, with their positions and the head of each piece."""
    return np.asarray(4096 + (k + 2048) * (itemsize + 5))


def bytes_down(r: Reading) -> list[str]:
    """A pull of all weights is a dense frame; every pull but each worker's last was answered."""
    h = r.pushes
    down, raw, whole, size = h.bytes_down, h.bytes_down_raw, h.bytes_up_raw, h.bytes_up_raw / r.itemsize
    answered = (raw == whole) & ((down >= START) | r.keyed)
    if r.run.downlink == "none" and r.run.pull == "whole" and not getattr(r.prune, "tells", False):
        answered &= down == START + whole
    elif r.keyed:  # values in the request's order, without positions
        k = (down - START) / r.itemsize
        answered &= (down == 0) | ((k == np.round(k)) & (k > 0) & (k <= size))
    else:
        answered &= down <= _largest(size, r.itemsize)
    fetched, moved = r.each(r.traits.fetches, 1), np.isin(h.worker, [*r.movers])
    last = ~pd.DataFrame({"worker": h.worker, "range": h.range}).duplicated(keep="last").to_numpy()
    answered = (answered & (fetched | moved)) | (~fetched & (raw == whole) & (down == 0))
    wrong = ~(answered | ((raw == 0) & (down == 0) & (last | moved)))
    return report_rows(wrong, r.push, "is followed by a pull of bytes that its range does not take", down, raw, whole)


RULES = (faults, moves, chain, received, joints, computing, inside, evaluations, bytes_up, bytes_down)
