"""How a worker in real time handles the messages that its process or actor receives."""

from __future__ import annotations

from pslab.engines.experiment.job import Job
from pslab.engines.experiment.wire import Frame
from pslab.engines.worker.driver import WorkerDriver
from pslab.engines.worker.tensors import Producer, Pulled
from pslab.protocol.messages import Ack, Weights


class RealTimeWorker:
    """A worker in real time; a process or an actor derives from it."""

    job: Job
    driver: WorkerDriver
    producer: Producer
    pulled: list[Pulled]  #: weights that an eager worker installs when it starts the next iteration

    def now(self) -> float:
        """Return the present instant, in the cluster's seconds."""
        raise NotImplementedError

    def _install_pulled(self, iteration: int) -> None:
        begin_s = self.now()
        for pulled in self.pulled:
            self.producer.install(pulled)
        self.pulled = []
        self.driver.decoded(iteration - 1, begin_s, self.now())

    def _deal_with(self, messages: Frame) -> int | None:
        """Handle messages; return the iteration to compute now, or None."""
        iteration = None
        for message in messages:
            following = self._received(message)
            iteration = iteration if following is None else following  # a later message must not hide it
        return iteration

    def _received(self, message: Ack | Weights) -> int | None:
        now = self.now()
        if isinstance(message, Ack):
            return self.driver.acknowledged(message, now)
        self.driver.arrived(message, now)
        # it computes meanwhile: its weights must not change before the next iteration starts
        if self.job.traits.eager:
            self.pulled.append(Pulled.of(message))
            return self.driver.installed(message, now, None)
        self.producer.install(Pulled.of(message))
        return self.driver.installed(message, now, self.now())
