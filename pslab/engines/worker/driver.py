"""The worker's driver: it hands what arrives to the protocol's machine, and sends what comes back.

It never waits and reads no clock: an engine hands in every instant, computes the iteration that a method returns, and
hands the gradient back to `computed`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, cast

from pslab.engines.emulation.compute_times import ComputeTimes
from pslab.engines.experiment.job import Job
from pslab.engines.experiment.wire import Frame, PushInfo, Wanted
from pslab.engines.worker.modes import range_schedule_of
from pslab.engines.worker.phases import Log, PhaseLog
from pslab.engines.worker.tensors import Basis, Write
from pslab.policies.rates import Applied
from pslab.protocol.messages import Ack, Pull, Push, Weights
from pslab.protocol.worker import Compute, EagerWorker, Effect, LayeredWorker, Worker, worker_of

if TYPE_CHECKING:
    from pslab.engines.worker.keyed import Requests

Send = Callable[[Frame, float], None]  # hand a frame to the transport, at an instant


class WorkerDriver:
    """One run at one of its workers. What returns `int | None` returns the iteration to be computed now, if any.

    Where workers pull keys, `requests` writes which ones.
    """

    def __init__(self, job: Job, worker: int, send: Send, rows: Log, requests: Requests | None = None) -> None:
        self._job, self._send, self._log, self._requests = job, send, PhaseLog(worker, rows), requests
        self.machine = worker_of(worker, len(job.parts), job.sync, layered=job.layered)
        self.range_schedule = range_schedule_of(job, worker)
        self._times = ComputeTimes(job.cluster, job.run.seed, worker)
        self._sent_s: dict[tuple[int, int], float] = {}  # (range, iteration): when its push was sent
        self._burst_s = 0.0  # since when it computes without a wait
        self._resumed = False  # compute times of the process before are not drawn yet
        self._here: dict[tuple[type, int], int] = {}  # of frames of a kind and a range, the last one's iteration
        self._seen = (-1, -1), 0  # of this iteration and layer, how many ranges are here, from the first one on
        self.refused = 0  #: frames that were here before, and changed nothing

    @property
    def iteration(self) -> int:
        """The iteration that is being computed or waited for."""
        return self.machine.iteration

    # --- computing ------------------------------------------------------------------------------------------------

    def start(self, now: float) -> int | None:
        """The run starts."""
        return self._perform(self.machine.start(), now)

    def join(self, iteration: int, now: float) -> int | None:
        """The worker is present from this iteration on, new or back."""
        self._sent_s.clear()
        self._here.clear()
        self._seen = (-1, -1), 0
        if self.range_schedule:
            self.range_schedule.join(iteration)
        return self._perform(self.machine.join(iteration), now)

    def resume(self, iteration: int) -> None:
        """Take the part of a process that has pushed all iterations before this one. The server has asked for
        its weights."""
        self._resumed = self._job.traits.assigns  # then its weights say how many gradients have been computed
        for before in range(0 if self._resumed else iteration):
            self.draw_compute_s(before)
            self.draw_following_s()
        if self.range_schedule:
            self.range_schedule.join(iteration)
        self.machine.join(iteration)

    def begin(self, now: float) -> None:
        """Start computing now."""
        self._burst_s = now

    def take_basis(self, iteration: int) -> Basis:
        """Take the basis of an iteration beside the weights, once for each."""
        keys = self.range_schedule.range_of(iteration, self.machine) if self.range_schedule else None
        return Basis(own_writes(self._job, self.machine), keys)

    def draw_compute_s(self, iteration: int) -> float:
        """Draw how long an iteration's gradients take until its push, in the modelled cluster, once for each."""
        if self._resumed:
            self._resumed = False
            self._drawn_s(self.machine.begin)
        return self._drawn_s(self.gradients(iteration) - self._job.traits.overlap)

    def draw_following_s(self) -> float:
        """Draw how long those gradients take that follow a push, once for each."""
        return self._drawn_s(self._job.traits.overlap)

    def _drawn_s(self, count: int) -> float:
        return self._times.draw() if count == 1 else sum([self._times.draw() for _ in range(count)])

    def gradients(self, iteration: int) -> int:
        """The gradients that an iteration is made of, which is computed now."""
        return self.machine.steps or self._job.traits.unassigned(self.machine.worker, iteration)

    def computed(
        self, ranges: Sequence[int], payloads: Iterable[PushInfo], ends_s: float, selected_s: float, now: float
    ) -> int | None:
        """The gradients of these ranges are ready since now: computed at `ends_s`, chosen at `selected_s`, encoded.

        A dense layer's takes no time beside computing, so the phases of an iteration of layers are logged at its end.
        """
        machine, iteration, effects = self.machine, self.machine.iteration, list[Effect]()
        for index, payload in zip(ranges, payloads, strict=True):
            effects += machine.computed(index, payload)
        sparse = self._job.sends_frames
        if self.range_schedule:
            self.range_schedule.computed(now - self._burst_s)
        if machine.iteration > iteration or (sparse and now > ends_s):
            self._log.computed(iteration, self._burst_s, ends_s)
            self._log.coded(iteration, ends_s, selected_s, now if sparse else None)
            self._burst_s = now
        return self._perform(effects, now)

    def followed(self, iteration: int, begin_s: float, now: float) -> None:
        """Record the steps that follow an iteration's push, taken since `begin_s`."""
        self._log.computed(iteration, begin_s, now)

    def missing(self, layer: int) -> int | None:
        """The first range of a layer whose weights are not here, which its forward pass needs."""
        machine, ranges = cast(LayeredWorker, self.machine), self._job.ranges_of[layer]
        forward = machine.iteration, layer
        here = self._seen[1] if self._seen[0] == forward else 0
        while here < len(ranges) and machine.holds(ranges[here]):
            here += 1
        self._seen = forward, here
        return ranges[here] if here < len(ranges) else None

    def stall(self, iteration: int, now: float) -> None:
        """Start a forward pass's wait for weights now."""
        if now > self._burst_s:
            self._log.computed(iteration, self._burst_s, now)

    # --- receiving ------------------------------------------------------------------------------------------------

    def drop_if_repeated(self, frame: Frame) -> bool:
        """Refuse a frame that was here before, as a whole, before anything of it is read; return whether it was.

        Called once for each frame, in the order in which frames come.
        """
        last = frame[-1]
        if type(last) not in (Weights, Ack):
            return False
        stream = type(last), last.range
        known: bool = last.iteration <= self._here.get(stream, -1)
        self._here[stream] = max(last.iteration, self._here.get(stream, -1))
        self.refused += known
        return known

    def acknowledged(self, ack: Ack, now: float) -> int | None:
        """A push was dealt with."""
        if self.range_schedule:
            self.range_schedule.acknowledged(ack)
        if self._job.traits.eager:  # else its weights tell
            self._pushed(ack.range, ack.iteration, *ack.payload)
        return self._perform(self.machine.ack(ack), now)

    def arrived(self, weights: Weights, now: float) -> None:
        """Take weights that have arrived, perhaps still encoded."""
        if self.range_schedule:
            self.range_schedule.arrived(weights, now)

    def installed(self, weights: Weights, arrived_s: float, now: float | None) -> int | None:
        """Weights are in their place since now, or, if that is None, will be when the next iteration starts."""
        iteration, answer = weights.iteration - 1, weights.payload
        if self._job.traits.eager:
            self._log.answered(weights, answer.asked_s, arrived_s)
        else:
            self._pushed(weights.range, iteration, answer.taken_s, answer.done_s)
            self._log.answered(weights, answer.done_s, arrived_s)
        if now is not None:
            self._log.decoded(iteration, arrived_s, now, weights.range)
        return self._perform(self.machine.weights(weights), arrived_s if now is None else now)

    def decoded(self, iteration: int, begin_s: float, now: float) -> None:
        """Record that weights that came while an iteration was computed are installed."""
        self._log.decoded(iteration, begin_s, now)

    def _pushed(self, index: int, iteration: int, taken_s: float, done_s: float) -> None:
        self._log.pushed(index, iteration, self._sent_s.pop((index, iteration), taken_s), taken_s, done_s)

    # --- sending --------------------------------------------------------------------------------------------------

    def _perform(self, effects: Iterable[Effect], now: float) -> int | None:
        """Send all messages as one frame; return the iteration to be computed, if there is one."""
        compute, frame = None, Frame()
        for effect in effects:
            if isinstance(effect, Compute):
                compute = effect.iteration
            elif isinstance(effect.request, Push):
                frame.append(self._push(effect.request, now))
            else:
                frame.append(self._pull(effect.request, now))
        if frame:
            self._send(frame, now)
        return compute

    def _push(self, push: Push, now: float) -> Push:
        worker, index, iteration, version, (size_bytes, entries, loss, sent_s), seen, *_ = push
        self._sent_s[index, iteration] = now
        if self.range_schedule:
            self.range_schedule.pushed(iteration, now)
        if sent_s == now:
            return push
        return Push(worker, index, iteration, version, PushInfo(size_bytes, entries, loss, now), seen)

    def _pull(self, pull: Pull, now: float) -> Pull:
        start, stop = self.range_schedule.asked(pull.iteration, now) if self.range_schedule else (0, 0)
        wanted = Wanted(start, stop, now)
        if self._requests is not None:
            wanted = Wanted(0, 0, now, self._requests.write(pull.worker, pull.iteration)[pull.range])
        return Pull(pull.worker, pull.range, pull.iteration, pull.version, wanted)


def own_writes(job: Job, machine: Worker) -> list[Write]:
    """What an eager worker adds to the weights that it computes on, its own pushes that are not in them yet: each with
    the rate by which the server is going to apply it, if no other push comes between."""
    if not isinstance(machine, EagerWorker) or not job.traits.reads_own:
        return []
    run, found = job.run, []
    for push in machine.missing():
        behind = push.iteration - machine.own[push.range]
        step = Applied(run.workers, 1, False, run.push_weight, push.seen, push.seen, push.seen)
        rate = job.learning_rate(machine.versions[push.range] + behind) * job.rate.scale(step)
        found.append(Write(push.range, push.iteration, rate, push.payload.size_bytes))
    return found
