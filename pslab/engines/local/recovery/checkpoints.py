"""When the server that decides makes a checkpoint, what it has, and how a new one goes on from there.

It keeps its own part and orders all others to do the same: a cut between the same two steps at each of them. What was
ordered before and is not yet done is in its part as such, and in those of the others as done.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from pslab.engines.emulation.faults import Faults
from pslab.engines.emulation.link_queue import Waiting
from pslab.engines.experiment.checkpoint.checkpointing import SHARE
from pslab.engines.experiment.job import Job
from pslab.engines.local.recovery.generations import Keeping
from pslab.engines.processes.child import ProcessContext
from pslab.engines.server.clock import WallClock
from pslab.engines.server.driver import ServerDriver, Transport
from pslab.engines.server.ledger import Ledger
from pslab.engines.server.push_accounts import PushAccounts
from pslab.engines.server.shard import TensorShard
from pslab.engines.server.store import Store
from pslab.engines.worker.state import WorkerState
from pslab.errors import CheckpointError
from pslab.protocol.server import Server
from pslab.protocol.store import Store as Machine

PERIOD_S = 1.0  # at least between two of them, unless the run says how often they are made


class Elsewhere(Store, Protocol):
    """Another server, of which this one has a machine, and the number of the last checkpoint that it has kept."""

    machine: Machine
    kept: int


class State(NamedTuple):
    """What a server is, beside memory that others map: what a new one goes on from."""

    driver: ServerDriver
    waiting: Waiting | None  #: what waits for the links, where an order chooses among it
    faults: Faults
    left: set[int]  #: workers without which the run goes on
    machines: list[Machine]  #: of the other servers


def first_state(
    job: Job, seat: ProcessContext, transport: Transport, clock: WallClock, others: Sequence[Elsewhere]
) -> State:
    """The state of a server whose run has not started."""
    machine = Server(range(job.run.workers), len(job.parts), job.sync)
    waiting = Waiting(job, machine) if job.layered and not job.cluster.free else None
    shard = TensorShard(job, seat.arena)
    ledger = Ledger(job, shard.weights, seat.snapshots, seat.report_snapshot, seat.ledger)
    driver = ServerDriver(job, machine, PushAccounts(job, ledger), shard, clock, transport, waiting, others)
    return State(driver, waiting, Faults(job.cluster, job.run.seed), set(), [other.machine for other in others])


class Checkpoints:
    """What a server keeps of itself, and when.

    A state that cannot be saved ends checkpoints, and not the run: `problem` says why.
    """

    def __init__(
        self, job: Job, seat: ProcessContext, transport: Transport, clock: WallClock, others: Sequence[Elsewhere]
    ) -> None:
        self._job, self._seat, self._others, self._clock = job, seat, others, clock
        named = {f"server {number}": other for number, other in enumerate(others, 1)}
        self._keeping = Keeping(
            job, 0, seat.arena, seat.checkpoints, transport=transport, clock=clock, snapshots=seat.snapshots, seat=seat,
            on_snapshot=seat.report_snapshot, rows=seat.ledger[0], arrivals=seat.ledger[1], **named,
        )  # fmt: skip
        self.generations = self._keeping.generations
        self._kept = [WorkerState.of(job, worker, seat.arena) for worker in range(job.run.workers)]
        self.number = 0  #: of the last one that was begun
        self.pushes = 0  #: after which it was
        self._begun_s: float | None = None  # when it was, while it is not whole
        self._last_s, self._spent_s = time.monotonic(), 0.0  # when the last one was whole, and how long it took
        self.problem = "" if job.run.on_death == "restart" else "the run does not replace its processes"

    def due(self, machine: Server) -> bool:
        """Whether one is to be made: every so many pushes, or as often as SHARE of the time allows; while workers'
        buffers have nothing that is still to be applied, and the parent has the one before."""
        if self.problem or self._begun_s is not None or not self._seat.shown:
            return False
        if not all(part.at_rest for part in machine.ranges):
            return False
        if (every := self._job.run.checkpoint_every) is not None:
            return machine.gradients >= self.pushes + every
        due_s = self._last_s + PERIOD_S + self._spent_s / SHARE
        return machine.gradients > self.pushes and time.monotonic() >= due_s

    def begin(self, state: State) -> bool:
        """Keep a state between two frames, the weights, and what workers have kept after their last pushes; those may
        compute meanwhile. The others are to keep theirs behind all that they were ordered; False if that is in vain."""
        begun_s, machine, ledger = time.monotonic(), state.driver.machine, state.driver.books.ledger
        clocks = [min(part.clocks[worker] for part in machine.ranges) if worker in machine.workers else None
                  for worker in range(self._job.run.workers)]  # fmt: skip
        facts = {"pushes": machine.gradients, "seconds": self._clock.now(), "zero_s": self._clock.zero_s,
                 "dilation": self._clock.dilation, "clocks": clocks, "snapshots": ledger.taken}  # fmt: skip
        kept = [None if own is None or clock is None else own.after(clock - 1)
                for own, clock in zip(self._kept, clocks, strict=True)]  # fmt: skip
        self.pushes = machine.gradients
        try:
            self.generations.lay(self.number + 1, self._keeping.saved(facts, [*state, kept]))
        except CheckpointError as error:
            self.problem = str(error)
            return False
        self.number, self._begun_s = self.number + 1, begun_s
        return True

    def complete(self) -> bool:
        """Whether the one that was begun has just become whole: from now on it counts."""
        if self._begun_s is None or any(other.kept != self.number for other in self._others):
            return False
        self.generations.complete(self.number)
        self._last_s = time.monotonic()
        self._spent_s, self._begun_s = self._last_s - self._begun_s, None
        return True

    def restore(self, number: int) -> tuple[Mapping[str, Any], State]:
        """The facts and the state of a checkpoint; the weights, and what workers keep, are in their places again.

        Raises:
            CheckpointError: it is not here.
        """
        facts, (*state, kept) = self._keeping.restored(number)
        for clock, own, before in zip(facts["clocks"], self._kept, kept, strict=True):
            if own is not None and clock is not None:
                own.put(before, clock - 1)
        self.number, self.pushes = number, facts["pushes"]
        return facts, State(*state)
