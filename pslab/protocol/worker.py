"""The worker: wait for the weights of every range, compute, push every range, pull for the next iteration.

    waiting    -- weights of the last missing range, and the gradient's buffer is free -->  computing: Compute
    computing  -- the gradient of a range is ready -->  its push joins the pool
    computing  -- ... of the last range -->  waiting
    any        -- the transport can take a request -->  Send, in the pool's order; a push is followed by its pull

A worker starts with weights of version 0 and may compute iteration 0; one that joins later asks for weights first. It
has two gradient buffers, used in turn: iteration t is not computed before the server has freed the push of t - 2.
Whatever arrives twice or late changes nothing.

An eager worker asks for the next weights as it begins to compute (Jin et al., TPDS 2022; see EagerWorker).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pslab.errors import ProtocolError
from pslab.protocol.messages import Ack, Pull, Push, Sync, Weights
from pslab.protocol.pool import Order, Pool, Request, View

BUFFERS = 2  # gradient buffers per worker
EAGER_BUFFERS = 3  # one is computed into; two pushes are on their way, or not yet acknowledged


class Compute(NamedTuple):
    """Effect: compute the gradient of this iteration on the weights that are here, into buffer iteration % buffers."""

    iteration: int


class Send(NamedTuple):
    """Effect: hand this request to the transport."""

    request: Request


Effect = Compute | Send


def worker_of(worker: int, ranges: int, order: Order, sync: Sync) -> Worker:
    """The machine that a synchronization policy asks for."""
    return (EagerWorker if getattr(sync, "eager", False) else Worker)(worker, ranges, order)


class Worker:
    """The machine: `start`, `computed` per range, `weights` and `ack` as they arrive."""

    buffers = BUFFERS

    def __init__(self, worker: int, ranges: int, order: Order) -> None:
        self.worker, self.order = worker, order
        self.iteration = 0
        self.computing = False
        self.versions = [0] * ranges
        self._held_for = [0] * ranges  # per range, the iteration that the weights here allow
        self._unpushed: set[int] = set()  # ranges whose gradient of this iteration is not ready
        self._acked = [-1] * ranges  # per range, the last iteration whose push is free
        self._pool = Pool(ranges)

    def start(self) -> list[Effect]:
        """The run begins."""
        return self._compute_if_ready()

    def join(self, iteration: int) -> list[Effect]:
        """It is there from this iteration on, new or back: it asks for the weights of every range.

        It forgets what it was doing. What it has of the weights is as good as those of version 0.
        """
        ranges = len(self.versions)
        self.iteration, self.computing, self._unpushed = iteration, False, set()
        self.versions, self._held_for = [0] * ranges, [iteration - 1] * ranges
        self._acked = [iteration - 1] * ranges
        self._pool = Pool(ranges)
        for index in range(ranges):
            self._pool.add(Pull(self.worker, index, iteration, 0))
        return self._pump()

    def computed(self, index: int, payload: Any = None) -> list[Effect]:
        """The gradient of a range is ready to be pushed.

        Raises:
            ProtocolError: no gradient of this range is being computed.
        """
        self._finish(index)
        self._pool.add(Push(self.worker, index, self.iteration, self.versions[index], payload))
        self._advance()
        return self._pump()

    def weights(self, message: Weights) -> list[Effect]:
        """The answer to a pull arrived."""
        if message.iteration <= self._held_for[message.range]:
            return []
        self._held_for[message.range] = message.iteration
        self.versions[message.range] = message.version
        return self._compute_if_ready()

    def ack(self, message: Ack) -> list[Effect]:
        """The payload of a push is free again."""
        self._acked[message.range] = max(self._acked[message.range], message.iteration)
        return self._compute_if_ready()

    def _finish(self, index: int) -> None:
        if not self.computing or index not in self._unpushed:
            raise ProtocolError(f"worker {self.worker} is not computing range {index} of iteration {self.iteration}")
        self._unpushed.remove(index)

    def _advance(self) -> None:
        if not self._unpushed:
            self.computing = False
            self.iteration += 1

    def _compute_if_ready(self) -> list[Effect]:
        ready = min(self._held_for) >= self.iteration and min(self._acked) >= self.iteration - self.buffers
        if self.computing or not ready:
            return []
        self.computing = True
        self._unpushed = set(range(len(self.versions)))
        return self._begin()

    def _begin(self) -> list[Effect]:
        return [Compute(self.iteration)]

    def _pump(self) -> list[Effect]:
        effects: list[Effect] = []
        while (request := self._pool.take(self.order, self._view())) is not None:
            effects.append(Send(request))
            if isinstance(request, Push):
                self._pushed(request)
        return effects

    def _pushed(self, push: Push) -> None:
        """A push goes out; its pull follows."""
        self._pool.add(Pull(self.worker, push.range, push.iteration + 1, self.versions[push.range]))

    def _view(self) -> View:
        return View(self.worker)


class EagerWorker(Worker):
    """A worker that pulls for iteration t + 1 as it begins t, so that both ways overlap with computing.

        begins t     the weights that have come for t are taken, their successors asked for, t is computed
        computed     the push waits for the weights of t + 1: what others have done in between is the staleness that
                     the worker sees of it

    `own` of its pushes are in the weights that it computes on; it may add the others itself (read-my-writes). On a link
    the request for t + 1 overtakes the push of t - 1, whose bytes it need not wait for: then two are not in them, and a
    third buffer is being computed into.
    """

    buffers = EAGER_BUFFERS

    def __init__(self, worker: int, ranges: int, order: Order) -> None:
        super().__init__(worker, ranges, order)
        self.own = [0] * ranges
        self._next = [(0, 0)] * ranges  # per range: version and own pushes of the weights that came last
        self._ready: dict[int, Any] = {}  # payloads of ranges that are computed and not pushed
        self._mine: tuple[Push, ...] = ()  # pushes that may not be in the weights here

    def join(self, iteration: int) -> list[Effect]:
        ranges = len(self.versions)
        self.own, self._next, self._ready, self._mine = [0] * ranges, [(0, 0)] * ranges, {}, ()
        return super().join(iteration)

    def computed(self, index: int, payload: Any = None) -> list[Effect]:
        self._finish(index)
        self._ready[index] = payload
        iteration = self.iteration
        self._advance()
        if self._held_for[index] > iteration:
            self._push(index, iteration)
        return self._pump() + self._compute_if_ready()

    def weights(self, message: Weights) -> list[Effect]:
        index = message.range
        if message.iteration <= self._held_for[index]:
            return []
        self._held_for[index], self._next[index] = message.iteration, (message.version, message.own)
        if index in self._ready:
            self._push(index, message.iteration - 1)
        return self._pump() + self._compute_if_ready()

    def _push(self, index: int, iteration: int) -> None:
        (version, own), used = self._next[index], self.versions[index]
        others = (version - used) - (own - self.own[index])
        push = Push(self.worker, index, iteration, used, self._ready.pop(index), others)
        self._mine += (push,)
        self._pool.add(push)

    def missing(self) -> tuple[Push, ...]:
        """Its own pushes that are not in the weights that it computes on."""
        return self._mine

    def _pushed(self, push: Push) -> None:
        """Its pull has long gone."""

    def _begin(self) -> list[Effect]:
        self.versions, self.own = [version for version, _ in self._next], [own for _, own in self._next]
        self._mine = tuple(push for push in self._mine if push.iteration >= self.own[push.range])
        for index, version in enumerate(self.versions):
            self._pool.add(Pull(self.worker, index, self.iteration + 1, version))
        return [*self._pump(), Compute(self.iteration)]
