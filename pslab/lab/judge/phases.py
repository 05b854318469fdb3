"""What the phases of a run must keep, alone and beside its pushes: who computed, was taken and released, and when.

Phases do not name their range. With several ranges the first or the last instant of a phase stands for it, whichever
leaves more room: what is called a violation is one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pslab.lab.judge.pushes import History, columns, told

SLACK_S = 1e-6  # instants that went through a file are not the same to the last bit
Checked = dict[str, Callable[["Phases", History], list[str]]]


@dataclass(frozen=True)
class Phases:
    """The table as arrays, one entry a row; instants in seconds."""

    workers: int
    movers: frozenset[int]
    worker: np.ndarray
    iteration: np.ndarray
    phase: np.ndarray
    begin: np.ndarray
    end: np.ndarray

    @classmethod
    def of(cls, table: pd.DataFrame | None, history: History, *, deaths_known: bool = True) -> Phases:
        """Read the table; Unreadable if it cannot be. A worker that is not in it at all may have died with its rows."""
        values = columns(table, "phases", ["worker", "iteration"], ["begin_s", "end_s"], others=["phase"])
        absent = set() if deaths_known else set(range(history.workers)) - set(values["worker"].tolist())
        return cls(history.workers, history.movers | absent, values["worker"], values["iteration"], values["phase"],
                   values["begin_s"], values["end_s"])  # fmt: skip

    def grid(self, phase: str, instant: str, pick: np.ufunc) -> np.ndarray:
        """[workers, iterations]: the first (np.fmin) or last (np.fmax) begin or end of a phase; NaN where none is.

        Rows of movers stay empty: an iteration of theirs may have been begun twice.
        """
        found = np.full((self.workers, self._iterations), np.nan)
        rows = np.flatnonzero((self.phase == phase) & ~np.isin(self.worker, list(self.movers)))
        pick.at(found, (self.worker[rows], self.iteration[rows]), getattr(self, instant)[rows])
        return found

    @property
    def _iterations(self) -> int:
        return int(self.iteration.max()) + 2

    def of_pushes(self, grid: np.ndarray, history: History, back: int = 0) -> np.ndarray:
        """Of each push, the entry of its worker and iteration, or of `back` iterations before; NaN where none is."""
        at = history.iteration - back
        there = (at >= 0) & (at < grid.shape[1])
        found = np.full(history.size, np.nan)
        found[there] = grid[history.worker[there], at[there]]
        return found

    def taken_s(self, history: History) -> np.ndarray:
        """Of each push, when the server took it; NaN where that is not recorded."""
        return self.of_pushes(self._taken(history), history)

    def _taken(self, history: History) -> np.ndarray:
        """A policy that decides for all ranges hears of a push with the last of them."""
        return self.grid("apply", "begin", np.fmax if history.rules.whole else np.fmin)

    def unapplied_s(self, history: History) -> float:
        """The first instant at which a push can have come of which nothing is known; infinity if there is none."""
        done = self.grid("compute", "end", np.fmax)
        inside = history.iteration < done.shape[1]
        done[history.worker[inside], history.iteration[inside]] = np.nan
        done[tuple(self.dropped(history)[:2])] = np.nan
        return float(np.fmin.reduce(done, axis=None, initial=np.inf))

    def dropped(self, history: History) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Pushes that the server took, answered, and never applied: workers, iterations, when it took them."""
        taken = self._taken(history)
        inside = history.iteration < taken.shape[1]
        taken[history.worker[inside], history.iteration[inside]] = np.nan
        worker, iteration = np.nonzero(~np.isnan(taken))
        return worker, iteration, taken[worker, iteration]

    def beyond(self, window: int) -> list[str]:
        """Nobody is started while an iteration `window` before is still missing of somebody."""
        taken, done = self.grid("apply", "begin", np.fmin), self.grid("compute", "end", np.fmax)
        released = self.grid("wait", "end", np.fmax)
        # a push of which no answer came was taken after it was computed at the soonest; what is not computed, never
        came = np.where(np.isnan(taken), np.where(np.isnan(done), np.inf, done), taken)
        came[sorted(self.movers)] = -np.inf
        need = np.full(came.shape[1], -np.inf)  # per column, all pushes that a release behind it must have seen
        if window <= len(need):
            need[window - 1 :] = came.max(axis=0)[: len(need) - window + 1]
        worker, before = np.nonzero(need > released + SLACK_S)
        order = np.argsort(released[worker, before], kind="stable")

        def words(at: int) -> str:
            who, iteration, now = worker[at], before[at] + 1, released[worker[at], before[at]]
            clocks = (came <= now + SLACK_S).sum(axis=1)
            slowest = int(clocks.argmin())
            return (f"worker {who} was started with iteration {iteration} at {now:.6g} s, when worker {slowest} had "
                    f"pushed {clocks[slowest]} iterations: {iteration - clocks[slowest]} ahead, and a window of "
                    f"{window} allows {window - 1}")  # fmt: skip

        return told(order, words)

    def steps_inside(self, history: History) -> list[str]:
        """Under a barrier the weights stay as they are while somebody computes on them."""
        rows = np.flatnonzero((self.phase == "compute") & ~np.isin(self.worker, list(self.movers)))
        first = np.searchsorted(history.seconds, self.begin[rows] + SLACK_S, "right")
        wrong = first < np.searchsorted(history.seconds, self.end[rows] - SLACK_S, "left")
        inside = dict(zip(rows[wrong].tolist(), first[wrong].tolist(), strict=True))
        return told(inside, lambda row: (
            f"{history.name(inside[row])} was applied at {history.seconds[inside[row]]:.6g} s, while worker "
            f"{self.worker[row]} computed iteration {self.iteration[row]} ({self.begin[row]:.6g} to "
            f"{self.end[row]:.6g} s): the policy claims a barrier"))  # fmt: skip

    def name(self, row: int) -> str:
        """A span in words."""
        return f"worker {self.worker[row]}'s {self.phase[row]} of iteration {self.iteration[row]}"


def spans(p: Phases, h: History) -> list[str]:
    """A phase belongs to a worker, and ends after it begins."""
    strangers = np.flatnonzero((p.worker < 0) | (p.worker >= p.workers) | (p.iteration < -1))
    if len(strangers):
        return told(strangers, lambda r: f"{p.name(r)}: there are workers 0 to {p.workers - 1}, iterations from 0")
    wrong = np.flatnonzero(~(p.end >= p.begin - SLACK_S) | ~np.isfinite(p.begin) | ~np.isfinite(p.end))
    return told(wrong, lambda r: f"{p.name(r)} begins at {p.begin[r]:.6g} s and ends before, at {p.end[r]:.6g} s")


def computing(p: Phases, h: History) -> list[str]:
    """A worker computes one iteration after another, and has no phase of another one."""
    rows = np.flatnonzero(p.phase == "compute")
    rows = rows[np.lexsort((p.begin[rows], p.worker[rows]))]
    now, last = rows[1:], rows[:-1]
    same = p.worker[now] == p.worker[last]
    both = same & (p.begin[now] < p.end[last] - SLACK_S)
    before = dict(zip(now.tolist(), last.tolist(), strict=True))
    found = told(now[both], lambda r: f"{p.name(r)} begins at {p.begin[r]:.6g} s, before that of iteration "
                                      f"{p.iteration[before[r]]} ends at {p.end[before[r]]:.6g} s")  # fmt: skip
    due = np.zeros(len(rows), np.int64)
    due[1:] = np.where(same, p.iteration[last] + 1, 0)
    if h.rules.layered:  # an iteration in several bursts
        due[1:] -= same & (p.iteration[now] == p.iteration[last])
    wrong = (p.iteration[rows] != due) & ~np.isin(p.worker[rows], list(p.movers))
    expected = dict(zip(rows.tolist(), due.tolist(), strict=True))
    found += told(rows[wrong], lambda r: f"{p.name(r)} came where iteration {expected[r]} was expected")
    ends = np.zeros(p.workers, np.int64)
    np.maximum.at(ends, p.worker[rows], p.iteration[rows] + 1)
    # an eager worker hears already, in what it has not yet computed, of the next; a layered one is in the midst of it
    alien = (p.iteration < 0) | (p.iteration >= ends[p.worker] + (bool(h.rules.own) or h.rules.layered))
    alien &= ~np.isin(p.worker, list(p.movers))
    return found or told(np.flatnonzero(alien), lambda r: f"{p.name(r)}, which it never computed")


def chain(p: Phases, h: History) -> list[str]:
    """An iteration is pushed once it is computed, and computed once the weights for it are there.

    Layer by layer it is computed to its end once all of them are; what is known of the last two is not all of it.
    """
    begun, done = p.grid("compute", "begin", np.fmin), p.grid("compute", "end", np.fmax)
    if h.rules.layered:
        done[:, -2:] = np.nan
        done[:, :-2][np.isnan(begun[:, 2:])] = np.nan
    pushed = p.grid("push", "begin", np.fmax)
    early = np.argwhere(pushed < done - SLACK_S)
    found = told(range(len(early)), lambda at: (
        f"worker {early[at][0]} pushed iteration {early[at][1]} at {pushed[*early[at]]:.6g} s, before it was computed, "
        f"at {done[*early[at]]:.6g} s"))  # fmt: skip
    arrived = np.fmax(p.grid("pull", "end", np.fmax), p.grid("decode", "end", np.fmax))
    if h.rules.layered:
        begun = done
    hasty = np.argwhere(begun[:, 1:] < arrived[:, :-1] - SLACK_S)
    return found + told(range(len(hasty)), lambda at: (
        f"worker {hasty[at][0]} began iteration {hasty[at][1] + 1} at {begun[hasty[at][0], hasty[at][1] + 1]:.6g} s, "
        f"before the weights for it were there, at {arrived[*hasty[at]]:.6g} s"))  # fmt: skip


def applied(p: Phases, h: History) -> list[str]:
    """A push is applied after it was computed and taken; who went on had its push applied.

    Layer by layer, of a worker's last iteration some is not recorded: what it was about to compute, or to receive.
    """
    still = ~h.moved
    begun, taken = p.of_pushes(p.grid("compute", "begin", np.fmin), h), p.taken_s(h)
    if h.rules.layered:
        last = np.full(p.workers, -1)
        np.maximum.at(last, h.worker, h.iteration)
        still &= h.iteration < last[h.worker]
        taken[h.iteration == last[h.worker]] = np.nan
    found = told(np.flatnonzero(np.isnan(begun) & still), lambda r: f"{h.name(r)} was never computed")
    found += told(np.flatnonzero(h.seconds < begun - SLACK_S), lambda r: (
        f"{h.name(r)} was applied at {h.seconds[r]:.6g} s; its computation began at {begun[r]:.6g} s"))  # fmt: skip
    found += told(np.flatnonzero(h.seconds < taken - SLACK_S), lambda r: (
        f"{h.name(r)} was applied at {h.seconds[r]:.6g} s; the server took it at {taken[r]:.6g} s"))  # fmt: skip
    if h.rules.drops:
        return found
    answered, back = p.grid("wait", "end", np.fmax), h.rules.own
    answered = answered[:, back:]  # what comes back from there has heard of that push
    lost = ~np.isnan(answered)
    inside = h.iteration < lost.shape[1]
    lost[h.worker[inside], h.iteration[inside]] = False
    return found + told(range(len(gone := np.argwhere(lost))), lambda at: (
        f"worker {gone[at][0]}'s push of iteration {gone[at][1]} was never applied, but the worker went on at "
        f"{answered[*gone[at]]:.6g} s"))  # fmt: skip


def eagerly(p: Phases, h: History) -> list[str]:
    """An eager worker asks for the next weights once it has computed, and pushes once they are there."""
    if not h.rules.eager:
        return []
    done, asked = p.grid("compute", "end", np.fmax), p.grid("wait", "begin", np.fmin)
    pushed, arrived = p.grid("push", "begin", np.fmin), p.grid("pull", "end", np.fmin)
    hasty = np.argwhere(asked[:, 1:] < done[:, :-1] - SLACK_S)
    found = told(range(len(hasty)), lambda at: (
        f"worker {hasty[at][0]} asked for the weights of iteration {hasty[at][1] + 2} at "
        f"{asked[hasty[at][0], hasty[at][1] + 1]:.6g} s, before it had computed iteration {hasty[at][1]}, at "
        f"{done[*hasty[at]]:.6g} s"))  # fmt: skip
    early = np.argwhere(pushed < arrived - SLACK_S)
    return found + told(range(len(early)), lambda at: (
        f"worker {early[at][0]} pushed iteration {early[at][1]} at {pushed[*early[at]]:.6g} s, before the weights "
        f"behind it were there, at {arrived[*early[at]]:.6g} s: the policy is eager"))  # fmt: skip


def newest(p: Phases, h: History) -> list[str]:
    """Who is started gets the newest weights, and none that are not yet made."""
    first = p.of_pushes(p.grid("wait", "end", np.fmin), h, back=1)
    last = p.of_pushes(p.grid("wait", "end", np.fmax), h, back=1)
    last = np.where(np.isnan(last), p.of_pushes(p.grid("compute", "begin", np.fmin), h), last)
    there, after = np.empty(h.size), np.empty(h.size)  # when the version on which it was computed came, and went
    for _, rows in h.ranges():
        made = h.made_s(rows)
        there[rows], after[rows] = made[h.pulled[rows]], made[h.pulled[rows] + 1]
    found = told(np.flatnonzero(there > last + SLACK_S), lambda r: (
        f"{h.name(r)} was computed on version {h.pulled[r]}, which was made at {there[r]:.6g} s: the worker had been "
        f"started before, at {last[r]:.6g} s"))  # fmt: skip
    return found + told(np.flatnonzero(after < first - SLACK_S), lambda r: (
        f"{h.name(r)} was computed on version {h.pulled[r]}, but version {h.pulled[r] + 1} was made at "
        f"{after[r]:.6g} s, before the worker was started, at {first[r]:.6g} s"))  # fmt: skip


PHASES_JUDGED: Checked = {
    "phases": spans,
    "one computation at a time": computing,
    "computed before it is pushed": chain,
    "taken before it is applied": applied,
    "asked for eagerly": eagerly,
    "the newest weights": newest,
}
