"""A layered worker's process: in the midst of a pass it waits for a layer's weights, and pushes a layer's gradient."""

from __future__ import annotations

import time
from typing import Any, cast

from pslab.engines.job.notes import BLOCKED, Note
from pslab.engines.local.worker import Working
from pslab.protocol.worker import Effect, LayeredWorker, Send


class LayeredWorking(Working):
    """One run at one worker whose requests go layer by layer.

    Each layer's passes keep to their share of the modelled time: the next one begins, or the gradient is ready, no
    sooner than the model says. A pass that takes longer than modelled may be caught up with by those behind it.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.layers_s = [[0.0, 0.0] for _ in self.job.layer_shares]  # what each one's passes really took
        self.producer.attend(self._needs, self._turns, self._layer_ready)

    def _compute(self, iteration: int) -> list[Effect]:
        begin_s = self.burst_s = self.until_s = time.monotonic()  # of a burst of computing; a pass, modelled
        self.total_s, self.idle_s, self.after = self.times.draw(), 0.0, list[Effect]()
        self.layer, self.marked_s = -1, begin_s  # the layer whose forward pass is under way, and since when
        self.producer.gradient(iteration)
        end_s = time.monotonic()
        self.real_s += end_s - begin_s - self.idle_s
        self.modelled_s += self.total_s
        if self.total_s:
            self.overrun_s += max(0.0, end_s - self.until_s)
        return self.after

    def _needs(self, layer: int) -> None:
        """The forward pass comes to a layer: the one before ends, and this one's weights are waited for."""
        self._turns()
        self._keep_to_model()
        missing = self._missing(layer)
        if missing is not None:
            self._await(layer, missing)
        self.until_s += self.total_s * self.job.layer_shares[layer][0]
        self.layer, self.marked_s = layer, time.monotonic()

    def _turns(self) -> None:
        """A layer's forward pass has ended."""
        now = time.monotonic()
        if self.layer >= 0:
            self.layers_s[self.layer][0] += now - self.marked_s
        self.marked_s = now

    def _layer_ready(self, layer: int, loss: float) -> None:
        """The backward pass of a layer ends: its gradient is pushed."""
        self.layers_s[layer][1] += time.monotonic() - self.marked_s
        self.until_s += self.total_s * self.job.layer_shares[layer][1]
        self._keep_to_model()
        iteration, computed_s = self.iteration, time.monotonic()
        payloads, selected_s = self.producer.payloads(iteration, loss, layer)
        effects = self.ready(self.job.ranges_of[layer], payloads, selected_s, computed_s)
        if self.job.sparse or self.iteration > iteration:
            self._log(iteration, "compute", self.burst_s, computed_s)
        self._perform([effect for effect in effects if isinstance(effect, Send)])
        self.after += [effect for effect in effects if not isinstance(effect, Send)]
        if self.job.sparse:
            self.burst_s = time.monotonic()
            self.until_s += self.burst_s - computed_s  # choosing and coding come on top
        self.marked_s = time.monotonic()

    def _keep_to_model(self) -> None:
        now = time.monotonic()
        if self.total_s and now < self.until_s:
            self._hold_until(self.until_s)
            self.idle_s += time.monotonic() - now

    def _missing(self, layer: int) -> int | None:
        machine = cast(LayeredWorker, self.machine)
        return next((index for index in self.job.ranges_of[layer] if not machine.holds(index)), None)

    def _await(self, layer: int, missing: int) -> None:
        begin_s = time.monotonic()
        if begin_s > self.burst_s:
            self._log(self.iteration, "compute", self.burst_s, begin_s)
        if not self.job.cluster.free:
            self.line.send([Note(BLOCKED, self.worker, missing)])
        while self._missing(layer) is not None:
            for note in self._receive():
                self._heard(note)  # nothing follows before the iteration is computed
        self.burst_s = time.monotonic()
        self.until_s = max(self.until_s, self.burst_s)
        self.idle_s += self.burst_s - begin_s
