"""How the time of an iteration is shared out among layers, by the operations that each of them needs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from pslab.tensors.workload.keyspace import Keyspace

Share = tuple[float, float]  # of an iteration's time: a layer's forward and its backward pass


class Uses(TorchFunctionMode):
    """Which module is at work when each parameter is first used, in the order of these uses.

    A parameter may be used where no module of its own is called, as an attention's output projection is.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.first: dict[str, str] = {}  #: parameter -> the path of the module that first uses it
        self._names = {id(p): name for name, p in module.named_parameters()}
        self._open: list[str] = []
        self._module = module

    def watch(self, run: Callable[[], Any]) -> None:
        """Run this, and see."""
        def leave(*_: Any) -> None:
            self._open.pop()

        hooks = []
        for path, each in self._module.named_modules():
            hooks.append(each.register_forward_pre_hook(functools.partial(self._enter, path)))
            hooks.append(each.register_forward_hook(leave, always_call=True))
        try:
            with self:
                run()
        finally:
            for hook in hooks:
                hook.remove()

    def _enter(self, path: str, *_: Any) -> None:
        self._open.append(path)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in (*args, *(kwargs or {}).values()):
            for each in value if isinstance(value, (list, tuple)) else (value,):
                name = self._names.get(id(each))
                if name is not None and self._open:
                    self.first.setdefault(name, self._open[-1])
        return func(*args, **(kwargs or {}))


def shares(module: nn.Module, keyspace: Keyspace, sample: torch.Tensor) -> tuple[Share, ...]:
    """For each layer of the keyspace its share of an iteration, forward and backward.

    Forward passes cost their floating point operations, as torch counts them on this sample, and one more for each
    parameter, since what only scales and shifts has none to count; backward passes twice as much: gradients of the
    weights, and of the inputs, which the first layer does not need.
    """
    uses = Uses(module)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        uses.watch(lambda: module(sample))
    counts = {path.partition(".")[2]: sum(found.values()) for path, found in counter.get_flop_counts().items()}
    whose: dict[str, list[int]] = {}  # module -> its layers
    for number, layer in enumerate(keyspace.layers):
        whose.setdefault(uses.first.get(layer.slots[0].name, layer.name), []).append(number)
    forward = [float(layer.stop - layer.start) for layer in keyspace.layers]
    for path, numbers in whose.items():
        own = counts.get(path, 0) - sum(counts.get(other, 0) for other in whose if other.startswith(f"{path}."))
        size = sum(keyspace.layers[n].stop - keyspace.layers[n].start for n in numbers)
        for n in numbers:
            forward[n] += max(0.0, own) * (keyspace.layers[n].stop - keyspace.layers[n].start) / size
    pairs = [(each, each if number == 0 else 2 * each) for number, each in enumerate(forward)]
    return normalized(pairs)


def normalized(pairs: Sequence[Share]) -> tuple[Share, ...]:
    """Shares that add up to 1."""
    total = sum(map(sum, pairs))
    return tuple((forward / total, backward / total) for forward, backward in pairs)
