"""Each layer's share of an iteration's time, estimated from floating point operations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from pslab.tensors.workload.keyspace import Keyspace

Share = tuple[float, float]  # a layer's forward and backward pass, as shares of an iteration's time


class Uses(TorchFunctionMode):
    """Records which module uses each parameter, or each of `tensors`, first.

    A parameter may be used without a call of its own module, such as the output projection of torch's attention.
    """

    def __init__(self, module: nn.Module, tensors: Iterable[tuple[str, torch.Tensor]] | None = None) -> None:
        super().__init__()
        self.first: dict[str, str] = {}  #: name of a tensor: path of the module that uses it first
        self.used: set[str] = set()  #: names of used tensors, also if no module runs, such as in a hook before it
        self._names = {id(t): name for name, t in (module.named_parameters() if tensors is None else tensors)}
        self._open: list[str] = []
        self._module = module

    def watch(self, run: Callable[[], Any]) -> None:
        """Call `run` and record the uses of tensors in it."""

        def leave(*_: Any) -> None:
            self._open.pop()

        hooks = []
        for path, part in self._module.named_modules():
            hooks.append(part.register_forward_pre_hook(functools.partial(self._enter, path)))
            hooks.append(part.register_forward_hook(leave, always_call=True))
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
            for part in value if isinstance(value, (list, tuple)) else (value,):
                name = self._names.get(id(part))
                if name is not None:
                    self.used.add(name)
                    if self._open:
                        self.first.setdefault(name, self._open[-1])
        return func(*args, **(kwargs or {}))


def shares(module: nn.Module, keyspace: Keyspace, sample: torch.Tensor) -> tuple[Share, ...]:
    """Return each layer's shares of an iteration; all shares add up to 1.

    A forward pass costs its floating point operations, as torch counts them on this sample, plus one for each
    parameter, because torch counts none for layers that only scale and shift. A layer's backward pass costs twice as
    much as its forward pass, for the gradients of weights and inputs; the first layer's costs as much as its forward
    pass, because inputs of the model need no gradient.
    """
    if known := getattr(module, "flops", ()):  # a model of sizes only, which cannot compute
        costs = [flops + layer.stop - layer.start for flops, layer in zip(known, keyspace.layers, strict=True)]
        return normalized([(cost, cost if number == 0 else 2 * cost) for number, cost in enumerate(costs)])
    uses = Uses(module)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        uses.watch(lambda: module(sample))
    counts = {path.partition(".")[2]: sum(flop.values()) for path, flop in counter.get_flop_counts().items()}
    owned: dict[str, list[int]] = {}  # module: numbers of the layers that it uses first
    for number, layer in enumerate(keyspace.layers):
        owned.setdefault(uses.first.get(layer.slots[0].name, layer.name), []).append(number)
    forward = [float(layer.stop - layer.start) for layer in keyspace.layers]
    for path, numbers in owned.items():
        alone = counts.get(path, 0) - sum(counts.get(other, 0) for other in owned if other.startswith(f"{path}."))
        size = sum(keyspace.layers[n].stop - keyspace.layers[n].start for n in numbers)
        for n in numbers:
            forward[n] += max(0.0, alone) * (keyspace.layers[n].stop - keyspace.layers[n].start) / size
    pairs = [(share, share if number == 0 else 2 * share) for number, share in enumerate(forward)]
    return normalized(pairs)


def normalized(pairs: Sequence[Share]) -> tuple[Share, ...]:
    """Scale the layers' forward and backward shares such that all add up to 1."""
    total = sum(map(sum, pairs))
    return tuple((forward / total, backward / total) for forward, backward in pairs)
