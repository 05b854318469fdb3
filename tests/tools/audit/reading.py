"""A finished run as the audit reads it: its tables as arrays, and what its policy allows; words for violations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from pslab.config.cluster import resolve_cluster
from pslab.config.run import Run
from pslab.config.spec import build, resolve
from pslab.lab.judge import policy_of
from pslab.protocol.traits import Traits, traits_of
from pslab.tensors.compression.uncompressed import Everything, Plain

REPORTED = 3  # violations of one kind that are written out
SLACK_S = 1e-6  # instants that are derived from others are not equal to the last bit
NUMBERS = ("density", "bytes_up", "bytes_up_raw", "bytes_down", "bytes_down_raw")


def report(rows: Iterable[int], words: Callable[[int], str]) -> list[str]:
    """The first violations in words, and the number of the others."""
    wrong = list(rows)
    more = [f"and {len(wrong) - REPORTED} more like it"] if len(wrong) > REPORTED else []
    return [words(int(row)) for row in wrong[:REPORTED]] + more


def report_cells(wrong: np.ndarray, words: Callable[..., str]) -> list[str]:
    """`report` for the true cells of a table; `words` gets the indices of each."""
    cells = np.argwhere(wrong).tolist()
    return report(range(len(cells)), lambda at: words(*cells[at]))


def columns(
    table: pd.DataFrame, integers: Sequence[str], floats: Sequence[str], objects: Sequence[str] = ()
) -> dict[str, Any]:
    """Return columns of a table as int64, float64 and object arrays."""
    kinds = {**dict.fromkeys(integers, np.int64), **dict.fromkeys(floats, np.float64), **dict.fromkeys(objects, object)}
    return {column: table[column].to_numpy(kind) for column, kind in kinds.items()}


@dataclass(frozen=True)
class Arrivals:
    """The messages that the server handled, and the workers that left and joined, in their order.

    One entry a row; times in seconds, -1 where a row has no range, iteration or version.
    """

    workers: int
    present: frozenset[int]  #: the workers at the start
    replaced: frozenset[int]  #: the workers that had more than one process
    kind: np.ndarray
    worker: np.ndarray
    range: np.ndarray
    iteration: np.ndarray
    version: np.ndarray
    seconds: np.ndarray

    @cached_property
    def movers(self) -> frozenset[int]:
        """The workers that were not present all the time in one process: their records have gaps."""
        moved = self.worker[(self.kind == "leave") | (self.kind == "join")]
        return frozenset(moved.tolist()) | self.replaced | (frozenset(range(self.workers)) - self.present)

    @cached_property
    def ranges(self) -> int:
        return int(self.range.max(initial=0)) + 1

    def came_s(self, kind: str, iterations: int) -> np.ndarray:
        """[ranges, workers, iterations]: when the first message of this kind came; NaN where none did."""
        came = np.full((self.ranges, self.workers, iterations), np.nan)
        rows = np.flatnonzero((self.kind == kind) & (self.iteration < iterations))[::-1]
        came[self.range[rows], self.worker[rows], self.iteration[rows]] = self.seconds[rows]
        return came

    def name(self, row: int) -> str:
        """An arrival in words."""
        if self.kind[row] in ("leave", "join"):
            return f"that worker {self.worker[row]} {self.kind[row]}s"
        on = f" of range {self.range[row]}" if self.ranges > 1 else ""
        return f"worker {self.worker[row]}'s {self.kind[row]}{on} for iteration {self.iteration[row]}"


@dataclass(frozen=True)
class Pushes:
    """The applied pushes, in the order of application; a push of an iteration has one row on each range."""

    movers: frozenset[int]
    traits: Traits
    push: np.ndarray
    worker: np.ndarray
    iteration: np.ndarray
    range: np.ndarray
    pulled: np.ndarray  #: the version of its range that it was computed on
    applied: np.ndarray  #: the version that it made
    seconds: np.ndarray

    @property
    def size(self) -> int:
        """The number of rows."""
        return len(self.push)

    def followed(self) -> np.ndarray:
        """The rows behind which the same worker has another row on the same range."""
        lines = np.lexsort((np.arange(self.size), self.worker, self.range))
        after, before = lines[1:], lines[:-1]
        same = (self.worker[after] == self.worker[before]) & (self.range[after] == self.range[before])
        return np.asarray(before[same])

    @cached_property
    def moved(self) -> np.ndarray:
        """Per row, whether its worker was not present all the time."""
        return np.isin(self.worker, list(self.movers))

    def each(self, of: Callable[[int], bool], offset: int = 0) -> np.ndarray:
        """Per row, a trait of the policy for its iteration, or for the iteration `offset` later."""
        return np.array([of(iteration + offset) for iteration in self.iteration.tolist()], bool)

    @cached_property
    def by_range(self) -> list[np.ndarray]:
        """The rows of each range, in the order of application."""
        order = np.argsort(self.range, kind="stable")
        return np.split(order, np.unique(self.range[order], return_index=True)[1][1:])

    def made_s(self, rows: np.ndarray) -> np.ndarray:
        """When each version of a range, given its rows, was made: -inf for version 0, inf after the last one."""
        at = np.full(self.applied[rows].max() + 2, np.inf)
        at[self.applied[rows[::-1]]] = self.seconds[rows[::-1]]
        at[0] = -np.inf
        return at

    def name(self, row: int) -> str:
        """A push in words."""
        on = f", range {self.range[row]}" if self.range.max() else ""
        return f"push {self.push[row]} (worker {self.worker[row]}, iteration {self.iteration[row]}{on})"


@dataclass(frozen=True)
class Phases:
    """The phases of workers and servers, one entry a row; times in seconds."""

    workers: int
    ranges: int
    movers: frozenset[int]  #: workers of which phases are missing, or which may have started an iteration twice
    worker: np.ndarray
    iteration: np.ndarray
    range: np.ndarray
    phase: np.ndarray
    begin_s: np.ndarray
    end_s: np.ndarray

    @cached_property
    def moved(self) -> np.ndarray:
        """Per row, whether it is of one of the movers."""
        return np.isin(self.worker, list(self.movers))

    def rows(self, phase: str) -> np.ndarray:
        """The rows of a phase, without those of movers."""
        return np.flatnonzero((self.phase == phase) & ~self.moved)

    @cached_property
    def iterations(self) -> int:
        """How many iterations tables by iteration have."""
        return int(self.iteration.max()) + 2

    def first(self, phase: str, time: str) -> np.ndarray:
        """[workers, iterations]: the first "begin_s" or "end_s" of a phase; NaN where there is none, and for movers."""
        return np.asarray(np.fmin.reduce(self.cells(phase, time, np.fmin), axis=0))

    def last(self, phase: str, time: str) -> np.ndarray:
        """As `first`, the last time."""
        return np.asarray(np.fmax.reduce(self.cells(phase, time, np.fmax), axis=0))

    def cells(self, phase: str, time: str, pick: np.ufunc = np.fmax) -> np.ndarray:
        """[ranges, workers, iterations]: as `first` or `last`, of each range. A phase of all ranges is at range 0."""
        cells = np.full((self.ranges, self.workers, self.iterations), np.nan)
        rows = self.rows(phase)
        at = np.maximum(self.range[rows], 0), self.worker[rows], self.iteration[rows]
        pick.at(cells, at, getattr(self, time)[rows])
        return cells

    def of_pushes(self, cells: np.ndarray, pushes: Pushes, back: int = 0) -> np.ndarray:
        """For each push, the cell of its range, worker and iteration, or of `back` iterations before; NaN if none."""
        at = pushes.iteration - back
        inside = (at >= 0) & (at < self.iterations)
        picked = np.full(pushes.size, np.nan)
        picked[inside] = cells[pushes.range[inside], pushes.worker[inside], at[inside]]
        return picked

    def name(self, row: int) -> str:
        """A phase in words."""
        return f"worker {self.worker[row]}'s {self.phase[row]} of iteration {self.iteration[row]}"


class Reading:
    """A run and its manifest, its tables, each read when it is first asked for, and what the policy allows."""

    def __init__(self, run: Run, tables: Mapping[str, pd.DataFrame], facts: Mapping[str, Any]) -> None:
        self.run, self.tables, self.facts = run, tables, facts
        self.cluster, self.traits = resolve_cluster(run.cluster), traits_of(policy_of(run, facts))
        cuts: Any = build("ranges", run.ranges) if isinstance(run.ranges, str) else run.ranges
        self.layered = bool(getattr(cuts, "layered", True))  #: workers push and wait layer by layer
        self.in_parts = self.layered or self.traits.overlap > 0  #: whether an iteration has several computations
        self.modelled = run.engine in ("virtual", "timing")  #: whether time was virtual, and is what the cluster says
        self.trained = run.engine != "timing"  #: whether gradients were computed and weights evaluated
        self.itemsize = int(np.dtype(run.dtype).itemsize)
        self.keyed = run.pull == "keys"  #: only the keys of batches travel; a range without any transfers nothing
        self.several_servers = run.servers > 1  #: a step may be applied after a later decision

    @cached_property
    def arrivals(self) -> Arrivals:
        present = filter(self.cluster.present, range(self.run.workers))
        replaced = frozenset(worker for worker, _ in self.replaced)
        return Arrivals(self.run.workers, frozenset(present), replaced, **columns(
            self.tables["arrivals"], ["worker", "range", "iteration", "version"], ["seconds"], ["kind"]))  # fmt: skip

    @cached_property
    def pushes(self) -> Pushes:
        names = ["push", "worker", "iteration", "range", "version_pulled", "version_applied"]
        values = columns(self.tables["pushes"], names, ["seconds"])
        pulled, applied = values.pop("version_pulled"), values.pop("version_applied")
        return Pushes(self.arrivals.movers, self.traits, pulled=pulled, applied=applied, **values)

    @cached_property
    def phases(self) -> Phases:
        movers = self.arrivals.movers | frozenset(self.all("phases_lost"))
        return Phases(self.run.workers, self.arrivals.ranges, movers, **columns(
            self.tables["phases"], ["worker", "iteration", "range"], ["begin_s", "end_s"], ["phase"]))  # fmt: skip

    @cached_property
    def numbers(self) -> dict[str, np.ndarray]:
        """The columns NUMBERS of the table of pushes."""
        return columns(self.tables["pushes"], [], NUMBERS)

    def all(self, name: str) -> list[Any]:
        """A fact that is a list; an empty one if the manifest does not have it."""
        return list(self.facts.get(name, ()))

    @cached_property
    def _steps(self) -> dict[tuple[int, int], int]:
        return {(worker, iteration): count for worker, iteration, count in self.all("steps")}

    def gradients(self, worker: int, iteration: int) -> int:
        """The gradients that a worker's iteration is made of: where the policy has assigned them, the recorded number,
        which the replay of the policy must make again."""
        return self._steps.get((worker, iteration)) or self.traits.unassigned(worker, iteration)

    @property
    def replaced(self) -> list[tuple[int, float]]:
        """The workers whose process was replaced by another one, and when it had ended."""
        return [(int(life["worker"]), float(life["seconds"])) for life in self.all("lives")]

    def exchanged(self, iteration: int) -> range:
        """The ranges that an iteration exchanges, of which in a short run some may not have come."""
        most = max(self.arrivals.ranges, self.traits.rotation.fragments)
        return self.traits.rotation.ranges(iteration, int(self.facts.get("ranges", most)))

    @cached_property
    def prune(self) -> Any:
        return resolve("prune", self.run.prune)

    @cached_property
    def sparse(self) -> bool:
        """Whether gradients travel as frames of chosen entries."""
        quantized = resolve("quantize", self.run.quantize)
        return self.keyed or not isinstance(self.prune, Everything) or not isinstance(quantized, Plain)
