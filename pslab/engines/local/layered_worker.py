"""A layered worker's process: within a pass, it waits for each layer's weights and pushes each layer's gradient."""

from __future__ import annotations

from pslab.engines.experiment.job import Job
from pslab.engines.experiment.wire import Blocked
from pslab.engines.local.worker import LocalWorker
from pslab.engines.processes.child import ProcessContext
from pslab.engines.worker.layered import LayeredProducer


class LocalLayeredWorker(LocalWorker):
    """The role of a worker's process that pulls and pushes layer by layer.

    Each layer's pass takes its share of the modelled time: the next pass starts, or the gradient is ready, no earlier
    than modelled. If a pass takes longer, later passes may be shortened until the worker is on time again.
    """

    def __init__(self, context: ProcessContext, job: Job, successor: bool = False) -> None:
        super().__init__(context, job, successor)
        self.layers_s = [[0.0, 0.0] for _ in self.job.layer_shares]  # real seconds, forward and backward
        assert isinstance(self.producer, LayeredProducer)
        self.pushed_layers = self.producer
        self.producer.attend(self._needs, self._turns, self._layer_ready)

    def _compute(self, iteration: int) -> int | None:
        begin_s = self.until_s = self.now()  # the modelled end of the pass is `until_s`
        self.driver.begin(begin_s)
        self.total_s, self.idle_s = self.driver.draw_compute_s(iteration), 0.0
        self.next: int | None = None
        self.layer, self.marked_s = -1, begin_s  # the layer whose forward pass is under way, and since when
        self.producer.gradient(iteration)
        end_s = self.now()
        # waits for weights and for the model's pace are no computing
        self.real_s += end_s - begin_s - self.idle_s
        self.modelled_s += self.total_s
        if self.total_s:
            self.overrun_s += max(0.0, end_s - self.until_s)
        return self.next

    def _needs(self, layer: int) -> None:
        """Wait for the weights of the layer that the forward pass has reached, and begin its pass."""
        self._turns()
        self._keep_to_model()
        if (missing := self.driver.missing(layer)) is not None:
            self._await(layer, missing)
        self.until_s += self.total_s * self.job.layer_shares[layer][0]
        self.layer, self.marked_s = layer, self.now()

    def _turns(self) -> None:
        """Count the real time of the layer's forward pass, which has ended."""
        now = self.now()
        if self.layer >= 0:
            self.layers_s[self.layer][0] += now - self.marked_s
        self.marked_s = now

    def _layer_ready(self, layer: int, loss: float) -> None:
        """Push the gradient of a layer whose backward pass has ended."""
        self.layers_s[layer][1] += self.now() - self.marked_s
        self.until_s += self.total_s * self.job.layer_shares[layer][1]
        self._keep_to_model()
        computed_s = self._paused(self.iteration, self.marked_s, self.now())
        self.until_s = max(self.until_s, computed_s)
        payloads, selected_s = self.pushed_layers.payloads_of(self.iteration, loss, layer)
        encoded_s = self.now()
        self._die_if_killed(self.iteration)
        self.next = self.driver.computed(self.job.ranges_of[layer], payloads, computed_s, self.clock.at(selected_s),
                                         encoded_s)  # fmt: skip
        self.marked_s = self.now()
        if self.job.sends_frames:
            self.until_s += self.marked_s - computed_s  # selecting and encoding take additional time

    def _keep_to_model(self) -> None:
        now = self.now()
        if self.total_s and now < self.until_s:
            self._hold_until(self.until_s)
            self.idle_s += self.now() - now

    def _await(self, layer: int, missing: int) -> None:
        begin_s = self.now()
        self.driver.stall(self.iteration, begin_s)
        if not self.job.cluster.free:
            # request orders may prefer this range
            self.stream.send([Blocked(self.worker, missing)])
        while self.driver.missing(layer) is not None:
            self._receive()  # no other iteration can be due before this one is computed
        now = self.now()
        self.driver.begin(now)
        # the modelled pass cannot begin before its weights come: the wait is no overrun
        self.until_s = max(self.until_s, now)
        self.idle_s += now - begin_s
