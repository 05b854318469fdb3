"""What an engine adds to the drivers: this one has a transport of bytes, one process and no time, in sixty lines.

Frames and orders cross between the two sides as bytes alone; payloads lie in an arena, as they would in a mirror of a
remote machine's.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from tiny import finished, tiny
from whole import laid_out

from pslab.engines.experiment.experiment import Experiment
from pslab.engines.experiment.wire import Frame, pack, unpack
from pslab.engines.server.clock import WallClock
from pslab.engines.server.driver import ServerDriver, Transport
from pslab.engines.server.ledger import Ledger
from pslab.engines.server.push_accounts import PushAccounts
from pslab.engines.server.shard_modes import shard_of
from pslab.engines.worker.driver import WorkerDriver
from pslab.engines.worker.modes import producer_of
from pslab.engines.worker.tensors import Pulled
from pslab.lab.runs.resolve import resolve
from pslab.protocol.messages import Ack
from pslab.protocol.server import Server
from pslab.tensors.device import one_thread


class Bytes(Transport):
    """Everything in one process, one message after another."""

    def __init__(self, experiment: Experiment) -> None:
        self.job, context = laid_out(experiment)
        self.shard = shard_of(self.job, context.arena)
        accounts = PushAccounts(self.job, Ledger(self.job, None, None, lambda body: None))
        workers = range(experiment.run.workers)
        machine = Server(workers, len(self.job.parts), self.job.sync)
        self.clock, self.under_way = WallClock(), deque[tuple[str, int, bytes]]()
        self.server = ServerDriver(self.job, machine, accounts, self.shard, self.clock, self)
        self.workers = [WorkerDriver(self.job, worker, self.sender(worker), []) for worker in workers]
        self.producers = [producer_of(self.job, worker, context.arena, context.data) for worker in workers]

    def sender(self, worker: int) -> Any:
        return lambda frame, now: self.under_way.append(("up", worker, pack(frame)))

    def send(self, worker: int, frame: Frame, now: float) -> None:
        self.under_way.append(("down", worker, pack(frame)))

    def run(self) -> torch.Tensor:
        self.clock.start()
        self.server.start()
        for worker, driver in enumerate(self.workers):
            self.compute(worker, driver.start(self.clock.now()))
        while not self.server.outcome:
            direction, worker, frame = self.under_way.popleft()
            if direction == "up":
                self.server.receive(list(unpack(frame)))
            else:
                self.receive(worker, list(unpack(frame)))
        return self.shard.weights

    def receive(self, worker: int, frame: Frame) -> None:
        driver, now = self.workers[worker], self.clock.now()
        for message in frame:
            if isinstance(message, Ack):
                self.compute(worker, driver.acknowledged(message, now))
            else:
                driver.arrived(message, now)
                self.producers[worker].install(Pulled.of(message))
                self.compute(worker, driver.installed(message, now, self.clock.now()))

    def compute(self, worker: int, iteration: int | None) -> None:
        if iteration is None:
            return
        driver, producer = self.workers[worker], self.producers[worker]
        driver.begin(self.clock.now())
        loss = producer.gradient(iteration, driver.take_basis(iteration))
        payloads, _ = producer.payloads(iteration, loss)
        now = self.clock.now()
        self.compute(worker, driver.computed(range(len(payloads)), payloads, now, now, now))


@pytest.mark.parametrize(
    "fields",
    [{}, {"prune": "static:5%", "pull": "changed"}, {"optimizer": "adam", "pull": "changed"},
     {"prune": "range:7", "pull": "range"}, {"sync": "local:2", "schedule": "linear"}],
    ids=str,
)  # fmt: skip
def test_an_engine_adds_time_and_transport_and_nothing_else(fields: dict[str, Any]):
    """Under a barrier nothing depends on who was first: the weights are those of the other engines, to the bit."""
    run = tiny(engine="virtual", cluster={"compute_s": 0.01, "slow": {1: 2.0}}, **fields)
    expected = finished(run).weights
    with one_thread():
        assert np.array_equal(Bytes(resolve(run)).run().numpy(), expected)
