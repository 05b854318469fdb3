"""Workers whose requests go layer by layer: they wait for weights, and push gradients, in the midst of a pass.

Hooks on modules and parameters find out when the forward pass comes to a layer, and when its gradient is complete, so
any nn.Module works as it is.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import nn

from pslab.engines.experiment.wire import PushInfo
from pslab.engines.worker.framed_tensors import FramedProducer
from pslab.engines.worker.gradient import Computing
from pslab.engines.worker.tensors import NO_BASIS, Basis, Producer
from pslab.tensors.workload.data import Dataset
from pslab.tensors.workload.keyspace import Keyspace
from pslab.tensors.workload.layer_costs import Uses


class Layerwise:
    """Calls `needs(layer)` before a module that uses a layer runs, `forward_done()` where the forward pass ends, and
    `ready(layer)` once a layer's gradient is complete."""

    def __init__(self, module: nn.Module, keyspace: Keyspace) -> None:
        self._layer = {slot.name: number for number, layer in enumerate(keyspace.layers) for slot in layer.slots}
        self._slots = [len(layer.slots) for layer in keyspace.layers]
        self._module = module
        self.needs: Callable[[int], None] = lambda layer: None
        self.forward_done: Callable[[], None] = lambda: None
        self.ready: Callable[[int], None] = lambda layer: None
        self._entered: set[int] = set()
        self._left = list(self._slots)  # per layer: parameters without their gradient
        # a parameter keeps its hooks where no garbage collector sees them: they must not keep the module, or it them
        accumulated = weakref.WeakMethod(self._accumulated)
        for name, parameter in module.named_parameters():
            if name in self._layer:
                parameter.register_post_accumulate_grad_hook(functools.partial(_call, accumulated, self._layer[name]))  # type: ignore[no-untyped-call]

    def learn(self, run: Callable[[], Any]) -> None:
        """Learn by a pass through the module where each parameter is used first: there its weights are waited for.

        A parameter that no module is seen to use is waited for before all of them. A module that this pass did not
        come to waits for its own parameters.
        """
        uses = Uses(self._module)
        uses.watch(run)
        at: dict[str, set[int]] = {}
        for name, layer in self._layer.items():
            at.setdefault(uses.first.get(name, ""), set()).add(layer)
        shared = {id(p): name for name, p in self._module.named_parameters()}
        for path, each in self._module.named_modules():
            own = {self._layer[name] for p in each.parameters(recurse=False)
                   if (name := shared[id(p)]) in self._layer}  # fmt: skip
            if layers := sorted(own | at.get(path, set())):
                each.register_forward_pre_hook(functools.partial(self._enter, layers))

    def forward_begins(self) -> None:
        """Start a pass: no layer is entered. A backward pass within it, as of a local loss, completes no gradient."""
        self._entered.clear()
        self._left = [0] * len(self._slots)

    def forward_ended(self) -> None:
        """Report the layers that this pass did not come to; no gradient is complete."""
        self._enter(range(len(self._slots)))
        self._left = list(self._slots)
        self.forward_done()

    def backward_ended(self) -> None:
        """Report the layers of which a parameter got no gradient."""
        for layer in reversed(range(len(self._left))):
            if self._left[layer] > 0:
                self._left[layer] = 0
                self.ready(layer)

    def _enter(self, layers: Sequence[int], *_: Any) -> None:
        for layer in layers:
            if layer not in self._entered:
                self._entered.add(layer)
                self.needs(layer)

    def _accumulated(self, layer: int) -> None:
        self._left[layer] -= 1
        if self._left[layer] == 0:
            self.ready(layer)


def _call(method: Callable[[], Callable[[int], None] | None], layer: int, _: torch.Tensor) -> None:
    if (found := method()) is not None:
        found(layer)


class LayeredComputing(Computing):
    """A worker's gradients, of which each layer is reported as it is ready."""

    _layerwise: Layerwise | None = None  # from when it is warm
    _untaken: list[int]  # layers whose gradients a device is computing

    def attend(
        self, needs: Callable[[int], None], forward_done: Callable[[], None], ready: Callable[[int, float], None]
    ) -> None:
        """Call these functions as the passes of each iteration reach them: `needs(layer)` waits for weights,
        `forward_done()` is called where the forward pass ends, and `ready(layer, loss)` takes a gradient.

        A device that was waited for at each layer would have nothing to do meanwhile: so it is given all passes at
        once, and the gradients are taken, in the order in which they became ready, once it has computed them."""
        layerwise, self._take = self._layerwise, ready
        assert layerwise is not None  # it is warm
        layerwise.needs, layerwise.forward_done = needs, forward_done
        layerwise.ready = self._untaken.append if self._device.separate else lambda layer: ready(layer, self.loss)

    def gradient(self, step: int, buffer: int) -> float:
        loss = super().gradient(step, buffer)
        while self._layerwise is not None and self._untaken:
            self._take(self._untaken.pop(0), loss)
        return loss

    def _forward(self, x: torch.Tensor) -> Any:
        if self._layerwise is not None:
            self._layerwise.forward_begins()
        return super()._forward(x)

    def _backward(self, loss: torch.Tensor) -> None:
        if self._layerwise is None:
            return super()._backward(loss)
        self._layerwise.forward_ended()
        super()._backward(loss)
        self._layerwise.backward_ended()

    def _run_first(self) -> None:
        super()._run_first()
        layerwise = Layerwise(self._module, self._keyspace)
        layerwise.learn(lambda: self.gradient(0, 0))
        self._layerwise, self._untaken = layerwise, list[int]()


class LayeredProducer(Producer):
    """The tensors of a worker whose gradient is pushed layer by layer."""

    _rated = 0  # ranges of this iteration

    def attend(self, *given: Any) -> None:
        """Call these functions as LayeredComputing says."""
        cast(LayeredComputing, self._computing).attend(*given)

    def gradient(self, iteration: int, basis: Basis = NO_BASIS) -> float:
        return self._compute(iteration)  # it starts before all weights are here

    def payloads_of(self, iteration: int, loss: float, layer: int) -> tuple[list[PushInfo], float]:
        """`payloads` of one layer alone, whose gradient is ready before the others."""
        job = self._job
        ranges: Sequence[int] = job.ranges_of[layer]
        if self._device.separate:  # all layers are ready, and are compressed at once
            return self._pushed(iteration, loss, ranges, () if self._rated else job.exchanged(iteration), self._whole)
        span = slice(job.parts[ranges[0]].slices[0].start, job.parts[ranges[-1]].slices[-1].stop)
        return self._pushed(iteration, loss, ranges, ranges, span)

    def _end(self, iteration: int, ranges: int) -> None:
        self._rated = (self._rated + ranges) % len(self._job.exchanged(iteration))
        if not self._rated:
            super()._end(iteration, ranges)

    def _computing_of(self, dataset: Dataset, module: nn.Module) -> Computing:
        return LayeredComputing(self._job, self._worker, dataset, self._weights, self._gradients, module)


class LayeredFramedProducer(LayeredProducer, FramedProducer):
    """The tensors of a worker whose layers travel as frames of entries."""
