"""The server's ledger: a row for each arrival, a row for each applied push, and snapshots of the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from pslab.engines.experiment.job import Job
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.experiment.wire import PushInfo, Wanted
from pslab.engines.server.rows import Changes, Rows
from pslab.protocol.messages import Pull, Push, Weights
from pslab.protocol.traits import Traits

SNAPSHOT_CHUNK = 8  # memory for snapshots grows by this many
PUSH_COLUMNS = ("push", "worker", "iteration", "range", "version_pulled", "version_applied", "staleness", "seconds",
                "loss", "density", "bytes_up", "bytes_up_raw", "bytes_down", "bytes_down_raw")  # fmt: skip
ARRIVALS = ("push", "pull", "leave", "join")
ARRIVAL_COLUMNS = ("kind", "worker", "range", "iteration", "version", "seconds")
#: A replay also needs the payload and `seen` of a push, and the keys of a pull.
REPLAYED_COLUMNS = (*ARRIVAL_COLUMNS, "size_bytes", "entries", "loss", "seen", "start", "stop")
PUSHED, PULLED, LEFT, JOINED = map(float, range(len(ARRIVALS)))
NOTHING = -1  # the range, iteration or version of an arrival that has none
OnSnapshot = Callable[[dict[str, Any]], None]  # {"index", "pushes", "seconds", "others"}
BYTES_DOWN = PUSH_COLUMNS.index("bytes_down")


class Ledger:
    """A run's measurements at the server; a process that maps the ledger's arenas can read them at any time.

    Args:
        tables: the arenas of the tables of pushes and of arrivals; None: memory of this process alone.
        replayed: whether the arrivals have REPLAYED_COLUMNS.
    """

    def __init__(
        self, job: Job, weights: torch.Tensor | None, snapshots: Arena | None, on_snapshot: OnSnapshot,
        tables: Sequence[Arena | None] = (None, None), *, replayed: bool = False,
    ) -> None:  # fmt: skip
        self._job, self._weights, self._snapshots, self._on_snapshot = job, weights, snapshots, on_snapshot
        self._itemsize = job.layout.dtype.itemsize
        self._replayed = replayed
        # virtual runs have no checkpoints, so their arrivals need fewer columns
        columns = len(PUSH_COLUMNS), len(REPLAYED_COLUMNS if replayed else ARRIVAL_COLUMNS)
        self._rows, self._arrivals = map(Rows, columns, tables)
        # by (worker, range, iteration) of a push: its row, if the pull after it has no reply yet
        self._unanswered: dict[tuple[int, int, int], int] = {}
        self._early: dict[tuple[int, int, int], tuple[int, int]] = {}  # bytes of replies whose push has no row yet
        self._taken = 0
        self._last, self._next = -1, 0.0  # pushes in the last snapshot; pushes or seconds when the next is due

    def arrived(self, message: Push | Pull, now: float) -> None:
        """Record a message that the server handles now; a replay of all records repeats the server's decisions."""
        # the first four fields of a push and a pull are the same: worker, range, iteration, version
        details = told_of(message) if self._replayed else ()
        self._arrivals.append((PUSHED if type(message) is Push else PULLED, *message[:4], now, *details))

    def left(self, worker: int, now: float) -> None:
        """Record that a worker has left."""
        self._arrivals.append((LEFT, worker, NOTHING, NOTHING, NOTHING, now, *self._no_message))

    def joined(self, worker: int, iteration: int, now: float) -> None:
        """Record that a worker joins with this iteration."""
        self._arrivals.append((JOINED, worker, NOTHING, iteration, NOTHING, now, *self._no_message))

    @property
    def arrivals(self) -> np.ndarray:
        """The arrivals in the order in which the server handled them: [arrivals, ARRIVAL_COLUMNS]."""
        return self._arrivals.table()[:, : len(ARRIVAL_COLUMNS)]

    @property
    def arrival_count(self) -> int:
        """The number of arrivals."""
        return self._arrivals.count

    @property
    def snapshots(self) -> tuple[int, int, float]:
        """The number of snapshots, the pushes in the last one, and the pushes or seconds when the next one is due."""
        return self._taken, self._last, self._next

    def set_snapshots(self, taken: int, last: int, next_due: float) -> None:
        """Restore the counts of snapshots from a checkpoint."""
        self._taken, self._last, self._next = taken, last, next_due

    def move(self, tables: Sequence[Arena]) -> None:
        """Move the tables of pushes and of arrivals into arenas, which other processes map."""
        both = zip((self._rows, self._arrivals), tables, strict=True)
        self._rows, self._arrivals = (Rows.of(rows.table(), arena) for rows, arena in both)

    def take_changes(self) -> tuple[Changes, Changes]:
        """Return the rows of pushes and of arrivals that are new or changed since the last call."""
        return self._rows.take_changes(), self._arrivals.take_changes()

    def applied(self, push: Push, version: int, now: float) -> None:
        """Record that a push became part of `version`."""
        job, (worker, index, iteration, used, gradient, *_) = self._job, push
        size, key = job.parts[index].size, (worker, index, iteration)
        early = self._early.pop(key, None) if self._early else None
        bytes_down, bytes_down_raw = early or (0, 0)
        # numbered as applied here; with several servers `close` numbers the rows again, by their instants
        self._rows.append((self._rows.count + 1, worker, iteration, index, used, version, version - 1 - used, now,
                           gradient.loss, gradient.entries / size, job.payload_bytes(index, gradient.size_bytes),
                           size * self._itemsize, bytes_down, bytes_down_raw))  # fmt: skip
        if early is None:
            self._unanswered[key] = self._rows.count - 1

    def answered(self, weights: Weights) -> None:
        """Record the bytes of a reply in the row of the push before its pull."""
        job, index = self._job, weights.range
        # the pull for iteration t follows the push of t - 1
        key = weights.worker, index, weights.iteration - 1
        sizes = job.payload_bytes(index, weights.payload.size_bytes), job.parts[index].size * self._itemsize
        row = self._unanswered.pop(key, None)
        if row is not None:
            self._rows.put(row, BYTES_DOWN, sizes)
        # the reply is sent while the push before it is still to be applied: `applied` will add the bytes
        elif job.traits.eager:
            self._early[key] = sizes

    def snapshot_if_due(self, pushes: int, now: float) -> None:
        """Take a snapshot of the weights for evaluation, if an evaluation period has passed."""
        if self.take_due(pushes, now):
            self._snapshot(pushes, now)

    def take_due(self, pushes: int, now: float) -> bool:
        """Begin the next evaluation period if one has passed; return whether to take a snapshot now."""
        run, period = self._job.run, self._job.run.evaluation_period
        # a budget in seconds has no number of pushes: then snapshots are taken by time
        measure = pushes if period is not None else now
        if measure < self._next:
            return False
        step = period if period is not None else (run.seconds or 1.0) / 20
        self._next = (measure // step + 1) * step  # the next multiple: a late snapshot shifts no later one
        return self._trains

    def open(self, pushes: int) -> int:
        """Count a snapshot that will be taken after so many pushes; return its number."""
        index = self._taken
        self._taken, self._last = index + 1, pushes
        return index

    def copy(self, index: int, server: int) -> None:
        """Copy a server's weights into a snapshot; do nothing in a run without tensors."""
        if self._weights is not None and self._snapshots is not None:
            copy_held(self._job, self._weights, self._snapshots, index, server)

    def kept(self, index: int, pushes: int, now: float, others: int = 0) -> None:
        """Report a snapshot that has the weights of all servers."""
        self._on_snapshot({"index": index, "pushes": pushes, "seconds": now, "others": others})

    def lacks(self, pushes: int) -> bool:
        """Whether no snapshot has the weights after so many pushes."""
        return pushes > self._last and self._trains

    def close(self, pushes: int, now: float) -> np.ndarray:
        """Take a snapshot of the last weights; return the table of pushes, ordered by instants."""
        if self.lacks(pushes):
            self._snapshot(pushes, now)
        if self._job.run.servers > 1:
            # servers carry out their steps at their own speed, so rows were not appended by their instants
            self._rows.sort(PUSH_COLUMNS.index("seconds"), PUSH_COLUMNS.index("push"))
        return self._rows.table()

    def _snapshot(self, pushes: int, now: float) -> None:
        index = self.open(pushes)
        for server in range(self._job.run.servers):
            self.copy(index, server)
        self.kept(index, pushes, now)

    @property
    def _no_message(self) -> tuple[float, ...]:
        return (0.0,) * (len(REPLAYED_COLUMNS) - len(ARRIVAL_COLUMNS)) if self._replayed else ()

    @property
    def _trains(self) -> bool:
        return self._weights is not None and self._snapshots is not None and self._job.trains


def told_of(message: Push | Pull) -> tuple[float, ...]:
    """Return a message's values for the columns of REPLAYED_COLUMNS that are not in ARRIVAL_COLUMNS."""
    if isinstance(message, Push):
        return message.payload.size_bytes, message.payload.entries, message.payload.loss, message.seen, 0, 0
    return message.payload.size_bytes, 0, 0.0, 0, message.payload.start, message.payload.stop


def message_of(row: Sequence[float]) -> Push | Pull:
    """Return the message of an arrival with REPLAYED_COLUMNS; the arrival does not contain when it was sent."""
    # in the order in which `told_of` writes: change both
    kind, *name, _, size_bytes, entries, loss, seen, start, stop = row
    worker, index, iteration, version = map(int, name)
    if kind == PUSHED:
        gradient = PushInfo(int(size_bytes), int(entries), loss)
        return Push(worker, index, iteration, version, gradient, int(seen))
    return Pull(worker, index, iteration, version, Wanted(int(start), int(stop), size_bytes=int(size_bytes)))


def copy_held(job: Job, weights: torch.Tensor, snapshots: Arena, index: int, server: int) -> None:
    """Copy a server's weights, or the part of them that is evaluated, into a snapshot."""
    layout = job.layout
    # each server copies for itself: the first one to come widens the arena, for the others this does nothing
    snapshots.reserve((index // SNAPSHOT_CHUNK + 1) * SNAPSHOT_CHUNK * layout.snapshot_bytes)
    target = layout.snapshot_in(snapshots, index)
    for where, source in held_slices(job, server):
        target[where].copy_(weights[source])


def held_slices(job: Job, server: int) -> Iterator[tuple[slice, Any]]:
    """Yield the slices of a snapshot that a server fills, each with the indices of the weights."""
    for piece in job.held[server]:
        if job.evaluated is None:
            yield piece, piece
        else:
            where = slice(*np.searchsorted(job.evaluated_at, (piece.start, piece.stop)).tolist())
            yield where, job.evaluated_at[where]


def reached(pushes: np.ndarray, ranges: int, traits: Traits) -> dict[str, Any]:
    """Return the progress of a run by its table of pushes: the gradients that every range has applied, as `pushes`,
    and the instant of the last row, as `seconds`."""
    named, counts = np.unique(pushes[:, 1:3].astype(int), axis=0, return_counts=True)
    due = [len(traits.rotation.ranges(iteration, ranges)) for iteration in named[:, 1].tolist()]
    # a push that a killed server has applied on some of its ranges only does not count
    complete = named[counts == due].tolist()
    seconds = float(pushes[-1, PUSH_COLUMNS.index("seconds")]) if len(pushes) else 0.0
    return {"pushes": sum(traits.unassigned(*name) for name in complete), "seconds": seconds}
