"""The offsets of a run's tensors in shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from mmap import PAGESIZE
from typing import TYPE_CHECKING, TypeVar

import torch

from pslab.engines.experiment.shared_memory import ALIGNMENT, Arena, aligned
from pslab.tensors.update import methods

if TYPE_CHECKING:
    from pslab.engines.experiment.experiment import Experiment
    from pslab.tensors.entries import KeptVector

T = TypeVar("T")

HEAD_BYTES = ALIGNMENT  # the head of a worker's states, which has their numbers
NUMBER = torch.float64


def in_turn(places: Sequence[T], iteration: int) -> T:
    """Return the buffer of an iteration: iterations use the items of `places` in turn."""
    return places[iteration % len(places)]


@dataclass(frozen=True)
class Layout:
    """Byte offsets of a run's buffers in its arena. Buffers by parity are for even and odd iterations."""

    size: int
    dtype: torch.dtype
    server: int  #: the server's weights
    weights: tuple[int, ...]  #: per worker: its copy of the server's weights
    gradients: tuple[tuple[int, ...], ...]  #: per worker and buffer
    up: tuple[tuple[int, ...], ...]  #: per worker and buffer: the frames of a push
    arrivals: tuple[tuple[int, ...], ...]  #: per worker: weights of a whole pull; by parity if the policy is eager
    used: tuple[int, ...]  #: per worker: the weights that it computes on
    down: tuple[tuple[int, ...], ...]  #: per worker: the frames of a pull; by parity if the policy is eager
    memories: dict[str, KeptVector]  #: the vectors that each worker stores from one gradient to the next
    memory_offsets: tuple[dict[str, int], ...]  #: per worker: the offsets of `memories`
    frames: tuple[tuple[int, int], ...] = field(default=())  #: per range: offset and size in a buffer of frames
    asked: tuple[tuple[int, ...], ...] = ()  #: per worker, by parity: the frames of a request for keys
    states: tuple[int, ...] = ()  #: per worker: copies of its memories for a new process, if it may be replaced
    copies: int = 0  #: the number of these copies
    rho: int | None = None  #: the server's rho, one float64, if the policy's method has one
    end: int = 0  #: the size of the arena in bytes
    in_place: bool = False  #: whether workers compute on the server's weights
    snapshot: int = 0  #: the number of weights in a snapshot: all, or the weights that an evaluation reads

    def number(self, arena: Arena) -> torch.Tensor | None:
        """Return rho as a tensor [1]; None if the policy's method has none."""
        return None if self.rho is None else arena.tensor(self.rho, 1, NUMBER)

    @property
    def snapshot_bytes(self) -> int:
        """The bytes of a snapshot of the weights; snapshots are stored contiguously in a separate arena."""
        return self.snapshot * self.dtype.itemsize

    def snapshot_in(self, arena: Arena, index: int) -> torch.Tensor:
        """Return a view of a snapshot, in the servers' order of the weights; the arena must have its bytes."""
        return arena.tensor(index * self.snapshot_bytes, self.snapshot, self.dtype)

    @property
    def kept_bytes(self) -> int:
        """The bytes of all memories of a worker, which are stored contiguously."""
        return sum(aligned(memory.entries * memory.dtype.itemsize) for memory in self.memories.values())

    def kept_at(self, worker: int) -> int:
        """Return the offset of a worker's first memory."""
        return min(self.memory_offsets[worker].values())

    @classmethod
    def of(cls, experiment: Experiment) -> Layout:
        """Assign offsets to all buffers of an experiment. Pages that are never written take no memory."""
        workers, size, parts = experiment.run.workers, experiment.keyspace.size, experiment.parts
        dtype, in_place, eager = getattr(torch, experiment.run.dtype), experiment.in_place, experiment.traits.eager
        frames, room = [], 0
        downlink = None if experiment.downlink is None else experiment.downlink.compression(experiment)
        rules = [rule for rule in (experiment.compression, downlink) if rule is not None]
        for index in range(len(parts)):
            sized = [rule.largest(index) for rule in rules]
            largest = aligned(max([96 + 9 * max(256, parts[index].size), *sized]))
            frames.append((room, largest))
            room += largest
        at = 0

        def take(size_bytes: int) -> int:
            nonlocal at
            # memory that is registered with a device must not share a page with other memory
            begin, at = at, at + aligned(size_bytes, PAGESIZE if experiment.device.separate else ALIGNMENT)
            return begin

        flat = size * dtype.itemsize
        server = take(flat)
        weights = tuple(server if in_place else take(flat) for _ in range(workers))
        buffers = range(experiment.traits.buffers)
        gradients = tuple(tuple(take(flat) for _ in buffers) for _ in range(workers))
        up = tuple(tuple(take(room) for _ in buffers) for _ in range(workers))
        down = tuple(tuple(take(room) for _ in range(1 + eager)) for _ in range(workers))
        memories = experiment.memories
        memory_offsets = tuple({name: take(memory.entries * memory.dtype.itemsize) for name, memory in memories.items()}
                     for _ in range(workers))  # fmt: skip
        arrivals = tuple(tuple(take(flat) for _ in range(2)) if eager else (offset,) for offset in weights)
        # weights arrive while a worker computes, or the worker changes them
        apart = eager or experiment.applies_own_pushes or experiment.traits.overlap
        used = tuple(take(flat) if apart else offset for offset in weights)
        places = server, weights, gradients, up, arrivals, used, down, memories, memory_offsets
        asked = tuple(tuple(take(room) for _ in range(2)) for _ in range(workers)) if experiment.keyed else ()
        made = cls(size, dtype, *places, frames=tuple(frames), asked=asked, in_place=in_place)
        states: tuple[int, ...] = ()
        copies = len(buffers) if eager else 1
        if experiment.replaces and memories:
            states = tuple(take(HEAD_BYTES + copies * made.kept_bytes) for _ in range(workers))
        rho = take(NUMBER.itemsize) if methods.has_rho(experiment.sync) else None
        snapshot = size if (keys := experiment.evaluated) is None else len(keys)
        return replace(made, states=states, copies=copies, rho=rho, end=at, snapshot=snapshot)
