"""What the phases of a run must satisfy, alone and together with its pushes: who computed, was answered, and when.

Phases do not name their range. With several ranges, the first or the last time of a phase represents it, whichever is
more lenient: what is reported as a violation is one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pslab.lab.judge.pushes import History, columns, report

SLACK_S = 1e-6  # times that went through a file are not equal to the last bit


def report_cells(wrong: np.ndarray, words: Callable[[int, int], str]) -> list[str]:
    """`report` for the true cells of a table [workers, iterations]."""
    cells = np.argwhere(wrong).tolist()
    return report(range(len(cells)), lambda at: words(*cells[at]))


@dataclass(frozen=True)
class Phases:
    """The table as arrays, one entry a row; times in seconds."""

    workers: int
    movers: frozenset[int]
    worker: np.ndarray
    iteration: np.ndarray
    phase: np.ndarray
    begin: np.ndarray
    end: np.ndarray

    @classmethod
    def of(cls, table: pd.DataFrame | None, history: History) -> Phases:
        """Read the table.

        Raises:
            Unreadable: nothing can be judged from it.
        """
        values = columns(table, "phases", ["worker", "iteration"], ["begin_s", "end_s"], ["phase"])
        return cls(history.workers, history.movers, values["worker"], values["iteration"], values["phase"],
                   values["begin_s"], values["end_s"])  # fmt: skip

    def first(self, phase: str, time: str) -> np.ndarray:
        """[workers, iterations]: the first "begin" or "end" of a phase; NaN where there is none.

        Rows of movers stay empty: they may have started an iteration twice.
        """
        return self._cells(phase, time, np.fmin)

    def last(self, phase: str, time: str) -> np.ndarray:
        """As `first`, the last time."""
        return self._cells(phase, time, np.fmax)

    def _cells(self, phase: str, time: str, pick: np.ufunc) -> np.ndarray:
        found = np.full((self.workers, int(self.iteration.max()) + 2), np.nan)
        rows = np.flatnonzero((self.phase == phase) & ~np.isin(self.worker, list(self.movers)))
        pick.at(found, (self.worker[rows], self.iteration[rows]), getattr(self, time)[rows])
        return found

    def of_pushes(self, cells: np.ndarray, history: History, back: int = 0) -> np.ndarray:
        """For each push, the cell of its worker and iteration, or of `back` iterations before; NaN where none is."""
        at = history.iteration - back
        inside = (at >= 0) & (at < cells.shape[1])
        found = np.full(history.size, np.nan)
        found[inside] = cells[history.worker[inside], at[inside]]
        return found

    def received_s(self, history: History) -> np.ndarray:
        """For each push, when the server received it; NaN where that is not recorded."""
        return self.of_pushes(self._received(history), history)

    def _received(self, history: History) -> np.ndarray:
        """A policy that decides for all ranges receives a push with the last of them."""
        return (self.last if history.rules.traits.whole else self.first)("apply", "begin")

    def unapplied_s(self, history: History) -> float:
        """The first time at which a push may have arrived that is not recorded; infinity if there is none."""
        done = without(self.last("compute", "end"), history)
        done[tuple(self.dropped(history)[:2])] = np.nan
        return float(np.fmin.reduce(done, axis=None, initial=np.inf))

    def dropped(self, history: History) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Pushes that the server received, answered and never applied: workers, iterations, times of receipt."""
        received = without(self._received(history), history)
        worker, iteration = np.nonzero(~np.isnan(received))
        return worker, iteration, received[worker, iteration]

    def beyond(self, window: int) -> list[str]:
        """No worker starts an iteration before every worker has pushed the one `window` iterations earlier."""
        received, done = self.first("apply", "begin"), self.last("compute", "end")
        started = self.last("wait", "end")
        # a push without an answer was received after it was computed at the earliest; what is not computed, never
        came = np.where(np.isnan(received), np.where(np.isnan(done), np.inf, done), received)
        came[sorted(self.movers)] = -np.inf
        need = np.full(came.shape[1], -np.inf)  # per iteration, when all the pushes that its answer requires had come
        if window <= len(need):
            need[window - 1 :] = came.max(axis=0)[: len(need) - window + 1]
        worker, before = np.nonzero(need > started + SLACK_S)
        order = np.argsort(started[worker, before], kind="stable")

        def words(at: int) -> str:
            who, iteration, now = worker[at], before[at] + 1, started[worker[at], before[at]]
            clocks = (came <= now + SLACK_S).sum(axis=1)
            slowest = int(clocks.argmin())
            return (f"worker {who} started iteration {iteration} at {now:.6g} s, when worker {slowest} had pushed "
                    f"{clocks[slowest]} iterations: {iteration - clocks[slowest]} ahead, and a window of {window} "
                    f"allows {window - 1}")  # fmt: skip

        return report(order, words)

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


def without(cells: np.ndarray, history: History) -> np.ndarray:
    """The cells [workers, iterations] with NaN for each push that was applied; in place."""
    inside = history.iteration < cells.shape[1]
    cells[history.worker[inside], history.iteration[inside]] = np.nan
    return cells


def spans(p: Phases, h: History) -> list[str]:
    """A phase belongs to a worker of the run, and ends after it begins."""
    unknown = np.flatnonzero((p.worker < 0) | (p.worker >= p.workers) | (p.iteration < -1))
    if len(unknown):
        return report(unknown, lambda r: f"{p.name(r)}: the workers are 0 to {p.workers - 1}, iterations count from 0")
    wrong = np.flatnonzero(~(p.end >= p.begin - SLACK_S) | ~np.isfinite(p.begin) | ~np.isfinite(p.end))
    return report(wrong, lambda r: f"{p.name(r)} begins at {p.begin[r]:.6g} s and ends before, at {p.end[r]:.6g} s")


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

    Layer by layer, its computation ends once all weights have arrived; the last two iterations may be incomplete.
    """
    began, done = p.first("compute", "begin"), p.last("compute", "end")
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


def applied(p: Phases, h: History) -> list[str]:
    """A push is applied after it was computed and received; if its worker continued, it was applied.

    Layer by layer, a part of a worker's last iteration is not recorded.
    """
    complete = ~h.moved
    began, received = p.of_pushes(p.first("compute", "begin"), h), p.received_s(h)
    if h.rules.layered:
        last = np.full(p.workers, -1)
        np.maximum.at(last, h.worker, h.iteration)
        complete &= h.iteration < last[h.worker]
        received[h.iteration == last[h.worker]] = np.nan
    found = report(np.flatnonzero(np.isnan(began) & complete), lambda r: f"{h.name(r)} was never computed")
    found += report(np.flatnonzero(h.seconds < began - SLACK_S), lambda r: (
        f"{h.name(r)} was applied at {h.seconds[r]:.6g} s; its computation began at {began[r]:.6g} s"))  # fmt: skip
    found += report(np.flatnonzero(h.seconds < received - SLACK_S), lambda r: (
        f"{h.name(r)} was applied at {h.seconds[r]:.6g} s; the server received it at {received[r]:.6g} s"))  # fmt: skip
    if h.rules.drops:
        return found
    answered = p.last("wait", "end")[:, h.rules.own :]  # this answer was sent after that push was received
    lost = ~np.isnan(without(answered.copy(), h))
    return found + report_cells(lost, lambda worker, at: (
        f"worker {worker}'s push of iteration {at} was never applied, but the worker continued at "
        f"{answered[worker, at]:.6g} s"))  # fmt: skip


def eagerly(p: Phases, h: History) -> list[str]:
    """An eager worker requests the next weights after it has computed, and pushes after they have arrived."""
    if not h.rules.traits.eager:
        return []
    done, asked = p.last("compute", "end"), p.first("wait", "begin")
    pushed, arrived = p.first("push", "begin"), p.first("pull", "end")
    found = report_cells(asked[:, 1:] < done[:, :-1] - SLACK_S, lambda worker, at: (
        f"worker {worker} requested the weights of iteration {at + 2} at {asked[worker, at + 1]:.6g} s, before it had "
        f"computed iteration {at}, at {done[worker, at]:.6g} s"))  # fmt: skip
    return found + report_cells(pushed < arrived - SLACK_S, lambda worker, at: (
        f"worker {worker} pushed iteration {at} at {pushed[worker, at]:.6g} s, before the weights that it requested "
        f"arrived, at {arrived[worker, at]:.6g} s: the policy is eager"))  # fmt: skip


def newest(p: Phases, h: History) -> list[str]:
    """A worker that starts gets the newest weights, and none that are made later."""
    first = p.of_pushes(p.first("wait", "end"), h, back=1)
    last = p.of_pushes(p.last("wait", "end"), h, back=1)
    last = np.where(np.isnan(last), p.of_pushes(p.first("compute", "begin"), h), last)
    made, replaced = np.empty(h.size), np.empty(h.size)  # when the version on which it was computed came, and went
    for _, rows in h.ranges():
        made_s = h.made_s(rows)
        made[rows], replaced[rows] = made_s[h.pulled[rows]], made_s[h.pulled[rows] + 1]
    found = report(np.flatnonzero(made > last + SLACK_S), lambda r: (
        f"{h.name(r)} was computed on version {h.pulled[r]}, which was made at {made[r]:.6g} s: the worker had started "
        f"before, at {last[r]:.6g} s"))  # fmt: skip
    return found + report(np.flatnonzero(replaced < first - SLACK_S), lambda r: (
        f"{h.name(r)} was computed on version {h.pulled[r]}, but version {h.pulled[r] + 1} was made at "
        f"{replaced[r]:.6g} s, before the worker started, at {first[r]:.6g} s"))  # fmt: skip


PHASES_JUDGED: dict[str, Callable[[Phases, History], list[str]]] = {
    "phases": spans,
    "one computation at a time": computing,
    "computed before it is pushed": chain,
    "received before it is applied": applied,
    "requested eagerly": eagerly,
    "the newest weights": newest,
}
