"""The worker's driver: it passes arrived messages to the protocol's machine, and sends the machine's requests.

The driver never waits and reads no clock. An engine passes it every instant, computes the iteration that a method
returns, and passes the push to `computed`.
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

Send = Callable[[Frame, float], None]  # pass a frame to the transport at an instant


class WorkerDriver:
    """Drives a run at one worker. Methods that return `int | None` return the iteration to compute now, or None.

    If workers pull keys, `requests` writes the keys of each pull.
    """

    def __init__(self, job: Job, worker: int, send: Send, rows: Log, requests: Requests | None = None) -> None:
        self._job, self._send, self._log, self._requests = job, send, PhaseLog(worker, rows), requests
        self.machine = worker_of(worker, len(job.parts), job.sync, layered=job.layered)
        self.range_schedule = range_schedule_of(job, worker)
        self._times = ComputeTimes(job.cluster, job.run.seed, worker)
        self._sent_s: dict[tuple[int, int], float] = {}  # (range, iteration): when its push was sent
        self._burst_s = 0.0  # since when the worker has computed without a wait
        self._resumed = False  # whether the compute times of the former process are still to be drawn
        self._here: dict[tuple[type, int], int] = {}  # (kind, range) of a message: the last iteration that arrived
        self._seen = (-1, -1), 0  # (iteration, layer), and how many of the layer's first ranges have arrived
        self.refused = 0  #: repeated frames, which changed nothing

    @property
    def iteration(self) -> int:
        """The iteration that is being computed or awaited."""
        return self.machine.iteration

    # --- computing ------------------------------------------------------------------------------------------------

    def start(self, now: float) -> int | None:
        """Start the run."""
        return self._perform(self.machine.start(), now)

    def join(self, iteration: int, now: float) -> int | None:
        """Join with this iteration, as a new or returning worker."""
        self._sent_s.clear()
        self._here.clear()  # the iteration may have arrived before: it is no repeat
        self._seen = (-1, -1), 0
        if self.range_schedule:
            self.range_schedule.join(iteration)
        return self._perform(self.machine.join(iteration), now)

    def resume(self, iteration: int) -> None:
        """Replace a former process, which has pushed all iterations before this one. The server handles the pull of
        this iteration without a message."""
        self._resumed = self._job.traits.assigns  # then the weights say how many gradients have been computed
        # draw the former process's times again, so that this process gets the times that come after them
        for before in range(0 if self._resumed else iteration):
            self.draw_compute_s(before)
            self.draw_following_s()
        if self.range_schedule:
            self.range_schedule.join(iteration)
        self.machine.join(iteration)

    def begin(self, now: float) -> None:
        """Note `now` as the instant since which the worker computes without a wait."""
        self._burst_s = now

    def take_basis(self, iteration: int) -> Basis:
        """Return the inputs of an iteration's gradient beside the weights; call this once for each iteration."""
        keys = self.range_schedule.range_of(iteration, self.machine) if self.range_schedule else None
        return Basis(own_writes(self._job, self.machine), keys)

    def draw_compute_s(self, iteration: int) -> float:
        """Draw the modelled seconds of an iteration's gradients before its push; call this once for each iteration."""
        if self._resumed:
            self._resumed = False
            self._drawn_s(self.machine.begin)
        return self._drawn_s(self.gradients(iteration) - self._job.traits.overlap)

    def draw_following_s(self) -> float:
        """Draw the modelled seconds of the gradients that follow a push; call this once for each push."""
        return self._drawn_s(self._job.traits.overlap)

    def _drawn_s(self, count: int) -> float:
        # a draw for each gradient, so that policies with another number of gradients in a push get the same times
        return self._times.draw() if count == 1 else sum([self._times.draw() for _ in range(count)])

    def gradients(self, iteration: int) -> int:
        """Return the number of gradients in the iteration that is computed now."""
        return self.machine.steps or self._job.traits.unassigned(self.machine.worker, iteration)

    def computed(
        self, ranges: Sequence[int], payloads: Iterable[PushInfo], ends_s: float, selected_s: float, now: float
    ) -> int | None:
        """Push the gradients of these ranges, which were computed until `ends_s`, selected until `selected_s` and
        encoded until `now`. A layer that is not compressed needs no time for this, so it has no phases of its own."""
        machine, iteration, effects = self.machine, self.machine.iteration, list[Effect]()
        for index, payload in zip(ranges, payloads, strict=True):
            effects += machine.computed(index, payload)
        sparse = self._job.sends_frames
        if self.range_schedule:
            self.range_schedule.computed(now - self._burst_s)
        # uncompressed layers are one phase of computing, which ends with the last layer
        if machine.iteration > iteration or (sparse and now > ends_s):
            self._log.computed(iteration, self._burst_s, ends_s)
            self._log.coded(iteration, ends_s, selected_s, now if sparse else None)
            # a layer's coding is a phase of its own: computing goes on from here
            self._burst_s = now
        # one frame: on a link, the pushes of all ranges and the pulls that follow them are one message
        return self._perform(effects, now)

    def followed(self, iteration: int, begin_s: float, now: float) -> None:
        """Log the steps that follow an iteration's push, taken from `begin_s` to `now`."""
        self._log.computed(iteration, begin_s, now)

    def missing(self, layer: int) -> int | None:
        """Return the first range of a layer whose weights have not arrived; None if all have."""
        machine, ranges = cast(LayeredWorker, self.machine), self._job.ranges_of[layer]
        # asked after each message: go on with the range at which the last look ended
        forward = machine.iteration, layer
        here = self._seen[1] if self._seen[0] == forward else 0
        while here < len(ranges) and machine.holds(ranges[here]):
            here += 1
        self._seen = forward, here
        return ranges[here] if here < len(ranges) else None

    def stall(self, iteration: int, now: float) -> None:
        """Log the computing until now, when a forward pass begins to wait for weights."""
        if now > self._burst_s:
            self._log.computed(iteration, self._burst_s, now)

    # --- receiving ------------------------------------------------------------------------------------------------

    def drop_if_repeated(self, frame: Frame) -> bool:
        """Return whether a frame has arrived before, and so must be ignored; count such frames as refused. Call this
        once for each frame, in the order of arrival."""
        # a frame repeats as a whole, and frames of one kind and range arrive in order: its last message tells
        last = frame[-1]
        if type(last) not in (Weights, Ack):
            return False
        stream = type(last), last.range
        known: bool = last.iteration <= self._here.get(stream, -1)
        self._here[stream] = max(last.iteration, self._here.get(stream, -1))
        self.refused += known
        return known

    def acknowledged(self, ack: Ack, now: float) -> int | None:
        """Handle the acknowledgement of a push."""
        if self.range_schedule:
            self.range_schedule.acknowledged(ack)
        if self._job.traits.eager:  # else the next weights log the push
            self._pushed(ack.range, ack.iteration, *ack.payload)
        return self._perform(self.machine.ack(ack), now)

    def arrived(self, weights: Weights, now: float) -> None:
        """Note weights that have arrived, perhaps still encoded."""
        if self.range_schedule:
            self.range_schedule.arrived(weights, now)

    def installed(self, weights: Weights, arrived_s: float, now: float | None) -> int | None:
        """Handle weights that are installed at `now`, or, if it is None, when the next iteration starts."""
        iteration, answer = weights.iteration - 1, weights.payload
        # an eager worker's weights may come before its push is handled: its push is logged by the Ack
        if self._job.traits.eager:
            self._log.answered(weights, answer.asked_s, arrived_s)
        else:
            self._pushed(weights.range, iteration, answer.taken_s, answer.done_s)
            # a worker that is not eager waits from the moment at which its push was handled
            self._log.answered(weights, answer.done_s, arrived_s)
        if now is not None:
            self._log.decoded(iteration, arrived_s, now, weights.range)
        return self._perform(self.machine.weights(weights), arrived_s if now is None else now)

    def decoded(self, iteration: int, begin_s: float, now: float) -> None:
        """Log the installation of weights that arrived while an iteration was computed."""
        self._log.decoded(iteration, begin_s, now)

    def _pushed(self, index: int, iteration: int, taken_s: float, done_s: float) -> None:
        self._log.pushed(index, iteration, self._sent_s.pop((index, iteration), taken_s), taken_s, done_s)

    # --- sending --------------------------------------------------------------------------------------------------

    def _perform(self, effects: Iterable[Effect], now: float) -> int | None:
        """Send all requests as one frame; return the iteration to compute, or None."""
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
        if sent_s == now:  # virtual time has set it
            return push
        return Push(worker, index, iteration, version, PushInfo(size_bytes, entries, loss, now), seen)

    def _pull(self, pull: Pull, now: float) -> Pull:
        start, stop = self.range_schedule.asked(pull.iteration, now) if self.range_schedule else (0, 0)
        wanted = Wanted(start, stop, now)
        if self._requests is not None:
            # the frame has all ranges: it is written at the first range's pull, and read here for the others
            wanted = Wanted(0, 0, now, self._requests.write(pull.worker, pull.iteration)[pull.range])
        return Pull(pull.worker, pull.range, pull.iteration, pull.version, wanted)


def own_writes(job: Job, machine: Worker) -> list[Write]:
    """Return an eager worker's pushes that its weights do not contain yet, and that it adds itself: each with the rate
    at which the server will apply it, unless other pushes come first."""
    if not isinstance(machine, EagerWorker) or not job.traits.reads_own:
        return []
    run, writes = job.run, []
    for push in machine.missing():
        # the worker's pushes before this one, which the weights lack, will be steps by then
        behind = push.iteration - machine.own[push.range]
        step = Applied(run.workers, 1, False, run.push_weight, push.seen, push.seen, push.seen)
        rate = job.learning_rate(machine.versions[push.range] + behind) * job.rate.scale(step)
        writes.append(Write(push.range, push.iteration, rate, push.payload.size_bytes))
    return writes
