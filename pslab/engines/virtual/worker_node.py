"""A worker in virtual time: the cluster says how long it computes and decodes; `Gradients` provides its gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from pslab.engines.emulation.faults import Faults
from pslab.engines.emulation.link_queue import Waiting
from pslab.engines.experiment.job import Job
from pslab.engines.experiment.wire import Diverged, Frame, PushInfo
from pslab.engines.virtual.scheduler import COMPUTED, INSTALLED, Scheduler
from pslab.engines.worker.driver import WorkerDriver
from pslab.engines.worker.phases import Log
from pslab.engines.worker.tensors import Basis, Pulled
from pslab.protocol.messages import Ack, Weights

if TYPE_CHECKING:
    from pslab.engines.emulation.layer_progress import Pass
    from pslab.engines.worker.keyed import Requests


class Gradients(Protocol):
    """The source of gradients."""

    def start(self, worker: int, iteration: int, pulled: list[Pulled], settled_s: float, basis: Basis) -> None:
        """Start the gradient of a worker's iteration, whose weights were settled at the instant `settled_s`."""

    def result(self, worker: int, meanwhile: Callable[[], None]) -> dict[str, Any]:
        """Return the result of the started gradient, as `hosts.body_of` does; call `meanwhile` while waiting."""


class Surroundings(Protocol):
    """The part of the simulator that a worker uses."""

    meanwhile: Callable[[], None]
    faults: Faults

    def send(self, worker: int, frame: Frame, now: float) -> None: ...

    def kill(self, worker: int, now: float) -> None: ...

    def diverge(self, message: Diverged, now: float) -> None: ...


class WorkerNode:
    """A worker in virtual time, at its position in an iteration."""

    def __init__(
        self, job: Job, worker: int, simulator: Surroundings, scheduler: Scheduler, gradients: Gradients,
        rows: Log, waiting: Waiting | None, requests: Requests | None,
    ) -> None:  # fmt: skip
        self._job, self.worker, self._simulator, self._scheduler = job, worker, simulator, scheduler
        self._gradients, self._waiting = gradients, waiting
        self.driver = WorkerDriver(job, worker, partial(simulator.send, worker), rows, requests)
        self._pass: Pass | None = None  # a layered worker's progress in its iteration
        self._present = False
        self._pulled: list[Pulled] = []  # weights for the next iteration
        self._unsettled = len(job.parts)  # ranges whose weights for the next iteration the server has not read
        self._following = False  # whether the worker takes the steps that follow a push
        self._next: int | None = None  # the iteration to compute after these steps
        self._started = False  # whether a gradient was started whose result was not taken yet
        self._body: dict[str, Any] = {}  # a layered worker's gradient whose backward pass is under way
        # start a gradient only when the worker computes: an eager worker is busy, and a fitted range is unknown before
        self._late = job.traits.eager or (self.driver.range_schedule is not None and job.prune.fitted)

    # --- present or not -------------------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Start the run."""
        self._present = True
        self._compute(self.driver.start(now), now)

    def leave(self) -> None:
        """Leave the run, and drop the iteration under way."""
        if self._started:
            self._result()  # the host must finish; nobody needs the result
        # a returning worker begins like a new one: the driver's `join` pulls all weights
        self._present, self._pulled, self._pass = False, [], None
        self._following, self._next, self._unsettled = False, None, len(self._job.parts)

    def join(self, iteration: int, now: float) -> None:
        """Join with this iteration, as a new or returning worker, and pull the weights."""
        self._present = True
        self._compute(self.driver.join(iteration, now), now)

    # --- receiving ------------------------------------------------------------------------------------------------

    def settled(self, weights: Weights, now: float) -> None:
        """Note that the server has read weights for this worker. These no longer change: after the last range, start
        the next gradient, while the weights travel. Do nothing if the worker has left, and the server does not know."""
        if not self._present:
            return
        self._pulled.append(Pulled.of(weights))
        self._unsettled -= 1
        # ahead of its virtual time: hosts compute side by side while other events are processed
        if not self._unsettled and not self._late:
            self._start_gradient(weights.iteration, now)

    def arrive(self, frame: Frame, now: float) -> None:
        """Handle a frame of the server that has arrived."""
        job, driver = self._job, self.driver
        if driver.drop_if_repeated(frame):
            return
        for message in frame:
            if isinstance(message, Ack):
                self._compute(driver.acknowledged(message, now), now)
                continue
            driver.arrived(message, now)
            # plain arrays are used where they are: only frames take time to decode
            encoded = message.payload.size_bytes > 0
            if encoded and (spent_s := job.cluster.decode_s * job.shares[message.range]):
                self._scheduler.at(now + spent_s, INSTALLED, self.worker, self._installed, (message, now))
            else:
                self._installed((message, now), now)

    def _installed(self, content: tuple[Weights, float], now: float) -> None:
        self._compute(self.driver.installed(*content, now), now)
        if self._pass is not None and self._pass.waiting:
            self._forward(self._pass, now)

    # --- computing ------------------------------------------------------------------------------------------------

    def _start_gradient(self, iteration: int, now: float) -> None:
        self._started = True
        pulled, self._pulled, self._unsettled = self._pulled, [], len(self._job.exchanged(iteration))
        self._gradients.start(self.worker, iteration, pulled, now, self.driver.take_basis(iteration))

    def _result(self) -> dict[str, Any]:
        self._started = False
        return self._gradients.result(self.worker, self._simulator.meanwhile)

    def _compute(self, iteration: int | None, now: float) -> None:
        if iteration is None:
            return
        if self._following:
            # the weights came before the steps that follow the last push were over
            self._next = iteration
            return
        job, driver = self._job, self.driver
        driver.begin(now)
        # if a layered worker lacks weights, the last of them start its gradient
        if not self._started and not (job.layered and any(
            driver.missing(layer) is not None for layer in range(len(job.ranges_of))
        )):  # fmt: skip
            self._start_gradient(iteration, now)
        steps = driver.gradients(iteration) - job.traits.overlap  # before the push; `_computed` counts the others
        spent_s = driver.draw_compute_s(iteration) + steps * job.inner_s
        if job.layered:
            from pslab.engines.emulation.layer_progress import Pass

            self._pass = Pass(job, iteration, spent_s, max(1, steps))
            self._forward(self._pass, now)
        else:
            self._until(now, spent_s, 1.0, self._computed, iteration)

    def _followed(self, content: tuple[int, float], now: float) -> None:
        self.driver.followed(*content, now)
        self._following, following = False, self._next
        self._next = None
        self._compute(following, now)

    def _until(self, now: float, spent_s: float, share: float, act: Any, content: Any) -> None:
        """Schedule `act` after `spent_s` of computing, and after selecting and encoding this share of the gradient."""
        job, costs, ends_s = self._job, self._job.cluster, now + spent_s
        ends_s += self._simulator.faults.pause_s(self.worker, self.driver.iteration, now, ends_s)
        # selection and encoding follow the computation: they take the worker's time, not the server's
        selected_s = ends_s + share * costs.select_s * job.select_factor
        encoded_s = selected_s + (share * costs.encode_s if job.sends_frames else 0.0)
        self._scheduler.at(encoded_s, COMPUTED, self.worker, act, (content, ends_s, selected_s))

    def _computed(self, content: tuple[int, float, float], now: float) -> None:
        job, (iteration, ends_s, selected_s) = self._job, content
        pushed = self._ready(self._result(), iteration, job.exchanged(iteration), ends_s, selected_s, now)
        if pushed and job.traits.overlap:  # the steps after the push may end after the next weights have arrived
            self._following = True
            ends_s = now + self.driver.draw_following_s() + job.traits.overlap * job.inner_s
            ends_s += self._simulator.faults.pause_s(self.worker, iteration, now, ends_s)
            self._scheduler.at(ends_s, COMPUTED, self.worker, self._followed, (iteration, now))

    def _ready(
        self, body: dict[str, Any], iteration: int, ranges: Sequence[int], ends_s: float, selected_s: float, now: float
    ) -> bool:
        """Push the gradients of these ranges; return False if they are not finite, or the worker is killed now."""
        payloads, loss = body["payloads"], body["loss"]
        if payloads is None:
            self._simulator.diverge(Diverged(self.worker, iteration), now)
            return False
        # after the computation and before the push: the gradient is lost
        if self._simulator.faults.kills(self.worker, iteration):
            self._simulator.kill(self.worker, now)
            return False
        fragments = self._job.traits.rotation.fragments  # an iteration exchanges every `fragments`-th range
        # `payloads` has the exchanged ranges only
        sizes = [payloads[index // fragments] for index in ranges]
        pushes = [PushInfo(size, entries, loss, now) for size, entries in sizes]
        self._compute(self.driver.computed(ranges, pushes, ends_s, selected_s, now), now)
        return True

    # --- layer by layer -------------------------------------------------------------------------------------------

    def _forward(self, at: Pass, now: float) -> None:
        missing = self.driver.missing(at.layer) if at.forward else None
        if missing is not None:
            if not at.waiting:
                self.driver.stall(at.iteration, now)
            at.waiting = True
        elif at.waiting:
            at.waiting = False
            self.driver.begin(now)
        if self._waiting is not None:
            # a request order may prefer the range for which a worker waits
            self._waiting.blocked[self.worker] = missing
        if missing is None:
            self._until(now, at.takes_s, 0.0 if at.forward else at.share, self._passed, at)

    def _passed(self, content: tuple[Pass, float, float], now: float) -> None:
        """End a layer's pass: after a backward pass, push the layer's ranges."""
        at, ends_s, selected_s = content
        layer, backward = at.layer, not at.forward
        at.done += 1
        if backward:
            if at.done == at.layers + 1:
                # at the first layer of the backward pass; the gradient is computed whole, and pushed layer by layer
                self._body = self._result()
            ranges = self._job.ranges_of[layer]
            if ranges and not self._ready(self._body, at.iteration, ranges, ends_s, selected_s, now):
                return
        if not at.ended:
            self._forward(at, now)
