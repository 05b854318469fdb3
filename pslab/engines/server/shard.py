"""The weights at a server, in shared memory: apply steps, prepare replies.

In this mode, pushes and replies are plain arrays in shared memory; `shard_modes.py` chooses the mode of a run.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import torch

from pslab.engines.experiment.job import Job
from pslab.engines.experiment.layout import in_turn
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.experiment.wire import WHOLE
from pslab.protocol.messages import Pull, Push
from pslab.protocol.server import Reply, Step
from pslab.tensors.update import changes, rate_state
from pslab.tensors.update.methods import STATED
from pslab.tensors.update.part import Gradient, Part
from pslab.tensors.update.states import State, fitting, named, under
from pslab.tensors.update.store import WeightStore

if TYPE_CHECKING:
    from pslab.tensors.update.consensus import Consensus


class TensorShard:
    """The weights of all ranges of a run."""

    def __init__(self, job: Job, arena: Arena) -> None:
        self._job, self._arena = job, arena
        weights = arena.tensor(job.layout.server, job.layout.size, job.layout.dtype)
        self._store = WeightStore(weights, job.parts, job.optimizer, track_changes=job.run.pull == "changed")
        layers = [layer.flat for layer in job.keyspace.layers]
        self._rate_states = rate_state.at_server(job.rate, job.parts, layers, job.layout.dtype)
        self._consensus = _consensus(job, arena, weights)
        self._changes = changes.at_server(job.sync, job.parts, job.keyspace, job.shell)
        self._by_steps = getattr(job.sync, "by", "workers") == "steps"
        # once, before the run is timed; plain SGD uses no torch.optim class
        if not job.optimizer.plain_sgd:
            self._warm_up()
        # views, made once: a push names its buffer by worker and iteration
        self._gradients = [[self._flat(at) for at in buffers] for buffers in job.layout.gradients]

    @property
    def weights(self) -> torch.Tensor:
        """The present weights, flat."""
        return self._store.weights

    @property
    def converged(self) -> bool:
        """Whether the policy's method has converged, which ends the run."""
        return self._consensus is not None and self._consensus.converged

    def facts(self) -> dict[str, Any]:
        """Return the method's facts for the manifest."""
        return {} if self._consensus is None else self._consensus.facts()

    def state(self, server: int) -> State:
        """Return a server's part of a checkpoint: its weights, and the state of optimizer, rate and method for them."""
        tensors = {"weights": torch.cat([self.weights[piece] for piece in self._job.held[server]])}
        for name, owner in self._owners(server).items():
            tensors |= named(name, owner.state())
        for index in self._ranges(server):
            tensors |= named(f"range {index}", self._store.state(index))
        return tensors

    def restore(self, server: int, state: State) -> None:
        """Restore a server's part of a checkpoint in a new shard.

        Raises:
            KeyError, ValueError, RuntimeError: the state is of another run.
        """
        pieces = self._job.held[server]
        # refuses another shape or dtype, as a checkpoint of another run has
        whole = fitting(state["weights"], torch.cat([self.weights[piece] for piece in pieces]))
        for piece, weights in zip(pieces, torch.split(whole, [s.stop - s.start for s in pieces]), strict=True):
            self.weights[piece] = weights
        for name, owner in self._owners(server).items():
            owner.restore(under(name, state))
        for index in self._ranges(server):
            self._store.restore(index, under(f"range {index}", state))

    def _owners(self, server: int) -> dict[str, Any]:
        """Return the objects, beside the weights, whose states a server's checkpoint contains, by their names in it."""
        states: dict[str, Sequence[Any]] = {"rate": self._rate_states, "changes": self._changes}
        owners = {f"{name} {index}": by_range[index] for name, by_range in states.items() if by_range
                 for index in self._ranges(server)}  # fmt: skip
        return owners if self._consensus is None else {**owners, "consensus": self._consensus}

    def _ranges(self, server: int) -> list[int]:
        return [index for index, its in enumerate(self._job.server_of) if its == server]

    def leave(self, worker: int) -> None:
        """Forget the learning rate's state for a worker that has left."""
        for state in self._rate_states:
            state.leave(worker)

    def apply(self, step: Step, rate: float, computing: Collection[int]) -> None:
        """Apply the pushes of a step at a learning rate; `computing`: the versions on which workers compute meanwhile.

        Raises:
            WorkerFailed: a push has a bad frame.
        """
        # a push without content is counted by the policy, and its gradient comes with a later push
        is_pushed = self._job.traits.pushes
        pushes = [push for push in step.pushes if is_pushed(push.iteration)]
        gradients = self._read(step, pushes)
        if self._consensus is not None:
            gradients = self._consensus.adjust(step, gradients)
        if self._by_steps:
            gradients = changes.by_steps(self._job.parts[step.range], gradients, [push.steps for push in step.pushes])
        if self._changes and gradients:
            gradients = self._changes[step.range].adjust(step, gradients)
        # last, because a rate's vectors describe the gradients as the optimizer gets them
        if self._rate_states and gradients:
            gradients = self._rate_states[step.range].adjust(step, gradients, computing)
        self._store.step(step.range, gradients, rate, plain=self._job.averages(step))

    def lay(self, reply: Reply) -> int:
        """Prepare the weights of a range for a worker; return the bytes of the frame, WHOLE for a plain array, or 0 for
        an empty reply."""
        pull = reply.pull
        if self._changes:
            self._changes[pull.range].answered(pull)
        if reply.empty:
            return 0
        if self._consensus is not None:
            self._consensus.state_rho()  # the worker reads it when these weights come
        # in place a worker reads the server's own weights: nothing is copied
        return WHOLE if self._job.layout.in_place else self._answer(pull, reply.version)

    # --- other modes override these -------------------------------------------------------------------------------

    def _read(self, step: Step, pushes: Sequence[Push]) -> Sequence[Gradient]:
        return [self._gradient(push) for push in pushes]

    def _gradient(self, push: Push) -> Gradient:
        return in_turn(self._gradients[push.worker], push.iteration)

    def _answer(self, pull: Pull, version: int) -> int:
        """Write the weights of a range into the worker's buffer; return their bytes, as `lay` does."""
        return self._copy(pull, self._store.weights)

    # --- common to all modes --------------------------------------------------------------------------------------

    def _copy(self, pull: Pull, weights: torch.Tensor) -> int:
        part = self._job.parts[pull.range]
        target = self._flat(in_turn(self._job.layout.arrivals[pull.worker], pull.iteration))
        for there, here in zip(part.views(target), part.views(weights), strict=True):
            there.copy_(here)
        return WHOLE

    def _flat(self, offset: int) -> torch.Tensor:
        return self._arena.tensor(offset, self._job.layout.size, self._job.layout.dtype)

    def _warm_up(self) -> None:
        """Take a step before the run is measured: the first step of a torch.optim class imports a compiler."""
        one = torch.ones(1, dtype=self._job.layout.dtype)
        store = WeightStore(one, (Part((slice(0, 1),)),), self._job.optimizer)
        store.step(0, [one.clone()], self._job.run.learning_rate)


def _consensus(job: Job, arena: Arena, weights: torch.Tensor) -> Consensus | None:
    """Return the server's part of a consensus method; None if the policy has no such method."""
    if (rho := job.layout.number(arena)) is None:
        return None
    from pslab.tensors.update.consensus import Consensus  # only these runs import it

    stated = [arena.tensor(offsets[STATED], *job.layout.memories[STATED][:2])
              for offsets in job.layout.memory_offsets if STATED in offsets]  # fmt: skip
    return Consensus(job.sync, job.parts[0], weights, stated, rho)
