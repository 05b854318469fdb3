"""What the phases of a run must satisfy, alone and together with its pushes: who computed, was answered, and when."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pslab.lab.judge.arrivals import Arrivals
from pslab.lab.judge.pushes import History
from pslab.lab.judge.report import SLACK_S, columns, report, report_cells


@dataclass(frozen=True)
class Phases:
    """The table as arrays, one entry a row; times in seconds.

    `movers` are the workers of which phases are missing, or which may have started an iteration twice.
    """

    workers: int
    ranges: int
    movers: frozenset[int]
    worker: np.ndarray
    iteration: np.ndarray
    range: np.ndarray
    phase: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    waits_for: np.ndarray

    @classmethod
    def of(cls, table: pd.DataFrame | None, arrivals: Arrivals, lost: Collection[int]) -> Phases:
        """Read the table; `lost` are the workers whose phases are not in it.

        Raises:
            Unreadable: nothing can be judged from it.
        """
        names = ["worker", "iteration", "range", "waits_for"]
        values = columns(table, "phases", names, ["begin_s", "end_s"], ["phase"])
        return cls(arrivals.workers, arrivals.ranges, arrivals.movers | frozenset(lost), values["worker"],
                   values["iteration"], values["range"], values["phase"], values["begin_s"],
                   values["end_s"], values["waits_for"])  # fmt: skip

    @property
    def iterations(self) -> int:
        """How many iterations tables by iteration have."""
        return int(self.iteration.max()) + 2

    def first(self, phase: str, time: str) -> np.ndarray:
        """[workers, iterations]: the first "begin" or "end" of a phase; NaN where there is none.

        Rows of movers stay empty: they may have started an iteration twice.
        """
        return np.asarray(np.fmin.reduce(self.cells(phase, time, np.fmin), axis=0))

    def last(self, phase: str, time: str) -> np.ndarray:
        """As `first`, the last time."""
        return np.asarray(np.fmax.reduce(self.cells(phase, time, np.fmax), axis=0))

    def cells(self, phase: str, time: str, pick: np.ufunc = np.fmax) -> np.ndarray:
        """[ranges, workers, iterations]: the same of each range. A phase of all ranges stands at range 0."""
        found = np.full((self.ranges, self.workers, self.iterations), np.nan)
        rows = np.flatnonzero((self.phase == phase) & ~np.isin(self.worker, list(self.movers)))
        at = np.maximum(self.range[rows], 0), self.worker[rows], self.iteration[rows]
        pick.at(found, at, getattr(self, time)[rows])
        return found

    def of_pushes(self, cells: np.ndarray, history: History, back: int = 0) -> np.ndarray:
        """For each push, the cell of its range, worker and iteration, or of `back` iterations before; NaN if none."""
        at = history.iteration - back
        inside = (at >= 0) & (at < self.iterations)
        found = np.full(history.size, np.nan)
        where = history.worker[inside], at[inside]
        found[inside] = cells[where] if cells.ndim == 2 else cells[(history.range[inside], *where)]
        return found

    def beyond(self, window: int, history: History) -> list[str]:
        """No worker starts an iteration before every worker has pushed the one `window` iterations earlier."""
        came, started = history.arrivals.came_s("push", self.iterations), self.cells("wait", "end")
        came = np.where(np.isnan(came), np.inf, came)
        came[:, sorted(self.movers)] = -np.inf
        need = np.full((self.ranges, self.iterations), -np.inf)  # when all pushes that an answer requires had come
        if window <= self.iterations:
            need[:, window - 1 :] = came.max(axis=1)[:, : self.iterations - window + 1]
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

    def steps_inside(self, history: History) -> list[str]:
        """Under a barrier the weights do not change while a worker computes on them."""
        rows = np.flatnonzero((self.phase == "compute") & ~np.isin(self.worker, list(self.movers)))
        first = np.searchsorted(history.seconds, self.begin[rows] + SLACK_S, "right")
        wrong = first < np.searchsorted(history.seconds, self.end[rows] - SLACK_S, "left")
        inside = dict(zip(rows[wrong].tolist(), first[wrong].tolist(), strict=True))
        return report(inside, lambda row: (
            f"{history.name(inside[row])} was applied at {history.seconds[inside[row]]:.6g} s, while worker "
            f"{self.worker[row]} computed iteration {self.iteration[row]} ({self.begin[row]:.6g} to "
            f"{self.end[row]:.6g} s): the policy claims a barrier"))  # fmt: skip

    def name(self, row: int) -> str:
        """A phase in words."""
        return f"worker {self.worker[row]}'s {self.phase[row]} of iteration {self.iteration[row]}"


def spans(p: Phases, h: History) -> list[str]:
    """A phase belongs to a worker and a range of the run, and ends after it begins, in the run."""
    unknown = (p.worker < 0) | (p.worker >= p.workers) | (p.iteration < -1) | (p.range < -1) | (p.range >= p.ranges)
    if unknown.any():
        return report(np.flatnonzero(unknown), lambda r: (
            f"{p.name(r)} on range {p.range[r]}: the workers are 0 to {p.workers - 1}, the ranges 0 to "
            f"{p.ranges - 1}, or -1 for all, and iterations count from 0"))  # fmt: skip
    never = np.flatnonzero(p.iteration > h.arrivals.iteration.max() + 1)  # not even asked for
    if len(never):
        return report(never, lambda r: f"{p.name(r)}, which it never computed")
    wrong = np.flatnonzero(~(p.end >= p.begin - SLACK_S) | ~np.isfinite(p.begin) | ~np.isfinite(p.end))
    found = report(wrong, lambda r: f"{p.name(r)} begins at {p.begin[r]:.6g} s and ends before, at {p.end[r]:.6g} s")
    return found + report(np.flatnonzero(p.begin < -SLACK_S), lambda r: (
        f"{p.name(r)} begins at {p.begin[r]:.6g} s, before the run"))  # fmt: skip


def computing(p: Phases, h: History) -> list[str]:
    """A worker computes one iteration after the other, and has phases of no other iterations."""
    rows = np.flatnonzero(p.phase == "compute")
    rows = rows[np.lexsort((p.begin[rows], p.worker[rows]))]
    now, last = rows[1:], rows[:-1]
    same = p.worker[now] == p.worker[last]
    overlap = same & (p.begin[now] < p.end[last] - SLACK_S)
    before = dict(zip(now.tolist(), last.tolist(), strict=True))
    found = report(now[overlap], lambda r: f"{p.name(r)} begins at {p.begin[r]:.6g} s, before that of iteration "
                                           f"{p.iteration[before[r]]} ends at {p.end[before[r]]:.6g} s")  # fmt: skip
    due = np.zeros(len(rows), np.int64)
    due[1:] = np.where(same, p.iteration[last] + 1, 0)
    if h.rules.layered:  # an iteration consists of several phases
        due[1:] -= same & (p.iteration[now] == p.iteration[last])
    wrong = (p.iteration[rows] != due) & ~np.isin(p.worker[rows], list(p.movers))
    expected = dict(zip(rows.tolist(), due.tolist(), strict=True))
    found += report(rows[wrong], lambda r: f"{p.name(r)} came where iteration {expected[r]} was expected")
    ends = np.zeros(p.workers, np.int64)
    np.maximum.at(ends, p.worker[rows], p.iteration[rows] + 1)
    # an eager worker receives the next weights before it has computed; a layered one, within the iteration
    alien = (p.iteration < 0) | (p.iteration >= ends[p.worker] + (bool(h.rules.own) or h.rules.layered))
    alien &= ~np.isin(p.worker, list(p.movers))
    return found or report(np.flatnonzero(alien), lambda r: f"{p.name(r)}, which it never computed")


def chain(p: Phases, h: History) -> list[str]:
    """An iteration is computed once its weights have arrived, and pushed once it is computed.

    Layer by layer, its computation ends once all weights have arrived, its last push comes once it is computed; the
    last two iterations may be incomplete.
    """
    began, done, pushed = p.first("compute", "begin"), p.last("compute", "end"), p.first("push", "begin")
    if h.rules.layered:
        done[:, -2:] = np.nan
        done[:, :-2][np.isnan(began[:, 2:])] = np.nan
        pushed = p.last("push", "begin")
    found = report_cells(pushed < done - SLACK_S, lambda worker, at: (
        f"worker {worker} pushed iteration {at} at {pushed[worker, at]:.6g} s, before it was computed, at "
        f"{done[worker, at]:.6g} s"))  # fmt: skip
    arrived = np.fmax(p.last("pull", "end"), p.last("decode", "end"))
    if h.rules.layered:
        began = done
    return found + report_cells(began[:, 1:] < arrived[:, :-1] - SLACK_S, lambda worker, at: (
        f"worker {worker} began iteration {at + 1} at {began[worker, at + 1]:.6g} s, before its weights arrived, at "
        f"{arrived[worker, at]:.6g} s"))  # fmt: skip


def received(p: Phases, h: History) -> list[str]:
    """What arrived was computed; the server dealt with a push when its worker was told that it did, before an answer.

    Layer by layer, a part of a worker's last iteration is not recorded.
    """
    computed, came = p.first("compute", "begin"), h.arrivals.came_s("push", p.iterations)
    known = np.ones(p.workers, bool)
    known[sorted(p.movers)] = False
    missing = np.isnan(computed) & ~np.isnan(came) & known[:, None]
    if h.rules.layered:
        last = np.where(np.isnan(computed), -1, np.arange(p.iterations)).max(axis=1, keepdims=True)
        missing &= np.arange(p.iterations) < last
    found = report_cells(missing, lambda _, worker, at: (
        f"worker {worker} pushed iteration {at}, which was never computed"))  # fmt: skip
    taken, answered = p.cells("apply", "begin"), p.cells("wait", "end")
    wrong = (np.abs(taken - came) > SLACK_S) | (np.isnan(came) & ~np.isnan(taken))
    found += report_cells(wrong, lambda index, worker, at: (
        f"worker {worker}'s push of iteration {at} was dealt with at {taken[index, worker, at]:.6g} s; it arrived at "
        f"{came[index, worker, at]:.6g} s"))  # fmt: skip
    early = came < computed - SLACK_S
    found += report_cells(early, lambda index, worker, at: (
        f"worker {worker}'s push of iteration {at} arrived at {came[index, worker, at]:.6g} s; its computation began "
        f"at {computed[worker, at]:.6g} s"))  # fmt: skip
    asked = h.arrivals.came_s("pull", p.iterations + 1)[:, :, 1:]
    found += report_cells(~(answered >= asked - SLACK_S) & ~np.isnan(answered), lambda index, worker, at: (
        f"worker {worker} was answered for iteration {at + 1} at {answered[index, worker, at]:.6g} s; its request "
        f"arrived at {asked[index, worker, at]:.6g} s"))  # fmt: skip
    return found


def eagerly(p: Phases, h: History) -> list[str]:
    """An eager worker requests the next weights before it has computed, and pushes after they have arrived."""
    if not h.rules.traits.eager:
        return []
    done, asked = p.last("compute", "end"), p.first("wait", "begin")
    pushed, arrived = p.cells("push", "begin"), p.cells("pull", "end")
    found = report_cells(asked[:, 1:] < done[:, :-1] - SLACK_S, lambda worker, at: (
        f"worker {worker} requested the weights of iteration {at + 2} at {asked[worker, at + 1]:.6g} s, before it had "
        f"computed iteration {at}, at {done[worker, at]:.6g} s"))  # fmt: skip
    return found + report_cells(pushed < arrived - SLACK_S, lambda index, worker, at: (
        f"worker {worker} pushed iteration {at} at {pushed[index, worker, at]:.6g} s, before the weights that it "
        f"requested arrived, at {arrived[index, worker, at]:.6g} s: the policy is eager"))  # fmt: skip


def newest(p: Phases, h: History) -> list[str]:
    """A worker that starts gets the newest weights, and none that are made later."""
    started = p.of_pushes(p.cells("wait", "end"), h, back=1)
    made, replaced = np.empty(h.size), np.empty(h.size)  # when the version on which it was computed came, and went
    for _, rows in h.ranges():
        made_s = h.made_s(rows)
        made[rows], replaced[rows] = made_s[h.pulled[rows]], made_s[h.pulled[rows] + 1]
    found = report(np.flatnonzero(made > started + SLACK_S), lambda r: (
        f"{h.name(r)} was computed on version {h.pulled[r]}, which was made at {made[r]:.6g} s: the worker had started "
        f"before, at {started[r]:.6g} s"))  # fmt: skip
    return found + report(np.flatnonzero((replaced < started - SLACK_S) & h.fetched), lambda r: (
        f"{h.name(r)} was computed on version {h.pulled[r]}, but version {h.pulled[r] + 1} was made at "
        f"{replaced[r]:.6g} s, before the worker started, at {started[r]:.6g} s"))  # fmt: skip


PHASES_JUDGED: dict[str, Callable[[Phases, History], list[str]]] = {
    "phases": spans,
    "one computation at a time": computing,
    "computed before it is pushed": chain,
    "dealt with as it arrived": received,
    "requested eagerly": eagerly,
    "the newest weights": newest,
}
