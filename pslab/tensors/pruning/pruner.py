"""Pruning: selects the entries of a gradient that are pushed, and adds the others to the next gradient.

A rule selects the entries (`pslab.tensors.pruning.rules`). The Pruner applies it layer by layer and keeps its memories:
after every push, what was sent and the residual add up to the sum of all gradients, or of all momenta.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch

from pslab.config.table import find
from pslab.tensors.finite import NonFinite, checked_finite, is_finite
from pslab.tensors.pruning.rules import Dense, PruningRule, RuleTraits, rule_traits
from pslab.tensors.random_streams import seed_of
from pslab.tensors.selection import select
from pslab.tensors.selection.scan import Sum
from pslab.tensors.workload.keyspace import Keyspace

CLIP_EPS = 1e-6  # that torch.nn.utils.clip_grad_norm_ adds to a norm


class KeptVector(NamedTuple):
    """A vector that a worker keeps from one gradient to the next, zero at first."""

    entries: int
    dtype: torch.dtype
    scalars: bool = False  #: its entries are read and set one by one, so it never lies on a GPU


@dataclass(frozen=True)
class Setting:
    """The worker whose gradients are pruned, and its run: random choices, clipping and warm-ups depend on them.

    Where the run `skips` a gradient that is not finite, such a gradient must change no memory. Else it ends the run,
    and the sums that selection makes anyway tell of it.
    """

    seed: int = 0
    worker: int = 0
    workers: int = 1
    epoch_iterations: float = 1.0
    skips: bool = True


class Piece(NamedTuple):
    """Part of a layer, by positions in the layer, for which the rule is called once, or which is sent unpruned."""

    start: int
    stop: int
    unpruned: bool


def memories(
    rule: Any, layers: int, size: int, dtype: torch.dtype, residual: bool = False
) -> dict[str, KeptVector]:
    """The memories that a rule needs: the residual and the momentum ([size]), and a threshold for each layer.

    `residual`: what is sent is not quite what is selected, and the difference is added to the next gradient, too.
    """
    traits = rule_traits(rule)
    wanted = {
        "residual": (rule.residual or residual, KeptVector(size, dtype)),
        "momentum": (traits.momentum > 0, KeptVector(size, dtype)),
        "thresholds": (traits.keeps, KeptVector(layers, torch.float64, scalars=True)),
    }
    return {name: memory for name, (needed, memory) in wanted.items() if needed}


class Pruner:
    """Applies a rule to the layers of one worker's flat gradient.

    `residual` ([size], None for a rule without) is the sum of what was computed and not yet sent.

    Args:
        layers: slices that follow each other from 0 to `size`.
        tensors: (slice, number of dimensions) of each parameter, for rules that select by tensor; without them each
            layer is one matrix.
        kept: the memories, as `memories` describes them; new ones if None.

    Raises:
        ValueError: layers or tensors that leave entries out.
    """

    def __init__(
        self,
        rule: PruningRule,
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
        self._traits = rule_traits(rule)
        self.layers = [(layer.start or 0, layer.stop) for layer in layers]
        _check_contiguous(self.layers, size)
        self._pieces = [_pieces(start, stop, tensors, self._traits) for start, stop in self.layers]
        self.kept = allocated(memories(rule, len(layers), size, dtype), device, kept)
        self.residual, self._momentum = self.kept.get("residual"), self.kept.get("momentum")
        self._own = find("prune", rule) is not None  # a rule of this package: its indices need no check
        self._guesses: dict[int, tuple[Any, float] | None] = {}  # of each piece; they only save time
        self._compiled = self._own and self._traits.compiled and torch.device(device).type == "cpu"
        self._told = self._compiled and self.residual is not None and not self.setting.skips
        if self._own and not isinstance(rule, Dense):
            select.prepare(dtype)  # here, and not while a run is timed

    @classmethod
    def of(
        cls, rule: PruningRule, keyspace: Keyspace, dtype: torch.dtype, device: torch.device | str = "cpu",
        setting: Setting | None = None, kept: Mapping[str, torch.Tensor] | None = None,
    ) -> Pruner:  # fmt: skip
        """The pruner of a model's gradients."""
        layers = [layer.flat for layer in keyspace.layers]
        return cls(rule, layers, keyspace.size, dtype, device, tensors=_tensors(keyspace), setting=setting, kept=kept)

    @property
    def sums(self) -> tuple[torch.Tensor, float] | None:
        """The memory [size] into which a gradient may be added before it is pruned, and the factor by which that is
        multiplied first: the residual, or the momentum. None if `prune` needs the bare gradient."""
        if not self._told or self._traits.nesterov or self._traits.clip is not None:
            return None
        if self._momentum is not None:
            return self._momentum, self._traits.momentum
        return None if self.residual is None or self._traits.by_tensor else (self.residual, 1.0)

    def prune(
        self, gradient: torch.Tensor, iteration: int, summed: Collection[int] = (),
        only: Collection[int] | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The flat indices (sorted int64) and the values (copies) that are sent of a gradient [size] and the residual.

        The gradient is not changed. Of the layers `summed` it is not read: it has been added into `sums`. Of other
        layers than `only` these, if they are given, nothing is sent, added or changed. `iteration` counts this worker's
        batches from 0.

        Raises:
            NonFinite: the gradient contains NaN or infinity, or its sum with the residual or the momentum does.
            ValueError: a gradient of another shape or dtype, or a rule whose indices are not distinct and in range.
        """
        gradient = self._checked(gradient, self.size)
        if self._traits.clip is not None:
            gradient = clipped(gradient, self._traits.clip / math.sqrt(self.setting.workers))
        with torch.no_grad():
            found = [piece for number, (start, stop) in enumerate(self.layers) if only is None or number in only
                     for piece in self._layer(number, gradient[start:stop], iteration, number in summed)]  # fmt: skip
        return _joined(found, gradient)

    def prune_layer(
        self, number: int, gradient: torch.Tensor, iteration: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`prune` for one layer and its gradient; the indices are those in the flat vector of the model.

        Raises:
            NonFinite, ValueError: as `prune`; also ValueError for a rule that clips the gradient of the model.
        """
        if self._traits.clip is not None:
            raise ValueError(f"{self.rule}: clip needs the norm of the model's gradient, unknown layer by layer")
        start, stop = self.layers[number]
        gradient = self._checked(gradient, stop - start)
        with torch.no_grad():
            return _joined(self._layer(number, gradient, iteration), gradient)

    def _checked(self, gradient: torch.Tensor, size: int) -> torch.Tensor:
        if gradient.shape != (size,) or gradient.dtype != self.dtype:
            got, wanted = (tuple(gradient.shape), gradient.dtype), ((size,), self.dtype)
            raise ValueError(f"a gradient of shape {got[0]}, {got[1]} where {wanted[0]}, {wanted[1]} is expected")
        return gradient.detach() if self._told else checked_finite(gradient)

    def _layer(
        self, number: int, gradient: torch.Tensor, iteration: int, summed: bool = False
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The indices and values that are sent of each piece of a layer."""
        at = self._traits.at
        rule: PruningRule = self.rule if at is None else at(iteration / self.setting.epoch_iterations)
        first, found = self.layers[number][0], []
        for piece in self._pieces[number]:
            inside, place = slice(piece.start, piece.stop), slice(first + piece.start, first + piece.stop)
            if piece.unpruned:
                added = self._with_momentum(gradient[inside], place, summed)
                self._check_sum(added)
                found.append((torch.arange(place.start, place.stop, device=added.device), added.clone()))
                continue
            v = self._summed(gradient[inside], place, summed)
            indices = self._indices(rule, v, number, place.start, iteration)
            if not isinstance(v, Sum):  # whose own sum tells
                self._check_sum(v)
            found.append((indices + place.start, self._taken(v, indices, place)))
        return found

    def _summed(self, gradient: torch.Tensor, place: slice, summed: bool) -> select.Vector:
        """The gradient and what the memories have of this place. Compiled loops add it up while they select."""
        if self._compiled and self.residual is not None:
            traits, momentum = self._traits, None if self._momentum is None else self._momentum[place].numpy()
            if summed:  # what the momentum is now, is still to be added to the residual
                v = Sum(self.residual[place].numpy(), momentum)
            else:
                v = Sum(self.residual[place].numpy(), gradient.numpy(), momentum, traits.momentum, traits.nesterov)
            v.guess = self._guesses.get(place.start)
            return v
        added = self._with_momentum(gradient, place)
        if self._traits.estimates and self.residual is not None:
            return added + self.residual[place]
        if self.residual is None:
            return added
        own = self.residual[place]
        return (own if self._traits.residual_decay == 1 else own.mul_(self._traits.residual_decay)).add_(added)

    def _taken(self, v: select.Vector, indices: torch.Tensor, place: slice) -> torch.Tensor:
        """The entries that are sent: the memories no longer have them."""
        masked = None if self._momentum is None or not self._traits.masking else self._momentum[place]
        if isinstance(v, Sum):
            self._guesses[place.start] = v.guess
            return torch.from_numpy(v.take(indices.numpy(), None if masked is None else masked.numpy()))
        values = v.index_select(0, indices)
        if self._traits.scale is not None:
            values.mul_(self._traits.scale(len(v)))
        if self._traits.estimates and self.residual is not None:
            self.residual[place].index_add_(0, indices, values, alpha=-1)
        elif self.residual is not None:
            v.index_fill_(0, indices, 0.0)
        if masked is not None:
            masked.index_fill_(0, indices, 0.0)
        return values

    def _check_sum(self, v: torch.Tensor) -> None:
        """Refuse a sum that is not finite: finite gradients can add up to more than the dtype holds."""
        if self.residual is None and self._momentum is None:
            return
        if not is_finite(v):
            raise NonFinite("the sum with the residual or the momentum contains infinite entries: nothing was sent")

    def _with_momentum(self, gradient: torch.Tensor, place: slice, summed: bool = False) -> torch.Tensor:
        """The vector that a gradient adds to the residual: the gradient, or the momentum with it."""
        if self._momentum is None:
            return gradient
        u = self._momentum[place]
        if summed:
            return u
        if self._traits.nesterov:
            return u.add_(gradient).mul_(self._traits.momentum) + gradient
        return u.mul_(self._traits.momentum).add_(gradient)

    def _indices(self, rule: PruningRule, v: select.Vector, layer: int, start: int, iteration: int) -> torch.Tensor:
        traits, more = self._traits if rule is self.rule else rule_traits(rule), list[Any]()
        if traits.keeps:
            more.append(self.kept["thresholds"][layer : layer + 1])
        if traits.draws:
            names = ("shared",) if traits.shared else ("sample", self.setting.worker)
            more.append(seed_of(self.setting.seed, *names, iteration, start))
        found = rule.select(v, *more)
        if self._own:
            return cast(torch.Tensor, found)
        assert isinstance(v, torch.Tensor)
        found = torch.as_tensor(found, device=v.device)
        if found.dtype == torch.bool and found.shape == v.shape:
            return found.nonzero().flatten()
        found = found.to(torch.int64).flatten().sort().values
        if len(found) and (found[0] < 0 or found[-1] >= len(v) or bool((found[1:] == found[:-1]).any())):
            raise ValueError(f"{rule}: select must give distinct indices from 0 to {len(v) - 1}")
        return found


def sent(rule: PruningRule, keyspace: Keyspace, epoch: float) -> list[tuple[int, int, int]]:
    """(start, stop, entries sent) of each piece of a flat gradient, at this moment of a run, by a rule that `sends`."""
    traits, found = rule_traits(rule), []
    sends = (None if traits.at is None else rule_traits(traits.at(epoch)).sends) or traits.sends
    assert sends is not None
    tensors = _tensors(keyspace)
    for start, stop in ((layer.flat.start, layer.flat.stop) for layer in keyspace.layers):
        for piece in _pieces(start, stop, tensors, traits):
            size = piece.stop - piece.start
            found.append((start + piece.start, start + piece.stop, size if piece.unpruned else sends(size)))
    return found


def zeros(memory: KeptVector, device: torch.device | str) -> torch.Tensor:
    """A new memory."""
    return torch.zeros(memory.entries, dtype=memory.dtype, device="cpu" if memory.scalars else device)


def allocated(
    wanted: Mapping[str, KeptVector], device: torch.device | str, kept: Mapping[str, torch.Tensor] | None
) -> dict[str, torch.Tensor]:
    """The memories that are `kept` already, or new ones."""
    return dict(kept) if kept is not None else {name: zeros(memory, device) for name, memory in wanted.items()}


def clipped(gradient: torch.Tensor, norm: float) -> torch.Tensor:
    """The gradient, scaled down to this norm if its own norm is larger, as by torch.nn.utils.clip_grad_norm_."""
    own = float(torch.linalg.vector_norm(gradient, dtype=torch.float64)) + CLIP_EPS
    return gradient * (norm / own) if own > norm else gradient


def _tensors(keyspace: Keyspace) -> list[tuple[slice, int]]:
    return [(slice(slot.offset, slot.offset + slot.size), len(slot.shape)) for slot in keyspace.parameters]


def _pieces(start: int, stop: int, tensors: Sequence[tuple[slice, int]], traits: RuleTraits) -> list[Piece]:
    inside = [Piece(where.start - start, where.stop - start, dimensions <= 1 and not traits.shared)
              for where, dimensions in tensors if start <= where.start < where.stop <= stop and traits.by_tensor]
    found = inside or [Piece(0, stop - start, False)]
    _check_contiguous([(piece.start, piece.stop) for piece in found], stop - start)
    return [piece for piece in found if piece.stop > piece.start]


def _check_contiguous(slices: Sequence[tuple[int, int]], size: int) -> None:
    ends = [0, *(stop for _, stop in slices)]
    if ends[-1] != size or any(s != e or s > t for (s, t), e in zip(slices, ends, strict=False)):
        raise ValueError(f"layers must follow each other from 0 to {size}: an entry in no layer would never be sent")


def _joined(
    found: Sequence[tuple[torch.Tensor, torch.Tensor]], like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    if len(found) == 1:
        return found[0]
    none = torch.empty(0, dtype=torch.int64, device=like.device)
    indices, values = [none, *(i for i, _ in found)], [like[:0], *(v for _, v in found)]
    return torch.cat(indices), torch.cat(values)
