"""Keys: all trainable parameters of a model in one flat vector, numbered by neuron.

A key is an index along dimension 0 of a layer's parameters: a neuron. Its value is that row of each parameter: its
incoming weights and its bias. A layer, a shard and the whole model are half-open ranges of keys, and a range of keys is
a few slices of the flat vector.

    flat:  | weight of layer 0, row by row | bias of layer 0 | weight of layer 1 ...
    keys:    0 .. n0-1                       0 .. n0-1         n0 .. n0+n1-1

Key and value pairs after M. Li et al., "Scaling Distributed Machine Learning with the Parameter Server" (2014).
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pslab.errors import ConfigError
from pslab.tensors.workload.module_copies import LAZY, copied


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Keys `start` to `stop` - 1."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Slot:
    """The elements [offset, offset + size) of one parameter in the flat vector."""

    name: str
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def row(self) -> int:
        """The number of elements of one key in this parameter."""
        return math.prod(self.shape[1:])


@dataclass(frozen=True, slots=True)
class Layer:
    """Parameters of one module with the same number of rows: elements [start, stop) of the flat vector."""

    name: str
    keys: KeyRange
    start: int
    stop: int
    slots: tuple[Slot, ...]

    @property
    def flat(self) -> slice:
        """The layer's slice of the flat vector."""
        return slice(self.start, self.stop)


@dataclass(frozen=True)
class Keyspace:
    """The map between trainable parameters, key ranges and a flat vector of `size` elements. Contains no tensor."""

    size: int
    keys: int
    dtype: torch.dtype
    layers: tuple[Layer, ...]
    parameters: tuple[Slot, ...]

    @classmethod
    def of(cls, module: nn.Module) -> Keyspace:
        """Return the keyspace of a module: its trainable parameters in module order, a shared parameter once.

        Raises:
            ConfigError: no trainable parameter; lazy, empty, sparse or complex parameters; several dtypes.
        """
        dtype = _check(module)
        layers: list[Layer] = []
        size = keys = 0
        for name, group in _groups(module):
            slots, start = [], size
            for path, parameter in group:
                slots.append(Slot(path, tuple(parameter.shape), size))
                size += parameter.numel()
            key_range = KeyRange(keys, keys + _rows(group[0][1]))
            layers.append(Layer(name, key_range, start, size, tuple(slots)))
            keys = key_range.stop
        return cls(size, keys, dtype, tuple(layers), tuple(s for layer in layers for s in layer.slots))

    @property
    def whole(self) -> KeyRange:
        """All keys."""
        return KeyRange(0, self.keys)

    def slices(self, key_range: KeyRange) -> tuple[slice, ...]:
        """Return a key range as ascending slices of the flat vector, with adjacent slices merged.

        Raises:
            ValueError: the range is empty, or not within [0, keys).
        """
        if not 0 <= key_range.start < key_range.stop <= self.keys:
            raise ValueError(f"keys [{key_range.start}, {key_range.stop}) must have 0 <= start < stop <= {self.keys}")
        merged: list[slice] = []
        for start, stop in self._pieces(key_range):
            if merged and merged[-1].stop == start:
                merged[-1] = slice(merged[-1].start, stop)
            else:
                merged.append(slice(start, stop))
        return tuple(merged)

    def _pieces(self, key_range: KeyRange) -> Iterator[tuple[int, int]]:
        first = bisect.bisect_right(self.layers, key_range.start, key=lambda layer: layer.keys.stop)
        for layer in itertools.islice(self.layers, first, None):
            if layer.keys.start >= key_range.stop:
                return
            low = max(key_range.start - layer.keys.start, 0)
            high = min(key_range.stop, layer.keys.stop) - layer.keys.start
            for slot in layer.slots:
                yield slot.offset + low * slot.row, slot.offset + high * slot.row

    def bind(self, module: nn.Module, weights: Tensor, gradient: Tensor | None = None) -> None:
        """Make the module's parameters views of `weights`, and their .grad views of `gradient`.

        Backward then adds to `gradient`, so call `gradient.zero_()` between iterations. `module.zero_grad()`,
        `module.to(...)` and `backward(create_graph=True)` detach the module from the vectors. Autograd does not notice
        a write to `weights` between forward and backward.

        Args:
            module: the module from which this keyspace was made, or a copy or shell of it.
            weights, gradient: [size], contiguous, of the keyspace's dtype, on one device. None: each .grad is None.

        Raises:
            ValueError: the vectors or the module do not fit this keyspace.
        """
        self._check_flat("weights", weights)
        if gradient is not None:
            self._check_flat("gradient", gradient)
        for slot, parameter in self._matched(module):
            parameter.data = self._view(slot, weights.detach())
            parameter.grad = None if gradient is None else self._view(slot, gradient.detach())

    def bind_keys(self, module: nn.Module, weights: Tensor) -> nn.Parameter:
        """Set the only parameter of a module to the weights [k] of some keys, one per key; return the parameter."""
        (slot,) = self.parameters
        parameter = module.get_parameter(slot.name)
        parameter.data = weights.view(-1, *slot.shape[1:])
        return parameter

    def flatten(self, module: nn.Module) -> Tensor:
        """Return the values of the trainable parameters as a new vector [size], on the first parameter's device.

        Raises:
            ValueError: the module does not fit this keyspace, or is a shell, which has no values.
        """
        matched = self._matched(module)
        flat = torch.empty(self.size, dtype=self.dtype, device=matched[0][1].device)
        for slot, parameter in matched:
            if parameter.numel() == 0:
                raise ValueError(f"parameter {slot.name} has no storage: bind() the shell to weights first")
            self._view(slot, flat).copy_(parameter.detach())
        return flat

    def shell(self, module: nn.Module) -> nn.Module:
        """Return a deep copy whose trainable parameters have no storage: cheap to pickle, and completed by bind().

        Buffers and frozen parameters are copied, and shared parameters stay shared.

        Raises:
            ConfigError: Python cannot copy the module.
        """
        # deepcopy does not copy what its memo contains, so the weights are never copied
        empty = {id(p): _emptied(p) for _, p in self._matched(module)}
        try:
            return copied(module, dict(empty))
        except (RuntimeError, TypeError, AttributeError) as error:
            raise ConfigError("model", type(module).__name__, f"copy.deepcopy cannot copy it: {error}") from error

    def _matched(self, module: nn.Module) -> list[tuple[Slot, nn.Parameter]]:
        parameters = {path: p for _, group in _owners(module) for path, p in group}
        if list(parameters) != [slot.name for slot in self.parameters]:
            odd = sorted(set(parameters) ^ {slot.name for slot in self.parameters})
            names = ", ".join(odd) or "another order"
            raise ValueError(f"{type(module).__name__} has other parameters than this keyspace: {names}")
        for slot in self.parameters:
            parameter = parameters[slot.name]
            if parameter.dtype != self.dtype or (parameter.numel() and parameter.shape != slot.shape):
                raise ValueError(
                    f"parameter {slot.name} is {list(parameter.shape)} of {parameter.dtype}, "
                    f"the keyspace has {list(slot.shape)} of {self.dtype}"
                )
        return [(slot, parameters[slot.name]) for slot in self.parameters]

    def _check_flat(self, name: str, flat: Tensor) -> None:
        if flat.shape != (self.size,) or flat.dtype != self.dtype or not flat.is_contiguous():
            raise ValueError(
                f"{name} must be a contiguous vector [{self.size}] of {self.dtype}, "
                f"not {list(flat.shape)} of {flat.dtype} with strides {flat.stride()}"
            )

    @staticmethod
    def _view(slot: Slot, flat: Tensor) -> Tensor:
        return flat[slot.offset : slot.offset + slot.size].view(slot.shape)


Named = tuple[str, nn.Parameter]


def _owners(module: nn.Module) -> Iterator[tuple[str, list[Named]]]:
    """Yield (path of a module, its own trainable parameters) in order, a shared parameter with its first module."""
    seen: set[int] = set()
    for path, owner in module.named_modules():
        owners = []
        for name, parameter in owner.named_parameters(prefix=path, recurse=False):
            if parameter.requires_grad and id(parameter) not in seen:
                seen.add(id(parameter))
                owners.append((name, parameter))
        if owners:
            yield path, owners


def _groups(module: nn.Module) -> Iterator[tuple[str, list[Named]]]:
    """Yield (name of a layer, its parameters): a module's parameters, split where the number of rows changes."""
    for path, parameters in _owners(module):
        groups = [list(g) for _, g in itertools.groupby(parameters, key=lambda named: _rows(named[1]))]
        for group in groups:
            yield (path or type(module).__name__) if len(groups) == 1 else group[0][0], group


def _rows(parameter: Tensor) -> int:
    return parameter.shape[0] if parameter.ndim else 1


def _check(module: nn.Module) -> torch.dtype:
    """Return the dtype of the trainable parameters; ConfigError if they cannot form a keyspace."""
    owner = type(module).__name__
    dtypes: dict[torch.dtype, str] = {}
    for _, group in _owners(module):
        for name, parameter in group:
            if (problem := _problem(parameter)) is not None:
                raise ConfigError("model", owner, f"parameter {name} {problem}")
            dtypes.setdefault(parameter.dtype, name)
    if not dtypes:
        raise ConfigError("model", owner, "has no trainable parameters: some must have requires_grad=True")
    if len(dtypes) > 1:
        listed = ", ".join(f"{name} is {dtype}" for dtype, name in dtypes.items())
        raise ConfigError("model", owner, f"trainable parameters must have one dtype: {listed}; use module.to(dtype)")
    return next(iter(dtypes))


def _problem(parameter: Tensor) -> str | None:
    if nn.parameter.is_lazy(parameter):
        return LAZY
    if parameter.layout != torch.strided:
        return f"is sparse ({parameter.layout}): a flat vector contains only dense parameters"
    if parameter.is_complex():
        return f"is complex ({parameter.dtype}): keep its real and imaginary parts as two real parameters"
    if parameter.numel() == 0:
        return f"has no elements, its shape is {list(parameter.shape)}: build the model without it"
    return None


def _emptied(parameter: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(parameter.detach().new_empty(0))
