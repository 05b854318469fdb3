"""A server's part of a checkpoint, which it sends to the parent, and from which a new server goes on.

The server that decides sends its own part and orders all others to do the same: a cut between the same two steps at
each of them. What was ordered before and is not yet done stands in the parts of the others as done. Each part has the
weights of its server and what is kept for them; that of the server that decides also has the number of arrivals, which
lie in memory that outlives it, and what its workers keep. The rest is made by a replay: see
pslab/engines/server/replay.py.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from pslab.engines.emulation.faults import Faults
from pslab.engines.emulation.link_queue import Waiting
from pslab.engines.experiment.checkpoint.checkpointing import SHARE
from pslab.engines.experiment.checkpoint.file import pack, unpack
from pslab.engines.experiment.job import Job
from pslab.engines.processes.channel import report
from pslab.engines.processes.child import ProcessContext
from pslab.engines.server.clock import WallClock
from pslab.engines.server.driver import ServerDriver, Transport
from pslab.engines.server.ledger import PUSH_COLUMNS, REPLAYED_COLUMNS, Ledger
from pslab.engines.server.push_accounts import PushAccounts
from pslab.engines.server.replay import REFUSED, check_marks, marks_of, refused, replay
from pslab.engines.server.rows import rows_in
from pslab.engines.server.shard import TensorShard
from pslab.engines.server.store import Store
from pslab.engines.worker.state import WorkerState
from pslab.protocol.server import Server
from pslab.protocol.store import StoreMachine
from pslab.tensors.update.states import State

PERIOD_S = 1.0  # at least between two checkpoints, unless the run says how often they are made


def send_part(context: ProcessContext, number: int, facts: Mapping[str, Any], tensors: State) -> None:
    """Send a server's part of the checkpoint of this number to the parent."""
    report(context.parent, "part", {"number": number, "facts": facts}, content=pack(facts, tensors))


def restored_shard(job: Job, context: ProcessContext, server: int, part: bytearray) -> TensorShard:
    """Return the shard of a server that does not decide, from its part of a checkpoint.

    Raises:
        CheckpointError: it is no part of this run.
    """
    shard = TensorShard(job, context.arena)
    try:
        shard.restore(server, unpack(part)[1])
    except REFUSED as error:
        raise refused(error) from error
    return shard


class ServerState(NamedTuple):
    """What the server that decides has beside the memory that others map."""

    driver: ServerDriver
    shard: TensorShard
    waiting: Waiting | None  #: what waits for the links, where an order chooses among it
    faults: Faults
    left: set[int]  #: workers without which the run goes on


class ServerCheckpoints:
    """The checkpoints of the server that decides: when they are made, and its state, at first or from a checkpoint.

    Args:
        others: the stores of the other servers, and their `machines`.
    """

    def __init__(
        self, job: Job, context: ProcessContext, transport: Transport, clock: WallClock, others: Sequence[Store],
        machines: Sequence[StoreMachine],
    ) -> None:  # fmt: skip
        self._job, self._context, self._transport, self._clock = job, context, transport, clock
        self._others, self._machines = others, machines
        self._kept = [WorkerState(job, worker, context.arena) if job.layout.states else None
                      for worker in range(job.run.workers)]
        self.number = 0  #: of the last one that was begun
        self._pushes = 0  # after which it was
        self.able = job.run.on_death == "restart"  #: whether checkpoints are made
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

    def begin(self, state: ServerState) -> None:
        """Send this server's part, between two frames, with what workers have kept after their last pushes; those may
        compute meanwhile. The others are to send theirs behind all that they were ordered."""
        self._begun_s, machine = time.monotonic(), state.driver.machine
        ledger = state.driver.accounts.ledger
        clocks = [machine.clock(worker) if worker in machine.workers else None
                  for worker in range(self._job.run.workers)]  # fmt: skip
        self.number, self._pushes = self.number + 1, machine.gradients
        facts = {"number": self.number, "pushes": machine.gradients, "seconds": self._clock.now(),
                 "zero_s": self._clock.zero_s, "dilation": self._clock.dilation, "clocks": clocks,
                 "arrivals": ledger.arrival_count, "marks": marks_of(machine), "numbers": state.driver.numbers(),
                 "faults": state.faults.state()}  # fmt: skip
        kept = {f"worker {worker}": torch.from_numpy(found)
                for worker, (own, clock) in enumerate(zip(self._kept, clocks, strict=True))
                if own is not None and clock is not None and (found := own.after(clock - 1)) is not None}  # fmt: skip
        send_part(self._context, self.number, facts, {**state.shard.state(0), **kept})

    def whole(self) -> None:
        """Take the checkpoint that was begun as whole."""
        if self._begun_s is not None:
            self._last_s = time.monotonic()
            self._spent_s, self._begun_s = self._last_s - self._begun_s, None

    def first(self) -> ServerState:
        """Return the state of a run that has not started."""
        state = self._new()
        state.driver.accounts.ledger.move(self._context.ledger)
        return state

    def restored(self, part: bytearray) -> tuple[Mapping[str, Any], ServerState]:
        """Return the facts of this server's part, and the state; the weights, and what workers keep, are in memory
        again.

        Raises:
            CheckpointError: it is no part of this run, or the policy decides otherwise in a replay.
        """
        facts, tensors = unpack(part)
        columns = len(PUSH_COLUMNS), len(REPLAYED_COLUMNS)
        pushes, arrivals = map(rows_in, self._context.ledger, columns)
        state = self._new()
        try:
            state.shard.restore(0, tensors)
            replay(state.driver, arrivals[: facts["arrivals"]], pushes)
            check_marks(state.driver.machine, facts["marks"])
            self._take_facts(facts, tensors, state)
        except REFUSED as error:
            raise refused(error) from error
        state.driver.accounts.ledger.move(self._context.ledger)
        return facts, state

    def _take_facts(self, facts: Mapping[str, Any], tensors: State, state: ServerState) -> None:
        machine = state.driver.machine
        state.driver.set_numbers(facts["numbers"])
        state.faults.restore(facts["faults"])
        state.left.update(set(range(self._job.run.workers)) - set(machine.workers))
        for index, server in enumerate(self._job.server_of):
            if server and machine.ranges[index].version:
                self._machines[server - 1].versions[index] = machine.ranges[index].version
        for worker, (clock, own) in enumerate(zip(facts["clocks"], self._kept, strict=True)):
            if own is not None and clock is not None:
                kept = tensors.get(f"worker {worker}")
                own.put(None if kept is None else kept.numpy(), clock - 1)
        self.number, self._pushes = facts["number"], facts["pushes"]

    def _new(self) -> ServerState:
        """Return a state whose tables are not yet where others see them."""
        job, context = self._job, self._context
        machine = Server(range(job.run.workers), len(job.parts), job.sync)
        waiting = Waiting(job, machine) if job.layered and not job.cluster.free else None
        shard = TensorShard(job, context.arena)
        ledger = Ledger(job, shard.weights, context.snapshots, context.report_snapshot, replayed=True)
        driver = ServerDriver(job, machine, PushAccounts(job, ledger), shard, self._clock, self._transport, waiting,
                              self._others)  # fmt: skip
        return ServerState(driver, shard, waiting, Faults(job.cluster, job.run.seed), set())
