"""A worker of a sparse model, which has the weights of its batch's keys and no others.

Its tensors are as long as its batch has keys. What it has pulled lies as frames in shared memory, so that any process
may compute any worker's gradient.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from pslab.engines.experiment.job import Job
from pslab.engines.experiment.layout import in_turn
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.experiment.wire import Gradient
from pslab.engines.worker.batches import BatchKeys, KeyedRows, Reader, Requests
from pslab.engines.worker.gradient import Computing, module_of
from pslab.engines.worker.tensors import NO_BASIS, NOTHING, Basis, Producer, Pulled
from pslab.tensors.codec import Entries, decode, encode_into, frame_length, write_into
from pslab.tensors.pruning.pruner import NonFinite, is_finite
from pslab.tensors.workload.data import Dataset
from pslab.tensors.workload.reading import Pair


class _KeyedReader(Reader):
    """Batches over the keys of an iteration alone."""

    needed: KeyedRows

    def at(self, iteration: int) -> Pair:
        x, rows = self.needed.batch(iteration)
        return x, self._dataset.train_y[torch.from_numpy(rows)]


class _Computing(Computing):
    """Gradients on the weights of some keys."""

    def __init__(
        self, job: Job, worker: int, dataset: Dataset, module: nn.Module, kept: Mapping[str, torch.Tensor],
        told: torch.Tensor | None,
    ) -> None:  # fmt: skip
        run = job.run
        nothing = torch.empty(0, dtype=job.layout.dtype)
        super().__init__(job, worker, dataset, nothing, [nothing], module, kept, told)
        self._reader = self._keyed = _KeyedReader(dataset, run.workers, worker, run.batch_size, run.seed,
                                                  job.assignment)  # fmt: skip

    def on(self, needed: KeyedRows, weights: torch.Tensor) -> torch.Tensor:
        """The next gradients are taken on these weights ([k]) of an iteration's keys; where they will be ([k])."""
        parameter = self._keyspace.bind_keys(self._module, weights)
        gradient, self._weights, self._keyed.needed = torch.zeros_like(weights), weights, needed
        self._buffers = [gradient]
        self._views = [[(parameter, parameter.data, gradient.view_as(parameter))]]
        return gradient

    def _use(self, buffers: list[torch.Tensor]) -> None:
        """There are none before there are keys."""


class KeyedProducer:
    """What `Producer` is, for a run that pulls keys. In the process that writes the `requests` it finds none twice."""

    def __init__(
        self, job: Job, worker: int, arena: Arena, data: Arena, module: nn.Module | None = None, *,
        successor: bool = False, requests: Requests | None = None,
    ) -> None:  # fmt: skip
        layout, dataset = job.layout, job.shelf.dataset(data)
        self._job, self._worker, self._arena = job, worker, arena
        self._keys = BatchKeys(job, worker, dataset) if requests is None else requests.keys[worker]
        if module is None and not successor:
            lay_initial(job, worker, arena, data)
        kept = {name: arena.tensor(layout.kept[worker][name], memory.entries, memory.dtype)
                for name, memory in layout.memories.items()}  # fmt: skip
        for memory in kept.values() if module is None and not successor else ():
            memory.zero_()
        own = module_of(job, job.device) if module is None else module
        self._computing = _Computing(job, worker, dataset, own, kept, layout.number(arena))
        self._gradient = torch.empty(0, dtype=layout.dtype)

    def warm_up(self) -> None:
        """Once per module, before the run starts: it leaves no trace."""
        needed = self._keys.of(0)
        self._computing.on(needed, torch.zeros(len(needed.places), dtype=self._job.layout.dtype))
        self._computing.warm_up()

    def resume(self, iteration: int) -> str:
        """A successor goes on with this iteration. Its predecessor has kept nothing."""
        return NOTHING

    def remembered(self) -> dict[str, Any]:
        """What lasts from one gradient to the next, and does not lie in shared memory."""
        return {"modules": self._computing.remembered()}

    def recall(self, remembered: dict[str, Any]) -> None:
        """Go on from what was remembered."""
        self._computing.recall(remembered["modules"])

    def attend(
        self, needs: Callable[[int], None], turns: Callable[[], None], ready: Callable[[int, float], None]
    ) -> None:
        """Of a model of one layer nothing is ready before the rest."""

    def install(self, pulled: Pulled) -> None:
        """The weights of a range have arrived; they are read where they lie."""

    def gradient(self, iteration: int, basis: Basis = NO_BASIS) -> float:
        """Compute the gradient of an iteration on the weights that have come for it; the batch's loss."""
        needed = self._keys.of(iteration)
        weights, order = self._pulled(iteration, needed), needed.order
        # in the order of the keys: sums have the same bits, wherever these lie
        self._gradient = self._computing.on(needed, weights if order is None else weights[order])
        return self._computing.iteration(iteration, 0)

    def payloads(self, iteration: int, loss: float, layer: int | None = None) -> tuple[list[Gradient], float]:
        """Encode: the payload of each range, of no bytes where it has none of the keys, and the instant before.

        Raises:
            NonFinite: the gradient; nothing is sent.
        """
        job, needed, gradient, found = self._job, self._keys.of(iteration), self._gradient, list[Gradient]()
        if (order := needed.order) is not None:
            gradient = torch.empty_like(gradient).index_copy_(0, torch.from_numpy(order), gradient)
        if not is_finite(gradient):
            raise NonFinite(f"worker {self._worker}: the gradient of iteration {iteration} is not finite")
        self._computing.commit()
        place, begun_s, values = in_turn(job.layout.up[self._worker], iteration), time.monotonic(), gradient.numpy()
        for positions, piece, (offset, room) in zip(needed.positions, needed.pieces, job.layout.frames, strict=True):
            size = 0
            if positions is not None:
                size = write_into(self._arena.bytes(place + offset, room), positions, values[piece])
            found.append(Gradient(size, piece.stop - piece.start, loss))
        return found, begun_s

    def _pulled(self, iteration: int, needed: KeyedRows) -> torch.Tensor:
        """The weights [k] of an iteration's keys, as they have come: in the order of their places."""
        place, found = in_turn(self._job.layout.down[self._worker], iteration), list[Any]()
        for piece, (offset, room) in zip(needed.pieces, self._job.layout.frames, strict=True):
            if count := piece.stop - piece.start:
                frame = self._arena.bytes(place + offset, room)
                found.append(decode(frame[: min(room, frame_length(frame))], n=count).values)
        values = np.concatenate(found) if found else np.empty(0, np.float32)
        return torch.from_numpy(values).to(self._job.layout.dtype)


def lay_initial(job: Job, worker: int, arena: Arena, data: Arena) -> None:
    """The initial weights of a worker's first keys, where those that it pulls lie."""
    needed = BatchKeys(job, worker, job.shelf.dataset(data)).of(0)
    place = in_turn(job.layout.down[worker], 0)
    weights = arena.tensor(job.layout.server, job.layout.size, job.layout.dtype).numpy()
    for piece, (offset, room) in zip(needed.pieces, job.layout.frames, strict=True):
        if piece.start < piece.stop:
            own = needed.places[piece]
            encode_into(arena.bytes(place + offset, room), Entries(len(own), None, weights[own]))


def producer_of(
    job: Job, worker: int, arena: Arena, data: Arena, module: nn.Module | None = None, *, successor: bool = False,
    requests: Requests | None = None,
) -> Producer | KeyedProducer:  # fmt: skip
    """What computes a worker's gradients."""
    if job.keyed:
        return KeyedProducer(job, worker, arena, data, module, successor=successor, requests=requests)
    return Producer(job, worker, arena, data, module, successor=successor)
