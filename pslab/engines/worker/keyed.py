"""Workers that pull and push just the keys that their batches hold: these keys, and the requests for them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from pslab.engines.experiment.job import Job
from pslab.engines.experiment.layout import in_turn
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.experiment.wire import PushInfo
from pslab.engines.worker.batches import Keys, Reader
from pslab.engines.worker.gradient import Computing
from pslab.engines.worker.tensors import NO_BASIS, Basis, Producer, Pulled
from pslab.tensors.compression import frame
from pslab.tensors.compression.bits import positions, prepare
from pslab.tensors.finite import is_finite
from pslab.tensors.sparse import SparseInputs
from pslab.tensors.workload.data import Batches, Dataset

if TYPE_CHECKING:
    from pslab.tensors.workload.reading import Pair

LOOKED_AT = 8  # iterations of each worker, whose keys tell the load of each server


class KeyedRows:
    """The examples of an iteration's steps over their keys alone, and the places of these keys at the servers.

    Args:
        steps: the numbers of its batches, of which the examples are `rows`.
    """

    def __init__(self, job: Job, inputs: SparseInputs, steps: Sequence[int], rows: Sequence[Keys]) -> None:
        self._job, self.rows, self._narrow = job, np.concatenate(rows), inputs.narrowed(np.concatenate(rows))
        ends = np.cumsum([len(each) for each in rows]).tolist()
        self._steps = dict(zip(steps, pairwise([0, *ends]), strict=True))
        self.places: Keys = self._narrow.keys  #: of its keys at the servers, increasing
        self.order: Keys | None = None  #: of each key its number among these; None: the keys' own
        if job.places is not None:
            held = job.places[self._narrow.keys]
            self.places = np.sort(held)
            self.order = np.searchsorted(self.places, held)

    @cached_property
    def pieces(self) -> list[Any]:
        """For each range the slice of `places` that lies in it."""
        return [slice(*np.searchsorted(self.places, (part.slices[0].start, part.slices[-1].stop)).tolist())
                for part in self._job.parts]  # fmt: skip

    @cached_property
    def positions(self) -> list[torch.Tensor | None]:
        """For each range its places as frames write them, in requests and in pushes; None if it has none."""
        return [positions(torch.from_numpy(self.places[piece] - part.slices[0].start), part.size)
                if piece.start < piece.stop else None
                for part, piece in zip(self._job.parts, self.pieces, strict=True)]  # fmt: skip

    def batch(self, step: int) -> tuple[torch.Tensor, Keys]:
        """The inputs of a step over the keys of all of them, and the numbers of its examples."""
        begin, end = self._steps[step]
        return self._narrow.inputs(begin, end), self.rows[begin:end]


class BatchKeys:
    """The keyed rows of each of a worker's iterations, of one step or of several."""

    def __init__(self, job: Job, worker: int, dataset: Dataset) -> None:
        run, inputs = job.run, dataset.train_x
        assert isinstance(inputs, SparseInputs)  # a run that pulls keys has no others
        self._job, self._inputs = job, inputs
        self._batches = Batches(len(inputs), run.workers, worker, run.batch_size, run.seed, parts=job.assignment)
        self._last: tuple[int, KeyedRows] | None = None

    def of(self, iteration: int) -> KeyedRows:
        """The keyed rows of an iteration; of all examples, if a worker has the same ones in each pass."""
        traits = self._job.traits
        if traits.repeats:
            iteration = 0
        if self._last is None or iteration != self._last[0]:
            steps = range(traits.gradients_before(iteration), traits.gradients_before(iteration + 1))
            if traits.repeats:
                steps = range(self._batches.rounds)
            rows = [self._batches.at(step) for step in steps]
            self._last = iteration, KeyedRows(self._job, self._inputs, steps, rows)
        return self._last[1]


class Requests:
    """The requests of workers for keys, written into shared memory. Servers do not know the batches."""

    def __init__(self, job: Job, arena: Arena, dataset: Dataset) -> None:
        self._job, self._arena = job, arena
        self.keys = [BatchKeys(job, worker, dataset) for worker in range(job.run.workers)]
        self._written: dict[int, tuple[int, Sequence[int]]] = {}  # per worker: the last iteration, and what it took

    def write(self, worker: int, iteration: int) -> Sequence[int]:
        """Ask for the keys of an iteration: of each range the bytes of the request, 0 if it has none of them."""
        before, sizes = self._written.get(worker, (-1, ()))
        if before != iteration:
            place, layout = in_turn(self._job.layout.asked[worker], iteration), self._job.layout
            sizes = [0 if written is None else frame.write(self._arena.bytes(place + offset, room), [[written]])
                     for written, (offset, room) in zip(self.keys[worker].of(iteration).positions, layout.frames,
                                                          strict=True)]  # fmt: skip
            self._written[worker] = iteration, sizes
        return sizes

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of each of several servers in a push, and in a request: as much as it holds of the keys of such a
        batch, in the mean over the first batches that have any there."""
        batches = [own.of(iteration) for own in self.keys for iteration in range(LOOKED_AT)]
        counts = np.array([[piece.stop - piece.start for piece in needed.pieces] for needed in batches])
        parts = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        return tuple((parts.sum(0) / np.maximum((counts > 0).sum(0), 1)).tolist())


def lay_initial(job: Job, worker: int, arena: Arena, data: Arena) -> None:
    """Write the initial weights of a worker's first keys where pulled weights lie."""
    needed = BatchKeys(job, worker, job.shelf.dataset(data)).of(0)
    place = in_turn(job.layout.down[worker], 0)
    weights = arena.tensor(job.layout.server, job.layout.size, job.layout.dtype).numpy()
    for piece, (offset, room) in zip(needed.pieces, job.layout.frames, strict=True):
        if piece.start < piece.stop:
            own = needed.places[piece]
            frame.write(arena.bytes(place + offset, room), [[torch.from_numpy(weights[own])]])


class KeyedReader(Reader):
    """The examples of a worker's batches over the `needed` keys."""

    needed: KeyedRows

    def at(self, iteration: int) -> Pair:
        inputs, examples = self.needed.batch(iteration)
        return inputs, self.targets[torch.from_numpy(examples)]


class KeyedComputing(Computing):
    """A worker's gradients on the weights of some keys."""

    reader: KeyedReader

    def __init__(self, job: Job, worker: int, dataset: Dataset, module: nn.Module) -> None:
        super().__init__(job, worker, dataset, torch.empty(0, dtype=job.layout.dtype), [], module)
        run = job.run
        self.reader = KeyedReader(dataset, run.workers, worker, run.batch_size, run.seed, job.assignment)

    def use_keys(self, needed: KeyedRows, weights: torch.Tensor) -> torch.Tensor:
        """Take the next gradients on these weights ([k]) of an iteration's keys; where they will be ([k])."""
        parameter = self._keyspace.bind_keys(self._module, weights)
        gradient, self.weights, self.reader.needed = torch.zeros_like(weights), weights, needed
        self.buffers, self._views = [gradient], [[(parameter, parameter.data, gradient.view_as(parameter))]]
        return gradient


class KeyedProducer(Producer):
    """The tensors of a worker, as long as its batch has keys; pulled weights lie as frames in shared memory.

    In the process that writes the `requests`, their keys are used, and not found a second time.
    """

    def __init__(
        self, job: Job, worker: int, arena: Arena, data: Arena, *given: Any, requests: Requests | None, **named: Any
    ) -> None:
        own = BatchKeys(job, worker, job.shelf.dataset(data)) if requests is None else requests.keys[worker]
        self._keys: BatchKeys = own
        super().__init__(job, worker, arena, data, *given, **named)
        if self._first:
            lay_initial(job, worker, arena, data)

    def warm_up(self) -> None:
        prepare(self._job.layout.dtype)
        if isinstance(self._computing, KeyedComputing):
            needed = self._keys.of(0)
            self._computing.use_keys(needed, torch.zeros(len(needed.places), dtype=self._job.layout.dtype))
            self._computing.warm_up(aside=self._successor)

    def gradient(self, iteration: int, basis: Basis = NO_BASIS) -> float:
        needed = self._keys.of(iteration)
        weights, order = self._pulled_keys(iteration, needed), needed.order
        if isinstance(self._computing, KeyedComputing):
            # in the order of the keys: sums have the same bits, wherever these lie
            self._gradients = [self._computing.use_keys(needed, weights if order is None else weights[order])]
        return self._compute(iteration)

    def payloads(self, iteration: int, loss: float) -> tuple[list[PushInfo], float]:
        """The payload of each range, and the instant before encoding: of no bytes where a range has none of the keys.

        Raises:
            NonFinite: the gradient; nothing is sent.
        """
        (gradient,), layout, needed = self._gradients, self._job.layout, self._keys.of(iteration)
        if (order := needed.order) is not None:
            gradient = torch.empty_like(gradient).index_copy_(0, torch.from_numpy(order), gradient)
        self._refuse_nonfinite(is_finite(gradient), iteration)
        if self._courses is not None:
            self._courses.commit()
        place, begun_s, found = in_turn(layout.up[self._worker], iteration), time.monotonic(), list[PushInfo]()
        for where, piece, (offset, room) in zip(needed.positions, needed.pieces, layout.frames, strict=True):
            size = 0
            if where is not None:
                size = frame.write(self._arena.bytes(place + offset, room), [[where, gradient[piece]]])
            found.append(PushInfo(size, piece.stop - piece.start, loss))
        return found, begun_s

    def install(self, pulled: Pulled) -> None:
        """Take what came with weights, which are read where they lie."""
        if self._courses is not None:
            self._courses.installed(True, pulled.gradients, pulled.begin, pulled.steps)

    def _lay_out(self, alone: bool) -> None:
        self._gradients = self._shared_gradients = []

    def _computing_of(self, dataset: Dataset, module: nn.Module) -> Computing:
        return KeyedComputing(self._job, self._worker, dataset, module)

    def _pulled_keys(self, iteration: int, needed: KeyedRows) -> torch.Tensor:
        """The weights [k] of an iteration's keys, as they have come: in the order of their places."""
        place, found = in_turn(self._job.layout.down[self._worker], iteration), list[Any]()
        for piece, (offset, room) in zip(needed.pieces, self._job.layout.frames, strict=True):
            if count := piece.stop - piece.start:
                (values,) = frame.read(self._arena.bytes(place + offset, room))[0]
                found.append(values.view(self._job.layout.dtype)[:count])
        return torch.cat(found) if found else torch.empty(0, dtype=self._job.layout.dtype)
