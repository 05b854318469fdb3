"""Pruning: which entries of a gradient a push carries; what stays behind is added to the next gradient.

A rule says which entries of one layer are sent; anything with `select` and `residual` is one. The Pruner applies it
layer by layer and keeps the residual: after every push, what was sent and what is left add up to what was computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch

from pslab.errors import PslabError
from pslab.tensors import select
from pslab.tensors.ranges import Ranges


class NonFinite(PslabError):
    """A gradient with NaN or infinite entries: nothing was sent and the residual is as before."""


class Rule(Protocol):
    """What the Pruner asks for: indices (int64, in any order) or a mask (bool) for one layer's vector v."""

    @property
    def residual(self) -> bool: ...

    def select(self, v: torch.Tensor, /) -> Any: ...


@dataclass(frozen=True)
class Whole:
    """Everything is sent: no pruning.

    Example: none
    """

    residual: ClassVar[bool] = False

    def select(self, v: torch.Tensor) -> torch.Tensor:
        """All indices of v."""
        return torch.arange(len(v), device=v.device)


@dataclass(frozen=True)
class Static:
    """The largest `fraction` of each layer, k = max(1, ceil(fraction * n)); ties go to the lower index.

    The static thresholds of Tsai's thesis report (2018). With `residual`, unsent entries accumulate, as in Lin et al.,
    Deep Gradient Compression (ICLR 2018); without, they are dropped, as the report has it.

    Source: Tsai (2018); Aji and Heafield (EMNLP 2017)
    Example: static:1%

    Args:
        fraction (above 0 to 1): the share of each layer's entries that is sent
        residual: whether what is not sent is added to the next gradient
    """

    fraction: float
    residual: bool = True

    def __post_init__(self) -> None:
        _number("static", "fraction", self.fraction, "above 0 and at most 1, as in 0.01 or 1%")
        if not 0 < self.fraction <= 1:
            raise ValueError(f"static: fraction={self.fraction} must be above 0 and at most 1, as in 0.01 or 1%")
        _switch("static", self.residual)

    def count(self, n: int) -> int:
        """How many of n entries are sent. A product that only rounding lifts above a whole number is that number."""
        exact = self.fraction * n
        whole = round(exact)
        return min(n, max(1, whole if math.isclose(exact, whole, rel_tol=1e-12) else math.ceil(exact)))

    def select(self, v: torch.Tensor) -> torch.Tensor:
        """The indices of the k entries of largest |v|, sorted."""
        return select.top(v, self.count(len(v)))


@dataclass(frozen=True)
class Deviation:
    """The entries with |v| above `sigmas` standard deviations (population) of their layer.

    The standard-deviation thresholds (1, 2, 3) of Tsai's thesis report (2018); `residual` as in Lin et al. (ICLR 2018).
    Of a Gaussian layer 31.7, 4.6 and 0.27 % are sent; of a constant one everything, since its deviation is 0.

    Source: Tsai (2018)
    Example: std:2

    Args:
        sigmas (above 0): the threshold, in standard deviations of the layer
        residual: whether what is not sent is added to the next gradient
    """

    sigmas: float
    residual: bool = True

    def __post_init__(self) -> None:
        _number("std", "sigmas", self.sigmas, "a number above 0, as in 2 or 2.5")
        if not 0 < self.sigmas < math.inf:
            raise ValueError(f"std: sigmas={self.sigmas} must be a number above 0, as in 2 or 2.5")
        _switch("std", self.residual)

    def select(self, v: torch.Tensor) -> torch.Tensor:
        """The indices with |v| > sigmas * std(v), sorted."""
        return select.deviation(v, self.sigmas)


@dataclass(frozen=True)
class Dynamic:
    """The entries above a threshold found in `passes` passes: from 0, each takes the mean of |v| over what exceeds it.

    The dynamic threshold of Tsai's thesis report (2018), restarted for every gradient: carried over from one to the
    next it can only rise, and in the end sends nothing. `residual` as in Lin et al. (ICLR 2018). Of a Gaussian layer
    five passes leave 1 %.

    Source: Tsai (2018)
    Example: dynamic:5

    Args:
        passes (from 1): how often the threshold is raised to the mean of what exceeds it
        residual: whether what is not sent is added to the next gradient
    """

    passes: int = 5
    residual: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.passes, bool) or not isinstance(self.passes, int) or self.passes < 1:
            raise ValueError(f"dynamic: passes={self.passes!r} must be a whole number from 1, as in 5")
        _switch("dynamic", self.residual)

    def select(self, v: torch.Tensor) -> torch.Tensor:
        """The indices above the last threshold, or those that reach it if none exceeds it; sorted."""
        return select.dynamic(v, self.passes)[0]


PRUNERS: dict[str, type] = {"none": Whole, "static": Static, "std": Deviation, "dynamic": Dynamic, "range": Ranges}


class Pruner:
    """Applies a rule to the layers of one worker's flat gradient and keeps what was not sent.

    `residual` (size) is the sum of what was computed and not yet sent; None for a rule without. To restore one, copy
    into it.
    """

    def __init__(
        self,
        rule: Rule,
        layers: Sequence[slice],
        size: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.rule, self.size, self.dtype = rule, size, dtype
        self.layers = [(layer.start or 0, layer.stop) for layer in layers]
        ends = [0, *(stop for _, stop in self.layers)]
        if ends[-1] != size or any(s != e or s > t for (s, t), e in zip(self.layers, ends, strict=False)):
            raise ValueError(f"layers must follow each other from 0 to {size}: an entry of none would never be sent")
        self.residual = torch.zeros(size, dtype=dtype, device=device) if rule.residual else None
        if isinstance(rule, (Static, Deviation, Dynamic)) and torch.device(device).type == "cpu":
            select.prepare(dtype)  # here, and not while a run is timed

    def prune(self, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The flat indices (sorted int64) and values of what is sent of this gradient (size) and the residual.

        The gradient is not changed, and the values are copies.

        Raises:
            NonFinite: the gradient holds NaN or infinity.
            ValueError: a gradient of another shape or dtype, or indices that are not distinct ones of their layer.
        """
        gradient = gradient.detach()
        if gradient.shape != (self.size,) or gradient.dtype != self.dtype:
            got, wanted = (tuple(gradient.shape), gradient.dtype), ((self.size,), self.dtype)
            raise ValueError(f"a gradient of shape {got[0]}, {got[1]} where {wanted[0]}, {wanted[1]} is expected")
        if not is_finite(gradient):
            raise NonFinite("the gradient holds NaN or infinite entries: nothing was sent")
        v = gradient if self.residual is None else self.residual.add_(gradient)
        with torch.no_grad():
            found = [self._indices(v[start:stop]) + start for start, stop in self.layers if stop > start]
        indices = torch.cat(found) if found else torch.empty(0, dtype=torch.int64, device=v.device)
        values = v.index_select(0, indices)
        if self.residual is not None:
            self.residual.index_fill_(0, indices, 0.0)
        return indices, values

    def prune_layer(self, number: int, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The same of one layer's gradient: flat indices in the whole gradient, and values."""
        start, stop = self.layers[number]
        if not is_finite(gradient):
            raise NonFinite("the gradient holds NaN or infinite entries: nothing was sent")
        v = gradient if self.residual is None else self.residual[start:stop].add_(gradient)
        indices = self._indices(v)
        values = v.index_select(0, indices)
        if self.residual is not None:
            self.residual[start:stop].index_fill_(0, indices, 0.0)
        return indices + start, values

    def _indices(self, v: torch.Tensor) -> torch.Tensor:
        found = torch.as_tensor(self.rule.select(v), device=v.device)
        if type(self.rule) in PRUNERS.values():
            return found
        if found.dtype == torch.bool and found.shape == v.shape:
            return found.nonzero().flatten()
        found = found.to(torch.int64).flatten().sort().values
        if len(found) and (found[0] < 0 or found[-1] >= len(v) or bool((found[1:] == found[:-1]).any())):
            raise ValueError(f"{self.rule}: select must give distinct indices from 0 to {len(v) - 1}")
        return found


def is_finite(t: torch.Tensor) -> bool:
    """Whether all entries are finite, at the cost of one sum: only if that is not finite are they looked at."""
    return math.isfinite(t.detach().sum().item()) or bool(torch.isfinite(t).all())


def _number(rule: str, field: str, value: object, allowed: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{rule}: {field}={value!r} must be {allowed}")


def _switch(rule: str, residual: object) -> None:
    if not isinstance(residual, bool):
        raise ValueError(f"{rule}: residual={residual!r} must be on (True) or off (False)")
