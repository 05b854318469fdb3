"""How time passes at a server, in real and in virtual time; its driver knows no more of it than `Clock`."""

from __future__ import annotations

import time
from typing import Protocol

from pslab.config.cluster import ALLREDUCE
from pslab.engines.experiment.job import Job

APPLY, SERVE, FIND, SEARCH = "apply", "serve", "find", "search"  # what a server spends time on; FIND: serve, encoded
MESSAGE = "message"  # what a server spends time on: a frame as a whole, in real time


class Clock(Protocol):
    """Seconds since the run started."""

    def now(self) -> float:
        """The instant until which everything is dealt with."""

    def spend(self, on: str, since_s: float, count: int = 1, share: float = 1.0) -> None:
        """Spend the time of an operation done `count` times since `since_s`, on this share of the model."""


class WallClock:
    """Real time: work takes what it takes, and is measured.

    The emulated world may run `dilation` times slower than in its own seconds (Gupta et al., "To Infinity and Beyond:
    Time-Warped Network Emulation", NSDI 2006). All instants are in those; only `real_s` is in the machine's.
    """

    def __init__(self) -> None:
        self.zero_s, self.dilation = 0.0, 1.0
        self.spent: dict[str, list[float]] = {}  #: on what: seconds, and how often

    def start(self, dilation: float = 1.0, zero_s: float | None = None) -> None:
        """Start the run now, or at this instant of the machine's monotonic clock."""
        self.dilation, self.zero_s = dilation, time.monotonic() if zero_s is None else zero_s

    def now(self) -> float:
        return (time.monotonic() - self.zero_s) / self.dilation

    def at(self, monotonic_s: float) -> float:
        """An instant of the machine's monotonic clock on this one."""
        return (monotonic_s - self.zero_s) / self.dilation

    def real_s(self, seconds: float) -> float:
        """How long so many seconds of this clock last on the machine's."""
        return seconds * self.dilation

    def spend(self, on: str, since_s: float, count: int = 1, share: float = 1.0) -> None:
        if (spent := self.spent.get(on)) is None:
            spent = self.spent[on] = [0.0, 0]
        spent[0] += self.now() - since_s
        spent[1] += count

    def costs(self) -> dict[str, float]:
        """Mean seconds: to apply a push, to lay a reply ready, and for the rest of a frame's handling."""
        spent = {on: self.spent.get(on, [0.0, 0]) for on in (APPLY, SERVE, FIND, MESSAGE)}
        (apply_s, pushes), (serve_s, whole), (find_s, encoded), (all_s, frames) = spent.values()
        rest_s = max(0.0, all_s - apply_s - serve_s - find_s)
        return {"apply_s": apply_s / max(pushes, 1), "serve_s": (serve_s + find_s) / max(whole + encoded, 1),
                "message_s": rest_s / max(frames, 1)}  # fmt: skip


class VirtualClock:
    """Virtual time: work takes what the cluster says. `at` is set before the server is handed anything."""

    def __init__(self, job: Job) -> None:
        self.at, cluster = 0.0, job.cluster
        self._price_s = {APPLY: cluster.apply_s * job.apply_factor, SERVE: cluster.serve_s,
                         FIND: cluster.serve_s + cluster.find_s, SEARCH: cluster.search_s}  # fmt: skip
        if cluster.aggregate == ALLREDUCE:  # all workers apply the sum at once, and none answers another
            self._price_s |= {APPLY: self._price_s[APPLY] / job.run.workers, SERVE: 0.0, FIND: 0.0}

    def now(self) -> float:
        return self.at

    def spend(self, on: str, since_s: float, count: int = 1, share: float = 1.0) -> None:
        self.at += self._price_s[on] * count * share
