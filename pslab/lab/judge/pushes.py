"""What the table of pushes must keep, whatever the policy: each push once, version by version, own pushes read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from pslab.lab.judge.capabilities import Rules

MANY = 3  # violations of one kind that are told
WHOLE = {"push": "push", "worker": "worker", "iteration": "iteration", "range": "range",
         "pulled": "version_pulled", "applied": "version_applied", "staleness": "staleness"}  # fmt: skip


class Unreadable(Exception):
    """A table from which nothing can be judged; the words say why."""


def told(rows: Iterable[int], words: Callable[[int], str]) -> list[str]:
    """The first few violations in words, and how many more there are."""
    found = list(rows)
    more = [f"and {len(found) - MANY} more like it"] if len(found) > MANY else []
    return [words(int(row)) for row in found[:MANY]] + more


def columns(
    table: pd.DataFrame | None, name: str, whole: Sequence[str], real: Sequence[str], others: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """Columns as int64, float64 and object arrays.

    Raises:
        Unreadable: one is missing, holds what is no whole number, or the table has no rows.
    """
    if table is None:
        raise Unreadable(f"there is no table of {name}")
    if missing := [column for column in (*whole, *real, *others) if column not in table]:
        raise Unreadable(f"the table of {name} has no column {', '.join(missing)}")
    if not len(table):
        raise Unreadable(f"the table of {name} is empty")
    try:
        values = {column: table[column].to_numpy(np.float64) for column in (*whole, *real)}
    except (TypeError, ValueError) as error:
        raise Unreadable(f"the table of {name} holds what is no number ({error})") from None
    for column in whole:
        if not (np.abs(values[column]) < 2**53).all() or (values[column] % 1).any():
            raise Unreadable(f"the table of {name} holds in {column} what is no whole number")
        values[column] = values[column].astype(np.int64)
    return values | {column: table[column].to_numpy(object) for column in others}


@dataclass(frozen=True)
class History:
    """The applied pushes as arrays, in the order of application; instants in seconds.

    `movers` are workers that were not there all the time: what they did between two lives is not recorded.
    """

    workers: int
    movers: frozenset[int]
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
    def of(cls, table: pd.DataFrame | None, workers: int, movers: Collection[int], rules: Rules) -> History:
        """Read the table; Unreadable if it cannot be."""
        values = columns(table, "pushes", list(WHOLE.values()), ["seconds"])
        arrays = {name: values[column] for name, column in WHOLE.items()}
        return cls(workers, frozenset(movers), rules, seconds=values["seconds"], **arrays)

    @property
    def size(self) -> int:
        """Rows: a push of an iteration has one on each range."""
        return len(self.push)

    @cached_property
    def lines(self) -> np.ndarray:
        """The rows by range, worker, and order of application."""
        return np.lexsort((np.arange(self.size), self.worker, self.range))

    @cached_property
    def follows(self) -> np.ndarray:
        """Of `lines`: whether a row follows another of its worker on its range."""
        same = np.zeros(self.size, bool)
        worker, part = self.worker[self.lines], self.range[self.lines]
        same[1:] = (worker[1:] == worker[:-1]) & (part[1:] == part[:-1])
        return same

    @cached_property
    def moved(self) -> np.ndarray:
        """Per row, whether its worker is one of the movers."""
        return np.isin(self.worker, list(self.movers))

    def ranges(self) -> list[tuple[int, np.ndarray]]:
        """Each range with its rows, in the order of application."""
        order = np.argsort(self.range, kind="stable")
        names, begins = np.unique(self.range[order], return_index=True)
        return list(zip(names.tolist(), np.split(order, begins[1:]), strict=True))

    def made_s(self, rows: np.ndarray) -> np.ndarray:
        """When each version of a range, whose rows are given, was made; before all time for 0, never for the next."""
        at = np.full(self.applied[rows].max() + 2, np.inf)
        at[self.applied[rows[::-1]]] = self.seconds[rows[::-1]]
        at[0] = -np.inf
        return at

    def complete(self) -> int:
        """Gradients, over all workers, that were applied on every range."""
        of = self.worker * (self.iteration.max() + 1) + self.iteration
        _, first, counts = np.unique(of, return_index=True, return_counts=True)
        return self._gradients(first[counts == self.range.max() + 1])

    def most(self) -> int:
        """The most gradients that one push of this run may be made of."""
        return self.rules.most(int(self.iteration.max()) + 2)

    def _gradients(self, rows: np.ndarray) -> int:
        iterations, counts = np.unique(self.iteration[rows], return_counts=True)
        each = zip(iterations.tolist(), counts.tolist(), strict=True)
        return sum(self.rules.gradients(iteration) * count for iteration, count in each)

    @cached_property
    def gaps(self) -> np.ndarray:
        """Of `lines`: iterations between a row and the one before it, of workers that were there all the time."""
        iteration = self.iteration[self.lines]
        due = np.zeros(self.size, np.int64)
        due[1:] = iteration[:-1] + 1
        due[~self.follows] = 0
        return np.where(self.moved[self.lines], 0, np.maximum(iteration - due, 0))

    def name(self, row: int) -> str:
        """A push in words."""
        return f"push {self.push[row]} (worker {self.worker[row]}, iteration {self.iteration[row]}{self.on(row)})"

    def on(self, row: int) -> str:
        """Its range in words, if there are several."""
        return f", range {self.range[row]}" if self.range.max() else ""


def numbers(h: History) -> list[str]:
    """Pushes are counted from 1, those who push are there."""
    wrong = np.flatnonzero(h.push != np.arange(1, h.size + 1))[:1]
    found = told(wrong, lambda r: f"push {h.push[r]} stands where push {r + 1} was expected: one is missing or twice")
    strangers = np.flatnonzero((h.worker < 0) | (h.worker >= h.workers))
    found += told(strangers, lambda r: f"push {h.push[r]} is of worker {h.worker[r]}; there are 0 to {h.workers - 1}")
    nowhere = np.flatnonzero((h.range < 0) | (h.iteration < 0))
    return found + told(nowhere, lambda r: f"push {h.push[r]} is of range {h.range[r]}, iteration {h.iteration[r]}: "
                                           "both count from 0")  # fmt: skip


def once(h: History) -> list[str]:
    """On every range a worker's iterations are applied one after another, each once."""
    lines, iteration = h.lines, h.iteration[h.lines]
    due = np.zeros(h.size, np.int64)
    due[1:] = iteration[:-1] + 1
    due[~h.follows] = 0
    # who comes back goes on where the others are; what was dropped leaves a gap
    wrong = np.where(h.moved[lines] | h.rules.drops, iteration < due, iteration != due)
    first = lines[wrong]
    place = np.unique(h.range[first] * h.workers + h.worker[first], return_index=True)[1]
    expected = dict(zip(first.tolist(), due[wrong].tolist(), strict=True))
    return told(np.sort(first[place]), lambda row: _out_of_turn(h, row, expected[row]))


def _out_of_turn(h: History, row: int, due: int) -> str:
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
    """Steps on a range make version after version."""
    found = []
    for _, rows in h.ranges():
        version = h.applied[rows]
        before = np.concatenate(([0], version[:-1]))
        wrong = (version != before + 1) & ((version != before) | (before == 0))
        for at in np.flatnonzero(wrong)[:1]:
            expected = f"{before[at]} or {before[at] + 1}" if before[at] else "1"
            found.append(f"{h.name(rows[at])} is part of version {version[at]}; {expected} was expected")
    return found[:MANY]


def staleness(h: History) -> list[str]:
    """Staleness is what was applied to a range between a push's pull and its step."""
    true = h.applied - 1 - h.pulled
    return told(np.flatnonzero(h.staleness != true), lambda r: (
        f"{h.name(r)} is told to be {h.staleness[r]} stale; {true[r]} steps lie between version {h.pulled[r]}, on "
        f"which it was computed, and version {h.applied[r]}, which it made"))  # fmt: skip


def pulled(h: History) -> list[str]:
    """Versions that are pulled exist already; a run begins with version 0."""
    future = np.flatnonzero(h.pulled >= h.applied)
    found = told(future, lambda r: (f"{h.name(r)} was computed on version {h.pulled[r]}, which is from the future: "
                                    f"the push itself made version {h.applied[r]}"))  # fmt: skip
    unborn = (h.pulled < 0) | ((h.iteration == 0) & (h.pulled != 0) & ~h.moved)
    return found + told(np.flatnonzero(unborn), lambda r: (
        f"{h.name(r)} was computed on version {h.pulled[r]}; weights begin with version 0"))  # fmt: skip


def own(h: History) -> list[str]:
    """Who pulls sees no older weights than before, and all that it has pushed itself, but what it can add."""
    now, before = h.lines[1:], h.lines[:-1]
    older = h.follows[1:] & (h.pulled[now] < h.pulled[before])
    found = dict(zip(now[older].tolist(), before[older].tolist(), strict=True))
    lacking = _lacking(h, 1 + h.rules.own)

    def words(row: int) -> str:
        if row in found:
            last = found[row]
            return f"{h.name(row)} was computed on version {h.pulled[row]}, the one before on version {h.pulled[last]}"
        last = lacking[row]
        return (f"{h.name(row)} was computed on version {h.pulled[row]}, which lacks the worker's own push "
                f"{h.push[last]}: that made version {h.applied[last]}")  # fmt: skip

    return told(sorted({*found, *lacking}), words)


def _lacking(h: History, back: int) -> dict[int, int]:
    """Rows whose weights lack the push `back` rows before, of the same worker and range; and that push."""
    now, before = h.lines[back:], h.lines[:-back]
    same = (h.worker[now] == h.worker[before]) & (h.range[now] == h.range[before])
    wrong = same & (h.pulled[now] < h.applied[before])
    return dict(zip(now[wrong].tolist(), before[wrong].tolist(), strict=True))


def asked_before(h: History) -> list[str]:
    """An eager worker has asked for its weights before it made the push before."""
    if not h.rules.eager:
        return []
    now, before = h.lines[1:], h.lines[:-1]
    next_ = h.follows[1:] & (h.iteration[now] == h.iteration[before] + 1) & ~h.moved[now]
    wrong = next_ & (h.pulled[now] >= h.applied[before])
    earlier = dict(zip(now[wrong].tolist(), before[wrong].tolist(), strict=True))
    return told(sorted(earlier), lambda row: (
        f"{h.name(row)} was computed on version {h.pulled[row]}, in which the worker's own push {h.push[earlier[row]]} "
        f"is; the policy is eager: it had asked for them before"))  # fmt: skip


def alike(h: History) -> list[str]:
    """What is decided for the whole model is decided for each range."""
    if not h.rules.whole:
        return []
    made: list[set[tuple[int, int, int]]] = [
        set(zip(h.applied[rows].tolist(), h.worker[rows].tolist(), h.iteration[rows].tolist(), strict=True))
        for _, rows in h.ranges()
    ]
    others = sorted(entry for entry in set[tuple[int, int, int]]().union(*made) if any(entry not in m for m in made))
    return told(range(len(others)), lambda at: (
        f"worker {others[at][1]}'s iteration {others[at][2]} is part of version {others[at][0]} on some ranges and not "
        f"on others; the policy decides for all of them"))  # fmt: skip


def instants(h: History) -> list[str]:
    """Time does not run backwards at the server."""
    if not np.isfinite(h.seconds).all() or h.seconds[0] < 0:
        return ["a push was applied at no instant of the run"]
    wrong = np.flatnonzero(np.diff(h.seconds) < 0) + 1
    return told(wrong, lambda r: (f"{h.name(r)} is applied at {h.seconds[r]:.6g} s, before push {h.push[r - 1]}, "
                                  f"which was at {h.seconds[r - 1]:.6g} s"))  # fmt: skip


PUSHES_JUDGED: dict[str, Callable[[History], list[str]]] = {
    "pushes are counted": numbers,
    "every push once and in order": once,
    "versions": versions,
    "pulled versions": pulled,
    "own pushes are read": own,
    "weights are asked for before the push": asked_before,
    "one decision for all ranges": alike,
    "staleness": staleness,
    "instants": instants,
}
