"""What the table of pushes must satisfy under any policy: each push once, consecutive versions, own pushes read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from pslab.lab.judge.arrivals import Arrivals
from pslab.lab.judge.capabilities import Rules
from pslab.lab.judge.report import REPORTED, columns, report

COLUMNS = {"push": "push", "worker": "worker", "iteration": "iteration", "range": "range",
           "pulled": "version_pulled", "applied": "version_applied", "staleness": "staleness"}  # fmt: skip


@dataclass(frozen=True)
class History:
    """The applied pushes as arrays, in the order of application; times in seconds. `arrivals` are what led to them."""

    arrivals: Arrivals
    rules: Rules
    push: np.ndarray
    worker: np.ndarray
    iteration: np.ndarray
    range: np.ndarray
    pulled: np.ndarray
    applied: np.ndarray
    staleness: np.ndarray
    seconds: np.ndarray

    @classmethod
    def of(cls, table: pd.DataFrame | None, arrivals: Arrivals, rules: Rules) -> History:
        """Read the table.

        Raises:
            Unreadable: nothing can be judged from it.
        """
        values = columns(table, "pushes", list(COLUMNS.values()), ["seconds"], may_be_empty=True)
        arrays = {name: values[column] for name, column in COLUMNS.items()}
        return cls(arrivals, rules, seconds=values["seconds"], **arrays)

    @property
    def workers(self) -> int:
        """How many workers the run has."""
        return self.arrivals.workers

    @property
    def size(self) -> int:
        """The number of rows; a push of an iteration has one row on each range."""
        return len(self.push)

    @cached_property
    def lines(self) -> np.ndarray:
        """The rows ordered by range, worker and application."""
        return np.lexsort((np.arange(self.size), self.worker, self.range))

    def predecessors(self, back: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Rows with a row `back` places before, of the same worker on the same range; and those earlier rows."""
        now, before = self.lines[back:], self.lines[:-back]
        same = (self.worker[now] == self.worker[before]) & (self.range[now] == self.range[before])
        return now[same], before[same]

    @cached_property
    def due(self) -> np.ndarray:
        """Per row, the iteration that its worker's next push on its range was expected to have."""
        due = np.zeros(self.size, np.int64)
        now, before = self.predecessors()
        due[now] = self.iteration[before] + 1
        return due

    @cached_property
    def moved(self) -> np.ndarray:
        """Per row, whether its worker was not present all the time."""
        return np.isin(self.worker, list(self.arrivals.movers))

    @cached_property
    def fetched(self) -> np.ndarray:
        """Per row, whether the weights that it was computed on were fetched for it."""
        return np.array([self.rules.traits.fetches(iteration) for iteration in self.iteration.tolist()], bool)

    def ranges(self) -> list[tuple[int, np.ndarray]]:
        """Each range with its rows, in the order of application."""
        order = np.argsort(self.range, kind="stable")
        names, starts = np.unique(self.range[order], return_index=True)
        return list(zip(names.tolist(), np.split(order, starts[1:]), strict=True))

    def made_s(self, rows: np.ndarray) -> np.ndarray:
        """When each version of a range, given its rows, was made: -inf for version 0, inf after the last one."""
        at = np.full(self.applied[rows].max() + 2, np.inf)
        at[self.applied[rows[::-1]]] = self.seconds[rows[::-1]]
        at[0] = -np.inf
        return at

    def name(self, row: int) -> str:
        """A push in words."""
        return f"push {self.push[row]} (worker {self.worker[row]}, iteration {self.iteration[row]}{self.on(row)})"

    def on(self, row: int) -> str:
        """Its range in words, if there are several."""
        return f", range {self.range[row]}" if self.range.max() else ""


def numbers(h: History) -> list[str]:
    """Pushes are numbered from 1, and are of workers, ranges and iterations of the run."""
    wrong = np.flatnonzero(h.push != np.arange(1, h.size + 1))[:1]
    found = report(wrong, lambda r: f"push {h.push[r]} is where push {r + 1} was expected: one is missing or repeated")
    unknown = np.flatnonzero((h.worker < 0) | (h.worker >= h.workers))
    found += report(unknown, lambda r: f"push {h.push[r]} is of worker {h.worker[r]}, not of 0 to {h.workers - 1}")
    outside = np.flatnonzero((h.range < 0) | (h.iteration < 0) | (h.range >= h.arrivals.ranges))
    return found + report(outside, lambda r: f"push {h.push[r]} is of range {h.range[r]}, iteration {h.iteration[r]}: "
                                             "both count from 0, and ranges are those of what arrived")  # fmt: skip


def once(h: History) -> list[str]:
    """On every range, a worker's iterations are applied in order, each once."""
    # a worker that returns continues where the others are; a dropped push leaves a gap
    wrong = np.where(h.moved | h.rules.drops, h.iteration < h.due, h.iteration != h.due)
    rows = h.lines[wrong[h.lines]]
    first = np.unique(h.range[rows] * h.workers + h.worker[rows], return_index=True)[1]
    return report(np.sort(rows[first]), lambda row: _out_of_order(h, row))


def _out_of_order(h: History, row: int) -> str:
    due = h.due[row]
    own = (h.worker == h.worker[row]) & (h.range == h.range[row])
    same = np.flatnonzero(own & (h.iteration == h.iteration[row]))
    if len(same) > 1:
        return (f"worker {h.worker[row]}'s iteration {h.iteration[row]}{h.on(row)} is applied twice: as push "
                f"{h.push[same[0]]} and as push {h.push[same[1]]}")  # fmt: skip
    later = np.flatnonzero(own & (h.iteration == due))
    if len(later):
        return f"{h.name(row)} is applied before the worker's iteration {due}, which is push {h.push[later[0]]}"
    return (f"worker {h.worker[row]}'s iteration {due}{h.on(row)} was never applied: its next push, "
            f"{h.push[row]}, is iteration {h.iteration[row]}")  # fmt: skip


def versions(h: History) -> list[str]:
    """The steps on a range make consecutive versions."""
    found = []
    for _, rows in h.ranges():
        version = h.applied[rows]
        before = np.concatenate(([0], version[:-1]))
        wrong = (version != before + 1) & ((version != before) | (before == 0))
        for at in np.flatnonzero(wrong)[:1]:
            expected = f"{before[at]} or {before[at] + 1}" if before[at] else "1"
            found.append(f"{h.name(rows[at])} is part of version {version[at]}; {expected} was expected")
    return found[:REPORTED]


def staleness(h: History) -> list[str]:
    """Staleness is the number of steps on the range between a push's pull and its own step."""
    true = h.applied - 1 - h.pulled
    return report(np.flatnonzero(h.staleness != true), lambda r: (
        f"{h.name(r)} has a recorded staleness of {h.staleness[r]}; {true[r]} steps lie between version {h.pulled[r]}, "
        f"on which it was computed, and version {h.applied[r]}, which it made"))  # fmt: skip


def pulled(h: History) -> list[str]:
    """A version exists when it is pulled, and a run starts with version 0."""
    future = np.flatnonzero(h.pulled >= h.applied)
    found = report(future, lambda r: (f"{h.name(r)} was computed on version {h.pulled[r]}, which is from the future: "
                                      f"the push itself made version {h.applied[r]}"))  # fmt: skip
    wrong = (h.pulled < 0) | ((h.iteration == 0) & (h.pulled != 0) & ~h.moved)
    return found + report(np.flatnonzero(wrong), lambda r: (
        f"{h.name(r)} was computed on version {h.pulled[r]}; the weights start with version 0"))  # fmt: skip


def own(h: History) -> list[str]:
    """A worker never pulls older weights than before, and its weights contain its own pushes, or it can add them."""
    now, before = h.predecessors()
    older = h.pulled[now] < h.pulled[before]
    found = dict(zip(now[older].tolist(), before[older].tolist(), strict=True))
    now, before = h.predecessors(1 + h.rules.own)
    lacking = (h.pulled[now] < h.applied[before]) & h.fetched[now]
    lost = dict(zip(now[lacking].tolist(), before[lacking].tolist(), strict=True))

    def words(row: int) -> str:
        if row in found:
            last = found[row]
            return f"{h.name(row)} was computed on version {h.pulled[row]}, the one before on version {h.pulled[last]}"
        last = lost[row]
        return (f"{h.name(row)} was computed on version {h.pulled[row]}, which lacks the worker's own push "
                f"{h.push[last]}: that made version {h.applied[last]}")  # fmt: skip

    return report(sorted({*found, *lost}), words)


def asked_before(h: History) -> list[str]:
    """An eager worker requests its next weights before its push, which they therefore cannot contain."""
    if not h.rules.traits.eager:
        return []
    now, before = h.predecessors()
    wrong = (h.iteration[now] == h.iteration[before] + 1) & ~h.moved[now] & (h.pulled[now] >= h.applied[before])
    earlier = dict(zip(now[wrong].tolist(), before[wrong].tolist(), strict=True))
    return report(sorted(earlier), lambda row: (
        f"{h.name(row)} was computed on version {h.pulled[row]}, which contains the worker's own push "
        f"{h.push[earlier[row]]}; the policy is eager: the weights were requested before that push"))  # fmt: skip


def alike(h: History) -> list[str]:
    """A decision for the whole model is the same on every range."""
    if not h.rules.traits.whole:
        return []
    made: list[set[tuple[int, int, int]]] = [
        set(zip(h.applied[rows].tolist(), h.worker[rows].tolist(), h.iteration[rows].tolist(), strict=True))
        for _, rows in h.ranges()
    ]
    others = sorted(set[tuple[int, int, int]].union(*made) - set[tuple[int, int, int]].intersection(*made))
    return report(range(len(others)), lambda at: (
        f"worker {others[at][1]}'s iteration {others[at][2]} is part of version {others[at][0]} on some ranges and not "
        f"on others; the policy decides for all of them"))  # fmt: skip


def instants(h: History) -> list[str]:
    """The server's clock never runs backwards."""
    if not np.isfinite(h.seconds).all() or h.seconds[0] < 0:
        return ["a push was applied at a time outside the run"]
    wrong = np.flatnonzero(np.diff(h.seconds) < 0) + 1
    return report(wrong, lambda r: (f"{h.name(r)} is applied at {h.seconds[r]:.6g} s, before push {h.push[r - 1]}, "
                                    f"which was applied at {h.seconds[r - 1]:.6g} s"))  # fmt: skip


PUSHES_JUDGED: dict[str, Callable[[History], list[str]]] = {
    "pushes are numbered": numbers,
    "each push once and in order": once,
    "versions": versions,
    "pulled versions": pulled,
    "own pushes are read": own,
    "weights are requested before the push": asked_before,
    "one decision for all ranges": alike,
    "staleness": staleness,
    "times of application": instants,
}
