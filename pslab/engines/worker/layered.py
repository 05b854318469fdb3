"""Workers whose requests go layer by layer: they wait for weights, and push gradients, during a pass.

Hooks on modules and parameters notice when the forward pass reaches a layer, and when the gradient of a layer is
complete. So any nn.Module works without changes.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch
from torch import nn

from pslab.engines.experiment.wire import PushInfo
from pslab.engines.worker.framed_tensors import FramedProducer
from pslab.engines.worker.gradient import Computing
from pslab.engines.worker.tensors import NO_BASIS, Basis, Producer
from pslab.tensors.workload.data import Dataset
from pslab.tensors.workload.keyspace import Keyspace
from pslab.tensors.workload.layer_costs import Uses

T = TypeVar("T")


class Layerwise:
    """Calls `needs(layer)` before a module that uses a layer runs, `forward_done()` at the end of the forward pass, and
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
        # garbage collection does not see a parameter's hooks: a strong reference from them would never be freed
        accumulated = weakref.WeakMethod(self._accumulated)
        for name, parameter in module.named_parameters():
            if name in self._layer:
                # called once in a backward pass, with the sum over all uses of the parameter
                parameter.register_post_accumulate_grad_hook(functools.partial(_call, accumulated, self._layer[name]))  # type: ignore[no-untyped-call]

    def learn(self, run: Callable[[], Any]) -> None:
        """Watch a pass through the module, and install hooks that wait for a parameter's weights before its first use.

        If no module uses a parameter during this pass, its weights are awaited before the whole pass. A module that
        this pass does not reach waits for its own parameters.
        """
        uses = Uses(self._module)
        uses.watch(run)
        at: dict[str, set[int]] = {}
        for name, layer in self._layer.items():
            at.setdefault(uses.first.get(name, ""), set()).add(layer)
        # a tied parameter has one name, in whichever module it is used
        shared = {id(p): name for name, p in self._module.named_parameters()}
        # weak, because `needs` refers to the worker: a search for the model's random generators must not reach its own
        enter = weakref.WeakMethod(self._enter)
        for path, module in self._module.named_modules():
            layers_here = {self._layer[name] for p in module.parameters(recurse=False)
                   if (name := shared[id(p)]) in self._layer}  # fmt: skip
            if layers := sorted(layers_here | at.get(path, set())):
                module.register_forward_pre_hook(functools.partial(_call, enter, layers))

    def forward_begins(self) -> None:
        """Start a forward pass. A backward pass inside it, such as by a local loss, completes no gradient."""
        self._entered.clear()
        self._left = [0] * len(self._slots)

    def forward_ended(self) -> None:
        """End a forward pass: wait for the layers that it did not reach, and call `forward_done`."""
        self._enter(range(len(self._slots)))
        self._left = list(self._slots)
        self.forward_done()

    def backward_ended(self) -> None:
        """End a backward pass: call `ready` for the layers of which some parameter got no gradient."""
        for layer in reversed(range(len(self._left))):
            if self._left[layer] > 0:
                self._left[layer] = 0
                self.ready(layer)

    def _enter(self, layers: Sequence[int]) -> None:
        for layer in layers:
            if layer not in self._entered:
                self._entered.add(layer)
                self.needs(layer)

    def _accumulated(self, layer: int) -> None:
        self._left[layer] -= 1
        if self._left[layer] == 0:
            self.ready(layer)


def _call(method: Callable[[], Callable[[T], None] | None], given: T, *_: Any) -> None:
    # a hook lives as long as the module, which may outlive the Layerwise
    if (bound := method()) is not None:
        bound(given)


class LayeredComputing(Computing):
    """Computes a worker's gradients, and reports each layer whose gradient is ready."""

    _layerwise: Layerwise | None = None  # None until `warm_up`
    _untaken: list[int]  # layers whose gradients a GPU still computes

    def attend(
        self, needs: Callable[[int], None], forward_done: Callable[[], None], ready: Callable[[int, float], None]
    ) -> None:
        """Set the functions that each iteration calls: `needs(layer)` to wait for weights, `forward_done()` at the end
        of the forward pass, and `ready(layer, loss)` to take a layer's gradient.

        A GPU would be idle if this process waited for it at each layer. So a GPU gets whole passes, and `ready` is
        called after them, in the order in which the layers' gradients became ready."""
        layerwise, self._take = self._layerwise, ready
        assert layerwise is not None  # `warm_up` was called
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
        # the first pass allocates and compiles; the second one is watched, to learn where each layer is first used
        super()._run_first()
        layerwise = Layerwise(self._module, self._keyspace)
        layerwise.learn(lambda: self.gradient(0, 0))
        self._layerwise, self._untaken = layerwise, list[int]()


class LayeredProducer(Producer):
    """The tensors of a worker whose gradient is pushed layer by layer."""

    _rated = 0  # ranges of this iteration with an encoded push

    def attend(self, *given: Any) -> None:
        """Set the functions that each iteration calls; see LayeredComputing."""
        cast(LayeredComputing, self._computing).attend(*given)

    def gradient(self, iteration: int, basis: Basis = NO_BASIS) -> float:
        return self._compute(iteration)  # the pass starts before all weights have arrived

    def payloads_of(self, iteration: int, loss: float, layer: int) -> tuple[list[PushInfo], float]:
        """Encode the push of one layer, and return as `payloads` does."""
        job = self._job
        ranges: Sequence[int] = job.ranges_of[layer]
        if self._device.separate:  # a GPU has all layers ready, and compresses them together
            return self._pushed(iteration, loss, ranges, () if self._rated else job.exchanged(iteration), self._whole)
        span = slice(job.parts[ranges[0]].slices[0].start, job.parts[ranges[-1]].slices[-1].stop)
        return self._pushed(iteration, loss, ranges, ranges, span)

    def _end(self, iteration: int, ranges: int) -> None:
        # the state is complete after the last layer, not after each
        self._rated = (self._rated + ranges) % len(self._job.exchanged(iteration))
        if not self._rated:
            super()._end(iteration, ranges)

    def _computing_of(self, dataset: Dataset, module: nn.Module) -> Computing:
        return LayeredComputing(self._job, self._worker, dataset, self._weights, self._gradients, module)


class LayeredFramedProducer(LayeredProducer, FramedProducer):
    """The tensors of a worker whose layers are pushed or pulled as frames of entries."""
