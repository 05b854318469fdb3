"""The workers that a run still has, their activity, and the decision whether a lost worker ends the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from pslab.engines.processes.pool import SERVER, Pool
from pslab.engines.processes.watch import COMPUTING, ENDING, SERVING, STORING, WAITING
from pslab.engines.server.worker_status import described
from pslab.errors import RunError, Stalled, WorkerDied

LAGS = 10  # a gradient that takes longer than a lease, and so many times the longest other one, is reported


class Liveness:
    """The state of a run's workers, from the reports of the server and the pool."""

    def __init__(
        self, pool: Pool, workers: int, on_death: str, stores: Collection[int] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._pool, self._on_death, self._stores = pool, on_death, set(stores)  # stores are never replaced
        self._clock = clock
        self.workers, self.lost = set(range(workers)), set[int]()
        self.deaths: list[dict[str, Any]] = []  #: that did not end the run: worker, iteration, how, seconds
        self.late: set[int] = set()  #: workers whose process ended after the run, before its last report
        self._doings: list[dict[str, Any]] = []
        self._owing = list[int]()
        self._travelling, self._reported_s = True, 0.0
        self._since_s = [0.0] * workers  # when each worker's present activity began
        self._said_s = [0.0] * workers  # when it began, or was last reported to take long
        self._took_s = [0.0] * workers  # seconds of each worker's last gradient, as far as reported
        self._pushes, self._moved_s = -1, 0.0
        self._parked: set[int] = set()  # workers that have waited for a whole lease

    @property
    def present(self) -> set[int]:
        """The workers of the run that are not lost."""
        return self.workers - self.lost

    def owed(self, served: bool, worked: set[int]) -> dict[int, str]:
        """Return, for each process, the phase in which it must report; "" if it need not report.

        Once the server has `served`, each worker that is not in `worked` must send its last report.
        """
        idle = dict.fromkeys([*self.workers, SERVER], "")
        if served:
            return idle | dict.fromkeys(self.present - worked, ENDING)
        serving = {SERVER: SERVING} | dict.fromkeys(self._stores, STORING)
        if self._clock() - self._reported_s > self._pool.watch.lease_s / 2:  # the server's report is too old
            return idle | serving
        parked = dict.fromkeys(self.present if self._stuck else (), WAITING)
        return idle | serving | parked | dict.fromkeys(self.present & set(self._owing), COMPUTING)

    @property
    def _stuck(self) -> bool:
        """Whether all workers wait and no message is under way, by the server's last report."""
        doings = {does["doing"] for does in self._doings} - {"dead"}
        return doings == {"waiting"} and not self._travelling and not self._owing

    def progress(self, body: dict[str, Any]) -> dict[str, Any]:
        """Process a progress report of the server; return the part for `OnProgress`, with "waits" if no push comes."""
        self._pool.watch.heard(body.pop("heard"))
        self._owing, self._travelling = body.pop("owing"), body.pop("travelling")
        now, before = self._clock(), self._doings or [{}] * len(self.workers)
        self._doings, self._reported_s = body["workers"], now
        for worker, (then, does) in enumerate(zip(before, self._doings, strict=True)):
            if then != does:
                if then.get("doing") == "computing":
                    self._took_s[worker] = now - self._since_s[worker]
                self._since_s[worker] = self._said_s[worker] = now
                self._parked.clear()
        if body["pushes"] != self._pushes:
            self._pushes, self._moved_s = body["pushes"], now
        elif now - self._moved_s > (lease_s := self._pool.watch.lease_s):
            self._moved_s = now
            body["waits"] = f"no push came for {lease_s:g} s: {self.described()}"
        if slow := [worker for worker in self.present if self._lags(worker, now)]:
            body.setdefault("waits", self.described(slow) + f"; the others' last took up to {max(self._took_s):.1f} s")
        return body

    def _lags(self, worker: int, now: float) -> bool:
        """Whether a gradient takes LAGS times as long as any other worker's last one; True at most once in a lease."""
        # the computation may still end, so the worker is not killed
        spent_s, others_s = now - self._since_s[worker], [s for w, s in enumerate(self._took_s) if w != worker]
        if self._doings[worker]["doing"] != "computing" or now - self._said_s[worker] <= self._pool.watch.lease_s:
            return False
        self._said_s[worker] = now
        return spent_s > LAGS * max(others_s, default=0.0) > 0.0

    def rewind(self, present: set[int], seconds: float) -> None:
        """Reset to the instant of a checkpoint, at which these workers were present."""
        self.late.clear()
        self.lost.clear()
        self.lost.update(self.workers - present)
        self.deaths[:] = [death for death in self.deaths if death["seconds"] <= seconds]
        self._doings, self._owing, self._travelling = [], [], True
        self._reported_s = self._moved_s = self._clock()
        self._parked.clear()

    def waits(self, number: int) -> None:
        """Note that a worker has waited for a whole lease.

        Raises:
            Stalled: all workers have waited so long, and no message is under way.
        """
        self._parked.add(number)
        if self._stuck and self._parked >= self.present:
            lease_s = self._pool.watch.lease_s
            raise Stalled(f"all workers waited, and no message was under way, for {lease_s:g} s: {self.described()}")

    def described(self, only: Sequence[int] | None = None) -> str:
        """Describe all workers, or `only` these: what each does, for whom it waits, at which clock, and how long."""
        now = self._clock()
        return described(self._doings, [now - since_s for since_s in self._since_s], only)

    def lose(self, death: dict[str, Any]) -> None:
        """Note that a worker is lost, in an iteration, or after the run is `over`.

        Raises:
            WorkerFailed, WorkerDied: the run is not over, and cannot continue without the worker.
        """
        worker = death["worker"]
        self.lost.add(worker)
        if death.get("over"):  # a new process may have been prepared for it
            self.late.add(worker)
            self.deaths[:] = [row for row in self.deaths if row["worker"] != worker]
            return
        error = self._pool.end_of(worker)
        if isinstance(error, WorkerDied):
            error = WorkerDied(error.who, death.get("iteration"), error.how)
        if self._on_death == "stop" or not self.present:
            raise error
        self.deaths.append({**death, "how": how_of(error)})


def how_of(error: RunError) -> str:
    """Return in one line how a worker ended."""
    return error.how if isinstance(error, WorkerDied) else str(error).strip().rpartition("\n")[2]
