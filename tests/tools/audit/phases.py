"""Rules for the table of phases, alone and together with the pushes: when workers computed and were answered."""

from __future__ import annotations

import numpy as np

from tools.audit.reading import SLACK_S, Reading, report, report_cells


def spans(r: Reading) -> list[str]:
    """A phase belongs to a worker and a range of the run, and ends after it begins, in the run."""
    p = r.phases
    unknown = (p.worker < 0) | (p.worker >= p.workers) | (p.iteration < -1) | (p.range < -1) | (p.range >= p.ranges)
    if unknown.any():
        return report(np.flatnonzero(unknown), lambda i: (
            f"{p.name(i)} on range {p.range[i]}: the workers are 0 to {p.workers - 1}, the ranges 0 to "
            f"{p.ranges - 1}, or -1 for all, and iterations count from 0"))  # fmt: skip
    never = np.flatnonzero(p.iteration > r.arrivals.iteration.max() + 1)  # not even asked for
    if len(never):
        return report(never, lambda i: f"{p.name(i)}, which it never computed")
    wrong = np.flatnonzero(~(p.end_s >= p.begin_s - SLACK_S) | ~np.isfinite(p.begin_s) | ~np.isfinite(p.end_s))
    found = report(wrong, lambda i: (
        f"{p.name(i)} begins at {p.begin_s[i]:.6g} s and ends before, at {p.end_s[i]:.6g} s"))  # fmt: skip
    return found + report(np.flatnonzero(p.begin_s < -SLACK_S), lambda i: (
        f"{p.name(i)} begins at {p.begin_s[i]:.6g} s, before the run"))  # fmt: skip


def computing(r: Reading) -> list[str]:
    """A worker computes one iteration after the other, and has phases of no other iterations."""
    p = r.phases
    rows = np.flatnonzero(p.phase == "compute")
    rows = rows[np.lexsort((p.begin_s[rows], p.worker[rows]))]
    now, last = rows[1:], rows[:-1]
    same = p.worker[now] == p.worker[last]
    overlap = same & (p.begin_s[now] < p.end_s[last] - SLACK_S)
    before = dict(zip(now.tolist(), last.tolist(), strict=True))
    found = report(now[overlap], lambda i: f"{p.name(i)} begins at {p.begin_s[i]:.6g} s, before that of iteration "
                                           f"{p.iteration[before[i]]} ends at {p.end_s[before[i]]:.6g} s")  # fmt: skip
    due = np.zeros(len(rows), np.int64)
    due[1:] = np.where(same, p.iteration[last] + 1, 0)
    if r.in_parts:  # an iteration consists of several phases
        due[1:] -= same & (p.iteration[now] == p.iteration[last])
    wrong = (p.iteration[rows] != due) & ~p.moved[rows]
    expected = dict(zip(rows.tolist(), due.tolist(), strict=True))
    found += report(rows[wrong], lambda i: f"{p.name(i)} came where iteration {expected[i]} was expected")
    ends = np.zeros(p.workers, np.int64)
    np.maximum.at(ends, p.worker[rows], p.iteration[rows] + 1)
    # an eager worker receives the next weights before it has computed; a layered one, within the iteration
    alien = (p.iteration < 0) | (p.iteration >= ends[p.worker] + (bool(r.lacking) or r.layered))
    alien &= ~p.moved
    return found or report(np.flatnonzero(alien), lambda i: f"{p.name(i)}, which it never computed")


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
    found += report_cells(~(answered >= asked - SLACK_S) & ~np.isnan(answered), lambda index, worker, at: (
        f"worker {worker} was answered for iteration {at + 1} at {answered[index, worker, at]:.6g} s; its request "
        f"arrived at {asked[index, worker, at]:.6g} s"))  # fmt: skip
    return found


def eagerly(r: Reading) -> list[str]:
    """An eager worker requests the next weights before it has computed, and pushes after they have arrived."""
    if not r.traits.eager:
        return []
    p = r.phases
    done, asked = p.last("compute", "end_s"), p.first("wait", "begin_s")
    pushed, arrived = p.cells("push", "begin_s"), p.cells("pull", "end_s")
    found = report_cells(asked[:, 1:] < done[:, :-1] - SLACK_S, lambda worker, at: (
        f"worker {worker} requested the weights of iteration {at + 2} at {asked[worker, at + 1]:.6g} s, before it had "
        f"computed iteration {at}, at {done[worker, at]:.6g} s"))  # fmt: skip
    return found + report_cells(pushed < arrived - SLACK_S, lambda index, worker, at: (
        f"worker {worker} pushed iteration {at} at {pushed[index, worker, at]:.6g} s, before the weights that it "
        f"requested arrived, at {arrived[index, worker, at]:.6g} s: the policy is eager"))  # fmt: skip


def newest(r: Reading) -> list[str]:
    """A worker that starts gets the newest weights, and none that are made later."""
    p, h = r.phases, r.pushes
    started = p.of_pushes(p.cells("wait", "end_s"), h, back=r.traits.rotation.fragments)
    made, replaced = np.empty(h.size), np.empty(h.size)  # when the version on which it was computed came, and went
    for _, rows in h.by_range:
        made_s = h.made_s(rows)
        made[rows], replaced[rows] = made_s[h.pulled[rows]], made_s[h.pulled[rows] + 1]
    found = report(np.flatnonzero(made > started + SLACK_S), lambda i: (
        f"{h.name(i)} was computed on version {h.pulled[i]}, which was made at {made[i]:.6g} s: the worker had started "
        f"before, at {started[i]:.6g} s"))  # fmt: skip
    return found + report(np.flatnonzero((replaced < started - SLACK_S) & h.fetched), lambda i: (
        f"{h.name(i)} was computed on version {h.pulled[i]}, but version {h.pulled[i] + 1} was made at "
        f"{replaced[i]:.6g} s, before the worker started, at {started[i]:.6g} s"))  # fmt: skip


def beyond(r: Reading) -> list[str] | None:
    """No worker starts an iteration before every worker has pushed the iteration one window earlier."""
    p, window = r.phases, r.traits.window
    if window is None:
        return None
    came, started = r.arrivals.came_s("push", p.iterations), p.cells("wait", "end_s")
    came = np.where(np.isnan(came), np.inf, came)
    came[:, sorted(p.movers)] = -np.inf
    need = np.full((p.ranges, p.iterations), -np.inf)  # when all pushes that an answer requires had come
    if (ahead := (window - 1) * r.traits.rotation.fragments) < p.iterations:
        need[:, ahead:] = came.max(axis=1)[:, : p.iterations - ahead]
    cells = np.argwhere(need[:, None] > started + SLACK_S)
    cells = cells[np.argsort(started[tuple(cells.T)], kind="stable")]

    def words(at: int) -> str:
        index, who, before = cells[at]
        now = started[index, who, before]
        clocks = (came[index] <= now + SLACK_S).sum(axis=1)
        slowest = int(clocks.argmin())
        return (f"worker {who} started iteration {before + 1} at {now:.6g} s, when worker {slowest} had pushed "
                f"{clocks[slowest]} iterations: {before + 1 - clocks[slowest]} ahead, and a window of {window} "
                f"allows {window - 1}")  # fmt: skip

    return report(range(len(cells)), words)


def steps_inside(r: Reading) -> list[str] | None:
    """Under a barrier the weights do not change while a worker computes on them."""
    if r.layered or not r.traits.barrier:  # layered workers compute while a range changes
        return None
    p, history = r.phases, r.pushes
    rows = p.rows("compute")
    first = np.searchsorted(history.seconds, p.begin_s[rows] + SLACK_S, "right")
    wrong = first < np.searchsorted(history.seconds, p.end_s[rows] - SLACK_S, "left")
    inside = dict(zip(rows[wrong].tolist(), first[wrong].tolist(), strict=True))
    return report(inside, lambda row: (
        f"{history.name(inside[row])} was applied at {history.seconds[inside[row]]:.6g} s, while worker "
        f"{p.worker[row]} computed iteration {p.iteration[row]} ({p.begin_s[row]:.6g} to "
        f"{p.end_s[row]:.6g} s): the policy claims a barrier"))  # fmt: skip
