"""What the server does with weights, whatever the clock: apply a step, lay a reply ready, keep the ledger."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from pslab.engines.job.job import Job
from pslab.engines.job.layout import in_turn
from pslab.engines.job.notes import PULL, PULL_BYTES, PUSH, WEIGHTS, WHOLE, Note
from pslab.engines.job.shared_memory import Arena
from pslab.engines.server.ledger import Ledger, OnSnapshot
from pslab.errors import FrameError, ProtocolError, WorkerFailed
from pslab.policies.rates import Applied
from pslab.protocol.messages import Pull, Push, gradients
from pslab.protocol.server import Discard, Reply, Step
from pslab.tensors.codec.frames import Entries, decode, encode_into, frame_bytes, sliced_bytes
from pslab.tensors.update import rate_state
from pslab.tensors.update.store import Gradient, Part, Store
from pslab.tensors.workload.keyspace import KeyRange


def ranged_bytes(job: Job, keys: KeyRange, codec: str) -> int:
    """The length of a frame of a range of keys."""
    return sliced_bytes(job.layout.size, job.keyspace.slices(keys), job.layout.dtype.itemsize, codec)


class Bookkeeper:
    """The server's books alone: versions, staleness, bytes. `Keeper` adds the weights."""

    def __init__(self, job: Job, ledger: Ledger) -> None:
        self._job, self.ledger = job, ledger
        self._versions = [0] * len(job.parts)
        # per range: (worker, iteration) -> the version that it is computed on, the oldest first
        there = [worker for worker in range(job.run.workers) if job.cluster.there(worker)]
        self._computing = [dict.fromkeys(((worker, 0) for worker in there), 0) for _ in job.parts]
        self._missing: dict[tuple[int, int], int] = {}  # of a push that is applied in part: the ranges that are not
        self.applied = 0  #: gradients of which every range has been applied
        self.dropped = self.dropped_bytes = 0  #: pushes that a policy did not want

    def step(self, step: Step, workers: int, now: float) -> None:
        """Apply the pushes of a step; `workers` are alive.

        Raises:
            ProtocolError: a policy with a barrier steps while somebody may compute. WorkerFailed: a bad frame.
        """
        run, job = self._job.run, self._job
        if job.layout.in_place and len(step.pushes) < workers:
            raise ProtocolError(f"{run.sync} has a barrier, but applies {len(step.pushes)} pushes while others compute")
        before, computing = self._versions[step.range], self._computing[step.range]
        staleness = [before - push.version for push in step.pushes]
        stale = max(staleness)
        stalest = max(stale, before - next(iter(computing.values()), before))
        seen = max(push.seen for push in step.pushes) if job.eager else stale
        told = Applied(run.workers, len(step.pushes), step.aggregate, run.push_weight, stale, stalest, seen)
        for push in step.pushes:
            computing.pop((push.worker, push.iteration), None)
        self._apply(step, job.learning_rate(self.applied) * job.rate.scale(told))
        self._versions[step.range] = step.version
        for push, stale in zip(step.pushes, staleness, strict=True):
            self.ledger.applied(push, step.version, stale, self.wire_bytes(push.payload), now)
        if complete := [push for push in step.pushes if self._complete(push)]:
            self.applied += sum(gradients(job.sync, push.iteration) for push in complete)
            self.ledger.snapshot_if_due(self.applied, now)

    def _complete(self, push: Push) -> bool:
        """Whether with this range all of an iteration's are applied."""
        name = push.worker, push.iteration
        missing = self._missing.pop(name, len(self._job.parts)) - 1
        if missing:
            self._missing[name] = missing
        return not missing

    def discard(self, discard: Discard) -> None:
        """A push is not applied: its way was for nothing."""
        self.dropped += 1
        self.dropped_bytes += self.wire_bytes(discard.push.payload)

    def reply(self, reply: Reply) -> int:
        """Lay the weights of a range ready for a worker: the bytes of the frame, or WHOLE if they lie there as such."""
        pull = reply.pull
        self._computing[pull.range][pull.worker, pull.iteration] = reply.version
        return self._lay(reply)

    def leave(self, worker: int) -> None:
        """A worker is gone: nothing more comes of what it computes."""
        for computing in self._computing:
            for key in [key for key in computing if key[0] == worker]:
                del computing[key]
        for name in [name for name in self._missing if name[0] == worker]:
            del self._missing[name]

    def wire_bytes(self, note: Note) -> int:
        """What a note and its payload cost on a link."""
        if note.kind in (PUSH, WEIGHTS):
            if note.size_bytes == WHOLE:
                return frame_bytes(self._job.parts[note.range].size, self._job.layout.dtype.itemsize)
            return note.size_bytes
        return PULL_BYTES if note.kind == PULL else 0

    def _lay(self, reply: Reply) -> int:
        """There is nothing to lay ready; a range has its size."""
        if self._job.run.pull != "range":
            return WHOLE
        return ranged_bytes(self._job, KeyRange(*reply.pull.payload.wanted), "auto")

    def _apply(self, step: Step, rate: float) -> None:
        """There is nothing to apply it to."""


class Keeper(Bookkeeper):
    """One run's weights at the server, in shared memory."""

    def __init__(self, job: Job, arena: Arena, snapshots: Arena, on_snapshot: OnSnapshot) -> None:
        self._arena = arena
        weights = arena.tensor(job.layout.server, job.layout.size, job.layout.dtype)
        super().__init__(job, Ledger(job, weights, snapshots, on_snapshot))
        self._store = Store(weights, job.parts, job.optimizer, track_changes=job.run.pull == "changed")
        layers = [layer.flat for layer in job.keyspace.layers]
        self._rate_state = rate_state.at_server(job.rate, job.parts, layers, job.layout.dtype)
        if not job.optimizer.plain_sgd:
            self._warm_up()
        self._gradients = [[self._flat(at) for at in buffers] for buffers in job.layout.gradients]
        self._encoded: tuple[Entries, bytes] | None = None
        self._found: tuple[KeyRange, int, Entries] | None = None

    def leave(self, worker: int) -> None:
        super().leave(worker)
        if self._rate_state is not None:
            self._rate_state.leave(worker)

    def _lay(self, reply: Reply) -> int:
        pull, job = reply.pull, self._job
        if job.layout.in_place:
            return WHOLE
        part = job.parts[pull.range]
        if job.run.pull == "range":
            return self._write(pull, self._of_keys(KeyRange(*pull.payload.wanted), reply.version))
        entries = self._store.changed(pull.range, pull.version) if job.run.pull == "changed" else None
        if entries is not None:
            return self._write(pull, entries)
        target = self._flat(in_turn(job.layout.arrivals[pull.worker], pull.iteration))
        for there, here in zip(part.views(target), part.views(self._store.weights), strict=True):
            there.copy_(here)
        return WHOLE

    def _of_keys(self, keys: KeyRange, version: int) -> Entries:
        """The weights of a range of keys; the same object while it is asked for again, and they do not change."""
        if self._found is None or self._found[:2] != (keys, version):
            slices = self._job.keyspace.slices(keys)
            indices = np.concatenate([np.arange(s.start, s.stop) for s in slices])
            values = torch.cat([self._store.weights[s] for s in slices]).numpy()
            self._found = keys, version, Entries(self._job.layout.size, indices, values)
        return self._found[2]

    def _write(self, pull: Pull, entries: Entries) -> int:
        """What is pulled, as a frame; several workers of one round get the same, which is encoded once."""
        offset, room = self._job.layout.frames[pull.range]
        place = self._arena.bytes(in_turn(self._job.layout.down[pull.worker], pull.iteration) + offset, room)
        if self._encoded is None or self._encoded[0] is not entries:
            size = encode_into(place, entries, "auto")
            self._encoded = entries, bytes(place[:size])
            return size
        frame = self._encoded[1]
        place[: len(frame)] = frame
        return len(frame)

    def _apply(self, step: Step, rate: float) -> None:
        gradients: Sequence[Gradient] = [self._gradient(push) for push in step.pushes]
        if self._rate_state is not None:
            gradients = self._rate_state.adjust(step, gradients, self._computing[step.range].values())
        self._store.step(step.range, gradients, rate)

    def _gradient(self, push: Push) -> Gradient:
        note, layout = push.payload, self._job.layout
        if note.size_bytes == WHOLE:
            return in_turn(self._gradients[push.worker], push.iteration)
        offset, _ = layout.frames[push.range]
        frame = self._arena.bytes(in_turn(layout.up[push.worker], push.iteration) + offset, note.size_bytes)
        try:
            return decode(frame, n=self._job.parts[push.range].size)
        except FrameError as error:
            raise WorkerFailed(f"worker {push.worker}", push.iteration, f"its frame was refused: {error}") from error

    def _flat(self, offset: int) -> torch.Tensor:
        return self._arena.tensor(offset, self._job.layout.size, self._job.layout.dtype)

    def _warm_up(self) -> None:
        """The first step of a torch.optim class imports a compiler: not what a run measures."""
        one = torch.ones(1, dtype=self._job.layout.dtype)
        store = Store(one, (Part((slice(0, 1),)),), self._job.optimizer)
        store.step(0, [one.clone()], self._job.run.learning_rate)
