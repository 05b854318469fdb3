"""The faults of a run, as planned in its cluster: every engine applies them, and the judge reads them.

Random faults are drawn from a seed for each frame and each computation, so they depend neither on other messages nor
on the engine.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from pslab.config.cluster import OF_FRAMES, Cluster, Fault
from pslab.engines.experiment.wire import Frame
from pslab.protocol.messages import Ack, Push
from pslab.tensors.random_streams import numpy_generator, seed_of

BOTH = "both"
NO_RANGE = -1  # the range in the row of a worker's fault
NEVER = -1  # the iteration of a worker that was never killed
KILL, STOP, DUPLICATE, CORRUPT = "kill", "stop", "duplicate", "corrupt"
HOUR_S = 3600.0
LISTED = 1000  # a manifest lists the first faults, and counts all

Row = tuple[str, str, int, int, int, float]  # what, direction or "", worker, iteration, range or NO_RANGE, instant


class Fate(NamedTuple):
    """The effect of faults on a frame that has crossed its link."""

    delay_s: float
    copies: int  #: that arrive


class Faults:
    """The faults of one run; `rows` lists the faults that have happened."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._seed = seed
        numbered = list(enumerate(cluster.faults))
        self._frames = [(index, fault) for index, fault in numbered if fault.what in OF_FRAMES]
        self._stops = sorted(((i, f) for i, f in numbered if f.what == STOP), key=lambda pair: pair[1].at_s or 0.0)
        self._kills = [(index, fault) for index, fault in numbered if fault.what == KILL]
        # by fault and worker: the generator of its kills, and the instants of the kills drawn so far
        self._drawn: dict[tuple[int, int], tuple[np.random.Generator, list[float]]] = {}
        self._done: set[tuple[int, ...]] = set()  # faults that happen once, and have happened
        self.rows: list[Row] = []

    @property
    def of_frames(self) -> bool:
        """Whether a fault of frames is planned."""
        return bool(self._frames)

    @property
    def refused(self) -> int:
        """The number of frames that were refused because of a wrong checksum."""
        return sum(row[0] == CORRUPT for row in self.rows)

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as plain values."""
        return {"rows": self.rows, "done": sorted(self._done)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        self.rows, self._done = list(map(tuple, state["rows"])), set(map(tuple, state["done"]))

    # --- frames ---------------------------------------------------------------------------------------------------

    def fate(self, direction: str, worker: int, frame: Frame, now: float) -> Fate:
        """Draw the fate of a frame that is sent at `now`, and note its faults.

        A frame that is dropped, or refused because of a wrong checksum, is sent again: it arrives `for_s` later.
        """
        delay_s, copies = 0.0, 1
        iteration, index, _ = about = place_of(frame)
        for number, fault in self._frames:
            if fault.direction not in (direction, BOTH) or fault.worker not in (worker, None):
                continue
            if fault.at_s is not None:
                if now < fault.at_s or not self._first(number, worker):
                    continue
            elif not self._meets(number, fault, worker, iteration, direction, *about):
                continue
            self.rows.append((fault.what, direction, worker, iteration, index, now))
            if fault.what == DUPLICATE:
                copies += 1
            else:
                delay_s += fault.for_s
        return Fate(delay_s, copies)

    # --- workers --------------------------------------------------------------------------------------------------

    def pause_s(self, worker: int, iteration: int, begin_s: float, ends_s: float) -> float:
        """Return for how many seconds faults stop a computation between these instants, and note the faults."""
        total_s = 0.0
        for number, fault in self._stops:
            paused_s = 0.0
            if fault.worker not in (worker, None):
                continue
            if fault.at_s is not None:
                over_s = fault.at_s + fault.for_s
                if fault.at_s < ends_s + total_s and begin_s < over_s:
                    paused_s = min(fault.for_s, over_s - begin_s)
            elif self._meets(number, fault, worker, iteration, STOP) and self._first(number, worker, iteration):
                paused_s = fault.for_s
            if paused_s:
                total_s += paused_s
                self.rows.append((STOP, "", worker, iteration, NO_RANGE, max(begin_s, fault.at_s or 0.0)))
        return total_s

    def kill_s(self, worker: int, since_s: float = 0.0) -> float:
        """Return the first instant from `since_s` on at which a fault kills a worker; infinity if there is none."""
        first_s = math.inf
        for number, fault in self._kills:
            if fault.worker not in (worker, None):
                continue
            at_s = math.inf if fault.at_s is None else fault.at_s
            if fault.per_hour is not None:
                at_s = self._drawn_s(number, worker, HOUR_S / fault.per_hour, since_s)
            first_s = min(first_s, at_s if at_s >= since_s else math.inf)
        return first_s

    def _drawn_s(self, number: int, worker: int, mean_s: float, since_s: float) -> float:
        """Draw a worker's kills up to `since_s` and one more, unless they are drawn; return the first from then on."""
        if (number, worker) not in self._drawn:
            generator = numpy_generator(self._seed, "faults", number, worker)
            self._drawn[number, worker] = generator, [generator.exponential(mean_s)]
        generator, instants = self._drawn[number, worker]
        while instants[-1] < since_s:
            instants.append(instants[-1] + generator.exponential(mean_s))
        return instants[bisect_left(instants, since_s)]

    def kills(self, worker: int, iteration: int) -> bool:
        """Draw whether a worker is killed before it pushes this iteration; a repeated call returns False."""
        return bool(self._kills) and any(fault.at_s is None and fault.worker in (worker, None)
                   and self._meets(number, fault, worker, iteration, KILL) and self._first(number, worker, iteration)
                   for number, fault in self._kills)  # fmt: skip

    def killed(self, worker: int, iteration: int, now: float) -> None:
        """Record that a worker was killed."""
        self.rows.append((KILL, "", worker, iteration, NO_RANGE, now))

    def survived(self, worker: int) -> int:
        """Return the last iteration in which a worker was killed before its push; NEVER if there is none."""
        return max((row[3] for row in self.rows if row[0] == KILL and row[2] == worker), default=NEVER)

    def _first(self, *name: int) -> bool:
        known = name in self._done
        self._done.add(name)
        return not known

    def _meets(self, number: int, fault: Fault, worker: int, iteration: int, *name: str | int) -> bool:
        """Whether a fault that is planned for an iteration, or by a probability, happens in this case."""
        if fault.probability is None:
            return fault.iteration == iteration
        return seed_of(self._seed, "faults", number, worker, iteration, *name) < fault.probability * 2**63


def place_of(frame: Frame) -> tuple[int, int, str]:
    """Return the iteration (of a pull or its answer: the one before), range and kind of a frame's last message."""
    last: Any = frame[-1]
    iteration = last.iteration - (type(last) not in (Push, Ack))
    return iteration, last.range, type(last).__name__


def facts(cluster: Cluster, rows: list[Row]) -> dict[str, Any]:
    """Return the faults that happened, by instant, for the manifest; an empty dict if none was planned."""
    if not cluster.faults:
        return {}
    rows = sorted(rows, key=lambda row: row[5])
    counts = {fault.what: sum(row[0] == fault.what for row in rows) for fault in cluster.faults}
    return {"faults": counts, "faulted": [list(row) for row in rows[:LISTED]]}
