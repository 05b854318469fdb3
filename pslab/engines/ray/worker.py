"""The actor of a worker: it computes gradients, and evaluates snapshots after the training."""

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
from pslab.engines.worker.real_time import RealTimeWorker
from pslab.protocol.messages import Pull, Push
from pslab.tensors.device import DEVICES
from pslab.tensors.finite import NonFinite


class EndOfRun(Exception):
    """The run is over."""


class RayWorker(Member, RealTimeWorker):
    """The actor of a worker. The evaluator beside a run is such an actor, too, but never called to `run`."""

    def begin(self, worker: int, generation: int, trains: bool) -> None:
        """Initialize this worker for the prepared run; `generation` is the number of its former processes in the run.
        Unless it `trains`, it only evaluates."""
        self._worker, self._life = worker, generation
        self._evaluator: Evaluator | None = None
        self._rows, self._calls, self._number = list[Row](), list[Any](), 0
        if not trains:
            return
        job, requests = self.job, requests_of(self.job, self.arena, self.data)
        self._contents, self._clock, self.pulled = Contents(job, self.arena), WallClock(), []
        self.driver = WorkerDriver(job, worker, self._send, self._rows, requests)
        self.producer = producer_of(job, worker, self.arena, self.data, successor=generation > 0, requests=requests)
        self.producer.warm_up()

    def run(self, server: Any) -> dict[str, Any]:
        """Compute until the server ends the run; return the last phases, and the traceback of an error or ""."""
        self._server, failed = server, ""
        try:
            iteration = self._start()
            while True:
                iteration = self._receive() if iteration is None else self._compute(iteration)
        except EndOfRun:
            pass
        except NonFinite:
            self._exchange([Diverged(self._worker, self.driver.iteration)])
        except Exception:  # a user's model may raise anything
            failed = traceback.format_exc()
        schedule = self.driver.range_schedule
        return {"failed": failed, "iteration": self.driver.iteration, "phases": self._rows,
                "sweeps": schedule.sweeps if schedule else []}  # fmt: skip

    def evaluate(self, snapshot: dict[str, Any], device: str) -> tuple[float, ...]:
        """Return the metric, the loss and further metrics of a snapshot of the weights."""
        if self._evaluator is None:
            self._evaluator = Evaluator(self.job, self.data, DEVICES[device].of(max(0, self._worker)))
        return self._evaluator.snapshot(0, ObjectArena(snapshot["weights"]))

    def _start(self) -> int | None:
        """Wait for the server; return the first iteration to compute, or None if its weights have not arrived."""
        self._exchange([])
        (go, *_), *frames = self._replies()
        assert isinstance(go, Go)
        self._clock.start(zero_s=time.monotonic() - go.zero_s)
        if go.iteration == FIRST:
            return self.driver.start(self._clock.now())
        self.driver.resume(go.iteration)
        self.producer.resume(go.iteration)
        return self._deal_with([message for frame in frames for message in frame])

    def now(self) -> float:
        return self._clock.now()

    # --- computing ------------------------------------------------------------------------------------------------

    def _compute(self, iteration: int) -> int | None:
        job, driver, producer, clock = self.job, self.driver, self.producer, self._clock
        if self.pulled:
            self._install_pulled(iteration)
        driver.begin(clock.now())
        loss = producer.gradient(iteration, driver.take_basis(iteration))
        computed_s = clock.now()
        payloads, selected_s = producer.payloads(iteration, loss)
        following = driver.computed(job.exchanged(iteration), payloads, computed_s, clock.at(selected_s), clock.now())
        if job.traits.overlap:
            begin_s = clock.now()
            producer.follow(iteration)
            driver.followed(iteration, begin_s, clock.now())
        return following

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
        """Return a message's arrays: copies or references if the deciding server passes them on, else views."""
        elsewhere = isinstance(message, Push | Pull) and self.job.server_of[message.range]
        return self._contents.read(message) if elsewhere else self._contents.views(message)

    def _receive(self) -> int | None:
        """Wait for messages; return the iteration to compute now, or None."""
        if not self._calls:
            self._exchange([])
        return self._deal_with([message for frame in self._replies() for message in frame])

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
