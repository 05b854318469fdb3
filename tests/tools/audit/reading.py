"""A finished run as the audit reads it: its tables as arrays, and what its policy allows; words for violations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from pslab.config.cluster import resolve_cluster
from pslab.config.run import Run
from pslab.config.spec import build, resolve
from pslab.lab.judge import policy_of
from pslab.protocol.traits import traits_of
from pslab.tensors.compression.uncompressed import Everything, Plain

REPORTED = 3  # violations of one kind that are written out
SLACK_S = 1e-6  # instants that are derived from others are not equal to the last bit


def report(found: Iterable[str]) -> list[str]:
    """Return the first violations, and the number of the others."""
    wrong = list(found)
    return wrong[:REPORTED] + [f"and {len(wrong) - REPORTED} more like it"] * (len(wrong) > REPORTED)


def report_cells(wrong: np.ndarray, words: str, *values: np.ndarray) -> list[str]:
    """Return violations for the true cells [..., worker, iteration] of an array, with the values there.

    Args:
        words: what a worker has done wrong; "{}" is the iteration.
    """
    cells = map(tuple, np.argwhere(wrong).tolist())
    shown = [np.broadcast_to(value, wrong.shape) for value in values]
    return report(f"worker {cell[-2]} {words.format(cell[-1])}: {' / '.join(f'{each[cell]:.9g}' for each in shown)}"
                  for cell in cells)  # fmt: skip


def report_rows(wrong: np.ndarray, name: Callable[[int], str], words: str, *values: np.ndarray) -> list[str]:
    """Return violations for the true rows of a table, by their names, with the values there."""
    return report(f"{name(row)} {words}: {' / '.join(f'{each[row]:.9g}' for each in values)}"
                  for row in np.flatnonzero(wrong).tolist())  # fmt: skip


def arrays(table: pd.DataFrame) -> Any:
    """Return a table's columns as arrays, by their names."""
    return SimpleNamespace(**{str(name): table[name].to_numpy() for name in table})


class Reading:
    """A run, its manifest and its tables, and what the policy allows; times in seconds."""

    def __init__(self, run: Run, tables: Mapping[str, pd.DataFrame], facts: Mapping[str, Any]) -> None:
        self.run, self.facts = run, facts
        self.arrivals, self.pushes, self.phases = (arrays(tables[name]) for name in ("arrivals", "pushes", "phases"))
        self.cluster, self.traits = resolve_cluster(run.cluster), traits_of(policy_of(run, facts))
        cuts: Any = build("ranges", run.ranges) if isinstance(run.ranges, str) else run.ranges
        self.layered = bool(getattr(cuts, "layered", True))  #: workers push and wait layer by layer
        self.in_parts = self.layered or self.traits.overlap > 0  #: whether an iteration has several computations
        self.modelled = run.engine in ("virtual", "timing")  #: whether time was virtual, and is what the cluster says
        self.trained = run.engine != "timing"  #: whether gradients were computed
        self.itemsize = int(np.dtype(run.dtype).itemsize)
        self.keyed = run.pull == "keys"  #: only the keys of batches travel; a range without any transfers nothing
        self.prune = resolve("prune", run.prune)
        plain = isinstance(self.prune, Everything) and isinstance(resolve("quantize", run.quantize), Plain)
        self.sparse = self.keyed or not plain  #: whether gradients travel as frames of chosen entries
        self.ranges = int(self.arrivals.range.max(initial=0)) + 1
        self.iterations = int(self.phases.iteration.max()) + 2  #: of arrays by iteration
        self.replaced = [(int(life["worker"]), float(life["seconds"])) for life in self.all("lives")]
        absent = {worker for worker in range(run.workers) if not self.cluster.present(worker)}
        moved = self.arrivals.worker[np.isin(self.arrivals.kind, ["leave", "join"])]
        #: workers that were not present all the time in one process: their records have gaps
        self.movers = absent | {*moved.tolist()} | {worker for worker, _ in self.replaced}
        self.gaps = sorted(self.movers | {*self.all("phases_lost")})  #: workers of which phases are missing
        self._steps = {(worker, iteration): count for worker, iteration, count in self.all("steps")}

    def all(self, name: str) -> list[Any]:
        """Return a fact that is a list; an empty one if the manifest does not have it."""
        return list(self.facts.get(name, ()))

    def gradients(self, worker: int, iteration: int) -> int:
        """Return the number of gradients of a worker's iteration: the recorded one, if the policy has assigned it."""
        return self._steps.get((worker, iteration)) or self.traits.unassigned(worker, iteration)

    def exchanged(self, iteration: int) -> range:
        """Return the ranges that an iteration exchanges, of which in a short run some may not have come."""
        most = max(self.ranges, self.traits.rotation.fragments)
        return self.traits.rotation.ranges(iteration, int(self.facts.get("ranges", most)))

    def came_s(self, kind: str, iterations: int) -> np.ndarray:
        """[ranges, workers, iterations]: when the first message of this kind came; NaN where none did."""
        a, came = self.arrivals, np.full((self.ranges, self.run.workers, iterations), np.nan)
        rows = np.flatnonzero((a.kind == kind) & (a.iteration < iterations))[::-1]
        came[a.range[rows], a.worker[rows], a.iteration[rows]] = a.seconds[rows]
        return came

    def each(self, of: Callable[[int], bool], offset: int = 0) -> np.ndarray:
        """For each push, a trait of the policy for its iteration, or for the iteration `offset` later."""
        return np.array([of(iteration + offset) for iteration in self.pushes.iteration.tolist()], bool)

    def rows(self, phase: str) -> np.ndarray:
        """Return the rows of a phase, without those of workers with gaps."""
        return np.flatnonzero((self.phases.phase == phase) & ~np.isin(self.phases.worker, self.gaps))

    def cells(self, phase: str, time: str, pick: np.ufunc = np.fmax) -> np.ndarray:
        """[ranges, workers, iterations]: the last "begin_s" or "end_s" of a phase, or by `pick` another one.

        NaN where there is none; a phase of all ranges is at range 0.
        """
        p, rows = self.phases, self.rows(phase)
        cells = np.full((self.ranges, self.run.workers, self.iterations), np.nan)
        pick.at(cells, (np.maximum(p.range[rows], 0), p.worker[rows], p.iteration[rows]), getattr(p, time)[rows])
        return cells

    def first(self, phase: str, time: str) -> np.ndarray:
        """[workers, iterations]: as `cells`, the first one of all ranges."""
        return np.asarray(np.fmin.reduce(self.cells(phase, time, np.fmin), axis=0))

    def last(self, phase: str, time: str) -> np.ndarray:
        """[workers, iterations]: as `cells`, the last one of all ranges."""
        return np.asarray(np.fmax.reduce(self.cells(phase, time), axis=0))

    def arrival(self, row: int) -> str:
        """Return an arrival in words."""
        a = self.arrivals
        if a.kind[row] in ("leave", "join"):
            return f"that worker {a.worker[row]} {a.kind[row]}s"
        return f"worker {a.worker[row]}'s {a.kind[row]} of range {a.range[row]} for iteration {a.iteration[row]}"

    def push(self, row: int) -> str:
        """Return a push in words."""
        h = self.pushes
        return f"push {h.push[row]} (worker {h.worker[row]}, iteration {h.iteration[row]}, range {h.range[row]})"

    def phase(self, row: int) -> str:
        """Return a phase in words."""
        p = self.phases
        return f"worker {p.worker[row]}'s {p.phase[row]} of iteration {p.iteration[row]}"
