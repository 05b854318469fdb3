"""The actor of a worker: it computes what the worker's driver asks for, and evaluates snapshots after the training."""

from __future__ import annotations

import time
import traceback
from typing import Any

import numpy as np

from pslab.engines.experiment.wire import FIRST, Diverged, Frame, Go, Stop
from pslab.engines.ray.contents import Content, Contents, ObjectArena
from pslab.engines.ray.server import Member
from pslab.engines.server.clock import WallClock
from pslab.engines.server.evaluate import Evaluator
from pslab.engines.worker.driver import WorkerDriver
from pslab.engines.worker.modes import producer_of, requests_of
from pslab.engines.worker.phases import Row
from pslab.engines.worker.tensors import Pulled
from pslab.protocol.messages import Ack, Pull, Push, Weights
from pslab.tensors.device import DEVICES
from pslab.tensors.finite import NonFinite


class EndOfRun(Exception):
    """The run is over."""


class RayWorker(Member):
    """One worker; the process that evaluates beside a run is one that never runs."""

    def begin(self, worker: int, life: int, trains: bool) -> None:
        """Take a worker's part in the run that was prepared: the first process of this worker, or a later one."""
        self._worker, self._life = worker, life
        self._evaluator: Evaluator | None = None
        self._rows, self._calls, self._number = list[Row](), list[Any](), 0
        if not trains:
            return
        job, requests = self.job, requests_of(self.job, self.arena, self.data)
        self._contents, self._clock, self._pulled = Contents(job, self.arena), WallClock(), list[Pulled]()
        self._driver = WorkerDriver(job, worker, self._send, self._rows, requests)
        self._producer = producer_of(job, worker, self.arena, self.data, successor=life > 0, requests=requests)
        self._producer.warm_up()

    def run(self, server: Any) -> dict[str, Any]:
        """Compute until the server ends the run; return the last phases, or what was raised."""
        self._server, failed = server, ""
        try:
            iteration = self._start()
            while True:
                iteration = self._receive() if iteration is None else self._compute(iteration)
        except EndOfRun:
            pass
        except NonFinite:
            self._exchange([Diverged(self._worker, self._driver.iteration)])
        except Exception:  # a user's model may raise anything
            failed = traceback.format_exc()
        schedule = self._driver.range_schedule
        return {"failed": failed, "iteration": self._driver.iteration, "phases": self._rows,
                "sweeps": schedule.sweeps if schedule else []}  # fmt: skip

    def evaluate(self, snapshot: dict[str, Any], device: str) -> tuple[float, ...]:
        """Return metric, loss and further metrics of a snapshot of the weights."""
        if self._evaluator is None:
            self._evaluator = Evaluator(self.job, self.data, DEVICES[device].of(max(0, self._worker)))
        return self._evaluator.snapshot(0, ObjectArena(snapshot["weights"]))

    def _start(self) -> int | None:
        """Wait for the server; return the iteration that is computed first, if its weights are here."""
        self._exchange([])
        (go, *_), *frames = self._replies()
        assert isinstance(go, Go)
        self._clock.start(zero_s=time.monotonic() - go.zero_s)
        if go.iteration == FIRST:
            return self._driver.start(self._clock.now())
        self._driver.resume(go.iteration)
        self._producer.resume(go.iteration)
        return self._take(frames)

    # --- computing ------------------------------------------------------------------------------------------------

    def _compute(self, iteration: int) -> int | None:
        job, driver, producer, clock = self.job, self._driver, self._producer, self._clock
        if self._pulled:
            begin_s, pulled, self._pulled = clock.now(), self._pulled, []
            for each in pulled:
                producer.install(each)
            driver.decoded(iteration - 1, begin_s, clock.now())
        driver.begin(clock.now())
        loss = producer.gradient(iteration, driver.take_basis(iteration))
        computed_s = clock.now()
        payloads, selected_s = producer.payloads(iteration, loss)
        found = driver.computed(job.exchanged(iteration), payloads, computed_s, clock.at(selected_s), clock.now())
        if job.traits.overlap:
            begin_s = clock.now()
            producer.follow(iteration)
            driver.followed(iteration, begin_s, clock.now())
        return found

    # --- exchanging -----------------------------------------------------------------------------------------------

    def _send(self, frame: Frame, now: float) -> None:
        self._exchange(frame)

    def _exchange(self, frame: Frame) -> None:
        content = [self._content(message) for message in frame]
        phases = np.array(self._rows)
        self._rows.clear()
        sent = self._server.exchange.remote(self._worker, self._life, self._number, frame, content, phases)
        self._calls, self._number = [*self._calls, sent], self._number + 1

    def _content(self, message: Any) -> Content:
        """Return a message's numbers; a reference to them where the server that decides only hands them on."""
        elsewhere = isinstance(message, Push | Pull) and self.job.server_of[message.range]
        return self._contents.read(message) if elsewhere else self._contents.views(message)

    def _receive(self) -> int | None:
        """Wait for messages; return the iteration that is to be computed now, if any."""
        if not self._calls:
            self._exchange([])
        return self._take(self._replies())

    def _replies(self) -> list[Frame]:
        import ray

        (call, *_), self._calls = ray.wait(self._calls)
        frames = list[Frame]()
        for frame, contents in ray.get(call):
            if isinstance(frame[0], Stop):
                raise EndOfRun
            self._write(frame, contents)
            frames.append(frame)
        return frames

    def _write(self, frame: Frame, contents: list[Content]) -> None:
        for message, content in zip(frame, contents, strict=True):
            self._contents.write(message, content)

    def _take(self, frames: list[Frame]) -> int | None:
        found = None
        for message in [message for frame in frames for message in frame]:
            iteration = self._received(message)
            found = found if iteration is None else iteration
        return found

    def _received(self, message: Ack | Weights) -> int | None:
        driver, now = self._driver, self._clock.now()
        if isinstance(message, Ack):
            return driver.acknowledged(message, now)
        driver.arrived(message, now)
        if self.job.traits.eager:
            self._pulled.append(Pulled.of(message))
            return driver.installed(message, now, None)
        self._producer.install(Pulled.of(message))
        return driver.installed(message, now, self._clock.now())
