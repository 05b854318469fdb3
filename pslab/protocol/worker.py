"""The worker: wait for the weights of every range, compute, push every range, pull for the next iteration.

    waiting    -- weights of the last missing range, and the gradient's buffer is free -->  computing: Compute
    computing  -- the gradient of a range is ready -->  its push, and the pull that follows it, are sent
    computing  -- the gradient of the last range is ready -->  waiting

A worker starts with weights of version 0 and may compute iteration 0; a worker that joins later asks for weights first.
It has two gradient buffers, used in turn: iteration t is not computed before the server has freed the push of t - 2.
Duplicate and late messages change nothing. The link decides the order in which it sends requests.

If iterations exchange fragments of the model in turn, a worker pushes and awaits only the ranges of the iteration's
fragment; arrived weights and free buffers are counted in turns of their range (see `pslab.protocol.rotation`).

A layered worker starts an iteration at once: its forward pass waits for a range's weights before it uses them.

An eager worker asks for the next weights as it starts to compute (Jin et al., TPDS 2022; see EagerWorker).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pslab.errors import ProtocolError
from pslab.protocol.messages import Ack, Pull, Push, Weights
from pslab.protocol.requests import Request
from pslab.protocol.rotation import ALL, Rotation
from pslab.protocol.traits import BUFFERS, EAGER_BUFFERS, Sync, traits_of


class Compute(NamedTuple):
    """Effect: compute the gradient of this iteration on the worker's weights, into buffer iteration % buffers."""

    iteration: int


class Send(NamedTuple):
    """Effect: send this request."""

    request: Request


Effect = Compute | Send


def worker_of(worker: int, ranges: int, sync: Sync, *, layered: bool = False) -> Worker:
    """Return the machine of a worker under this policy; `layered` if its requests go layer by layer."""
    traits = traits_of(sync)
    return (EagerWorker if traits.eager else LayeredWorker if layered else Worker)(worker, ranges, traits.rotation)


class Worker:
    """A worker's state machine: call `start`, `computed` for each range, `weights` and `ack` for each message."""

    buffers = BUFFERS

    def __init__(self, worker: int, ranges: int, rotation: Rotation = ALL) -> None:
        self.worker, self.iteration, self._rotation = worker, 0, rotation
        self.computing = False
        self.versions = [0] * ranges
        self._held_for = [0] * ranges  # per range, the turn for which its weights were sent
        self._unpushed: set[int] = set()  # ranges whose gradient of this iteration is not ready
        self._freed = [0] * ranges  # per range, the number of turns whose pushes have been freed
        self.begin = self.steps = 0  #: gradients before and in the next iteration, if the policy assigns them

    def start(self) -> list[Effect]:
        """Start the run."""
        return self._compute_if_ready()

    def join(self, iteration: int) -> list[Effect]:
        """Join with this iteration, as a new or returning worker: ask for the weights of every range.

        The former state is discarded; the weights that the worker has count as the initial ones, of version 0.
        """
        ranges = len(self.versions)
        self.iteration, self.computing, self._unpushed = iteration, False, set()
        self.versions, self._held_for = [0] * ranges, [turns - 1 for turns in self._turns(iteration)]
        self._freed, self.begin, self.steps = self._turns(iteration), 0, 0
        return [Send(Pull(self.worker, index, iteration, 0)) for index in range(ranges)]

    def computed(self, index: int, payload: Any = None) -> list[Effect]:
        """Push the computed gradient of a range, and pull its next weights.

        Raises:
            ProtocolError: no gradient of this range is being computed.
        """
        self._finish(index)
        iteration, version = self.iteration, self.versions[index]
        self._advance()
        return [Send(Push(self.worker, index, iteration, version, payload)),
                Send(Pull(self.worker, index, iteration + 1, version))]  # fmt: skip

    def weights(self, message: Weights) -> list[Effect]:
        """Handle a reply to a pull."""
        turn = self._rotation.turn(message.range, message.iteration)
        if turn <= self._held_for[message.range]:
            return []
        self._held_for[message.range] = turn
        self.versions[message.range], self.begin, self.steps = message.version, message.begin, message.steps
        return self._compute_if_ready()

    def ack(self, message: Ack) -> list[Effect]:
        """Handle an acknowledgement: the payload of the push is free again."""
        turn = self._rotation.turn(message.range, message.iteration)
        self._freed[message.range] = max(self._freed[message.range], turn + 1)
        return self._compute_if_ready()

    def _finish(self, index: int) -> None:
        if not self.computing or index not in self._unpushed:
            at = f"range {index} of iteration {self.iteration}"
            raise ProtocolError(f"worker {self.worker} is not computing {at}; call `computed` once for each range")
        self._unpushed.remove(index)

    def _advance(self) -> None:
        if not self._unpushed:
            self.computing = False
            self.iteration += 1

    def _compute_if_ready(self) -> list[Effect]:
        if self.computing or not self._may_compute():
            return []
        self.computing = True
        self._unpushed = set(self._rotation.ranges(self.iteration, len(self.versions)))
        return self._compute()

    def _turns(self, iteration: int) -> list[int]:
        if self._rotation.fragments == 1:
            return [iteration] * len(self.versions)
        return [self._rotation.turn(index, iteration) for index in range(len(self.versions))]

    def _had(self, counts: Sequence[int], iteration: int) -> bool:
        """Whether each range has had the turns that come before an iteration."""
        if self._rotation.fragments == 1:
            return min(counts) >= iteration
        return all(map(int.__ge__, counts, self._turns(iteration)))

    def _may_compute(self) -> bool:
        return self._free() and self._had(self._held_for, self.iteration)

    def _free(self) -> bool:
        """Whether the buffer into which this iteration is computed is free."""
        return self._had(self._freed, self.iteration - self.buffers + 1)

    def _compute(self) -> list[Effect]:
        return [Compute(self.iteration)]


class LayeredWorker(Worker):
    """A worker that starts an iteration before its weights arrive; the forward pass waits for each range's weights."""

    def holds(self, index: int) -> bool:
        """Whether the weights of a range for the iteration being computed have arrived."""
        return self._held_for[index] >= self.iteration

    def computed(self, index: int, payload: Any = None) -> list[Effect]:
        """Push the gradient of a range after its backward pass, and pull its next weights.

        Raises:
            ProtocolError: no gradient of this range is being computed, or weights of its iteration are missing.
        """
        begins = len(self._unpushed) == len(self.versions)  # the first range: weights that have arrived stay valid
        if begins and not all(map(self.holds, range(len(self.versions)))):
            raise ProtocolError(f"worker {self.worker} cannot have a gradient of range {index}: weights of "
                                f"iteration {self.iteration} are missing")  # fmt: skip
        return super().computed(index, payload) + self._compute_if_ready()

    def _may_compute(self) -> bool:
        return self._free()


class EagerWorker(Worker):
    """A worker that pulls for iteration t + 1 as it starts t, so that push and pull overlap with computing.

        starts t      it takes the weights that arrived for t, asks for weights of t + 1, and computes t
        computed t    the push waits for the weights of t + 1: the other workers' steps between the weights of t and of
                      t + 1 are the staleness that the worker observes for its push

    Its weights contain `own` of its pushes; the worker may add its other pushes itself (read my writes). On a link, the
    pull for t + 1 may overtake the push of t - 1, whose transfer takes longer. Then the weights lack two pushes, and
    the worker computes into a third buffer.
    """

    buffers = EAGER_BUFFERS

    def __init__(self, worker: int, ranges: int, rotation: Rotation = ALL) -> None:
        super().__init__(worker, ranges, rotation)
        self.own = [0] * ranges
        self._next = [(0, 0)] * ranges  # per range: version and own pushes of the newest weights
        self._ready: dict[int, Any] = {}  # range: payload of a gradient that is computed and not pushed
        self._mine: tuple[Push, ...] = ()  # the worker's pushes that its weights may lack

    def join(self, iteration: int) -> list[Effect]:
        ranges = len(self.versions)
        self.own, self._next, self._ready, self._mine = [0] * ranges, [(0, 0)] * ranges, {}, ()
        return super().join(iteration)

    def computed(self, index: int, payload: Any = None) -> list[Effect]:
        self._finish(index)
        self._ready[index] = payload
        iteration = self.iteration
        self._advance()
        sent = self._push(index, iteration) if self._held_for[index] > iteration else []
        return sent + self._compute_if_ready()

    def weights(self, message: Weights) -> list[Effect]:
        index = message.range
        if message.iteration <= self._held_for[index]:
            return []
        self._held_for[index], self._next[index] = message.iteration, (message.version, message.own_pushes)
        sent = self._push(index, message.iteration - 1) if index in self._ready else []
        return sent + self._compute_if_ready()

    def _push(self, index: int, iteration: int) -> list[Effect]:
        (version, own_pushes), used = self._next[index], self.versions[index]
        others = (version - used) - (own_pushes - self.own[index])
        push = Push(self.worker, index, iteration, used, self._ready.pop(index), others)
        self._mine += (push,)
        return [Send(push)]  # no pull: it was sent when the iteration started

    def missing(self) -> tuple[Push, ...]:
        """Return the worker's pushes that the weights it computes on do not contain."""
        return self._mine

    def _compute(self) -> list[Effect]:
        self.versions, self.own = [version for version, _ in self._next], [own_pushes for _, own_pushes in self._next]
        self._mine = tuple(push for push in self._mine if push.iteration >= self.own[push.range])
        pulls = [Pull(self.worker, index, self.iteration + 1, version) for index, version in enumerate(self.versions)]
        return [*map(Send, pulls), Compute(self.iteration)]
