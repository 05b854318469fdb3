"""What the server was handed, in the order in which it dealt with it: messages, and workers that leave and join."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from pslab.lab.judge.report import SLACK_S, columns, report

KINDS = ("push", "pull", "leave", "join")
FEW = 1000  # ranges, beside those that have an arrival: tables by range stay small


@dataclass(frozen=True)
class Arrivals:
    """The table as arrays, one entry a row; times in seconds, -1 where a row has no range, iteration or version."""

    workers: int
    present: frozenset[int]  #: the workers at the start
    replaced: frozenset[int]  #: those that had more than one process
    kind: np.ndarray
    worker: np.ndarray
    range: np.ndarray
    iteration: np.ndarray
    version: np.ndarray
    seconds: np.ndarray

    @classmethod
    def of(
        cls, table: pd.DataFrame | None, workers: int, present: Collection[int], replaced: Collection[int] = ()
    ) -> Arrivals:
        """Read the table.

        Raises:
            Unreadable: nothing can be judged from it.
        """
        values = columns(table, "arrivals", ["worker", "range", "iteration", "version"], ["seconds"], ["kind"])
        return cls(workers, frozenset(present), frozenset(replaced), **values)

    @property
    def size(self) -> int:
        """The number of rows."""
        return len(self.kind)

    @cached_property
    def movers(self) -> frozenset[int]:
        """The workers that were not present all the time, in one process: what they did in between is not recorded."""
        moved = self.worker[(self.kind == "leave") | (self.kind == "join")]
        return frozenset(moved.tolist()) | self.replaced | (frozenset(range(self.workers)) - self.present)

    @cached_property
    def ranges(self) -> int:
        """How many ranges there are."""
        return int(self.range.max(initial=0)) + 1

    def came_s(self, kind: str, iterations: int) -> np.ndarray:
        """[ranges, workers, iterations]: when the last such message came; NaN where none did."""
        found = np.full((self.ranges, self.workers, iterations), np.nan)
        rows = np.flatnonzero((self.kind == kind) & (self.iteration < iterations))
        found[self.range[rows], self.worker[rows], self.iteration[rows]] = self.seconds[rows]
        return found

    def name(self, row: int) -> str:
        """An arrival in words."""
        if self.kind[row] in ("leave", "join"):
            return f"that worker {self.worker[row]} {self.kind[row]}s"
        on = f" of range {self.range[row]}" if self.ranges > 1 else ""
        return f"worker {self.worker[row]}'s {self.kind[row]}{on} for iteration {self.iteration[row]}"


def rows_are_possible(a: Arrivals) -> list[str]:
    """Every row is of a kind that there is, of a worker of the run, and names what its kind has."""
    message = (a.kind == "push") | (a.kind == "pull")
    wrong = ~np.isin(a.kind, KINDS) | (a.worker < 0) | (a.worker >= a.workers)
    wrong |= (message | (a.kind == "join")) & (a.iteration < 0) | message & ((a.range < 0) | (a.version < 0))
    wrong |= a.range > FEW + a.size
    return report(np.flatnonzero(wrong), lambda r: (
        f"arrival {r + 1} is a {a.kind[r]} of worker {a.worker[r]}, range {a.range[r]}, iteration {a.iteration[r]}, "
        f"version {a.version[r]}: there are {', '.join(KINDS)} of workers 0 to {a.workers - 1}"))  # fmt: skip


def in_order(a: Arrivals) -> list[str]:
    """The server deals with one arrival after another; that a worker joins needs no dealing with."""
    rows = np.flatnonzero(a.kind != "join")
    if not np.isfinite(a.seconds).all() or (a.seconds < 0).any():
        return ["something arrived at a time outside the run"]
    wrong = np.flatnonzero(np.diff(a.seconds[rows]) < -SLACK_S) + 1
    return report(rows[wrong], lambda r: f"{a.name(r)} was dealt with at {a.seconds[r]:.6g} s, before earlier arrivals")


ARRIVALS_JUDGED: dict[str, Callable[[Arrivals], list[str]]] = {
    "arrivals": rows_are_possible,
    "the order of arrivals": in_order,
}
