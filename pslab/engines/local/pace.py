"""How slowly the emulated cluster must run for this machine to keep its pace: measured before a run, by its processes.

Gupta et al., "To Infinity and Beyond: Time-Warped Network Emulation", NSDI 2006, let an emulated world run k times
slower than in its own seconds: to it the machine is k times faster.
"""

from __future__ import annotations

import contextlib
import copy
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from pslab.engines.emulation.compute_times import ComputeTimes
from pslab.engines.experiment.experiment import Experiment
from pslab.engines.experiment.job import Job
from pslab.engines.experiment.outcome import OnProgress
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.local.lines.ends import number_of
from pslab.engines.local.lines.stream import ready
from pslab.engines.processes.coordinator import Coordinator
from pslab.engines.processes.pool import SERVER, Pool
from pslab.engines.processes.precedence import Starving, let_others_first
from pslab.engines.processes.watch import REHEARSING
from pslab.engines.worker.gradient import Computing, module_of
from pslab.engines.worker.keyed import KeyedProducer
from pslab.tensors.codec.frames import encode
from pslab.tensors.pruning.pruner import NonFinite
from pslab.tensors.pruning.range_pruner import pruner_of

KEPT_SHARE = 0.05  # of the workers' time that overruns and late messages may take
AIM_SHARE = 0.03  # ... that is aimed at
DILATIONS = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 20.0, 24.0, 32.0, 40.0, 48.0, 64.0)
WAKES, WAKE_S, WAKING_S = 60, 1e-3, 0.2  # of the server: how often it sleeps, how long each time and in all
MESSAGES = 2  # of an iteration, each of which may be late
DRAWN = 64  # modelled gradients of each worker that stand for all of them
GRADIENTS, GRADIENTS_S = 6, 0.5  # of a rehearsal: so many, and no other one after so long
STARVED = 1.25  # workers that let others first may compute so much longer
STARVING_LIMIT_S = 0.5  # for which a rehearsal may starve workers that let others first
AGAIN = "the machine did not keep the cluster's pace: once again, slower"
EMULATED = ("late_s_mean", "late_s_99th", "messages", "stalled_s")  # what the server reports for `emulation` alone


class Pace(NamedTuple):
    """What this machine needs, in real seconds, while all workers of a run compute side by side."""

    gradients_s: tuple[float, ...]  #: for gradients, some of each worker
    late_s: float  #: to let the server continue, once what it waits for is due
    delayed_s: float = 0.0  #: for which choosing entries of a gradient waits for other processes, in the mean

    def late_share(self, experiment: Experiment, dilation: float = 1.0) -> float:
        """The share of the workers' time by which they are going to be late, at most.

        Gradients of one length would never be late where they are shorter than what is modelled; beside other work
        some take twice as long as others. In a rehearsal all workers compute at all times; in the run each does for a
        share of it, and is seldomer in the way of others: delays fall with both shares.
        """
        run, late_s, alive_s = experiment.run, 0.0, 0.0
        gradients_s = np.asarray(self.gradients_s or (0.0,))
        for worker in range(run.workers):
            times = ComputeTimes(experiment.cluster, run.seed, worker)
            modelled_s = dilation * np.array([[float(times.draw())] for _ in range(DRAWN)])
            computing = np.minimum(1.0, self.gradient_s / np.maximum(modelled_s, 1e-9))
            late_s += float(np.maximum(0.0, gradients_s - modelled_s).mean()) + MESSAGES * self.late_s
            late_s += self.delayed_s * float((computing**2).mean())
            alive_s += float(np.maximum(gradients_s, modelled_s).mean())
        return late_s / alive_s if alive_s else 0.0

    @property
    def gradient_s(self) -> float:
        """For a gradient, in the mean."""
        return float(np.mean(self.gradients_s or 0.0))

    def dilation(self, experiment: Experiment, least: float = 1.0) -> float:
        """How many times slower the emulated cluster must run, and no less than `least`; 1 in real time."""
        if not experiment.cluster.modelled(experiment.run.workers):
            return 1.0  # workers compute as fast as this machine, in its seconds
        able = (k for k in DILATIONS if k >= least and self.late_share(experiment, k) <= AIM_SHARE)
        return next(able, DILATIONS[-1])


def emulation(
    experiment: Experiment, worked: Collection[Mapping[str, Any]], served: Mapping[str, Any]
) -> dict[str, float]:
    """How well the emulation was kept, by what workers and server have reported: shares of the workers' time.

    Where nothing is emulated nothing can be late.
    """
    alive_s, ranges = sum(each["alive_s"] for each in worked) or 1.0, len(experiment.parts)
    # ranges are on their way at the same time: an iteration has waited for one of them after another's lateness
    late_s = served["late_s_mean"] * served["messages"] / ranges
    if experiment.cluster.emulated:
        late_s += served["stalled_s"] + sum(each["late_s"] for each in worked)
    return {
        "compute_overrun_share": sum(each["overrun_s"] for each in worked) / alive_s,
        "late_message_share": late_s / alive_s,
        "late_message_mean_s": served["late_s_mean"],
        "late_message_99th_s": served["late_s_99th"],
        "real_compute_share": sum(each["real_s"] for each in worked) / alive_s,
    }


def kept(emulation: Mapping[str, Any]) -> bool:
    """Whether the machine kept the pace: its seconds mean something."""
    return bool(emulation["compute_overrun_share"] + emulation["late_message_share"] <= KEPT_SHARE)


def larger(emulation: Mapping[str, Any]) -> float:
    """The least dilation of another attempt, after one that was not kept."""
    computing = 1 / max(0.1, 1 - emulation["compute_overrun_share"])  # as if it had been nothing but gradients
    factor: float = max(2.0, 1.2 * computing, emulation["late_message_share"] / AIM_SHARE)
    return min(float(emulation["dilation"]) * factor, DILATIONS[-1])


def rehearsed(job: Job, worker: int, arena: Arena, data: Arena) -> dict[str, list[float]]:
    """A few of a worker's gradients, on copies of the model, the server's weights and the rule: the real seconds of
    each, and for how many of them choosing its entries waited for other processes.

    The first one allocates and compiles, and is left out unless gradients take long.
    """
    if not job.trains:
        return {"gradients_s": [], "delays_s": []}
    compute, choose = (_of_keys if job.keyed else _of_copies)(job, worker, arena, data)
    spent_s, delays_s = list[float](), list[float]()
    while len(spent_s) < GRADIENTS and sum(spent_s) < GRADIENTS_S:
        begin_s = time.monotonic()
        compute(len(spent_s))
        spent_s.append(time.monotonic() - begin_s)
        if job.sparse:
            begin_s, used_s = time.monotonic(), time.thread_time()
            with contextlib.suppress(NonFinite):  # the run will say so
                choose(len(delays_s))
            delays_s.append(time.monotonic() - begin_s - (time.thread_time() - used_s))
    return {"gradients_s": spent_s[1:] or spent_s, "delays_s": delays_s[1:] or delays_s}


Acts = tuple[Callable[[int], object], Callable[[int], object]]  # compute the gradient of a step; choose its entries


def _of_copies(job: Job, worker: int, arena: Arena, data: Arena) -> Acts:
    layout, device = job.layout, job.device.of(worker)
    weights = device.to(arena.tensor(layout.server, layout.size, layout.dtype).clone())
    buffer = torch.zeros_like(weights)
    computing = Computing(job, worker, job.shelf.dataset(data), weights, [buffer], module_of(job, device))
    rule = copy.deepcopy(job.prune)
    pruner = pruner_of(rule, job.keyspace, layout.dtype, device.place) if job.sparse else None

    def choose(step: int) -> None:
        if pruner is not None:
            indices, values = (found.numpy() for found in device.fetch(*pruner.prune(buffer, step)))
            for part in job.parts:
                encode(part.inside(indices, values), job.run.codec)

    return lambda step: computing.gradient(step, 0), choose


def _of_keys(job: Job, worker: int, arena: Arena, data: Arena) -> Acts:
    """The first one again and again: of no other are the weights here."""
    producer = KeyedProducer(job, worker, arena, data)
    return lambda step: producer.gradient(0), lambda step: producer.payloads(0, 0.0)


def waking_late_s(source: int, spin_s: float) -> float:
    """How late this process wakes, in mean real seconds, while the workers compute; `source` may wake it."""
    late_s, until_s = list[float](), time.monotonic() + WAKING_S
    while len(late_s) < WAKES and (begin_s := time.monotonic()) < until_s:
        ready((source,), WAKE_S, spin_s=spin_s)
        late_s.append(time.monotonic() - begin_s - WAKE_S)
    return sum(late_s) / len(late_s)


class Rehearsing(Coordinator):
    """A run whose processes find out, before it starts, at what pace they can go.

    Args:
        asked: whether workers let others first; None: unless that starves them.
        before: the emulation of an attempt that was not kept.
    """

    def __init__(
        self, pool: Pool, experiment: Experiment, on_progress: OnProgress, asked: bool | None,
        before: Mapping[str, Any] | None,
    ) -> None:  # fmt: skip
        super().__init__(pool, experiment, on_progress)
        self.asked, self.before = asked, before
        self.yields, self.dilation, self.pace = bool(asked), 1.0, Pace((), 0.0)
        self.starving, self.starved = Starving(), False
        self.workers = set(range(self.run.workers))
        self.stores = {number_of(self.run.workers, server) for server in range(1, self.run.servers)}
        self.all = self.workers | {SERVER} | self.stores  #: the processes that have a role

    def _relieve(self) -> None:
        """Workers that let others first, and so get next to nothing, do it no longer."""
        if self.yields and self.starving(self._computing):
            let_others_first(self._computing, False)
            self.yields, self.starved = False, True

    @contextlib.contextmanager
    def _yielding(self, yields: bool) -> Iterator[bool]:
        """Those that compute let the server first, if the system can: no message is late because others compute."""
        try:
            yield yields and let_others_first(self._computing, True)
        finally:
            let_others_first(self._computing, False)

    @property
    def _computing(self) -> list[int]:
        """The processes that compute, by their numbers in the system."""
        computing = self.all - {SERVER} - self.stores - self.pool.ended.keys()
        return [self.pool.processes[number].pid for number in computing]

    def _prepare(self) -> None:
        """Give each process its role."""
        raise NotImplementedError

    def rehearsed(self) -> Pace:
        """The pace that a run would have now."""
        self._prepare()
        self._rehearse()
        return self.pace

    def _rehearse(self) -> None:
        """Find out whether workers may let others first, and how slowly the cluster must run."""
        begin_s = time.monotonic()
        self.pace = self._measured()
        if self.asked is not False:
            with self._yielding(True) as done:
                pace = self._measured(max(STARVING_LIMIT_S, 2 * (time.monotonic() - begin_s)))
            self.yields = done and (bool(self.asked) or pace.gradient_s <= STARVED * self.pace.gradient_s)
            self.pace = pace if self.yields else self.pace
        if isinstance(self.run.dilation, float):
            self.dilation = self.run.dilation
        else:
            self.dilation = self.pace.dilation(self.experiment, larger(self.before) if self.before else 1.0)

    def _measured(self, limit_s: float = math.inf) -> Pace:
        """The pace while all workers compute side by side; after so long as usual, if they let others first."""
        until_s = time.monotonic() + limit_s
        for number in sorted(self.workers | {SERVER}):
            self.pool.order(number, "rehearse")

        def meanwhile() -> None:
            if time.monotonic() > until_s:
                let_others_first(self._computing, False)

        reports = self.await_reports(self.workers | {SERVER}, REHEARSING, meanwhile)
        spent_s, delays_s = ([each for report in reports for each in report.body.get(name, ())]
                             for name in ("gradients_s", "delays_s"))  # fmt: skip
        delayed_s = max(0.0, float(np.mean(delays_s or 0.0)))
        return Pace(tuple(spent_s), sum(report.body.get("late_s", 0.0) for report in reports), delayed_s)
