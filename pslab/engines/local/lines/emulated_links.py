"""Deliver frames between the server and its workers when emulated links would, and measure how late."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import numpy as np

from pslab.engines.emulation.faults import Faults
from pslab.engines.emulation.links import DOWN, Chooser
from pslab.engines.emulation.traffic import Traffic
from pslab.engines.experiment.job import Job
from pslab.engines.experiment.wire import Frame
from pslab.protocol.messages import Weights

Delivery = tuple[int, Frame]  # worker, the frame that it sent or gets


class EmulatedLinks:
    """The emulated links of a cluster; without limits a frame arrives when it is sent. `clock` returns seconds since
    the run started; `faults` are applied to frames."""

    def __init__(
        self, job: Job, clock: Callable[[], float], chooser: Chooser | None = None, faults: Faults | None = None
    ) -> None:
        self._traffic, self._clock = None if job.cluster.free else Traffic(job, chooser, faults), clock
        self._up, self._down = (dict.fromkeys(range(job.run.workers), 0) for _ in range(2))  # frames under way
        self._lives = dict.fromkeys(range(job.run.workers), 0)  # by worker: how often it was replaced
        self._inbox: deque[Delivery] = deque()
        self._busy_until_s = 0.0
        self.late_s: list[float] = []  #: for each frame: by how many seconds it was delivered late

    def travelling(self, worker: int) -> bool:
        """Whether a frame from or to this worker is on a link, or waits for the server."""
        return self._up[worker] + self._down[worker] > 0

    def sent_all(self, worker: int) -> bool:
        """Whether the server has received every frame that this worker has sent."""
        return self._up[worker] == 0

    def renew(self, worker: int) -> None:
        """Drop all frames under way to a worker whose process was replaced."""
        self._lives[worker] += 1
        self._down[worker] = 0

    def facts(self) -> dict[str, float]:
        """Return the mean and 99th percentile of the frames' lateness, and their number."""
        late_s = np.array(self.late_s or [0.0])
        return {"late_s_mean": float(late_s.mean()), "late_s_99th": float(np.quantile(late_s, 0.99)),
                "messages": len(self.late_s)}  # fmt: skip

    def next_s(self) -> float:
        """Return the instant of the next delivery or choice (0 if a frame waits); infinity if nothing is under way."""
        if self._inbox:
            return 0.0
        return math.inf if self._traffic is None else min(self._traffic.next_s(), self._traffic.choice_s())

    def send_up(self, worker: int, frame: Frame) -> None:
        """Put a frame of a worker on its link."""
        if self._traffic is None:
            self._up[worker] += 1
            self._inbox.append((worker, frame))
        else:
            # a fault may duplicate the frame, and several servers get one each: count the arrivals
            self._up[worker] += self._traffic.up(worker, frame, frame[-1].payload.sent_s)

    def send_down(self, worker: int, frame: Frame) -> list[Delivery]:
        """Put a frame of the server on the link to a worker; return the deliveries that are due at once."""
        if self._traffic is None:
            return [(worker, frame)]
        last = frame[-1]
        sent_s = last.payload.sent_s if isinstance(last, Weights) else last.payload.done_s
        self._down[worker] += self._traffic.down(worker, frame, sent_s, self._lives[worker])
        return []

    def collect(self, *, busy: bool = False) -> list[Delivery]:
        """Return the frames that are due to workers now, and put those for the server in its inbox.

        A frame does not count as late while the server is busy with another one.
        """
        if self._traffic is None:
            return []
        now, down = self._clock(), []
        for due_s, direction, (worker, frame, generation) in self._traffic.arrived(now):
            if direction == DOWN:
                # else the frame is for a former process
                if generation == self._lives[worker]:
                    self.late_s.append(self._clock() - due_s)
                    self._down[worker] -= 1
                    down.append((worker, frame))
            else:
                self.late_s.append(0.0 if busy else max(0.0, now - max(due_s, self._busy_until_s)))
                self._inbox.append((worker, frame))
        return down

    def take(self) -> Delivery | None:
        """Remove and return the next frame for the server; None if there is none."""
        if not self._inbox:
            return None
        worker, frame = self._inbox.popleft()
        self._up[worker] -= 1
        return worker, frame

    def handled(self) -> None:
        """Note that the server has processed a frame, and is no longer busy."""
        self._busy_until_s = self._clock()
