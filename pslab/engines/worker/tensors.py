"""A worker's tensors: install pulled weights, compute a gradient, rate and prune it, and lay its frames ready."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from pslab.engines.experiment.experiment import SQUARES
from pslab.engines.experiment.job import Job
from pslab.engines.experiment.layout import in_turn
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.experiment.wire import WHOLE, Gradient
from pslab.engines.worker.batches import BatchKeys, KeyedRows, Requests
from pslab.engines.worker.gradient import Computing, module_of
from pslab.engines.worker.range_schedule import RangeOfIteration
from pslab.engines.worker.state import WorkerState
from pslab.protocol.messages import Weights
from pslab.tensors.compression import frame as frames
from pslab.tensors.compression import prepare
from pslab.tensors.compression.rule import Parts
from pslab.tensors.compression.sparse import Ranges
from pslab.tensors.entries import Entries
from pslab.tensors.finite import NonFinite, checked_finite, is_finite
from pslab.tensors.update import rate_state
from pslab.tensors.update.store import Part
from pslab.tensors.workload.data import rounds


class Write(NamedTuple):
    """An own push that is not in the weights here: its range, iteration, the rate of its step, and its frame's size."""

    range: int
    iteration: int
    rate: float
    size_bytes: int


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

    Where workers pull keys, the tensors are as long as the batch has keys, and what was pulled lies as frames in shared
    memory. In the process that writes the `requests`, their keys are used, and not found a second time.
    """

    def __init__(
        self, job: Job, worker: int, arena: Arena, data: Arena, module: nn.Module | None = None, *,
        successor: bool = False, requests: Requests | None = None,
    ) -> None:  # fmt: skip
        layout, run, dataset = job.layout, job.run, job.shelf.dataset(data)
        self._job, self._worker, self._arena, self._successor = job, worker, arena, successor
        self._device = device = job.device.of(worker)
        alone, first = module is None, module is None and not successor
        self._keys: BatchKeys | None = None
        if job.keyed:
            self._keys = BatchKeys(job, worker, dataset) if requests is None else requests.keys[worker]
            if first:
                lay_initial(job, worker, arena, data)
            self._weights = torch.empty(0, dtype=layout.dtype)
            self._gradients = self._shared_gradients = list[torch.Tensor]()
        else:
            self._use_whole(alone)
        self._kept = WorkerState.of(job, worker, arena) if alone and not job.keyed else None
        if self._kept is not None and first:
            self._kept.clear()
        self._memories = {
            name: memory.zeros(device.place) if device.separate and not memory.scalars
            else arena.tensor(layout.kept[worker][name], memory.entries, memory.dtype)
            for name, memory in layout.memories.items()}  # fmt: skip
        for memory in self._memories.values() if first else ():
            memory.zero_()
        self._squares = rate_state.at_worker(job.rate, lambda: self._memories[SQUARES])
        self._ranged = isinstance(job.prune, Ranges)
        self._epoch_iterations = max(1, rounds(len(dataset.train_y), run.workers, run.batch_size))
        self._computing = None
        if job.trains:
            self._computing = Computing(job, worker, dataset, self._weights, self._gradients,
                                        module_of(job, device) if module is None else module, self._memories,
                                        layout.number(arena))  # fmt: skip
        self._fetched = True  # the weights are new
        self._counted = 0  # gradients of all workers that the server had when it read them
        self._assigned: range | None = None  # the worker's own that its iteration is made of, if the policy says so
        self._range: RangeOfIteration | None = None
        self._slices: Sequence[slice] = ()  # of the flat vector, that this iteration exchanges, if it has a range
        self._downlink = None if job.downlink is None else job.downlink.compression(job)
        self._rated = 0  # ranges of this iteration
        self._pushes = dict[int, tuple[list[Parts], int]]()  # of ranges that are compressed, and not yet written
        self._take: Callable[[int, float], None] = lambda layer, loss: None
        self._untaken = list[int]()  # layers whose gradients a device is computing
        self._came: list[tuple[int, Entries]] = []  # of ranges, since the last gradient

    def _use_whole(self, alone: bool) -> None:
        """Make tensors of all weights, and room for their frames."""
        layout, worker, arena, device = self._job.layout, self._worker, self._arena, self._device
        self._shared_weights = arena.tensor(layout.used[worker], layout.size, layout.dtype)
        self._held = arena.tensor(layout.weights[worker], layout.size, layout.dtype)  # the same, unless eager
        self._arrivals = [arena.tensor(at, layout.size, layout.dtype) for at in layout.arrivals[worker]]
        self._shared_gradients = [arena.tensor(at, layout.size, layout.dtype) for at in layout.gradients[worker]]
        if not alone:
            pass  # its parent has laid the first weights
        elif not layout.in_place:
            self._held.copy_(arena.tensor(layout.server, layout.size, layout.dtype))
        dense = self._job.compression is None
        device.pin(layout, [self._shared_weights, *(self._shared_gradients if dense else [])])
        self._weights = device.to(self._shared_weights)
        # on the CPU backward writes straight into shared memory: a push copies nothing
        buffers = self._shared_gradients
        self._gradients = [torch.zeros_like(self._weights)] * len(buffers) if device.separate else buffers
        room = layout.frames[-1][0] + layout.frames[-1][1]
        self._up = [arena.bytes(at, room) for at in layout.up[worker]]
        self._down = [arena.bytes(at, room) for at in layout.down[worker]]

    def warm_up(self) -> None:
        """Warm up once per module, before the run starts, without a trace."""
        job, here = self._job, not self._device.separate  # where gradients are compressed
        if job.positioned or (here and job.sparse):
            prepare(job.layout.dtype, selects=here)
        for gradient in () if self._successor else self._shared_gradients:
            gradient.zero_()  # the system makes its pages now, and not while a run is timed
        if self._computing is None:
            return
        if self._keys is not None:
            needed = self._keys.of(0)
            self._computing.on_keys(needed, torch.zeros(len(needed.places), dtype=self._job.layout.dtype))
        self._computing.warm_up(aside=self._successor)

    def resume(self, iteration: int) -> str:
        """A successor goes on with this iteration: what became of what its predecessor kept."""
        if not self._job.layout.memories or self._keys is not None:
            return NOTHING
        return RESTORED if self._kept is not None and self._kept.resume(iteration) else ZERO

    def attend(
        self, needs: Callable[[int], None], forward_done: Callable[[], None], ready: Callable[[int, float], None]
    ) -> None:
        """Call a layered worker's functions as the passes of each iteration reach them: `needs(layer)` waits for
        weights, `forward_done()` is called where the forward pass ends, and `ready(layer, loss)` takes a gradient.

        A device that was waited for at each layer would have nothing to do meanwhile: so it is given all passes at
        once, and the gradients are taken, in the order in which they became ready, once it has computed them."""
        computing = self._computing
        if computing is None or computing.layerwise is None:
            return
        layerwise, self._take = computing.layerwise, ready
        layerwise.needs, layerwise.forward_done = needs, forward_done
        layerwise.ready = self._untaken.append if self._device.separate else lambda layer: ready(layer, computing.loss)

    def gradient(self, iteration: int, basis: Basis = NO_BASIS) -> float:
        """Compute the gradient of an iteration; the batch's loss."""
        writes, self._range = basis
        if self._kept is not None and not self._job.layered:  # which starts before all weights are here
            self._kept.begin(iteration)
        if self._keys is not None:
            needed = self._keys.of(iteration)
            weights, order = self._pulled_keys(iteration, needed), needed.order
            if self._computing is not None:
                # in the order of the keys: sums have the same bits, wherever these lie
                self._gradients = [self._computing.on_keys(needed, weights if order is None else weights[order])]
        elif self._range is not None:
            self._own_ranges(writes, self._range)
        elif self._job.traits.eager or self._job.traits.overlap:
            self._shared_weights.copy_(self._held)
            for write in writes:
                self._read_own(*write)
            self._to_device()
        if self._computing is None:
            return math.nan
        loss = self._computing.iteration(iteration, self._buffer(iteration), fetched=self._fetched,
                                         counted=self._counted, assigned=self._assigned)  # fmt: skip
        while self._untaken:
            self._take(self._untaken.pop(0), loss)
        return loss

    def payloads(self, iteration: int, loss: float, layer: int | None = None) -> tuple[list[Gradient], float]:
        """Rate, prune and encode: the payload of each range, and the instant before encoding, on the monotonic clock.

        Of one layer alone, if its gradient is ready before the others.

        Raises:
            NonFinite: the gradient, or what it makes of the residual or the momentum; nothing is sent.
        """
        if self._keys is not None:
            return self._key_payloads(iteration, self._keys.of(iteration), loss)
        job, buffer, begins = self._job, self._buffer(iteration), True
        ranges: Sequence[int] = job.exchanged(iteration)
        chosen, span = ranges, slice(0, job.layout.size)
        if layer is not None:
            ranges = job.ranges_of[layer]
            if self._device.separate:  # all layers are ready, and are compressed at once
                begins = not self._rated
            else:
                chosen = ranges
                span = slice(job.parts[ranges[0]].slices[0].start, job.parts[ranges[-1]].slices[-1].stop)
        if self._kept is not None:
            self._kept.begin(iteration)
        gradient = self._gradients[buffer][span]
        if self._computing is not None:
            self._computing.commit()
        if not job.traits.pushes(iteration):
            self._whole(iteration, len(ranges))
            return [Gradient(0, 0, loss) for _ in ranges], time.monotonic()
        if begins and self._squares is not None:
            checked_finite(gradient)  # they are for ever
            self._squares.divide(gradient, gradient, span.start)
        if (made := job.compression) is None:
            if begins:
                if self._device.separate:
                    self._device.get(gradient, self._shared_gradients[buffer][span])
                self._refuse_nonfinite(is_finite(gradient), iteration)
            self._whole(iteration, len(ranges))
            return [Gradient(WHOLE, job.parts[i].size, loss) for i in ranges], time.monotonic()
        if begins:
            whole = made.rule.before(self._gradients[buffer], job.run.workers)
            whose = {**self._whose(iteration), "slices": self._slices}
            self._pushes = dict(zip(chosen, made.pushes(chosen, whole, self._memories, **whose), strict=True))
        selected_s, found = time.monotonic(), []
        for index in ranges:
            pieces, count = self._pushes.pop(index)
            offset, room = job.layout.frames[index]
            size = frames.write(self._up[buffer][offset : offset + room], pieces)
            found.append(Gradient(size, count, loss))
            if self._range is not None and self._reads_own:
                # until weights of these keys come that have it
                job.parts[index].add(self._held, self._sent(index, iteration, size), -self._range.rate)
        self._whole(iteration, len(ranges))
        return found, selected_s

    def _whose(self, iteration: int) -> dict[str, Any]:
        step = self._job.traits.gradients_before(iteration)
        return {"worker": self._worker, "step": step, "turn": iteration, "epoch": step / self._epoch_iterations}

    def _sent(self, index: int, iteration: int, size_bytes: int) -> Entries:
        """An own push, still in its buffer, as the server reads it."""
        made, (offset, _) = self._job.compression, self._job.layout.frames[index]
        assert made is not None
        frame = self._up[self._buffer(iteration)][offset : offset + size_bytes]
        return made.read(index, frames.read(frame), made.told(index, self._memories), **self._whose(iteration))

    def follow(self, iteration: int) -> None:
        """Take the steps that follow the push of an iteration. Its weights have come once the push before was applied,
        so the buffer of the next iteration is free."""
        if self._computing is not None:
            self._computing.follow(iteration + 1, self._buffer(iteration + 1))

    def install(self, pulled: Pulled) -> None:
        """Install the weights of a range: decode a frame, or take weights that lie there already, or none."""
        index, iteration, size_bytes, gradients, begin, steps = pulled
        self._counted = max(self._counted, gradients)
        self._assigned = range(begin, begin + steps) if steps else None
        if self._keys is not None:
            return  # they are read where they lie
        self._fetched = bool(size_bytes)
        if not size_bytes:
            return
        part, (offset, _) = self._job.parts[index], self._job.layout.frames[index]
        if size_bytes != WHOLE:
            frame, made = in_turn(self._down, iteration)[offset : offset + size_bytes], self._job.compression
            parts, entries = frames.read(frame), None
            if self._downlink is not None:
                part.add(self._held, self._downlink.read(index, parts, torch.empty(0), step=iteration), 1.0)
            elif made is not None and made.rule.tells:
                weights, told = (each.view(self._job.layout.dtype) for each in parts[0])
                made.told(index, self._memories).copy_(self._device.to(told))
                entries = Entries(part.size, None, weights.numpy())
            else:
                entries = frames.entries_of(parts[0], part.size, self._job.layout.dtype)
            if entries is not None:
                part.put(self._held, entries)
            self._came += [(index, entries)] if self._reads_own and entries is not None else []
        elif self._job.traits.eager:
            for here, there in zip(part.views(self._held), part.views(in_turn(self._arrivals, iteration)),
                                   strict=True):  # fmt: skip
                here.copy_(there)
        if not self._job.traits.eager and not self._job.own:
            self._to_device(part)

    def _pulled_keys(self, iteration: int, needed: KeyedRows) -> torch.Tensor:
        """The weights [k] of an iteration's keys, as they have come: in the order of their places."""
        place, found = in_turn(self._job.layout.down[self._worker], iteration), list[Any]()
        for piece, (offset, room) in zip(needed.pieces, self._job.layout.frames, strict=True):
            if count := piece.stop - piece.start:
                frame = self._arena.bytes(place + offset, room)
                (values,) = frames.read(frame)[0]
                found.append(values.view(self._job.layout.dtype)[:count])
        return torch.cat(found) if found else torch.empty(0, dtype=self._job.layout.dtype)

    def _key_payloads(self, iteration: int, needed: KeyedRows, loss: float) -> tuple[list[Gradient], float]:
        """`payloads` of the batch's keys: of no bytes where a range has none of them."""
        (gradient,), layout, found = self._gradients, self._job.layout, list[Gradient]()
        if (order := needed.order) is not None:
            gradient = torch.empty_like(gradient).index_copy_(0, torch.from_numpy(order), gradient)
        self._refuse_nonfinite(is_finite(gradient), iteration)
        if self._computing is not None:
            self._computing.commit()
        place, begun_s, values = in_turn(layout.up[self._worker], iteration), time.monotonic(), gradient
        for positions, piece, (offset, room) in zip(needed.positions, needed.pieces, layout.frames, strict=True):
            size = 0
            if positions is not None:
                size = frames.write(self._arena.bytes(place + offset, room), [[positions, values[piece]]])
            found.append(Gradient(size, piece.stop - piece.start, loss))
        return found, begun_s

    def _refuse_nonfinite(self, finite: bool, iteration: int) -> None:
        if not finite:
            raise NonFinite(f"worker {self._worker}: the gradient of iteration {iteration} is not finite")

    def _own_ranges(self, writes: Iterable[Write], exchanged: RangeOfIteration) -> None:
        """Add to weights the own pushes that they lack: overtaken ones, and entries that are not yet pushed."""
        self._slices = self._job.keyspace.slices(exchanged.keys)
        if self._reads_own:
            for write in writes:
                self._add_again(write)
        self._came = []
        if self._job.traits.eager or self._job.own:
            self._shared_weights.copy_(self._held)
            self._to_device()
        if self._job.own and "residual" in self._memories:
            self._weights.add_(self._memories["residual"], alpha=-exchanged.rate)

    def _add_again(self, write: Write) -> None:
        """Add an own push again where newer weights have overwritten it."""
        part, pushed = self._job.parts[write.range], self._sent(write.range, write.iteration, write.size_bytes)
        for index, came in self._came:
            if index == write.range:
                part.add(self._held, common(pushed, came), -write.rate)

    @property
    def _reads_own(self) -> bool:
        """Whether own pushes of ranges may be missing in weights that come, and are to be in them."""
        return self._job.traits.reads_own and self._ranged

    def _read_own(self, index: int, iteration: int, rate: float, size_bytes: int) -> None:
        """Add an own push, still in its buffer, as the server is going to apply it."""
        part, buffer = self._job.parts[index], self._buffer(iteration)
        if size_bytes == WHOLE:
            for weights, gradient in zip(part.views(self._shared_weights), part.views(self._shared_gradients[buffer]),
                                         strict=True):  # fmt: skip
                weights.add_(gradient, alpha=-rate)
            return
        part.add(self._shared_weights, self._sent(index, iteration, size_bytes), -rate)

    def _to_device(self, part: Part | None = None) -> None:
        if self._device.separate:
            for there, here in zip(*((part.views(w) if part else [w]) for w in (self._weights, self._shared_weights)),
                                   strict=True):  # fmt: skip
                self._device.put(here, there)

    def _whole(self, iteration: int, ranges: int) -> None:
        """Count ranges of an iteration that are rated and pruned; after the last one the kept vectors are whole."""
        self._rated = (self._rated + ranges) % len(self._job.exchanged(iteration))
        if self._kept is not None and not self._rated:
            self._kept.end(iteration)

    def _buffer(self, iteration: int) -> int:
        return iteration % len(self._gradients)


def common(pushed: Entries, came: Entries) -> Entries:
    """The entries of the first vector whose places the second has, too."""
    if came.indices is None:
        return pushed
    here = np.arange(pushed.n) if pushed.indices is None else pushed.indices
    if np.array_equal(here, came.indices):  # in most cases
        return pushed
    kept = np.isin(here, came.indices, assume_unique=True)
    return Entries(pushed.n, here[kept], pushed.values[kept])


def lay_initial(job: Job, worker: int, arena: Arena, data: Arena) -> None:
    """Write the initial weights of a worker's first keys where pulled weights lie."""
    needed = BatchKeys(job, worker, job.shelf.dataset(data)).of(0)
    place = in_turn(job.layout.down[worker], 0)
    weights = arena.tensor(job.layout.server, job.layout.size, job.layout.dtype).numpy()
    for piece, (offset, room) in zip(needed.pieces, job.layout.frames, strict=True):
        if piece.start < piece.stop:
            own = needed.places[piece]
            frames.write(arena.bytes(place + offset, room), [[torch.from_numpy(weights[own])]])
