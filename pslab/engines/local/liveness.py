"""Which workers a run still has, what each of them does, and when one that is not there ends the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from pslab.engines.processes.pool import SERVER, Pool
from pslab.engines.processes.watch import COMPUTING, ENDING, SERVING, STORING, WAITING
from pslab.engines.server.worker_status import described
from pslab.errors import RunError, Stalled, WorkerDied

LAGS = 10  # times as long as any other's last gradient, and a lease: then the run says so


class Liveness:
    """The workers of one run, as the server and the pool report them."""

    def __init__(
        self, pool: Pool, workers: int, on_death: str, stores: Collection[int] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._pool, self._on_death, self._stores = pool, on_death, set(stores)  # these never are replaced
        self._clock = clock
        self.workers, self.lost = set(range(workers)), set[int]()
        self.deaths: list[dict[str, Any]] = []  #: after which the run went on: worker, iteration, how, instant
        self.late: set[int] = set()  #: workers whose processes ended after the run, before they had reported
        self._doings: list[dict[str, Any]] = []
        self._owing = list[int]()
        self._travelling, self._reported_s = True, 0.0
        self._since_s = [0.0] * workers  # when each began to do what it does
        self._said_s = [0.0] * workers  # or when the run last said that this takes long
        self._took_s = [0.0] * workers  # how long each one's last gradient took, as far as was seen
        self._pushes, self._moved_s = -1, 0.0
        self._parked: set[int] = set()  # workers that have waited for a lease

    @property
    def present(self) -> set[int]:
        """The workers that are not lost."""
        return self.workers - self.lost

    def owed(self, served: bool, worked: set[int]) -> dict[int, str]:
        """The processes that owe a report, and what they do meanwhile. Once the server has `served`, each worker that
        has not `worked` owes its last report."""
        idle = dict.fromkeys([*self.workers, SERVER], "")
        if served:
            return idle | dict.fromkeys(self.present - worked, ENDING)
        serving = {SERVER: SERVING} | dict.fromkeys(self._stores, STORING)
        if self._clock() - self._reported_s > self._pool.watch.lease_s / 2:  # that may have changed since
            return idle | serving
        parked = dict.fromkeys(self.present if self._stuck else (), WAITING)
        return idle | serving | parked | dict.fromkeys(self.present & set(self._owing), COMPUTING)

    @property
    def _stuck(self) -> bool:
        """Whether no worker can go on by itself, as far as the server knows."""
        doings = {does["doing"] for does in self._doings} - {"dead"}
        return doings == {"waiting"} and not self._travelling and not self._owing

    def progress(self, body: dict[str, Any]) -> dict[str, Any]:
        """The server has reported; what of it is news for others."""
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
        """Whether a gradient takes far longer than others have, while no worker waits for it; yes once in each lease.

        It may never end: no rule can tell, so that it is not killed.
        """
        spent_s, others_s = now - self._since_s[worker], [s for w, s in enumerate(self._took_s) if w != worker]
        if self._doings[worker]["doing"] != "computing" or now - self._said_s[worker] <= self._pool.watch.lease_s:
            return False
        self._said_s[worker] = now
        return spent_s > LAGS * max(others_s, default=0.0) > 0.0

    def rewind(self, present: set[int], seconds: float) -> None:
        """Go back to an instant at which these workers were present."""
        self.late.clear()
        self.lost.clear()
        self.lost.update(self.workers - present)
        self.deaths[:] = [death for death in self.deaths if death["seconds"] <= seconds]
        self._doings, self._owing, self._travelling = [], [], True
        self._reported_s = self._moved_s = self._clock()
        self._parked.clear()

    def waits(self, number: int) -> None:
        """Report a worker that has waited for a lease while nothing was under way.

        Raises:
            Stalled: so have all the others.
        """
        self._parked.add(number)
        if self._stuck and self._parked >= self.present:
            lease_s = self._pool.watch.lease_s
            raise Stalled(f"no worker can go on, and nothing was under way for {lease_s:g} s: {self.described()}")

    def described(self, only: Sequence[int] | None = None) -> str:
        """Which worker waits for which, on which clock, and for how long: all workers, or `only` these."""
        now = self._clock()
        return described(self._doings, [now - since_s for since_s in self._since_s], only)

    def lose(self, death: dict[str, Any]) -> None:
        """Take a worker as lost, in an iteration, or after the run's end.

        Raises:
            WorkerFailed, WorkerDied: a run that is not `over` cannot go on without it.
        """
        worker = death["worker"]
        self.lost.add(worker)
        if death.get("over"):  # a process may be there, which was to take its place
            self.late.add(worker)
            self.deaths[:] = [each for each in self.deaths if each["worker"] != worker]  # its place was kept until now
            return
        error = self._pool.end_of(worker)
        if isinstance(error, WorkerDied):
            error = WorkerDied(error.who, death.get("iteration"), error.how)
        if self._on_death == "stop" or not self.present:
            raise error
        self.deaths.append({**death, "how": how_of(error)})


def how_of(error: RunError) -> str:
    """How a worker ended, in a line."""
    return error.how if isinstance(error, WorkerDied) else str(error).strip().rpartition("\n")[2]
