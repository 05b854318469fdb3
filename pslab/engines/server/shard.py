"""The weights at a server, in shared memory: apply a step, lay a reply ready."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
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
from pslab.tensors.compression import frame
from pslab.tensors.compression.bits import indices_of, prepare
from pslab.tensors.compression.downlink import HeldWeights
from pslab.tensors.compression.rule import Parts
from pslab.tensors.entries import Entries
from pslab.tensors.update import changes, rate_state
from pslab.tensors.update.consensus import Consensus
from pslab.tensors.update.methods import STATED
from pslab.tensors.update.part import Gradient, Part
from pslab.tensors.update.states import State, fitting, named, under
from pslab.tensors.update.store import WeightStore
from pslab.tensors.workload.keyspace import KeyRange

_NOTHING = np.empty(0, np.int64)  # the indices of no entries


@contextmanager
def _refusing(message: Push | Pull, what: str) -> Iterator[None]:
    try:
        yield
    except FrameError as error:
        problem = f"its {what} was refused: {error}"
        raise WorkerFailed(f"worker {message.worker}", message.iteration, problem) from error


class TensorShard:
    """One run's weights, all ranges of them."""

    def __init__(self, job: Job, arena: Arena) -> None:
        self._job, self._arena = job, arena
        weights = arena.tensor(job.layout.server, job.layout.size, job.layout.dtype)
        self._store = WeightStore(weights, job.parts, job.optimizer, track_changes=job.run.pull == "changed")
        layers = [layer.flat for layer in job.keyspace.layers]
        self._rate_states = rate_state.at_server(job.rate, job.parts, layers, job.layout.dtype)
        stated = [arena.tensor(own[STATED], *job.layout.memories[STATED][:2])
                  for own in job.layout.kept if STATED in own]  # fmt: skip
        rho = job.layout.number(arena)
        self._consensus = None if rho is None else Consensus(job.sync, job.parts[0], weights, stated, rho)
        self._changes = changes.at_server(job.sync, job.parts, job.keyspace, job.shell)
        self._served = [] if job.compression is None else [
            torch.zeros(job.compression.served(index), dtype=job.layout.dtype) for index in range(len(job.parts))]
        self._held: HeldWeights | None = None
        if job.downlink is not None:
            workers = 0 if job.traits.rounds else job.run.workers
            self._held = HeldWeights(job.downlink.compression(job), job.parts, weights, workers, job.traits.rotation)
        if not job.optimizer.plain_sgd:
            self._warm_up()
        if job.positioned:
            prepare(job.layout.dtype, selects=job.downlink is not None)
        self._gradients = [[self._flat(at) for at in buffers] for buffers in job.layout.gradients]
        self._encoded: tuple[Any, bytes] | None = None  # the last answer, behind its key

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

    def state(self, server: int) -> State:
        """Return the weights that a server holds, and all that is kept for its ranges."""
        held = [self.weights[piece] for piece in self._job.held[server]]
        found = {"weights": torch.cat(held)}
        for name, owner in self._owners(server).items():
            found |= named(name, owner.state())
        for index in self._ranges(server):
            found |= named(f"range {index}", self._store.state(index))
        return found | {f"served {index}": self._served[index] for index in self._ranges(server) if self._served}

    def restore(self, server: int, state: State) -> None:
        """Set a new shard to a state.

        Raises:
            KeyError, ValueError, RuntimeError: it is of another run.
        """
        pieces = self._job.held[server]
        whole = fitting(state["weights"], torch.cat([self.weights[piece] for piece in pieces]))
        for piece, weights in zip(pieces, torch.split(whole, [s.stop - s.start for s in pieces]), strict=True):
            self.weights[piece] = weights
        for name, owner in self._owners(server).items():
            owner.restore(under(name, state))
        for index in self._ranges(server):
            self._store.restore(index, under(f"range {index}", state))
            if self._served:
                self._served[index].copy_(fitting(state[f"served {index}"], self._served[index]))

    def _owners(self, server: int) -> dict[str, Any]:
        """Return the objects whose state is kept for a server's ranges, by the names that they have in a state."""
        each: dict[str, Sequence[Any]] = {"rate": self._rate_states, "changes": self._changes}
        found = {f"{name} {index}": kept[index] for name, kept in each.items() if kept
                 for index in self._ranges(server)}  # fmt: skip
        whole = {"consensus": self._consensus, "downlink": self._held}
        return {**found, **{name: owner for name, owner in whole.items() if owner is not None}}

    def _ranges(self, server: int) -> list[int]:
        return [index for index, its in enumerate(self._job.server_of) if its == server]

    def leave(self, worker: int) -> None:
        """Forget the state that the rate keeps of a worker that has left."""
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
        gradients: Sequence[Gradient]
        pushes = [push for push in step.pushes if held(push.iteration)]
        rules = self._job.compression
        if pushes and rules is not None and rules.rule.combine is not None:
            pieces = [self._pieces(push) for push in pushes]
            with _refusing(pushes[0], "frame, or one of its step,"):
                gradients = [rules.combined(step.range, pieces, self._served[step.range], **self._whose(pushes[0]))]
        else:
            gradients = [self._gradient(push) for push in pushes]
        if self._consensus is not None:
            gradients = self._consensus.adjust(step, gradients)
        elif self._job.keyed:
            gradients = changes.over_users(self._job.sync, self._job.parts[step.range], gradients)
        if getattr(self._job.sync, "by", "workers") == "steps":
            gradients = changes.by_steps(self._job.parts[step.range], gradients, [push.steps for push in step.pushes])
        if self._changes and gradients:
            gradients = self._changes[step.range].adjust(step, gradients)
        if self._rate_states and gradients:
            gradients = self._rate_states[step.range].adjust(step, gradients, computing)
        self._store.step(step.range, gradients, rate, plain=self._job.averages(step))

    def lay(self, reply: Reply) -> int:
        """Lay the weights of a range ready for a worker: the bytes of the frame, or WHOLE if they lie there as such.

        An empty reply has none: 0.
        """
        pull, job, weights = reply.pull, self._job, self._store.weights
        if self._changes:
            self._changes[pull.range].answered(pull)
        if self._held is not None:
            if size := self._held.lay(reply, weights, self._room(pull)):
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
            return self._write(pull, (pull.range, keys, reply.version), lambda: self._of_keys(pull.range, keys))
        if job.compression is not None and job.compression.rule.tells:
            told = self._served[pull.range]
            return self._write(pull, (pull.range, reply.version), lambda: [torch.cat(part.views(weights)), told])
        entries = self._store.changed(pull.range, pull.version) if job.run.pull == "changed" else None
        if entries is not None:
            return self._write(pull, entries, lambda: frame.parts_of(entries))
        target = self._flat(in_turn(job.layout.arrivals[pull.worker], pull.iteration))
        for there, here in zip(part.views(target), part.views(weights), strict=True):
            there.copy_(here)
        return WHOLE

    def _lay_keys(self, pull: Pull) -> int:
        """The weights that a request names, in its order; nothing if it names none."""
        size_bytes, layout = pull.payload.size_bytes, self._job.layout
        if not size_bytes:
            return 0
        (offset, room), part = layout.frames[pull.range], self._job.parts[pull.range]
        asked = self._arena.bytes(in_turn(layout.asked[pull.worker], pull.iteration) + offset, size_bytes)
        with _refusing(pull, "request"):
            places = indices_of(frame.read(asked)[0][0], part.size).numpy()
        where = part.flat_indices(Entries(part.size, places, places)).numpy()
        values = self._store.weights.numpy()[where]
        place = self._arena.bytes(in_turn(layout.down[pull.worker], pull.iteration) + offset, room)
        return frame.write(place, [[torch.from_numpy(values)]])

    def _of_keys(self, index: int, keys: KeyRange) -> Parts:
        """Return the weights of some keys in a range, as parts."""
        slices = self._job.keyspace.slices(keys)
        indices = np.concatenate([np.arange(s.start, s.stop) for s in slices])
        values = torch.cat([self._store.weights[s] for s in slices]).numpy()
        return frame.parts_of(self._job.parts[index].inside(indices, values))

    def _write(self, pull: Pull, key: Any, parts: Callable[[], Parts]) -> int:
        """What is pulled, as a frame; several workers of one round get the same, which is encoded once."""
        place = self._room(pull)
        if self._encoded is None or (self._encoded[0] is not key and (
                isinstance(key, Entries) or self._encoded[0] != key)):  # fmt: skip
            size = frame.write(place, [parts()])
            self._encoded = key, bytes(place[:size])
            return size
        found = self._encoded[1]
        place[: len(found)] = found
        return len(found)

    def _room(self, pull: Pull) -> memoryview:
        """The memory for the frame of an answer."""
        offset, room = self._job.layout.frames[pull.range]
        return self._arena.bytes(in_turn(self._job.layout.down[pull.worker], pull.iteration) + offset, room)

    def _gradient(self, push: Push) -> Gradient:
        size_bytes, layout = push.payload.size_bytes, self._job.layout
        if size_bytes == WHOLE:
            return in_turn(self._gradients[push.worker], push.iteration)
        if not size_bytes:  # none of the batch's keys
            return Entries(self._job.parts[push.range].size, _NOTHING, self._store.weights.numpy()[:0])
        pieces = self._pieces(push)
        with _refusing(push, "frame"):
            if self._job.keyed:
                return frame.entries_of(pieces[0], self._job.parts[push.range].size, layout.dtype)
            assert self._job.compression is not None
            return self._job.compression.read(push.range, pieces, self._served[push.range], **self._whose(push))

    def _pieces(self, push: Push) -> list[Parts]:
        """Read the parts of a push."""
        place = in_turn(self._job.layout.up[push.worker], push.iteration) + self._job.layout.frames[push.range][0]
        with _refusing(push, "frame"):
            return frame.read(self._arena.bytes(place, push.payload.size_bytes))

    def _whose(self, push: Push) -> dict[str, int]:
        step = self._job.traits.gradients_before(push.iteration)
        return {"worker": push.worker, "step": step, "turn": push.iteration}

    def _flat(self, offset: int) -> torch.Tensor:
        return self._arena.tensor(offset, self._job.layout.size, self._job.layout.dtype)

    def _warm_up(self) -> None:
        """Take the first step of a torch.optim class, which imports a compiler, before the run is measured."""
        one = torch.ones(1, dtype=self._job.layout.dtype)
        store = WeightStore(one, (Part((slice(0, 1),)),), self._job.optimizer)
        store.step(0, [one.clone()], self._job.run.learning_rate)
