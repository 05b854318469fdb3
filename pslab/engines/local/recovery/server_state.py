"""A server's part of a checkpoint, which it sends to the parent, and from which a new server continues.

The deciding server sends its own part, and orders every other server to send one after all earlier orders. So all parts
are of the same moment, and contain every earlier order as done. Each part has the server's weights and their optimizer
state. The deciding server's part also has its workers' memories, and the number of arrivals, whose table outlives the
process in shared memory. A replay restores everything else: see pslab/engines/server/replay.py.
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
from pslab.engines.server.shard_modes import shard_of
from pslab.engines.server.store import Store
from pslab.engines.worker.state import WorkerState
from pslab.protocol.server import Server
from pslab.protocol.store import StoreMachine
from pslab.tensors.update.states import State

PERIOD_S = 1.0  # the least time between two checkpoints, unless `checkpoint_every` is set


def send_part(context: ProcessContext, number: int, facts: Mapping[str, Any], tensors: State) -> None:
    """Send a server's part of the checkpoint `number` to the parent."""
    report(context.parent, "part", {"number": number, "facts": facts}, content=pack(facts, tensors))


def restored_shard(job: Job, context: ProcessContext, server: int, part: bytearray) -> TensorShard:
    """Return the shard of a server that does not decide, restored from its part of a checkpoint.

    Raises:
        CheckpointError: the part does not match this run.
    """
    shard = shard_of(job, context.arena)
    try:
        shard.restore(server, unpack(part)[1])
    except REFUSED as error:
        raise refused(error) from error
    return shard


class ServerState(NamedTuple):
    """The state of the deciding server, without its shared memory."""

    driver: ServerDriver
    shard: TensorShard
    waiting: Waiting | None  #: the queue of messages for the links, if an order picks the next
    faults: Faults
    left: set[int]  #: workers that have left the run


class ServerCheckpoints:
    """The checkpoints of the deciding server: begins them, and creates its state, initially or from a checkpoint.

    Args:
        others, machines: the stores of the other servers, and their state machines.
    """

    def __init__(
        self, job: Job, context: ProcessContext, transport: Transport, clock: WallClock, others: Sequence[Store],
        machines: Sequence[StoreMachine],
    ) -> None:  # fmt: skip
        self._job, self._context, self._transport, self._clock = job, context, transport, clock
        self._others, self._machines = others, machines
        self._kept = [
            WorkerState(job, worker, context.arena) if job.layout.states else None for worker in range(job.run.workers)
        ]
        self.number = 0  #: the number of the last checkpoint that was begun
        self._pushes = 0  # the pushes before this checkpoint
        self.able = job.run.on_death == "restart"  #: whether checkpoints are made
        self._begun_s: float | None = None  # when it was begun; None: the parent has all parts
        self._last_s, self._spent_s = time.monotonic(), 0.0  # when the last was complete, how long it took

    def due(self, machine: Server) -> bool:
        """Whether to begin a checkpoint: after `checkpoint_every` pushes, or as often as SHARE of the time allows.

        Also, the parent must have all parts of the last checkpoint, and all received pushes must be applied.
        """
        # a push that is held lies in its worker's buffer, which no part contains
        if not self.able or self._begun_s is not None or not all(part.at_rest for part in machine.ranges):
            return False
        if (every := self._job.run.checkpoint_every) is not None:
            return machine.gradients >= self._pushes + every
        due_s = self._last_s + PERIOD_S + self._spent_s / SHARE
        return machine.gradients > self._pushes and time.monotonic() >= due_s

    def begin(self, state: ServerState) -> None:
        """Send this server's part, with the states that workers stored after their last pushes, to the parent."""
        # between two messages, so all numbers below are of one moment
        self._begun_s, machine = time.monotonic(), state.driver.machine
        ledger = state.driver.accounts.ledger
        clocks = [machine.clock(worker) if worker in machine.workers else None
                  for worker in range(self._job.run.workers)]  # fmt: skip
        self.number, self._pushes = self.number + 1, machine.gradients
        facts = {"number": self.number, "pushes": machine.gradients, "seconds": self._clock.now(),
                 "zero_s": self._clock.zero_s, "dilation": self._clock.dilation, "clocks": clocks,
                 "arrivals": ledger.arrival_count, "marks": marks_of(machine), "numbers": state.driver.numbers(),
                 "faults": state.faults.state()}  # fmt: skip
        memories = {f"worker {worker}": torch.from_numpy(copy)
                    for worker, (states, clock) in enumerate(zip(self._kept, clocks, strict=True))
                    if states is not None and clock is not None and (copy := states.after(clock - 1)) is not None
                    }  # fmt: skip
        send_part(self._context, self.number, facts, {**state.shard.state(0), **memories})

    def whole(self) -> None:
        """Note that the parent has all parts of the checkpoint."""
        if self._begun_s is not None:
            self._last_s = time.monotonic()
            self._spent_s, self._begun_s = self._last_s - self._begun_s, None  # also the parent's time

    def first(self) -> ServerState:
        """Return the initial state of a run."""
        state = self._new()
        state.driver.accounts.ledger.move(self._context.ledger)
        return state

    def restored(self, part: bytearray) -> tuple[Mapping[str, Any], ServerState]:
        """Return the facts of this server's part, and its state; restore weights and workers' states in shared memory.

        Raises:
            CheckpointError: the part does not match this run, or the policy decides differently in the replay.
        """
        facts, tensors = unpack(part)
        columns = len(PUSH_COLUMNS), len(REPLAYED_COLUMNS)
        pushes, arrivals = map(rows_in, self._context.ledger, columns)
        state = self._new()
        try:
            # tensors from the part, all else from the replay
            state.shard.restore(0, tensors)
            replay(state.driver, arrivals[: facts["arrivals"]], pushes)
            # before the workers start: a policy that decides otherwise must not continue the run
            check_marks(state.driver.machine, facts["marks"])
            self._take_facts(facts, tensors, state)
        except REFUSED as error:
            raise refused(error) from error
        # after the replay, whose source the tables in shared memory were until now
        state.driver.accounts.ledger.move(self._context.ledger)
        return facts, state

    def _take_facts(self, facts: Mapping[str, Any], tensors: State, state: ServerState) -> None:
        machine = state.driver.machine
        state.driver.set_numbers(facts["numbers"])
        state.faults.restore(facts["faults"])
        state.left.update(set(range(self._job.run.workers)) - set(machine.workers))
        for index, server in enumerate(self._job.server_of):
            # other servers' machines expect the versions that their restored weights have
            if server and machine.ranges[index].version:
                self._machines[server - 1].versions[index] = machine.ranges[index].version
        for worker, (clock, states) in enumerate(zip(facts["clocks"], self._kept, strict=True)):
            if states is not None and clock is not None:
                memory = tensors.get(f"worker {worker}")
                states.put(None if memory is None else memory.numpy(), clock - 1)
        self.number, self._pushes = facts["number"], facts["pushes"]

    def _new(self) -> ServerState:
        """Return a new state, whose tables are not yet in shared memory."""
        job, context = self._job, self._context
        machine = Server(range(job.run.workers), len(job.parts), job.sync)
        waiting = Waiting(job, machine) if job.layered and not job.cluster.free else None
        shard = shard_of(job, context.arena)
        # with the columns that a replay needs
        ledger = Ledger(job, shard.weights, context.snapshots, context.report_snapshot, replayed=True)
        driver = ServerDriver(job, machine, PushAccounts(job, ledger), shard, self._clock, self._transport, waiting,
                              self._others)  # fmt: skip
        return ServerState(driver, shard, waiting, Faults(job.cluster, job.run.seed), set())
