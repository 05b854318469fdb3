"""A new process has the state of the one before: a server of its part of a checkpoint, a worker of its memory."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ownpolicies import Alternating, Talking
from tiny import tiny
from whole import laid_out

from pslab.engines.experiment.checkpoint.file import pack, unpack
from pslab.engines.experiment.job import Job
from pslab.engines.experiment.layout import Layout
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.experiment.wire import WHOLE, Frame, PushInfo, Wanted
from pslab.engines.local.recovery.checkpoints import CheckpointParts
from pslab.engines.local.recovery.server_state import ServerCheckpoints, ServerState
from pslab.engines.processes.child import ProcessContext
from pslab.engines.server.clock import WallClock
from pslab.engines.server.driver import Transport
from pslab.engines.server.ledger import PUSH_COLUMNS, REPLAYED_COLUMNS
from pslab.engines.server.replay import marks_of
from pslab.engines.server.rows import rows_in
from pslab.engines.worker.state import WorkerState
from pslab.errors import CheckpointError
from pslab.lab.runs.resolve import resolve
from pslab.protocol.messages import Ack, Push
from pslab.protocol.worker import Compute, worker_of


@given(st.permutations([0, 0, 0, 1, 1, 1, 2, 2, 2]))
def test_the_newest_checkpoint_is_the_last_one_of_which_every_server_has_sent_its_part(order: list[int]):
    """Each server sends its parts one after another; all others may be ahead of it or behind."""
    found, sent = CheckpointParts((7, 8, 9)), [0, 0, 0]
    for server in order:
        sent[server] += 1
        before = found.newest
        whole = found.take(7 + server, {"number": sent[server], "facts": {"number": sent[server], "server": server}},
                           memoryview(b"part"))  # fmt: skip
        assert (0 if found.newest is None else found.newest.facts["number"]) == min(sent)
        assert (whole is None) == (found.newest is before)
    assert found.newest is not None
    assert found.newest.facts["server"] == 0
    part = {"number": 4, "facts": {}}, memoryview(b"part")
    assert found.take(7, *part) is None
    found.forget_torn()  # all go back: parts from before do not count
    assert [found.take(server, *part) is None for server in (8, 9, 7)] == [True, True, False]


KINDS: list[dict[str, Any]] = [
    {"sync": "bsp"}, {"sync": "asp", "rate": "dynsgd"}, {"sync": "ssp:1", "rate": "split", "pull": "changed"},
    {"sync": "backup:1"}, {"sync": "eager", "rate": "modulated"}, {"sync": "dssp:1,2", "optimizer": "adam"},
    {"sync": "bsp", "ranges": "layers:400", "rate": "adagrad"}, {"sync": "asp", "optimizer": "dn", "dtype": "float64"},
    {"sync": Talking(), "rate": Alternating()}, {"sync": "elastic:3", "optimizer": "sgd:momentum=0.9"},
    {"sync": "asp", "downlink": "int8"}, {"sync": "local:2"}, {"sync": "diloco:2"}, {"sync": "streaming:4,2,overlap=1"},
]  # fmt: skip


class Workers(Transport):
    """The workers of a server in this process, which push gradients of noise, in any order."""

    def __init__(self, job: Job, context: ProcessContext, draws: random.Random) -> None:
        self.job, self.context, self.draws = job, context, draws
        self.machines = [worker_of(worker, len(job.parts), job.sync) for worker in range(job.run.workers)]
        self.inbox = [list[Any]() for _ in self.machines]
        self.due = list[int]()  # workers with a gradient to compute

    def send(self, worker: int, frame: Frame, now: float) -> None:
        self.inbox[worker] += frame

    def take(self, effects: list[Any], worker: int) -> Frame:
        """The messages of a worker's effects."""
        self.due += [worker for effect in effects if isinstance(effect, Compute)]
        wanted = Wanted(0, 0)
        requests = [effect.request for effect in effects if not isinstance(effect, Compute)]
        return [each if isinstance(each, Push) else each._replace(payload=wanted) for each in requests]

    def turn(self, state: ServerState) -> None:
        """Let one worker compute, or read what it was sent."""
        worker = self.draws.choice([*self.due, *(w for w, messages in enumerate(self.inbox) if messages)])
        machine, layout, frame = self.machines[worker], self.job.layout, Frame()
        if worker in self.due:
            self.due.remove(worker)
            buffer = layout.gradients[worker][machine.iteration % len(layout.gradients[worker])]
            gradient = self.context.arena.tensor(buffer, layout.size, layout.dtype)
            gradient.copy_(torch.from_numpy(np.random.default_rng(len(self.due)).standard_normal(layout.size)))
            for index in self.job.exchanged(machine.iteration):
                payload = PushInfo(WHOLE, self.job.parts[index].size, self.draws.random())
                frame += self.take(machine.computed(index, payload), worker)
        else:
            for message in self.inbox[worker]:
                act = machine.ack if isinstance(message, Ack) else machine.weights
                frame += self.take(act(message), worker)
            self.inbox[worker] = []
        if frame:
            state.driver.receive(frame)


class Setup:
    """A server that decides, in this process."""

    def __init__(self, fields: dict[str, Any], seed: int) -> None:
        restarts = {"workers": 3, "on_death": "restart", "checkpoint_every": 1, "pushes": 10**6}
        self.job, self.context = laid_out(resolve(tiny(**{**restarts, **fields})))
        self.workers = Workers(self.job, self.context, random.Random(seed))
        self.checkpoints = self.made()
        self.state = self.checkpoints.first()
        for worker, machine in enumerate(self.workers.machines):
            self.state.driver.receive(self.workers.take(machine.start(), worker))

    def made(self) -> ServerCheckpoints:
        clock = WallClock()
        clock.start()
        return ServerCheckpoints(self.job, self.context, self.workers, clock, [], [])

    def part(self, turns: int) -> bytearray:
        """The part of a checkpoint that is made after so many turns, once that may be."""
        for _ in range(turns):
            self.workers.turn(self.state)
        if turns > 20:  # a worker's place is taken by another process
            worker, workers = self.workers.draws.randrange(3), self.workers
            iteration, frame = self.state.driver.succeed(worker)
            workers.machines[worker].join(iteration)
            workers.inbox[worker], workers.due = [], [other for other in workers.due if other != worker]
            self.state.driver.receive(frame)
        while not self.checkpoints.due(self.state.driver.machine):
            self.workers.turn(self.state)
        self.checkpoints.begin(self.state)
        return bytearray(self.context.parent.reports()[-1].content)  # type: ignore[attr-defined]

    def seen(self, state: ServerState) -> dict[str, Any]:
        """All that is compared of a state."""
        driver, accounts = state.driver, state.driver.accounts
        columns = len(PUSH_COLUMNS), len(REPLAYED_COLUMNS)
        tables = [rows_in(arena, count).tobytes() for arena, count in zip(self.context.ledger, columns, strict=True)]
        tensors = {name: each.numpy().tobytes() for name, each in state.shard.state(0).items()}
        ranges = driver.machine.ranges
        return {
            **marks_of(driver.machine), "numbers": driver.numbers(), "tables": tables, "tensors": tensors,
            "accounts": (accounts.applied, accounts.dropped, accounts.dropped_bytes),
            "computing": [sorted(accounts.computing(index)) for index in range(len(self.job.parts))],
            "asked": [{worker: tuple(pull)[:4] for worker, pull in part.asked.items()} for part in ranges],
            "left": state.left,
        }  # fmt: skip


@pytest.mark.parametrize("fields", KINDS, ids=range(len(KINDS)))
def test_a_new_server_has_the_state_of_the_one_before(fields: dict[str, Any]):
    for seed, turns in enumerate((0, 7, 40, 150)):
        setup = Setup(fields, seed)
        part = setup.part(turns)
        before = setup.seen(setup.state)
        for _ in range(5):  # behind the checkpoint: nothing of it counts
            setup.workers.turn(setup.state)
        facts, state = setup.made().restored(part)
        assert setup.seen(state) == before, (seed, turns)
        assert facts["pushes"] == state.driver.machine.gradients


def forged(part: bytearray, **changed: Any) -> bytearray:
    """The part with other facts, or with other tensors; None takes one out."""
    facts, tensors = unpack(part)
    found = {name: changed.get(name, each) for name, each in tensors.items()}
    facts |= {name: value for name, value in changed.items() if name in facts}
    return bytearray(b"".join(pack(facts, {name: each for name, each in found.items() if each is not None})))


@pytest.mark.parametrize("changed", [
    {"weights": None}, {"weights": torch.ones(3)}, {"weights": torch.ones(1930, 2)}, {"arrivals": 3},
    {"arrivals": "x"}, {"marks": {}}, {"marks": None}, {"numbers": {}}, {"faults": []}, {"clocks": []},
    {"range 0/versions": torch.ones(7)}, {"range 0/optimizer 0/exp_avg": torch.ones(5)},
], ids=str)  # fmt: skip
def test_a_forged_part_is_refused_with_the_way_out(changed: dict[str, Any]):
    setup = Setup({"sync": "asp", "optimizer": "adam"}, 0)
    part = setup.part(20)
    with pytest.raises(CheckpointError, match=r"fresh=True"):
        setup.made().restored(forged(part, **changed))


# --- workers ----------------------------------------------------------------------------------------------------------


class Kept:
    """Worker 1 of a run, and its successor's view."""

    def __init__(self, sync: str) -> None:
        self.arena = Arena()
        self.layout = Layout.of(resolve(tiny(prune="dgc", workers=2, on_death="restart", sync=sync)))
        self.arena.reserve(self.layout.end)
        self.kept, memory = self.view(), self.layout.memories["residual"]
        self.kept.clear()
        self.residual = self.arena.tensor(self.layout.memory_offsets[1]["residual"], memory.entries, memory.dtype)

    def view(self) -> WorkerState:
        return WorkerState(SimpleNamespace(layout=self.layout), 1, self.arena)  # type: ignore[arg-type]

    def iterate(self, count: int) -> None:
        for iteration in range(count):
            self.kept.begin(iteration)
            self.residual.fill_(iteration + 1.0)
            self.kept.end(iteration)


@pytest.mark.parametrize("sync", ["asp", "eager"])
@pytest.mark.parametrize(
    ("whole", "begun", "iteration", "found", "value"),
    [(2, 0, 2, True, 2.0), (3, 0, 2, True, 2.0), (1, 1, 1, True, 1.0), (0, 1, 0, True, 0.0), (9, 0, 3, False, 0.0),
     (1, 2, 1, True, 1.0)],
    ids=["the iteration before", "repeats an iteration", "torn", "before the first", "not here", "begun twice"],
)  # fmt: skip
def test_a_successor_finds_the_last_whole_state_or_zero(sync, whole, begun, iteration, found, value):
    """After so many whole iterations, and the next one begun so often: it changes part of the state before it ends."""
    setup = Kept(sync)
    setup.iterate(whole)
    for _ in range(begun):
        setup.kept.begin(whole)
        setup.residual[7:].fill_(99.0)
    assert setup.view().resume(iteration) == found
    assert (setup.residual == value).all()


def test_a_worker_that_asks_ahead_has_as_many_copies_as_pushes_under_way():
    setup = Kept("eager")
    setup.iterate(5)
    setup.kept.begin(5)
    assert [setup.view().after(iteration) is not None for iteration in (1, 2, 3, 4)] == [False] + [True] * 3
