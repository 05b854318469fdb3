"""How slowly an emulated cluster must run for this machine to keep its pace, and whether it was kept.

Gupta et al., "To Infinity and Beyond: Time-Warped Network Emulation", NSDI 2006, let an emulated world run k times
slower than in its own seconds: to it the machine is k times faster.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from pslab.engines.emulation.compute_times import ComputeTimes
from pslab.engines.experiment.experiment import Experiment
from pslab.engines.processes.coordinator import Coordinator
from pslab.engines.processes.pool import SERVER
from pslab.engines.processes.precedence import Precedence
from pslab.engines.processes.watch import REHEARSING

KEPT_SHARE = 0.05  # of the workers' time that overruns and late messages may take
AIM_SHARE = 0.03  # the share to aim at
DILATIONS = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 12.0, 16.0, 20.0, 24.0, 32.0, 40.0, 48.0, 64.0)
MESSAGES = 2  # of an iteration, each of which may be late
DRAWN = 64  # modelled gradients of each worker that stand for all of them
STARVED = 1.25  # workers that let others first may compute so much longer
STARVING_LIMIT_S = 0.5  # for which a rehearsal may starve workers that let others first
EMULATED = ("late_s_mean", "late_s_99th", "messages", "stalled_s")  # of the server's report, for `emulation` alone


class Pace(NamedTuple):
    """The times that this machine takes, in real seconds, while all workers of a run compute side by side."""

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


def rehearse(run: Coordinator, workers: Collection[int], precedence: Precedence) -> Pace:
    """The pace of a run; `precedence` says then whether its workers let others first."""
    begin_s = time.monotonic()
    pace = measured(run, workers, precedence)
    if precedence.asked is False:
        return pace
    with precedence.yielding(True) as done:
        behind = measured(run, workers, precedence, max(STARVING_LIMIT_S, 2 * (time.monotonic() - begin_s)))
    precedence.yields = done and (bool(precedence.asked) or behind.gradient_s <= STARVED * pace.gradient_s)
    return behind if precedence.yields else pace


def measured(run: Coordinator, workers: Collection[int], precedence: Precedence, limit_s: float = math.inf) -> Pace:
    """The pace while all workers compute side by side; if they let others first, for no longer than `limit_s`."""
    until_s = time.monotonic() + limit_s
    numbers = [*sorted(workers), SERVER]
    for number in numbers:
        run.pool.order(number, "rehearse")

    def meanwhile() -> None:
        if time.monotonic() > until_s:
            precedence.as_usual()

    reports = run.await_reports(numbers, REHEARSING, meanwhile)
    gradients_s, delays_s = ([each for report in reports for each in report.body.get(name, ())]
                             for name in ("gradients_s", "delays_s"))  # fmt: skip
    delayed_s = max(0.0, float(np.mean(delays_s or 0.0)))
    return Pace(tuple(gradients_s), sum(report.body.get("late_s", 0.0) for report in reports), delayed_s)


def emulation(
    experiment: Experiment, worked: Collection[Mapping[str, Any]], served: Mapping[str, Any]
) -> dict[str, float]:
    """How well the emulation was kept, by what workers and server have reported: shares of the workers' time.

    Where nothing is emulated nothing can be late.
    """
    alive_s = sum(each["alive_s"] for each in worked) or 1.0
    ranges = len(experiment.traits.rotation.ranges(0, len(experiment.parts)))
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
