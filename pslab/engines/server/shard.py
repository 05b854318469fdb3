"""The weights at a server, in shared memory: apply a step, lay a reply ready."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch

from pslab.engines.experiment.job import Job
from pslab.engines.experiment.layout import in_turn
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.experiment.wire import WHOLE
from pslab.errors import FrameError, WorkerFailed
from pslab.protocol.messages import Pull, Push
from pslab.protocol.server import Reply, Step
from pslab.tensors import aggregates
from pslab.tensors.codec import Entries, decode, encode_into, requested
from pslab.tensors.downlink import HeldWeights
from pslab.tensors.update import methods, rate_state
from pslab.tensors.update.store import Gradient, Part, WeightStore
from pslab.tensors.workload.keyspace import KeyRange

_NOTHING = np.empty(0, np.int64)  # the indices of no entries


class TensorShard:
    """One run's weights, all ranges of them."""

    def __init__(self, job: Job, arena: Arena) -> None:
        self._job, self._arena = job, arena
        weights = arena.tensor(job.layout.server, job.layout.size, job.layout.dtype)
        self._store = WeightStore(weights, job.parts, job.optimizer, track_changes=job.run.pull == "changed")
        layers = [layer.flat for layer in job.keyspace.layers]
        self._rate_states = rate_state.at_server(job.rate, job.parts, layers, job.layout.dtype)
        stated = [arena.tensor(own[methods.STATED], *job.layout.memories[methods.STATED][:2])
                  for own in job.layout.kept if methods.STATED in own]  # fmt: skip
        self._consensus = methods.at_server(job.sync, job.parts, weights, stated, job.layout.number(arena))
        self._aggregates = aggregates.at_server(job.prune, job.quantize, job.sync, job.parts, job.keyspace, job.shell,
                                                job.push_frames, job.run.seed)  # fmt: skip
        self._held: HeldWeights | None = None
        if job.downlink is not None:
            workers = 0 if job.traits.rounds else job.run.workers
            self._held = HeldWeights(job.downlink, job.parts, layers, weights, workers, job.traits.rotation)
        if not job.optimizer.plain_sgd:
            self._warm_up()
        if job.lists_positions:
            for frames in filter(None, (job.push_frames, job.downlink_frames)):
                frames.prepare()  # here, and not while a run is timed
        self._gradients = [[self._flat(at) for at in buffers] for buffers in job.layout.gradients]
        self._encoded: tuple[Entries, bytes] | None = None
        self._found: tuple[Any, ...] | None = None  # of a range the last Entries that were laid ready, behind their key

    @property
    def weights(self) -> torch.Tensor:
        """The weights now, flat."""
        return self._store.weights

    @property
    def converged(self) -> bool:
        """Whether the method ends the run."""
        return self._consensus is not None and self._consensus.converged

    def facts(self) -> dict[str, Any]:
        """For the manifest, of the method."""
        return {} if self._consensus is None else self._consensus.facts()

    def leave(self, worker: int) -> None:
        """A worker has left: what its rate keeps of it goes."""
        for state in self._rate_states:
            state.leave(worker)
        if self._held is not None:
            self._held.leave(worker)

    def apply(self, step: Step, rate: float, computing: Collection[int]) -> None:
        """Apply the pushes of a step, while workers compute on these versions of the range.

        Raises:
            WorkerFailed: a bad frame.
        """
        held = self._job.traits.pushes
        gradients: Sequence[Gradient] = [self._gradient(push) for push in step.pushes if held(push.iteration)]
        if self._consensus is not None:
            gradients = self._consensus.adjust(step, gradients)
        elif self._job.keyed:
            gradients = methods.over_users(self._job.sync, self._job.parts[step.range], gradients)
        if getattr(self._job.sync, "by", "workers") == "steps":
            gradients = methods.by_steps(self._job.parts[step.range], gradients, [push.steps for push in step.pushes])
        if self._aggregates and gradients:
            gradients = self._aggregates[step.range].adjust(step, gradients)
        if self._rate_states and gradients:
            gradients = self._rate_states[step.range].adjust(step, gradients, computing)
        self._store.step(step.range, gradients, rate, plain=self._job.averages(step))

    def lay(self, reply: Reply) -> int:
        """Lay the weights of a range ready for a worker: the bytes of the frame, or WHOLE if they lie there as such.

        An empty reply has none: 0.
        """
        pull, job, weights = reply.pull, self._job, self._store.weights
        if self._aggregates:
            self._aggregates[pull.range].answered(pull)
        if self._held is not None and job.downlink_frames is not None:
            if size := self._held.lay(reply, weights, job.downlink_frames, self._room(pull)):
                return size
            weights = self._held.of(pull.worker)
        if reply.empty:
            return 0
        if self._consensus is not None:
            self._consensus.state_rho()
        if job.layout.in_place:
            return WHOLE
        part = job.parts[pull.range]
        if job.keyed:
            return self._lay_keys(pull)
        if job.run.pull == "range":
            keys = KeyRange(pull.payload.start, pull.payload.stop)
            return self._write(pull, self._of_keys(pull.range, keys, reply.version))
        if job.push_frames.states:
            return self._write(pull, self._with_stated(pull))
        entries = self._store.changed(pull.range, pull.version) if job.run.pull == "changed" else None
        if entries is not None:
            return self._write(pull, entries)
        if job.straight and not self._arena.shared:
            return WHOLE
        target = self._flat(in_turn(job.layout.arrivals[pull.worker], pull.iteration))
        for there, here in zip(part.views(target), part.views(weights), strict=True):
            there.copy_(here)
        return WHOLE

    def _with_stated(self, pull: Pull) -> Entries:
        """The weights of a range, and what is stated with them; the same object for the workers of a round."""
        if self._found is None or self._found[:2] != (pull.range, pull.iteration):
            values = torch.cat(self._job.parts[pull.range].views(self._store.weights)).numpy()
            found = np.concatenate([values, self._aggregates[pull.range].stated(pull.iteration)])
            self._found = pull.range, pull.iteration, Entries(len(found), None, found)
        answer: Entries = self._found[-1]
        return answer

    def _lay_keys(self, pull: Pull) -> int:
        """The weights that a request names, in its order; nothing if it names none."""
        size_bytes, layout = pull.payload.size_bytes, self._job.layout
        if not size_bytes:
            return 0
        (offset, room), part = layout.frames[pull.range], self._job.parts[pull.range]
        asked = self._arena.bytes(in_turn(layout.asked[pull.worker], pull.iteration) + offset, size_bytes)
        try:
            places = requested(asked, part.size)
        except FrameError as error:
            raise WorkerFailed(f"worker {pull.worker}", pull.iteration, f"its request was refused: {error}") from error
        where = part.flat_indices(Entries(part.size, places, places)).numpy()
        values = self._store.weights.numpy()[where]
        frame = self._arena.bytes(in_turn(layout.down[pull.worker], pull.iteration) + offset, room)
        return encode_into(frame, Entries(len(values), None, values))

    def _of_keys(self, index: int, keys: KeyRange, version: int) -> Entries:
        """What a range has of some keys; the same object while it is asked for again, and the weights do not change."""
        if self._found is None or self._found[:3] != (index, keys, version):
            slices = self._job.keyspace.slices(keys)
            indices = np.concatenate([np.arange(s.start, s.stop) for s in slices])
            values = torch.cat([self._store.weights[s] for s in slices]).numpy()
            self._found = index, keys, version, self._job.parts[index].inside(indices, values)
        found: Entries = self._found[3]
        return found

    def _write(self, pull: Pull, entries: Entries) -> int:
        """What is pulled, as a frame; several workers of one round get the same, which is encoded once."""
        place = self._room(pull)
        if self._encoded is None or self._encoded[0] is not entries:
            size = encode_into(place, entries, "auto")
            self._encoded = entries, bytes(place[:size])
            return size
        frame = self._encoded[1]
        place[: len(frame)] = frame
        return len(frame)

    def _room(self, pull: Pull) -> memoryview:
        """Where the frame of an answer lies."""
        offset, room = self._job.layout.frames[pull.range]
        return self._arena.bytes(in_turn(self._job.layout.down[pull.worker], pull.iteration) + offset, room)

    def _gradient(self, push: Push) -> Gradient:
        size_bytes, layout = push.payload.size_bytes, self._job.layout
        if size_bytes == WHOLE:
            return in_turn(self._gradients[push.worker], push.iteration)
        if not size_bytes:  # none of the batch's keys
            return Entries(self._job.parts[push.range].size, _NOTHING, self._store.weights.numpy()[:0])
        offset, _ = layout.frames[push.range]
        frame = self._arena.bytes(in_turn(layout.up[push.worker], push.iteration) + offset, size_bytes)
        try:
            if self._job.keyed:
                return decode(frame, n=self._job.parts[push.range].size)
            step = self._job.traits.gradients_before(push.iteration)
            return self._job.push_frames.read(frame, push.range, step, push.iteration)
        except FrameError as error:
            raise WorkerFailed(f"worker {push.worker}", push.iteration, f"its frame was refused: {error}") from error

    def _flat(self, offset: int) -> torch.Tensor:
        return self._arena.tensor(offset, self._job.layout.size, self._job.layout.dtype)

    def _warm_up(self) -> None:
        """The first step of a torch.optim class imports a compiler: not what a run measures."""
        one = torch.ones(1, dtype=self._job.layout.dtype)
        store = WeightStore(one, (Part((slice(0, 1),)),), self._job.optimizer)
        store.step(0, [one.clone()], self._job.run.learning_rate)
