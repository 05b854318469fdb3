"""Workers that pull and push only the keys of their batches: the keys of an iteration, and the pulls that name them."""

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

LOOKED_AT = 8  # iterations of each worker whose keys are counted to estimate the servers' shares


class KeyedRows:
    """The examples of an iteration, reduced to the keys that occur in them, and the servers' positions of these keys.

    Args:
        steps: the numbers of the iteration's batches.
        rows: the examples of each batch.
    """

    def __init__(self, job: Job, inputs: SparseInputs, steps: Sequence[int], rows: Sequence[Keys]) -> None:
        self._job, self.rows, self._narrow = job, np.concatenate(rows), inputs.narrowed(np.concatenate(rows))
        ends = np.cumsum([len(batch) for batch in rows]).tolist()
        self._steps = dict(zip(steps, pairwise([0, *ends]), strict=True))
        self.places: Keys = self._narrow.keys  #: the keys' positions at the servers, ascending
        self.order: Keys | None = None  #: per key: its index in `places`; None: the order of the keys
        if job.places is not None:
            at_servers = job.places[self._narrow.keys]
            # ascending, so that the keys of each range are one slice, and their positions can be encoded
            self.places = np.sort(at_servers)
            self.order = np.searchsorted(self.places, at_servers)

    @cached_property
    def pieces(self) -> list[Any]:
        """Per range: the slice of `places` that lies in the range."""
        return [slice(*np.searchsorted(self.places, (part.slices[0].start, part.slices[-1].stop)).tolist())
                for part in self._job.parts]  # fmt: skip

    @cached_property
    def positions(self) -> list[torch.Tensor | None]:
        """Per range: its places as the frames of pulls and pushes contain them; None for a range without keys."""
        return [positions(torch.from_numpy(self.places[piece] - part.slices[0].start), part.size)
                if piece.start < piece.stop else None
                for part, piece in zip(self._job.parts, self.pieces, strict=True)]  # fmt: skip

    def batch(self, step: int) -> tuple[torch.Tensor, Keys]:
        """Return the inputs of a step, with a column for each key of the iteration, and the numbers of its examples."""
        begin, end = self._steps[step]
        return self._narrow.inputs(begin, end), self.rows[begin:end]


class BatchKeys:
    """Finds the KeyedRows of a worker's iterations."""

    def __init__(self, job: Job, worker: int, dataset: Dataset) -> None:
        run, inputs = job.run, dataset.train_x
        assert isinstance(inputs, SparseInputs)  # a run that pulls keys needs sparse inputs
        self._job, self._inputs = job, inputs
        # drawn from the seed alone: any process finds the keys of any worker's batches
        self._batches = Batches(len(inputs), run.workers, worker, run.batch_size, run.seed, parts=job.assignment)
        self._last: tuple[int, KeyedRows] | None = None

    def of(self, iteration: int) -> KeyedRows:
        """Return the KeyedRows of an iteration; if a worker has the same examples in each pass, of all of them."""
        traits = self._job.traits
        if traits.repeats:
            iteration = 0
        # one iteration after another: the pull, the gradient and the push of an iteration ask for the same keys
        if self._last is None or iteration != self._last[0]:
            steps = range(traits.gradients_before(iteration), traits.gradients_before(iteration + 1))
            if traits.repeats:
                steps = range(self._batches.rounds)
            rows = [self._batches.at(step) for step in steps]
            self._last = iteration, KeyedRows(self._job, self._inputs, steps, rows)
        return self._last[1]


class Requests:
    """Writes the keys of workers' pulls into shared memory, since servers do not know the batches."""

    def __init__(self, job: Job, arena: Arena, dataset: Dataset) -> None:
        self._job, self._arena = job, arena
        self.keys = [BatchKeys(job, worker, dataset) for worker in range(job.run.workers)]
        self._written: dict[int, tuple[int, Sequence[int]]] = {}  # worker: its last iteration, and the bytes

    def write(self, worker: int, iteration: int) -> Sequence[int]:
        """Write the keys of an iteration; return the bytes per range, 0 if the range has none of the keys."""
        before, sizes = self._written.get(worker, (-1, ()))
        if before != iteration:
            begin, layout = in_turn(self._job.layout.asked[worker], iteration), self._job.layout
            sizes = [0 if written is None else frame.write(self._arena.bytes(begin + offset, room), [[written]])
                     for written, (offset, room) in zip(self.keys[worker].of(iteration).positions, layout.frames,
                                                          strict=True)]  # fmt: skip
            self._written[worker] = iteration, sizes
        return sizes

    @property
    def shares(self) -> tuple[float, ...]:
        """Per server: the share of a push's and a pull's keys that this server has, as the mean over the first batches
        that have any keys there."""
        batches = [keys.of(iteration) for keys in self.keys for iteration in range(LOOKED_AT)]
        counts = np.array([[piece.stop - piece.start for piece in needed.pieces] for needed in batches])
        parts = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        return tuple((parts.sum(0) / np.maximum((counts > 0).sum(0), 1)).tolist())


def lay_initial(job: Job, worker: int, arena: Arena, data: Arena) -> None:
    """Write the initial weights of a worker's first keys into its buffer of pulled weights."""
    # iteration 0 is computed without a pull
    needed = BatchKeys(job, worker, job.shelf.dataset(data)).of(0)
    begin = in_turn(job.layout.down[worker], 0)
    weights = arena.tensor(job.layout.server, job.layout.size, job.layout.dtype).numpy()
    for piece, (offset, room) in zip(needed.pieces, job.layout.frames, strict=True):
        if piece.start < piece.stop:
            where = needed.places[piece]
            frame.write(arena.bytes(begin + offset, room), [[torch.from_numpy(weights[where])]])


class KeyedReader(Reader):
    """Reads a worker's batches from the KeyedRows `needed`."""

    needed: KeyedRows

    def at(self, iteration: int) -> Pair:
        inputs, examples = self.needed.batch(iteration)
        return inputs, self.targets[torch.from_numpy(examples)]


class KeyedComputing(Computing):
    """Computes a worker's gradients on the weights of some keys."""

    reader: KeyedReader

    def __init__(self, job: Job, worker: int, dataset: Dataset, module: nn.Module) -> None:
        # no weights yet: each iteration has other keys, see `use_keys`
        super().__init__(job, worker, dataset, torch.empty(0, dtype=job.layout.dtype), [], module)
        run = job.run
        self.reader = KeyedReader(dataset, run.workers, worker, run.batch_size, run.seed, job.assignment)

    def use_keys(self, needed: KeyedRows, weights: torch.Tensor) -> torch.Tensor:
        """Use these weights ([k]) of an iteration's keys for the next gradients; return the gradients' buffer ([k])."""
        parameter = self._keyspace.bind_keys(self._module, weights)
        gradient, self.weights, self.reader.needed = torch.zeros_like(weights), weights, needed
        self.buffers, self._views = [gradient], [[(parameter, parameter.data, gradient.view_as(parameter))]]
        return gradient


class KeyedProducer(Producer):
    """The tensors of a worker, with an element for each key of its batch; pulled weights are frames in shared memory.

    If this process has `requests`, their keys are used instead of being found a second time.
    """

    def __init__(
        self, job: Job, worker: int, arena: Arena, data: Arena, *given: Any, requests: Requests | None, **named: Any
    ) -> None:
        keys = BatchKeys(job, worker, job.shelf.dataset(data)) if requests is None else requests.keys[worker]
        self._keys: BatchKeys = keys
        super().__init__(job, worker, arena, data, *given, **named)
        if self._first:  # a successor pulls its weights
            lay_initial(job, worker, arena, data)

    def warm_up(self) -> None:
        prepare(self._job.layout.dtype)
        if isinstance(self._computing, KeyedComputing):
            needed = self._keys.of(0)
            self._computing.use_keys(needed, torch.zeros(len(needed.places), dtype=self._job.layout.dtype))
            self._computing.warm_up(aside=self._successor)

    def gradient(self, iteration: int, basis: Basis = NO_BASIS) -> float:
        needed = self._keys.of(iteration)
        # read here, not by `install`: the frames stay in shared memory until the next pull is answered
        weights, order = self._pulled_keys(iteration, needed), needed.order
        if isinstance(self._computing, KeyedComputing):
            # in the order of the keys, so that the bits of sums do not depend on the keys' positions at the servers
            self._gradients = [self._computing.use_keys(needed, weights if order is None else weights[order])]
        return self._compute(iteration)

    def payloads(self, iteration: int, loss: float) -> tuple[list[PushInfo], float]:
        """Encode the push of an iteration; return the payload of each range, with 0 bytes if the range has none of the
        keys, and the monotonic instant before encoding.

        Raises:
            NonFinite: the gradient is not finite; nothing is sent.
        """
        (gradient,), layout, needed = self._gradients, self._job.layout, self._keys.of(iteration)
        if (order := needed.order) is not None:
            # from the order of the keys back to the order of the servers' positions
            gradient = torch.empty_like(gradient).index_copy_(0, torch.from_numpy(order), gradient)
        self._refuse_nonfinite(is_finite(gradient), iteration)
        if self._courses is not None:
            self._courses.commit()
        begin, begun_s, payloads = in_turn(layout.up[self._worker], iteration), time.monotonic(), list[PushInfo]()
        for where, piece, (offset, room) in zip(needed.positions, needed.pieces, layout.frames, strict=True):
            size = 0
            if where is not None:
                size = frame.write(self._arena.bytes(begin + offset, room), [[where, gradient[piece]]])
            payloads.append(PushInfo(size, piece.stop - piece.start, loss))
        return payloads, begun_s

    def install(self, pulled: Pulled) -> None:
        """Note the numbers that came with weights; `gradient` reads the weights from their frames."""
        if self._courses is not None:
            self._courses.installed(True, pulled.gradients, pulled.begin, pulled.steps)

    def _lay_out(self, alone: bool) -> None:
        self._gradients = self._shared_gradients = []

    def _computing_of(self, dataset: Dataset, module: nn.Module) -> Computing:
        return KeyedComputing(self._job, self._worker, dataset, module)

    def _pulled_keys(self, iteration: int, needed: KeyedRows) -> torch.Tensor:
        begin, pulled = in_turn(self._job.layout.down[self._worker], iteration), list[Any]()
        for piece, (offset, room) in zip(needed.pieces, self._job.layout.frames, strict=True):
            if count := piece.stop - piece.start:
                (values,) = frame.read(self._arena.bytes(begin + offset, room))[0]
                pulled.append(values.view(self._job.layout.dtype)[:count])
        return torch.cat(pulled) if pulled else torch.empty(0, dtype=self._job.layout.dtype)
