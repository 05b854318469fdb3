"""Layers as a module really goes through them: when the forward pass comes to one, and when its gradient is complete.

Hooks on modules and parameters find out, so any nn.Module works as it is.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

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
