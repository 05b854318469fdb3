"""A worker's tensors: install pulled weights, compute a gradient, rate it, and lay it ready for the server.

The tensors of other runs than dense ones are in modules of their own, which `pslab.engines.worker.modes` chooses.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from pslab.engines.experiment.experiment import SQUARES
from pslab.engines.experiment.layout import in_turn
from pslab.engines.experiment.wire import WHOLE, PushInfo
from pslab.engines.worker.gradient import Computing, module_of
from pslab.tensors.finite import NonFinite, checked_finite, is_finite
from pslab.tensors.update import rate_state
from pslab.tensors.workload.keyspace import KeyRange

if TYPE_CHECKING:
    from pslab.engines.experiment.job import Job
    from pslab.engines.experiment.shared_memory import Arena
    from pslab.protocol.messages import Weights
    from pslab.tensors.update.part import Part
    from pslab.tensors.workload.data import Dataset


class Write(NamedTuple):
    """An own push that is not in the weights here: its range, iteration, the rate of its step, and its frame's size."""

    range: int
    iteration: int
    rate: float
    size_bytes: int


class RangeOfIteration(NamedTuple):
    """An iteration's keys, and the rate by which its worker applies to its own weights what the server has not."""

    start: int
    stop: int
    rate: float = 0.0

    @property
    def keys(self) -> KeyRange:
        return KeyRange(self.start, self.stop)


class Basis(NamedTuple):
    """The basis of a gradient beside the weights."""

    writes: list[Write]  #: own pushes that they lack, which an eager worker adds
    range: RangeOfIteration | None = None  #: the keys that it exchanges, if not all


class Pulled(NamedTuple):
    """Weights that have arrived: their range, the iteration that they allow, the size of the frame, or WHOLE, and what
    the policy lets its workers know (see pslab.protocol.messages.Weights)."""

    range: int
    iteration: int
    size_bytes: int
    gradients: int = 0
    begin: int = 0
    steps: int = 0

    @classmethod
    def of(cls, weights: Weights) -> Pulled:
        return cls(weights.range, weights.iteration, weights.payload.size_bytes, weights.gradients, weights.begin,
                   weights.steps)  # fmt: skip


NO_BASIS = Basis([])

NOTHING, RESTORED, ZERO = "nothing kept", "restored", "zero"  # what became of what a predecessor kept


class Producer:
    """One worker's tensors in a run, in shared memory and on its device.

    With a `module` that several workers share, all that lasts from one gradient to the next lies in shared memory,
    where the parent has laid it out: then another process may compute the next one. A `successor` takes the place of a
    process whose pushes may not yet be applied.
    """

    def __init__(
        self, job: Job, worker: int, arena: Arena, data: Arena, module: nn.Module | None = None, *,
        successor: bool = False,
    ) -> None:  # fmt: skip
        layout, dataset = job.layout, job.shelf.dataset(data)
        self._job, self._worker, self._arena, self._successor = job, worker, arena, successor
        self._device = device = job.device.of(worker)
        self._whole, alone = slice(0, layout.size), module is None
        self._first = alone and not successor
        self._weights = torch.empty(0, dtype=layout.dtype)
        self._lay_out(alone)
        self._states = None
        if alone and layout.states:
            from pslab.engines.worker.state import WorkerState  # only a worker that may be replaced has states

            self._states = WorkerState(job, worker, arena)
            if self._first:
                self._states.clear()
        self._memories = {
            name: memory.zeros(device.place) if device.separate and not memory.scalars
            else arena.tensor(layout.kept[worker][name], memory.entries, memory.dtype)
            for name, memory in layout.memories.items()}  # fmt: skip
        for memory in self._memories.values() if self._first else ():
            memory.zero_()
        self._squares = rate_state.at_worker(job.rate, lambda: self._memories[SQUARES])
        self._computing = self._courses = None
        if job.trains:
            self._computing = self._computing_of(dataset, module_of(job, device) if module is None else module)
        if self._computing is not None and job.traits.several:
            from pslab.engines.worker.courses import Courses  # other runs push each gradient by itself

            self._courses = Courses(job, worker, self._computing, self._memories, layout.number(arena))

    def warm_up(self) -> None:
        """Warm up once per module, before the run starts, without a trace."""
        for gradient in () if self._successor else self._shared_gradients:
            gradient.zero_()  # the system makes its pages now, and not while a run is timed
        if self._computing is not None:
            self._computing.warm_up(aside=self._successor)

    def resume(self, iteration: int) -> str:
        """A successor goes on with this iteration: what became of what its predecessor kept."""
        if not self._job.layout.memories:
            return NOTHING
        return RESTORED if self._states is not None and self._states.resume(iteration) else ZERO

    def gradient(self, iteration: int, basis: Basis = NO_BASIS) -> float:
        """Compute the gradient of an iteration; the batch's loss."""
        if self._states is not None:
            self._states.begin(iteration)
        self._take(basis)
        return self._compute(iteration)

    def payloads(self, iteration: int, loss: float) -> tuple[list[PushInfo], float]:
        """Rate and encode: the payload of each range, and the instant before encoding, on the monotonic clock.

        Raises:
            NonFinite: the gradient, or its sum with the residual or the momentum; nothing is sent.
        """
        ranges = self._job.exchanged(iteration)
        return self._pushed(iteration, loss, ranges, ranges, self._whole)

    def follow(self, iteration: int) -> None:
        """Take the steps that follow the push of an iteration. Its weights have come once the push before was applied,
        so the buffer of the next iteration is free."""
        if self._courses is not None:
            self._courses.follow(iteration + 1, self._buffer(iteration + 1))

    def install(self, pulled: Pulled) -> None:
        """Install the weights of a range: decode a frame, or take weights that lie there already, or none."""
        if self._courses is not None:
            self._courses.installed(bool(pulled.size_bytes), pulled.gradients, pulled.begin, pulled.steps)
        if pulled.size_bytes:
            part = self._job.parts[pulled.range]
            self._put(part, pulled)
            if not self._job.traits.eager and not self._job.applies_own_pushes:
                self._to_device(part)

    # --- what another mode does in another way --------------------------------------------------------------------

    def _lay_out(self, alone: bool) -> None:
        """Make tensors of all weights, in shared memory and on the device."""
        layout, worker, arena, device = self._job.layout, self._worker, self._arena, self._device
        self._shared_weights = arena.tensor(layout.used[worker], layout.size, layout.dtype)
        self._held = arena.tensor(layout.weights[worker], layout.size, layout.dtype)  # the same, unless eager
        self._shared_gradients = [arena.tensor(at, layout.size, layout.dtype) for at in layout.gradients[worker]]
        if alone and not layout.in_place:  # else its parent has laid the first weights
            self._held.copy_(arena.tensor(layout.server, layout.size, layout.dtype))
        dense = self._job.compression is None
        device.pin(layout, [self._shared_weights, *(self._shared_gradients if dense else [])])
        self._weights = device.to(self._shared_weights)
        # on the CPU backward writes straight into shared memory: a push copies nothing
        buffers = self._shared_gradients
        self._gradients = [torch.zeros_like(self._weights)] * len(buffers) if device.separate else buffers

    def _computing_of(self, dataset: Dataset, module: nn.Module) -> Computing:
        return Computing(self._job, self._worker, dataset, self._weights, self._gradients, module)

    def _take(self, basis: Basis) -> None:
        """Take the weights that have come, where those lie apart, with own pushes that they lack."""
        if self._job.traits.eager or self._job.traits.overlap:
            self._shared_weights.copy_(self._held)
            for write in basis.writes:
                self._read_own(*write)
            self._to_device()

    def _read_own(self, index: int, iteration: int, rate: float, size_bytes: int) -> None:
        """Add an own push, still in its buffer, as the server is going to apply it."""
        part, gradient = self._job.parts[index], self._shared_gradients[self._buffer(iteration)]
        for there, here in zip(part.views(self._shared_weights), part.views(gradient), strict=True):
            there.add_(here, alpha=-rate)

    def _encode(
        self, iteration: int, loss: float, ranges: Sequence[int], made: Sequence[int], span: slice
    ) -> tuple[list[PushInfo], float]:
        """The payloads of ranges; the ranges of `made`, which lie in this span of the gradient, are encoded now."""
        if made:
            buffer = self._buffer(iteration)
            gradient = self._gradients[buffer][span]
            if self._device.separate:
                self._device.get(gradient, self._shared_gradients[buffer][span])
            self._refuse_nonfinite(is_finite(gradient), iteration)
        return [PushInfo(WHOLE, self._job.parts[i].size, loss) for i in ranges], time.monotonic()

    def _put(self, part: Part, pulled: Pulled) -> None:
        """Write weights of a range that have come, unless they lie there."""
        if self._job.traits.eager:
            arrivals, layout = self._job.layout.arrivals[self._worker], self._job.layout
            came = self._arena.tensor(in_turn(arrivals, pulled.iteration), layout.size, layout.dtype)
            for here, there in zip(part.views(self._held), part.views(came), strict=True):
                here.copy_(there)

    def _end(self, iteration: int, ranges: int) -> None:
        """Mark the vectors that are kept as whole: so many more ranges of an iteration are rated and encoded."""
        if self._states is not None:
            self._states.end(iteration)

    # --- common to all of them ------------------------------------------------------------------------------------

    def _compute(self, iteration: int) -> float:
        if self._computing is None:
            return math.nan
        if self._courses is None:
            return self._computing.gradient(iteration, self._buffer(iteration))
        return self._courses.run(iteration, self._buffer(iteration))

    def _pushed(
        self, iteration: int, loss: float, ranges: Sequence[int], made: Sequence[int], span: slice
    ) -> tuple[list[PushInfo], float]:
        """Rate and encode; return as `_encode` does."""
        if self._states is not None:
            self._states.begin(iteration)
        if self._courses is not None:
            self._courses.commit()
        if not self._job.traits.pushes(iteration):
            self._end(iteration, len(ranges))
            return [PushInfo(0, 0, loss) for _ in ranges], time.monotonic()
        if made and self._squares is not None:
            gradient = self._gradients[self._buffer(iteration)][span]
            checked_finite(gradient)  # they are for ever
            self._squares.divide(gradient, gradient, span.start)
        payloads = self._encode(iteration, loss, ranges, made, span)
        self._end(iteration, len(ranges))
        return payloads

    def _refuse_nonfinite(self, finite: bool, iteration: int) -> None:
        if not finite:
            raise NonFinite(f"worker {self._worker}: the gradient of iteration {iteration} is not finite")

    def _to_device(self, part: Part | None = None) -> None:
        if self._device.separate:
            for there, here in zip(*((part.views(w) if part else [w]) for w in (self._weights, self._shared_weights)),
                                   strict=True):  # fmt: skip
                self._device.put(here, there)

    def _buffer(self, iteration: int) -> int:
        return iteration % len(self._gradients)
