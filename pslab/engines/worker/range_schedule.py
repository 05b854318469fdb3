"""The range of keys that each iteration of a worker exchanges, the fit of the range's size, and the worker's tensors.

An exchange is the push and the pull of the same range. For an eager worker, push and pull overlap with computing, and
the exchange lasts as long as the longer of them. For other workers it lasts from the push to the weights, without the
wait for other workers. A push lasts until it is handled: from its sending, or from when the previous push was handled,
if that is later. A pull lasts from its sending until the weights have arrived. The worker's clock measures these
instants, except the end of a push, which the acknowledgement contains.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pslab.engines.experiment.job import Job
from pslab.engines.experiment.wire import PushInfo
from pslab.engines.worker.framed_tensors import FramedProducer
from pslab.engines.worker.tensors import Basis, RangeOfIteration
from pslab.policies.planning.range_size import Fit
from pslab.policies.rates import Applied
from pslab.protocol.messages import Ack, Weights
from pslab.protocol.server import first_step
from pslab.protocol.worker import Worker
from pslab.tensors.compression.sparse import Ranges, keys_of, ranges_in
from pslab.tensors.entries import Entries
from pslab.tensors.workload.keyspace import KeyRange

SWEEP_COLUMNS = ("worker", "iteration", "keys", "alpha_s", "beta_s", "compute_s")


class RangeSchedule:
    """The ranges of one worker's iterations; their size is fitted anew when a sweep over the keys starts."""

    def __init__(self, job: Job, worker: int) -> None:
        self._job, self._rule, self._worker = job, job.prune, worker
        self._keys = job.keyspace.keys
        self._fit, self._sweep = Fit(), 0
        self.sweeps: list[tuple[float, ...]] = []  #: a row for each sweep; see SWEEP_COLUMNS
        self._begins: dict[int, KeyRange] = {}  # iteration: its range, of the last few iterations
        self._begin = self._next = 0  # first iteration of the sweep; first iteration whose range is not decided
        self._size = self._keys
        self._step = first_step(job.sync, job.run.workers)
        self._asked_s: dict[int, float] = {}  # iteration: when its weights were pulled
        self._pushed_s: dict[int, float] = {}
        self._pulls_s: dict[int, tuple[float, float]] = {}  # iteration: when it was pulled, and how long this took
        self._taken_s: dict[int, float] = {}  # iteration: when the server took its push
        self._done_s = 0.0  # when the last push was handled
        self._late = False  # whether the last pull waited behind a push
        self._missing: dict[tuple[type, int], int] = {}  # (kind of message, iteration): ranges still without it
        self._joined = -1  # the iteration for which the worker pulls all weights
        self._resume(0)

    def join(self, iteration: int) -> None:
        """Start with this iteration; the first pull is for all weights."""
        self._joined = iteration
        for known in (self._asked_s, self._pushed_s, self._pulls_s, self._taken_s, self._begins, self._missing):
            known.clear()
        if iteration or self._next:  # a late join, or the worker was present before
            self._resume(iteration)

    def decide_keys(self, iteration: int) -> KeyRange:
        """Return the range of an iteration: of the next iteration, which is decided now, or of one of the last few."""
        while self._next <= iteration:
            if self._rule.fitted and self._next - self._begin == ranges_in(self._size, self._keys):
                self._resume(self._next)
            self._begins[self._next] = keys_of(self._size, self._keys, self._next - self._begin)
            self._begins.pop(self._next - 8, None)
            self._next += 1
        return self._begins[iteration]

    def range_of(self, iteration: int, machine: Worker) -> RangeOfIteration:
        """Return the range of an iteration that starts now, and the rate of its push."""
        keys = self.decide_keys(iteration)
        return RangeOfIteration(keys.start, keys.stop, self._rate(iteration, machine.versions[0]))

    # --- learning -------------------------------------------------------------------------------------------------

    def pushed(self, iteration: int, now: float) -> None:
        """Note the sending of a push."""
        self._pushed_s[iteration] = now

    def asked(self, iteration: int, now: float) -> tuple[int, int]:
        """Note the sending of a pull; return its first key and the end of its keys: the keys of the push before it, or
        all keys after a join."""
        if iteration == self._joined:
            return 0, self._keys
        keys = self.decide_keys(iteration - 1)
        self._asked_s[iteration - 1] = now
        return keys.start, keys.stop

    def computed(self, seconds: float) -> None:
        """Note the seconds of a gradient and of its preparation for the push."""
        self._fit = self._fit.computed(seconds, self._rule.quantile)

    def acknowledged(self, ack: Ack) -> None:
        """Note an acknowledged push. For an eager worker, this ends an exchange, whose weights came before."""
        if not self._last(ack):
            return
        iteration, (taken_s, done_s) = ack.iteration, ack.payload
        before_s, self._done_s = self._done_s, done_s
        if not self._job.traits.eager:
            return
        self._taken_s[iteration] = taken_s
        pushed_s, pull = self._pushed_s.pop(iteration, None), self._pulls_s.pop(iteration, None)
        if pushed_s is None or pull is None:
            return
        asked_s, pull_s = pull
        push_s, ahead_s = done_s - max(pushed_s, before_s), self._taken_s.pop(iteration - 2, asked_s)
        # do not measure a pull that waits behind a push, unless the pull before waited, too: the link is never free
        late, self._late = self._late, ahead_s > asked_s
        if late or not self._late:
            self._exchanged(iteration, max(push_s, pull_s - max(0.0, ahead_s - asked_s)))

    def arrived(self, weights: Weights, now: float) -> None:
        """Note the arrival of weights. For a worker that is not eager, this ends an exchange."""
        if not self._last(weights):
            return
        iteration, answer = weights.iteration - 1, weights.payload
        asked_s = self._asked_s.pop(iteration, None)
        if asked_s is None:
            return
        if self._job.traits.eager:  # the wait for other workers begins when the server has the pull
            self._pulls_s[iteration] = asked_s, now - asked_s - (answer.released_s - answer.asked_s)
        elif (pushed_s := self._pushed_s.pop(iteration, None)) is not None:
            self._exchanged(iteration, now - pushed_s - (answer.released_s - answer.done_s))

    def _last(self, message: Ack | Weights) -> bool:
        """Count a message of an iteration; return whether it is the last of all ranges, which ends the exchange."""
        name = type(message), message.iteration
        self._missing[name] = self._missing.get(name, len(self._job.parts)) - 1
        return not self._missing[name] and self._missing.pop(name) == 0

    def _exchanged(self, iteration: int, seconds: float) -> None:
        if (keys := self._begins.get(iteration)) is not None and self._rule.fitted:
            entries = sum(s.stop - s.start for s in self._job.keyspace.slices(keys))
            # keys differ in size: count keys of the mean size instead
            self._fit = self._fit.exchanged(entries * self._keys / self._job.keyspace.size, seconds)

    def _resume(self, iteration: int) -> None:
        """Start a sweep over the keys at an iteration: fit the size of its ranges, which are numbered from here. Ranges
        of a fixed size are numbered from iteration 0, for a worker that joins later, too."""
        rule: Ranges = self._rule
        self._begin, self._next = (iteration if rule.fitted else 0), iteration
        if not rule.fitted:
            self._size = min(int(rule.size), self._keys)
            return
        self._size = self._fit.size(self._sweep, self._keys)
        self._sweep += 1
        line = self._fit.line
        self.sweeps.append((self._worker, iteration, self._size, line.alpha_s, line.beta_s, self._fit.compute_s))

    # --- adding entries that are not pushed yet ----------------------------------------------------------------------

    def _rate(self, iteration: int, version: int) -> float:
        """Return the rate at which the server will apply a push of this worker; 0 if the worker adds no own pushes."""
        job, run = self._job, self._job.run
        if self._step is None or not (job.applies_own_pushes or job.traits.eager):
            return 0.0
        pushes, aggregate = len(self._step.pushes), self._step.aggregate
        step = Applied(run.workers, pushes, aggregate, run.push_weight, 0, 0, 0)
        applied = version * pushes * job.traits.gradients_before(iteration) / max(1, iteration)
        return job.learning_rate(round(applied)) * job.rate.scale(step) / pushes


class RangeProducer(FramedProducer):
    """The tensors of a worker whose iterations exchange one range of keys each."""

    def __init__(self, job: Job, *given: Any, **named: Any) -> None:
        super().__init__(job, *given, **named)
        self._slices: Sequence[slice] = ()  # the slices of the flat vector that this iteration exchanges
        self._came: list[tuple[int, Entries]] = []  # (range, entries) that arrived since the last gradient

    def _take(self, basis: Basis) -> None:
        """Add to the weights the worker's pushes that they lack, and its entries that are not pushed yet."""
        job, exchanged = self._job, basis.range
        assert exchanged is not None  # the schedule of ranges gives one for each iteration
        self._slices, self._rate = job.keyspace.slices(exchanged.keys), exchanged.rate
        if job.traits.reads_own:
            for write in basis.writes:  # a push is lost where newer weights have overwritten it
                pushed = self._sent(write.range, write.iteration, write.size_bytes)
                for index, came in self._came:
                    if index == write.range:
                        job.parts[index].add(self._held, common(pushed, came), -write.rate)
        self._came = []
        if job.traits.eager or job.applies_own_pushes:
            self._shared_weights.copy_(self._held)
            self._to_device()
        if job.applies_own_pushes and "residual" in self._memories:
            self._weights.add_(self._memories["residual"], alpha=-self._rate)

    def _encode(
        self, iteration: int, loss: float, ranges: Sequence[int], made: Sequence[int], span: slice
    ) -> tuple[list[PushInfo], float]:
        payloads, selected_s = super()._encode(iteration, loss, ranges, made, span)
        for index, payload in zip(ranges, payloads, strict=True) if self._job.traits.reads_own else ():
            # add the push now; newer weights of these keys, which contain it, overwrite the sum
            self._job.parts[index].add(self._held, self._sent(index, iteration, payload.size_bytes), -self._rate)
        return payloads, selected_s

    def _whose(self, iteration: int) -> dict[str, Any]:
        return {**super()._whose(iteration), "slices": self._slices}

    def _put_entries(self, index: int, entries: Entries) -> None:
        super()._put_entries(index, entries)
        self._came += [(index, entries)] if self._job.traits.reads_own else []


def common(pushed: Entries, came: Entries) -> Entries:
    """Return the entries of `pushed` whose indices `came` has, too."""
    if came.indices is None:
        return pushed
    here = np.arange(pushed.n) if pushed.indices is None else pushed.indices
    if np.array_equal(here, came.indices):  # the usual case
        return pushed
    shared = np.isin(here, came.indices, assume_unique=True)
    return Entries(pushed.n, here[shared], pushed.values[shared])
