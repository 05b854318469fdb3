"""What a server keeps of itself: its part of a checkpoint, which it sends to the parent, and goes on from.

The server that decides sends its own part and orders all others to do the same: a cut between the same two steps at
each of them. What was ordered before and is not yet done is in its part as such, and in those of the others as done.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pslab.engines.emulation.faults import Faults
from pslab.engines.emulation.link_queue import Waiting
from pslab.engines.experiment.checkpoint.checkpointing import SHARE, StateSaver
from pslab.engines.experiment.checkpoint.file import pack, unpack
from pslab.engines.experiment.job import Job
from pslab.engines.processes.channel import report
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
from pslab.protocol.store import StoreMachine

PERIOD_S = 1.0  # at least between two checkpoints, unless the run says how often they are made


class CheckpointPart:
    """One server's part of a checkpoint: a state of objects, and the weights that the server holds.

    `externals` are objects that a state holds and a new process is given anew, by name.
    """

    def __init__(self, job: Job, server: int, process: ProcessContext, **externals: Any) -> None:
        self._parent, layout, itemsize = process.parent, job.layout, job.layout.dtype.itemsize
        held = [(layout.server + each.start * itemsize, (each.stop - each.start) * itemsize)
                for each in job.held[server]]  # fmt: skip
        self._states = StateSaver(job, process.arena, held, **externals)

    def send(self, number: int, facts: Mapping[str, Any], state: dict[str, Any]) -> str:
        """Send the part of the checkpoint of this number to the parent; why that cannot be, or ""."""
        content, problem = list[memoryview](), ""
        try:
            content = pack({**facts, "number": number}, self._states.saved(state))
        except CheckpointError as error:
            problem = str(error)
        report(self._parent, "part", {"number": number, "problem": problem}, content=content)
        return problem

    def restore(self, part: bytes) -> tuple[Mapping[str, Any], dict[str, Any]]:
        """The facts and the state of a part; the weights are in their places again.

        Raises:
            CheckpointError: it is no part of this run.
        """
        facts, graph = unpack(part)
        return facts, self._states.restored(graph)


class ServerState(NamedTuple):
    """What the server that decides is, beside memory that others map: what a new one goes on from."""

    driver: ServerDriver
    waiting: Waiting | None  #: what waits for the links, where an order chooses among it
    faults: Faults
    left: set[int]  #: workers without which the run goes on
    machines: list[StoreMachine]  #: of the other servers


def first_state(
    job: Job, context: ProcessContext, transport: Transport, clock: WallClock, others: Sequence[Store],
    machines: list[StoreMachine],
) -> ServerState:  # fmt: skip
    """The state of a server whose run has not started; beside it are `others`, of which these are the `machines`."""
    machine = Server(range(job.run.workers), len(job.parts), job.sync)
    waiting = Waiting(job, machine) if job.layered and not job.cluster.free else None
    shard = TensorShard(job, context.arena)
    ledger = Ledger(job, shard.weights, context.snapshots, context.report_snapshot, context.ledger)
    driver = ServerDriver(job, machine, PushAccounts(job, ledger), shard, clock, transport, waiting, others)
    return ServerState(driver, waiting, Faults(job.cluster, job.run.seed), set(), machines)


class ServerCheckpoints:
    """When the server that decides makes a checkpoint, and what of. A state that cannot be saved ends checkpoints, and
    not the run."""

    def __init__(
        self, job: Job, context: ProcessContext, transport: Transport, clock: WallClock, others: Sequence[Store]
    ) -> None:
        self._job, self._clock = job, clock
        named = {f"server {number}": other for number, other in enumerate(others, 1)}
        self._part = CheckpointPart(
            job, 0, context, transport=transport, clock=clock, snapshots=context.snapshots, context=context,
            on_snapshot=context.report_snapshot, rows=context.ledger[0], arrivals=context.ledger[1], **named,
        )  # fmt: skip
        self._kept = [WorkerState.of(job, worker, context.arena) for worker in range(job.run.workers)]
        self.number = 0  #: of the last one that was begun
        self._pushes = 0  # after which it was
        self.able = job.run.on_death == "restart"  #: whether checkpoints can be made
        self._begun_s: float | None = None  # when it was, while the parent does not have all parts
        self._last_s, self._spent_s = time.monotonic(), 0.0  # when the last one was whole, and how long it took

    def due(self, machine: Server) -> bool:
        """Whether one is to be made: every so many pushes, or as often as SHARE of the time allows; while workers'
        buffers have nothing that is still to be applied, and the parent has the one before."""
        if not self.able or self._begun_s is not None or not all(part.at_rest for part in machine.ranges):
            return False
        if (every := self._job.run.checkpoint_every) is not None:
            return machine.gradients >= self._pushes + every
        due_s = self._last_s + PERIOD_S + self._spent_s / SHARE
        return machine.gradients > self._pushes and time.monotonic() >= due_s

    def begin(self, state: ServerState) -> bool:
        """Send a state between two frames, the weights, and what workers have kept after their last pushes; those may
        compute meanwhile. The others are to send theirs behind all that they were ordered; False if that is in vain."""
        begun_s, machine, ledger = time.monotonic(), state.driver.machine, state.driver.accounts.ledger
        clocks = [machine.clock(worker) if worker in machine.workers else None
                  for worker in range(self._job.run.workers)]  # fmt: skip
        facts = {"pushes": machine.gradients, "seconds": self._clock.now(), "zero_s": self._clock.zero_s,
                 "dilation": self._clock.dilation, "clocks": clocks, "snapshots": ledger.taken}  # fmt: skip
        kept = [None if own is None or clock is None else own.after(clock - 1)
                for own, clock in zip(self._kept, clocks, strict=True)]  # fmt: skip
        self._pushes = machine.gradients
        self.able = not self._part.send(self.number + 1, facts, {**state._asdict(), "kept": kept})
        if self.able:
            self.number, self._begun_s = self.number + 1, begun_s
        return self.able

    def whole(self) -> None:
        """The parent has all parts of the one that was begun."""
        if self._begun_s is not None:
            self._last_s = time.monotonic()
            self._spent_s, self._begun_s = self._last_s - self._begun_s, None

    def restore(self, part: bytes) -> tuple[Mapping[str, Any], ServerState]:
        """The facts and the state of a part; the weights, and what workers keep, are in their places again.

        Raises:
            CheckpointError: it is no part of this run.
        """
        facts, state = self._part.restore(part)
        for clock, own, before in zip(facts["clocks"], self._kept, state.pop("kept"), strict=True):
            if own is not None and clock is not None:
                own.put(before, clock - 1)
        self.number, self._pushes = facts["number"], facts["pushes"]
        return facts, ServerState(**state)
