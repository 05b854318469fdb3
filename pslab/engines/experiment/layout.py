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

HEAD_BYTES = ALIGNMENT  # of a worker's states: their numbers
NUMBER = torch.float64


def in_turn(places: Sequence[T], iteration: int) -> T:
    """Of buffers that are used in turn, an iteration's."""
    return places[iteration % len(places)]


@dataclass(frozen=True)
class Layout:
    """Byte offsets of a run's buffers in its arena."""

    size: int
    dtype: torch.dtype
    server: int  #: the server's weights
    weights: tuple[int, ...]  #: per worker: what it has of the server's weights
    gradients: tuple[tuple[int, ...], ...]  #: per worker and buffer
    up: tuple[tuple[int, ...], ...]  #: per worker and buffer: room for a push's frames
    arrivals: tuple[tuple[int, ...], ...]  #: per worker: where a whole pull is laid; eager: by the iteration's parity
    used: tuple[int, ...]  #: per worker: what it computes on; its copy of the server's, if that has all of its own
    down: tuple[tuple[int, ...], ...]  #: per worker: room for a pull's frames; eager: by the iteration's parity
    memories: dict[str, KeptVector]  #: what each worker keeps from one gradient to the next
    kept: tuple[dict[str, int], ...]  #: per worker: where that lies, if any process may compute for it
    frames: tuple[tuple[int, int], ...] = field(default=())  #: per range: offset and room inside such a place
    asked: tuple[tuple[int, ...], ...] = ()  #: per worker, by the iteration's parity: room for a request's frames
    states: tuple[int, ...] = ()  #: per worker: its last states of what it keeps, if another may take its place
    copies: int = 0  #: of them, beside the one at work
    told: int | None = None  #: what the server says beside its weights, one float64, if its method says anything
    end: int = 0
    in_place: bool = False  #: the workers' weights are the server's
    snapshot: int = 0  #: the number of weights in one: all, or those that an evaluation reads

    def number(self, arena: Arena) -> torch.Tensor | None:
        """What the server says beside its weights: [1], or None."""
        return None if self.told is None else arena.tensor(self.told, 1, NUMBER)

    @property
    def snapshot_bytes(self) -> int:
        """Of a snapshot of the weights; they lie one behind the other in an arena of their own."""
        return self.snapshot * self.dtype.itemsize

    def snapshot_in(self, arena: Arena, index: int) -> torch.Tensor:
        """A snapshot, for which there is room, in the order in which servers hold the weights."""
        return arena.tensor(index * self.snapshot_bytes, self.snapshot, self.dtype)

    @property
    def kept_bytes(self) -> int:
        """Of all that a worker keeps, which lies together."""
        return sum(aligned(memory.entries * memory.dtype.itemsize) for memory in self.memories.values())

    def kept_at(self, worker: int) -> int:
        """Where all that a worker keeps begins."""
        return min(self.kept[worker].values())

    @classmethod
    def of(cls, experiment: Experiment) -> Layout:
        """Lay out buffers for an experiment's weights, cut into ranges. What is not touched takes no memory."""
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
            # memory that is registered with a device must share no page with any other
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
        kept = tuple({name: take(memory.entries * memory.dtype.itemsize) for name, memory in memories.items()}
                     for _ in range(workers))  # fmt: skip
        arrivals = tuple(tuple(take(flat) for _ in range(2)) if eager else (own,) for own in weights)
        # weights come while a worker computes, or the worker moves them
        apart = eager or experiment.applies_own_pushes or experiment.traits.overlap
        used = tuple(take(flat) if apart else own for own in weights)
        places = server, weights, gradients, up, arrivals, used, down, memories, kept
        asked = tuple(tuple(take(room) for _ in range(2)) for _ in range(workers)) if experiment.keyed else ()
        made = cls(size, dtype, *places, frames=tuple(frames), asked=asked, in_place=in_place)
        states: tuple[int, ...] = ()
        copies = len(buffers) if eager else 1
        if experiment.replaces and memories:
            states = tuple(take(HEAD_BYTES + copies * made.kept_bytes) for _ in range(workers))
        told = take(NUMBER.itemsize) if methods.has_rho(experiment.sync) else None
        snapshot = size if (keys := experiment.evaluated) is None else len(keys)
        return replace(made, states=states, copies=copies, told=told, end=at, snapshot=snapshot)
