"""A server's clocks for real and for virtual time; the driver uses only the methods of `Clock`."""

from __future__ import annotations

import time
from typing import Protocol

from pslab.config.cluster import ALLREDUCE
from pslab.engines.experiment.job import Job

APPLY, SERVE, FIND, SEARCH = "apply", "serve", "find", "search"  # a server's operations; FIND: serve an encoded reply
MESSAGE = "message"  # handle a whole frame; measured in real time only


class Clock(Protocol):
    """A clock that counts the seconds since the run started."""

    def now(self) -> float:
        """Return the present instant."""

    def spend(self, on: str, since_s: float, count: int = 1, share: float = 1.0) -> None:
        """Count the time of the operation `on`, done `count` times since `since_s` on this share of the model."""


class WallClock:
    """Real time: operations are measured.

    An emulated cluster may run `dilation` times slower than its own clock says (Gupta et al., "To Infinity and Beyond:
    Time-Warped Network Emulation", NSDI 2006). All instants are in seconds of this emulated clock; only `real_s`
    returns seconds of the machine's clock.
    """

    def __init__(self) -> None:
        self.zero_s, self.dilation = 0.0, 1.0
        self.spent: dict[str, list[float]] = {}  #: operation: its seconds, and its count

    def start(self, dilation: float = 1.0, zero_s: float | None = None) -> None:
        """Start the run now, or at this instant of the machine's monotonic clock."""
        # the monotonic clock is one clock for all processes of a machine, so servers and workers can compare instants
        self.dilation, self.zero_s = dilation, time.monotonic() if zero_s is None else zero_s

    def now(self) -> float:
        return (time.monotonic() - self.zero_s) / self.dilation

    def at(self, monotonic_s: float) -> float:
        """Convert an instant of the machine's monotonic clock to an instant of this clock."""
        return (monotonic_s - self.zero_s) / self.dilation

    def real_s(self, seconds: float) -> float:
        """Convert seconds of this clock to seconds of the machine's clock."""
        return seconds * self.dilation

    def spend(self, on: str, since_s: float, count: int = 1, share: float = 1.0) -> None:
        if (spent := self.spent.get(on)) is None:
            spent = self.spent[on] = [0.0, 0]
        # `share` scales a price; a measured time is the time of this range already
        spent[0] += self.now() - since_s
        spent[1] += count

    def costs(self) -> dict[str, float]:
        """Return the mean seconds to apply a push, to prepare a reply, and for the rest of handling a frame."""
        spent = {on: self.spent.get(on, [0.0, 0]) for on in (APPLY, SERVE, FIND, MESSAGE)}
        (apply_s, pushes), (serve_s, whole), (find_s, encoded), (all_s, frames) = spent.values()
        # the frames' seconds contain the others, except for operations without a frame, as after a departure
        rest_s = max(0.0, all_s - apply_s - serve_s - find_s)
        return {"apply_s": apply_s / max(pushes, 1), "serve_s": (serve_s + find_s) / max(whole + encoded, 1),
                "message_s": rest_s / max(frames, 1)}  # fmt: skip


class VirtualClock:
    """Virtual time: an operation takes its cost in the cluster's fields. Set `at` before the server handles a frame."""

    def __init__(self, job: Job) -> None:
        self.at, cluster = 0.0, job.cluster
        self._price_s = {APPLY: cluster.apply_s * job.apply_factor, SERVE: cluster.serve_s,
                         FIND: cluster.serve_s + cluster.find_s, SEARCH: cluster.search_s}  # fmt: skip
        if cluster.aggregate == ALLREDUCE:  # all workers apply the sum at once, without a server's replies
            self._price_s |= {APPLY: self._price_s[APPLY] / job.run.workers, SERVE: 0.0, FIND: 0.0}

    def now(self) -> float:
        return self.at

    def spend(self, on: str, since_s: float, count: int = 1, share: float = 1.0) -> None:
        # `since_s` is not used: no measured time may reach a result in virtual time
        self.at += self._price_s[on] * count * share
