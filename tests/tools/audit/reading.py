"""A record as the judge reads it: its tables as arrays, and what the policy of its run allows; words for violations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from pslab.config.cluster import resolve_cluster
from pslab.config.run import Run
from pslab.config.spec import build, resolve
from pslab.config.table import find
from pslab.errors import ConfigError
from pslab.lab.judge import policy_of
from pslab.protocol.traits import EAGER_BUFFERS, Traits, traits_of
from pslab.tensors.compression.uncompressed import Everything, Plain

REPORTED = 3  # violations of one kind that are written out
SLACK_S = 1e-6  # instants that are derived from others are not equal to the last bit
NUMBERS = ("loss", "density", "bytes_up", "bytes_up_raw", "bytes_down", "bytes_down_raw")


class Unjudged(Exception):
    """Nothing can be judged from a table; the message says why."""


def report(rows: Iterable[int], words: Callable[[int], str]) -> list[str]:
    """The first violations in words, and the number of the others."""
    found = list(rows)
    more = [f"and {len(found) - REPORTED} more like it"] if len(found) > REPORTED else []
    return [words(int(row)) for row in found[:REPORTED]] + more


def report_cells(wrong: np.ndarray, words: Callable[..., str]) -> list[str]:
    """`report` for the true cells of a table; `words` gets the indices of each."""
    cells = np.argwhere(wrong).tolist()
    return report(range(len(cells)), lambda at: words(*cells[at]))


def columns(
    table: pd.DataFrame | None, name: str, integers: Sequence[str], floats: Sequence[str], objects: Sequence[str] = (),
    *, may_be_empty: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Return columns of a table as int64, float64 and object arrays.

    Raises:
        Unjudged: there is no such table, or it has no rows and may not be empty.
    """
    if table is None or not (len(table) or may_be_empty):
        raise Unjudged(f"there is no table of {name}" if table is None else f"the table of {name} is empty")
    kinds = {**dict.fromkeys(integers, np.int64), **dict.fromkeys(floats, np.float64), **dict.fromkeys(objects, object)}
    return {column: table[column].to_numpy(kind) for column, kind in kinds.items()}


@dataclass(frozen=True)
class Arrivals:
    """The messages that the server handled, and the workers that left and joined, in their order.

    One entry a row; times in seconds, -1 where a row has no range, iteration or version.
    """

    workers: int
    present: frozenset[int]  #: the workers at the start
    replaced: frozenset[int]  #: those that had more than one process
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
        """How many ranges there are."""
        return int(self.range.max(initial=0)) + 1

    def came_s(self, kind: str, iterations: int) -> np.ndarray:
        """[ranges, workers, iterations]: when the first message of this kind came; NaN where none did."""
        found = np.full((self.ranges, self.workers, iterations), np.nan)
        rows = np.flatnonzero((self.kind == kind) & (self.iteration < iterations))[::-1]
        found[self.range[rows], self.worker[rows], self.iteration[rows]] = self.seconds[rows]
        return found

    def name(self, row: int) -> str:
        """An arrival in words."""
        if self.kind[row] in ("leave", "join"):
            return f"that worker {self.worker[row]} {self.kind[row]}s"
        on = f" of range {self.range[row]}" if self.ranges > 1 else ""
        return f"worker {self.worker[row]}'s {self.kind[row]}{on} for iteration {self.iteration[row]}"


@dataclass(frozen=True)
class Pushes:
    """The applied pushes, in the order of application; a push of an iteration has one row on each range."""

    arrivals: Arrivals
    traits: Traits
    push: np.ndarray
    worker: np.ndarray
    iteration: np.ndarray
    range: np.ndarray
    pulled: np.ndarray  #: the version of its range that it was computed on
    applied: np.ndarray  #: the version that it made
    staleness: np.ndarray
    seconds: np.ndarray

    @property
    def size(self) -> int:
        """The number of rows."""
        return len(self.push)

    @cached_property
    def lines(self) -> np.ndarray:
        """The rows ordered by range, worker and application."""
        return np.lexsort((np.arange(self.size), self.worker, self.range))

    def predecessors(self, back: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Rows with a row `back` rows before, of the same worker on the same range; and those earlier rows."""
        now, before = self.lines[back:], self.lines[:-back]
        same = (self.worker[now] == self.worker[before]) & (self.range[now] == self.range[before])
        return now[same], before[same]

    @cached_property
    def due(self) -> np.ndarray:
        """Per row, the iteration that its worker's next push on its range was expected to have."""
        fragments = self.traits.rotation.fragments
        due = self.range % fragments
        now, before = self.predecessors()
        due[now] = self.iteration[before] + fragments
        return due

    @cached_property
    def moved(self) -> np.ndarray:
        """Per row, whether its worker was not present all the time."""
        return np.isin(self.worker, list(self.arrivals.movers))

    def each(self, of: Callable[[int], bool], offset: int = 0) -> np.ndarray:
        """Per row, a trait of the policy for its iteration, or for the iteration `offset` later."""
        return np.array([of(iteration + offset) for iteration in self.iteration.tolist()], bool)

    @cached_property
    def fetched(self) -> np.ndarray:
        """Per row, whether the weights that it was computed on were fetched for it."""
        return self.each(self.traits.fetches)

    @cached_property
    def by_range(self) -> list[tuple[int, np.ndarray]]:
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
    waits_for: np.ndarray

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
        found = np.full((self.ranges, self.workers, self.iterations), np.nan)
        rows = self.rows(phase)
        at = np.maximum(self.range[rows], 0), self.worker[rows], self.iteration[rows]
        pick.at(found, at, getattr(self, time)[rows])
        return found

    def of_pushes(self, cells: np.ndarray, pushes: Pushes, back: int = 0) -> np.ndarray:
        """For each push, the cell of its range, worker and iteration, or of `back` iterations before; NaN if none."""
        at = pushes.iteration - back
        inside = (at >= 0) & (at < self.iterations)
        found = np.full(pushes.size, np.nan)
        found[inside] = cells[pushes.range[inside], pushes.worker[inside], at[inside]]
        return found

    def name(self, row: int) -> str:
        """A phase in words."""
        return f"worker {self.worker[row]}'s {self.phase[row]} of iteration {self.iteration[row]}"


class Reading:
    """A record: its run and its manifest, its tables, each read when it is first asked for, and what the policy allows.

    Of a policy that is not known, only what every policy must keep is demanded.

    Raises:
        ConfigError: the record's run names a cluster that there is not.
    """

    def __init__(self, run: Run, tables: Mapping[str, pd.DataFrame], facts: Mapping[str, Any]) -> None:
        self.run, self.tables, self.facts = run, tables, facts
        self.cluster = resolve_cluster(run.cluster)
        self.sync: Any = None
        self.unknown: list[str] = []
        try:
            self.sync = policy_of(run, facts)
        except ConfigError as error:
            self.unknown = [f"{error}: its bound and its decisions were not judged"]
        self.known = self.sync is not None
        self.traits = traits_of(self.sync) if self.known else Traits()
        self.layered = _layered(run)  #: whether workers wait for each layer's weights, and push layer by layer
        self.in_parts = self.layered or self.traits.overlap > 0  #: whether an iteration has several computations

    # --- its tables; each raises Unjudged where nothing can be judged from it

    @cached_property
    def arrivals(self) -> Arrivals:
        """The table of arrivals."""
        present, replaced = filter(self.cluster.present, range(self.run.workers)), (w for w, _ in self.replaced)
        return Arrivals(self.run.workers, frozenset(present), frozenset(replaced), **columns(
            self.tables.get("arrivals"), "arrivals", ["worker", "range", "iteration", "version"], ["seconds"],
            ["kind"]))  # fmt: skip

    @cached_property
    def pushes(self) -> Pushes:
        """The table of pushes, which may be empty."""
        names = ["push", "worker", "iteration", "range", "version_pulled", "version_applied", "staleness"]
        values = columns(self.tables.get("pushes"), "pushes", names, ["seconds"], may_be_empty=True)
        pulled, applied = values.pop("version_pulled"), values.pop("version_applied")
        return Pushes(self.arrivals, self.traits, pulled=pulled, applied=applied, **values)

    @cached_property
    def phases(self) -> Phases:
        """The table of phases."""
        movers = self.arrivals.movers | frozenset(self.all("phases_lost"))
        return Phases(self.run.workers, self.arrivals.ranges, movers, **columns(
            self.tables.get("phases"), "phases", ["worker", "iteration", "range", "waits_for"], ["begin_s", "end_s"],
            ["phase"]))  # fmt: skip

    @cached_property
    def numbers(self) -> dict[str, np.ndarray]:
        """The columns NUMBERS of the table of pushes."""
        return columns(self.tables.get("pushes"), "pushes", [], NUMBERS)

    # --- its manifest

    def all(self, name: str) -> list[Any]:
        """A fact that is a list; an empty one if the manifest does not have it."""
        return list(self.facts.get(name, ()))

    @cached_property
    def _steps(self) -> dict[tuple[int, int], int]:
        return {(worker, iteration): count for worker, iteration, count in self.all("steps")}

    def gradients(self, worker: int, iteration: int) -> int:
        """The gradients that a worker's iteration is made of: where the policy has assigned them, the recorded number,
        which a replay of the policy must make again."""
        return self._steps.get((worker, iteration)) or self.traits.unassigned(worker, iteration)

    @property
    def replaced(self) -> list[tuple[int, float]]:
        """The workers whose process was replaced by another one, and when it had ended."""
        return [(int(life["worker"]), float(life["seconds"])) for life in self.all("lives")]

    @property
    def interrupted(self) -> bool:
        """Whether the run was stopped before its end."""
        return bool(self.facts["outcome"] == "interrupted")

    def exchanged(self, iteration: int) -> range:
        """The ranges that an iteration exchanges."""
        return self.traits.rotation.ranges(iteration, self.ranges)

    @property
    def ranges(self) -> int:
        """How many ranges the run has, of which in a short one some may not have come."""
        return int(self.facts.get("ranges", max(self.arrivals.ranges, self.traits.rotation.fragments)))

    # --- what its run allows

    @property
    def lacking(self) -> int:
        """How many of its own pushes a worker's weights may lack: it has a buffer for each, and may add them itself."""
        return EAGER_BUFFERS if self.traits.eager or not self.known else 0

    @property
    def several_servers(self) -> bool:
        """Whether several servers apply steps, each in its own time: a step may be applied after a later decision."""
        return self.run.servers > 1

    @property
    def drops(self) -> bool:
        """Whether pushes may be dropped, as by a policy that decides for all ranges at once."""
        return self.traits.whole or not self.known

    @property
    def in_turn(self) -> bool:
        """Whether the policy is known, and a worker requests its next weights when it has pushed, and not before."""
        return self.known and not self.traits.eager

    @property
    def modelled(self) -> bool:
        """Whether time was virtual, and is what the cluster says."""
        return self.run.engine != "local"

    @property
    def trained(self) -> bool:
        """Whether gradients were computed and weights evaluated."""
        return self.run.engine != "timing"

    @property
    def least_loss(self) -> float:
        """The lowest value of the loss: a user's may have any."""
        return 0.0 if find("loss", self.run.loss) is not None else -math.inf

    @property
    def itemsize(self) -> int:
        """Bytes of a weight."""
        return int(np.dtype(self.run.dtype).itemsize)

    @property
    def keyed(self) -> bool:
        """Whether only the keys of batches are transferred; a range without any of them transfers nothing."""
        return self.run.pull == "keys"

    @cached_property
    def prune(self) -> Any:
        """The pruning rule.

        Raises:
            ConfigError: the record does not determine it.
        """
        return resolve("prune", self.run.prune)

    @cached_property
    def quantize(self) -> Any:
        """The quantization rule.

        Raises:
            ConfigError: the record does not determine it.
        """
        return resolve("quantize", self.run.quantize)

    @cached_property
    def sparse(self) -> bool | None:
        """Whether gradients travel as frames of chosen entries; None if the record does not determine it."""
        try:
            pruned, quantized = self.prune, self.quantize
            return self.keyed or not isinstance(pruned, Everything) or not isinstance(quantized, Plain)
        except ConfigError:
            return None


def _layered(run: Run) -> bool:
    """Whether requests are layer by layer; also where that is unknown, since less is demanded then."""
    try:
        ranges = build("ranges", run.ranges) if isinstance(run.ranges, str) else run.ranges
    except ConfigError:
        return True
    return bool(getattr(ranges, "layered", True))
