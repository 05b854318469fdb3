"""Pruning: what a push carries of a gradient; what stays behind is added to the next gradient.

A rule says which entries are sent. The Pruner applies it layer by layer and keeps what lasts: after every push, what
was sent and what is left add up to what was computed, or to the momentum that was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from pslab.config.table import find
from pslab.errors import PslabError
from pslab.tensors.pruning.range_rule import Ranges
from pslab.tensors.pruning.rules import Rule, Whole
from pslab.tensors.random_streams import seed_of
from pslab.tensors.selection import select
from pslab.tensors.workload.keyspace import Keyspace


class NonFinite(PslabError):
    """A gradient with NaN or infinite entries: nothing was sent and all that lasts is as before."""


class Memory(NamedTuple):
    """A vector that a worker keeps from one gradient to the next, zero at first."""

    entries: int
    dtype: torch.dtype
    numbers: bool = False  #: read and set one by one, and so not on a GPU


@dataclass(frozen=True)
class Setting:
    """Whose gradients are pruned: chance, clipping and the moment in the training depend on it."""

    seed: int = 0
    worker: int = 0
    workers: int = 1
    epoch_iterations: float = 1.0


class Piece(NamedTuple):
    """What a rule is asked about at once, inside its layer; or it is sent whole."""

    start: int
    stop: int
    whole: bool


def memories(rule: Rule | Ranges, layers: int, size: int, dtype: torch.dtype) -> dict[str, Memory]:
    """What lasts under a rule: what was not sent and the momentum (size), and a threshold for each layer."""
    wanted = {
        "residual": (rule.residual, Memory(size, dtype)),
        "momentum": (getattr(rule, "momentum", 0.0) > 0, Memory(size, dtype)),
        "thresholds": (getattr(rule, "keeps", False), Memory(layers, torch.float64, True)),
    }
    return {name: memory for name, (needed, memory) in wanted.items() if needed}


class Pruner:
    """Applies a rule to the layers of one worker's flat gradient and keeps what was not sent.

    `kept` holds what lasts, by `memories`; to restore it, copy into it. `residual` (size) is the sum of what was
    computed and not yet sent; None for a rule without. `tensors` (slice, dimensions) are read by rules that are asked
    by tensor; without them each layer is one matrix.
    """

    def __init__(
        self,
        rule: Rule,
        layers: Sequence[slice],
        size: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        *,
        tensors: Sequence[tuple[slice, int]] = (),
        setting: Setting | None = None,
        kept: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        self.rule, self.size, self.dtype, self.setting = rule, size, dtype, setting or Setting()
        self.layers = [(layer.start or 0, layer.stop) for layer in layers]
        _check_whole(self.layers, size)
        self._pieces = [_pieces(start, stop, tensors if getattr(rule, "by_tensor", False) else ())
                        for start, stop in self.layers]  # fmt: skip
        lasting = memories(rule, len(layers), size, dtype)
        self.kept = dict(kept) if kept is not None else {name: zeros(m, device) for name, m in lasting.items()}
        self.residual, self._momentum = self.kept.get("residual"), self.kept.get("momentum")
        self._clip: float | None = getattr(rule, "clip", None)
        self._own = find("prune", rule) is not None  # of the project: its indices need no check
        if self._own and not isinstance(rule, Whole) and torch.device(device).type == "cpu":
            select.prepare(dtype)  # here, and not while a run is timed

    @classmethod
    def of(
        cls, rule: Rule, keyspace: Keyspace, dtype: torch.dtype, device: torch.device | str = "cpu",
        setting: Setting | None = None, kept: Mapping[str, torch.Tensor] | None = None,
    ) -> Pruner:  # fmt: skip
        """The pruner of a model's gradients."""
        tensors = [(slice(slot.offset, slot.offset + slot.size), len(slot.shape)) for slot in keyspace.parameters]
        layers = [layer.flat for layer in keyspace.layers]
        return cls(rule, layers, keyspace.size, dtype, device, tensors=tensors, setting=setting, kept=kept)

    def prune(self, gradient: torch.Tensor, iteration: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The flat indices (sorted int64) and values of what is sent of this gradient (size) and what was left before.

        The gradient is not changed, and the values are copies. `iteration` counts this worker's batches, from 0.

        Raises:
            NonFinite: the gradient holds NaN or infinity.
            ValueError: a gradient of another shape or dtype, or indices that are not distinct ones of their layer.
        """
        gradient = self._checked(gradient, self.size)
        if self._clip is not None:
            gradient = clipped(gradient, self._clip / math.sqrt(self.setting.workers))
        with torch.no_grad():
            found = [self._layer(number, gradient[start:stop], iteration)
                     for number, (start, stop) in enumerate(self.layers)]  # fmt: skip
        return _joined(found, gradient)

    def prune_layer(
        self, number: int, gradient: torch.Tensor, iteration: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The same for one layer alone, whose gradient this is: flat indices in the whole gradient, and values.

        Raises:
            NonFinite, ValueError: as for `prune`; ValueError too for a rule that clips the whole gradient.
        """
        if self._clip is not None:
            raise ValueError(f"{self.rule}: clip needs the norm of the whole gradient; layer by layer it is not known")
        start, stop = self.layers[number]
        gradient = self._checked(gradient, stop - start)
        with torch.no_grad():
            return self._layer(number, gradient, iteration)

    def _checked(self, gradient: torch.Tensor, size: int) -> torch.Tensor:
        gradient = gradient.detach()
        if gradient.shape != (size,) or gradient.dtype != self.dtype:
            got, wanted = (tuple(gradient.shape), gradient.dtype), ((size,), self.dtype)
            raise ValueError(f"a gradient of shape {got[0]}, {got[1]} where {wanted[0]}, {wanted[1]} is expected")
        if not is_finite(gradient):
            raise NonFinite("the gradient holds NaN or infinite entries: nothing was sent")
        return gradient

    def _layer(self, number: int, gradient: torch.Tensor, iteration: int) -> tuple[torch.Tensor, torch.Tensor]:
        at = getattr(self.rule, "at", None)
        rule: Rule = self.rule if at is None else at(iteration / self.setting.epoch_iterations)
        first, found = self.layers[number][0], []
        for piece in self._pieces[number]:
            inside, place = slice(piece.start, piece.stop), slice(first + piece.start, first + piece.stop)
            moved = self._moved(gradient[inside], place)
            if piece.whole:
                found.append((torch.arange(place.start, place.stop, device=moved.device), moved.clone()))
                continue
            v = moved if self.residual is None else self.residual[place].add_(moved)
            indices = self._indices(rule, v, number, place.start, iteration)
            found.append((indices + place.start, v.index_select(0, indices)))
            if self.residual is not None:
                v.index_fill_(0, indices, 0.0)
            if self._momentum is not None and getattr(self.rule, "masking", False):
                self._momentum[place].index_fill_(0, indices, 0.0)
        return _joined(found, gradient)

    def _moved(self, gradient: torch.Tensor, place: slice) -> torch.Tensor:
        """What a gradient adds to what is to be sent: itself, or the momentum that it becomes a part of."""
        if self._momentum is None:
            return gradient
        share: float = getattr(self.rule, "momentum")  # noqa: B009  a rule may have none
        u = self._momentum[place]
        if getattr(self.rule, "nesterov", False):
            return u.add_(gradient).mul_(share) + gradient
        return u.mul_(share).add_(gradient)

    def _indices(self, rule: Rule, v: torch.Tensor, layer: int, start: int, iteration: int) -> torch.Tensor:
        select_from: Callable[..., Any] = rule.select
        more: list[object] = []
        if getattr(rule, "keeps", False):
            more.append(self.kept["thresholds"][layer : layer + 1])
        if getattr(rule, "draws", False):
            more.append(seed_of(self.setting.seed, "sample", self.setting.worker, iteration, start))
        found = torch.as_tensor(select_from(v, *more), device=v.device)
        if self._own:
            return found
        if found.dtype == torch.bool and found.shape == v.shape:
            return found.nonzero().flatten()
        found = found.to(torch.int64).flatten().sort().values
        if len(found) and (found[0] < 0 or found[-1] >= len(v) or bool((found[1:] == found[:-1]).any())):
            raise ValueError(f"{rule}: select must give distinct indices from 0 to {len(v) - 1}")
        return found


def zeros(memory: Memory, device: torch.device | str) -> torch.Tensor:
    """A memory's begin."""
    return torch.zeros(memory.entries, dtype=memory.dtype, device="cpu" if memory.numbers else device)


def is_finite(t: torch.Tensor) -> bool:
    """Whether all entries are finite, at the cost of one sum: only if that is not finite are they looked at."""
    return math.isfinite(t.detach().sum().item()) or bool(torch.isfinite(t).all())


def clipped(gradient: torch.Tensor, norm: float) -> torch.Tensor:
    """The gradient, scaled down to this norm if its own is larger."""
    own = float(torch.linalg.vector_norm(gradient, dtype=torch.float64))
    return gradient * (norm / own) if own > norm else gradient


def _pieces(start: int, stop: int, tensors: Sequence[tuple[slice, int]]) -> list[Piece]:
    inside = [Piece(where.start - start, where.stop - start, dimensions <= 1) for where, dimensions in tensors
              if start <= where.start < where.stop <= stop]  # fmt: skip
    found = inside or [Piece(0, stop - start, False)]
    _check_whole([(piece.start, piece.stop) for piece in found], stop - start)
    return [piece for piece in found if piece.stop > piece.start]


def _check_whole(slices: Sequence[tuple[int, int]], size: int) -> None:
    ends = [0, *(stop for _, stop in slices)]
    if ends[-1] != size or any(s != e or s > t for (s, t), e in zip(slices, ends, strict=False)):
        raise ValueError(f"layers must follow each other from 0 to {size}: an entry of none would never be sent")


def _joined(
    found: Sequence[tuple[torch.Tensor, torch.Tensor]], like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    if len(found) == 1:
        return found[0]
    none = torch.empty(0, dtype=torch.int64, device=like.device)
    indices, values = [none, *(i for i, _ in found)], [like[:0], *(v for _, v in found)]
    return torch.cat(indices), torch.cat(values)
