"""A worker's tensors: install pulled weights, compute a gradient, and write its push for the server.

This module is for runs that exchange plain arrays of all weights; `pslab.engines.worker.modes` chooses the others.
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
    """A push that an eager worker adds to its weights, which lack it; `rate`: the server's rate for the push."""

    range: int
    iteration: int
    rate: float
    size_bytes: int


class RangeOfIteration(NamedTuple):
    """The keys of an iteration, and the rate at which the worker adds its own changes to its weights."""

    start: int
    stop: int
    rate: float = 0.0

    @property
    def keys(self) -> KeyRange:
        return KeyRange(self.start, self.stop)


class Basis(NamedTuple):
    """The inputs of a gradient beside the weights and the batch."""

    writes: list[Write]  #: pushes that an eager worker adds to its weights
    range: RangeOfIteration | None = None  #: the keys that the iteration exchanges; None: all


class Pulled(NamedTuple):
    """Weights that have arrived, in a frame of `size_bytes` or as a plain array (WHOLE); the other fields are as in
    pslab.protocol.messages.Weights."""

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

NOTHING, RESTORED, ZERO = "nothing kept", "restored", "zero"  # the fate of a former process's state


class Producer:
    """The tensors of a worker in a run, in shared memory and on its device.

    If several workers share a `module`, all state between gradients lies in shared memory, which the parent has
    initialized; then any process may compute the next gradient. A `successor` replaces a process whose pushes may not
    be applied yet.
    """

    def __init__(
        self, job: Job, worker: int, arena: Arena, data: Arena, module: nn.Module | None = None, *,
        successor: bool = False,
    ) -> None:  # fmt: skip
        layout, dataset = job.layout, job.shelf.dataset(data)
        self._job, self._worker, self._arena, self._successor = job, worker, arena, successor
        self._device = device = job.device.of(worker)
        self._whole, alone = slice(0, layout.size), module is None
        # a successor continues on its predecessor's vectors; a shared module means that the parent has set them to zero
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
            else arena.tensor(layout.memory_offsets[worker][name], memory.entries, memory.dtype)
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
        """Allocate and compile once before the run is timed; this changes no result."""
        for gradient in () if self._successor else self._shared_gradients:
            gradient.zero_()  # so that the system allocates its pages now
        if self._computing is not None:
            self._computing.warm_up(aside=self._successor)

    def resume(self, iteration: int) -> str:
        """Restore the former process's state in a successor that continues at this iteration; return NOTHING if there
        is no such state, RESTORED, or ZERO if it could not be restored."""
        if not self._job.layout.memories:
            return NOTHING
        return RESTORED if self._states is not None and self._states.resume(iteration) else ZERO

    def gradient(self, iteration: int, basis: Basis = NO_BASIS) -> float:
        """Compute the gradient of an iteration; return the batch's loss."""
        if self._states is not None:
            self._states.begin(iteration)  # before the first change of a vector
        self._take(basis)
        return self._compute(iteration)

    def payloads(self, iteration: int, loss: float) -> tuple[list[PushInfo], float]:
        """Encode the push of an iteration; return the payload of each range, and the monotonic instant before encoding.

        Raises:
            NonFinite: the gradient, or its sum with residual or momentum, is not finite; nothing is sent.
        """
        ranges = self._job.exchanged(iteration)
        return self._pushed(iteration, loss, ranges, ranges, self._whole)

    def follow(self, iteration: int) -> None:
        """Take the steps that follow the push of an iteration, in the buffer of the next iteration. The buffer is free:
        the weights of this iteration came after the push before it was applied."""
        if self._courses is not None:
            self._courses.follow(iteration + 1, self._buffer(iteration + 1))

    def install(self, pulled: Pulled) -> None:
        """Install the pulled weights of a range, unless the reply was empty: decode a frame, or use a plain array."""
        if self._courses is not None:
            self._courses.installed(bool(pulled.size_bytes), pulled.gradients, pulled.begin, pulled.steps)
        if pulled.size_bytes:
            part = self._job.parts[pulled.range]
            self._put(part, pulled)
            # otherwise `_take` brings all weights to the device when the iteration starts
            if not self._job.traits.eager and not self._job.applies_own_pushes:
                self._to_device(part)

    # --- other modes override these -------------------------------------------------------------------------------

    def _lay_out(self, alone: bool) -> None:
        """Create the tensors of weights and gradients, in shared memory and on the device."""
        layout, worker, arena, device = self._job.layout, self._worker, self._arena, self._device
        self._shared_weights = arena.tensor(layout.used[worker], layout.size, layout.dtype)
        self._held = arena.tensor(layout.weights[worker], layout.size, layout.dtype)  # the same memory, unless eager
        self._shared_gradients = [arena.tensor(at, layout.size, layout.dtype) for at in layout.gradients[worker]]
        if alone and not layout.in_place:  # otherwise the parent has written the initial weights
            self._held.copy_(arena.tensor(layout.server, layout.size, layout.dtype))
        dense = self._job.compression is None
        # compressed pushes leave a device as frames, so the gradients' buffers need no registration
        device.pin(layout, [self._shared_weights, *(self._shared_gradients if dense else [])])
        self._weights = device.to(self._shared_weights)
        # on the CPU backward writes straight into shared memory: a push copies nothing
        buffers = self._shared_gradients
        # one on a device, copied to the worker's buffer before the next gradient is computed
        self._gradients = [torch.zeros_like(self._weights)] * len(buffers) if device.separate else buffers

    def _computing_of(self, dataset: Dataset, module: nn.Module) -> Computing:
        return Computing(self._job, self._worker, dataset, self._weights, self._gradients, module)

    def _take(self, basis: Basis) -> None:
        """Copy the pulled weights, if the worker computes on a copy, and add own pushes that they lack."""
        # weights arrive while the worker computes: it computes on a copy
        if self._job.traits.eager or self._job.traits.overlap:
            self._shared_weights.copy_(self._held)
            for write in basis.writes:
                self._read_own(*write)
            self._to_device()

    def _read_own(self, index: int, iteration: int, rate: float, size_bytes: int) -> None:
        """Add a push of this worker, which is still in its buffer, as the server will apply it."""
        part, gradient = self._job.parts[index], self._shared_gradients[self._buffer(iteration)]
        for there, here in zip(part.views(self._shared_weights), part.views(gradient), strict=True):
            there.add_(here, alpha=-rate)

    def _encode(
        self, iteration: int, loss: float, ranges: Sequence[int], made: Sequence[int], span: slice
    ) -> tuple[list[PushInfo], float]:
        """Encode the ranges of `made`, which lie in this span of the gradient; return the payloads of `ranges`, and the
        instant before encoding."""
        if made:
            buffer = self._buffer(iteration)
            gradient = self._gradients[buffer][span]
            # servers read gradients in host memory
            if self._device.separate:
                self._device.get(gradient, self._shared_gradients[buffer][span])
            # reads a number from the device, after which the copy above is complete (see Device.get)
            self._refuse_nonfinite(is_finite(gradient), iteration)
        return [PushInfo(WHOLE, self._job.parts[i].size, loss) for i in ranges], time.monotonic()

    def _put(self, part: Part, pulled: Pulled) -> None:
        """Write the pulled weights of a range into the worker's weights, unless they lie there already."""
        if self._job.traits.eager:
            # two buffers in turn: the weights of the next iteration may arrive while these are read
            arrivals, layout = self._job.layout.arrivals[self._worker], self._job.layout
            came = self._arena.tensor(in_turn(arrivals, pulled.iteration), layout.size, layout.dtype)
            for here, there in zip(part.views(self._held), part.views(came), strict=True):
                here.copy_(there)

    def _end(self, iteration: int, ranges: int) -> None:
        """Note that so many more ranges are encoded; after the last range, the worker's state is complete."""
        if self._states is not None:
            self._states.end(iteration)

    # --- common to all modes --------------------------------------------------------------------------------------

    def _compute(self, iteration: int) -> float:
        if self._computing is None:
            return math.nan
        if self._courses is None:
            return self._computing.gradient(iteration, self._buffer(iteration))
        return self._courses.run(iteration, self._buffer(iteration))

    def _pushed(
        self, iteration: int, loss: float, ranges: Sequence[int], made: Sequence[int], span: slice
    ) -> tuple[list[PushInfo], float]:
        """Divide the gradient by the rate's sums of squares, if there are any, and encode it as `_encode` does."""
        if self._states is not None:
            # a layered worker comes here without `gradient`; after `gradient` this does nothing
            self._states.begin(iteration)
        if self._courses is not None:
            self._courses.commit()  # raises before anything is sent, if the push is not finite
        # an empty push still moves the worker's clock at the server
        if not self._job.traits.pushes(iteration):
            self._end(iteration, len(ranges))
            return [PushInfo(0, 0, loss) for _ in ranges], time.monotonic()
        if made and self._squares is not None:
            gradient = self._gradients[self._buffer(iteration)][span]
            checked_finite(gradient)  # the sums of squares would never be finite again
            self._squares.divide(gradient, gradient, span.start)
        payloads = self._encode(iteration, loss, ranges, made, span)
        # after encoding, which changes the residual, too: the state is complete now
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
