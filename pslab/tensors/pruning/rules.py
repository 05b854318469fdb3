"""The rules of pruning: which entries of one layer, or of one of its tensors, a push carries.

A rule is a frozen value; what it needs from one gradient to the next is kept for it by
`pslab.tensors.pruning.pruner.Pruner`.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import torch

from pslab.tensors.selection import select

#: What is sent in the first epochs of a warm-up: a quarter, and a quarter of that with every step (Lin et al., 2018).
WARM_UP = (0.25, 0.0625, 0.015625, 0.004, 0.001)


class Rule(Protocol):
    """What a Pruner asks for: indices (int64, in any order) or a mask (bool) for one layer's vector v.

    A rule may also have

        at(epoch)               the rule that holds at this moment, in epochs from the begin
        keeps = True            then select(v, kept) gets a float64 of this layer that lasts, 0 at first, and may set it
        draws = True            then select(v, draw) gets a whole number by chance, another one for every gradient
        by_tensor = True        it is asked for each tensor of a layer; those of one dimension are sent whole
        momentum, nesterov, masking, clip       what happens to gradients before: see `DGC`
    """

    @property
    def residual(self) -> bool: ...

    def select(self, v: torch.Tensor, /) -> Any: ...


def warm(epoch: float, epochs: int) -> float | None:
    """The density at a moment of a warm-up of so many epochs; None once it is over.

    A shorter one than the list ends early, one entry an epoch; a longer one stays longer with every entry.
    """
    if not 0 <= epoch < epochs:
        return None
    return WARM_UP[int(epoch * len(WARM_UP) / max(epochs, len(WARM_UP)))]


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
    Deep Gradient Compression (ICLR 2018); without, they are dropped, as the report has it. Frozen, the k-th largest
    magnitude of a layer's first gradient that has so many is its threshold from then on, and densities vary.

    Source: Tsai (2018); Aji and Heafield (EMNLP 2017)
    Example: static:1%

    Args:
        fraction (above 0 to 1): the share of each layer's entries that is sent
        residual: whether what is not sent is added to the next gradient
        warm_up (from 0): epochs that begin with milder fractions: 25, 6.25, 1.5625, 0.4, 0.1 %
        mode: each: the fraction of every gradient; frozen: a threshold, fixed once
    """

    fraction: float
    residual: bool = True
    warm_up: int = 0
    mode: Literal["each", "frozen"] = "each"

    def __post_init__(self) -> None:
        _share("static", "fraction", self.fraction)
        _switches("static", residual=self.residual)
        _epochs("static", self.warm_up)
        _choice("static", self.mode, ("each", "frozen"))

    @property
    def keeps(self) -> bool:
        """Whether a layer's threshold lasts."""
        return self.mode == "frozen"

    def at(self, epoch: float) -> Static:
        """In the warm-up the list's fraction, but never less than its own."""
        density = warm(epoch, self.warm_up)
        return self if density is None else Static(max(density, self.fraction), self.residual)

    def count(self, n: int) -> int:
        """How many of n entries are sent."""
        return select.share(self.fraction, n)

    def select(self, v: torch.Tensor, kept: torch.Tensor | None = None) -> torch.Tensor:
        """The indices of the k entries of largest |v|, or of those that reach the threshold that is `kept`; sorted."""
        if self.mode == "frozen" and kept is not None and kept.item():
            return select.reaching(v, kept.item())
        found = select.top(v, self.count(len(v)))
        if self.mode == "frozen" and kept is not None:
            kept.fill_(float(v[found].abs().min()) if len(found) else 0.0)
        return found


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
        warm_up (from 0): epochs that begin with fractions instead: 25, 6.25, 1.5625, 0.4, 0.1 %
    """

    sigmas: float
    residual: bool = True
    warm_up: int = 0

    def __post_init__(self) -> None:
        _number("std", "sigmas", self.sigmas, "a number above 0, as in 2 or 2.5")
        if not 0 < self.sigmas < math.inf:
            raise ValueError(f"std: sigmas={self.sigmas} must be a number above 0, as in 2 or 2.5")
        _switches("std", residual=self.residual)
        _epochs("std", self.warm_up)

    def at(self, epoch: float) -> Deviation | Static:
        """In the warm-up the list's fraction."""
        density = warm(epoch, self.warm_up)
        return self if density is None else Static(density, self.residual)

    def select(self, v: torch.Tensor) -> torch.Tensor:
        """The indices with |v| > sigmas * std(v), sorted."""
        return select.deviation(v, self.sigmas)


@dataclass(frozen=True)
class Dynamic:
    """The entries above a threshold that is the mean of |v| over what exceeds the last threshold.

    The dynamic threshold of Tsai's thesis report (2018), by default found anew for every gradient, in `passes` from 0
    on: of a Gaussian layer five leave 1 %. To the letter each gradient finds the threshold of the next. A mean of what
    exceeds it is always larger: the threshold only rises, until hardly anything is sent. A ratchet that nothing exceeds
    starts again with the mean of |v|; with decay the threshold is taken times gamma before each gradient.

    Source: Tsai (2018)
    Example: dynamic:5

    Args:
        passes (from 1): how often the threshold is raised to the mean of what exceeds it, in the mode of that name
        residual: whether what is not sent is added to the next gradient
        mode: passes: from 0 for every gradient; literal, ratchet, decay: the threshold comes from the gradient before
        gamma (above 0, below 1): how fast the threshold decays
        warm_up (from 0): epochs that begin with fractions instead: 25, 6.25, 1.5625, 0.4, 0.1 %
    """

    passes: int = 5
    residual: bool = True
    mode: Literal["passes", "literal", "ratchet", "decay"] = "passes"
    gamma: float = 0.9
    warm_up: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.passes, bool) or not isinstance(self.passes, int) or self.passes < 1:
            raise ValueError(f"dynamic: passes={self.passes!r} must be a whole number from 1, as in 5")
        _switches("dynamic", residual=self.residual)
        _choice("dynamic", self.mode, ("passes", "literal", "ratchet", "decay"))
        _number("dynamic", "gamma", self.gamma, "above 0 and below 1, as in 0.9")
        if not 0 < self.gamma < 1:
            raise ValueError(f"dynamic: gamma={self.gamma} must be above 0 and below 1, as in 0.9")
        _epochs("dynamic", self.warm_up)

    @property
    def keeps(self) -> bool:
        """Whether a layer's threshold lasts."""
        return self.mode != "passes"

    def at(self, epoch: float) -> Dynamic | Static:
        """In the warm-up the list's fraction."""
        density = warm(epoch, self.warm_up)
        return self if density is None else Static(density, self.residual)

    def select(self, v: torch.Tensor, kept: torch.Tensor | None = None) -> torch.Tensor:
        """The indices above the threshold, sorted; `kept` is the one to compare with, and becomes the next.

        By passes, and where a ratchet starts again, those that reach the threshold if none exceeds it.
        """
        if self.mode == "passes":
            return select.dynamic(v, self.passes)[0]
        threshold = 0.0 if kept is None else kept.item() * (self.gamma if self.mode == "decay" else 1.0)
        found = select.above(v, threshold)
        if len(found):
            threshold = float(v[found].abs().mean(dtype=torch.float64))
        elif self.mode == "ratchet":
            found, (threshold, *_) = select.dynamic(v, 1) if bool(v.any()) else (found, [0.0])
        if kept is not None:
            kept.fill_(threshold)
        return found


@dataclass(frozen=True)
class DGC:
    """Deep gradient compression: the largest `fraction` of each tensor's summed momentum, by a sampled threshold.

    Each worker keeps a momentum u and what it has not sent v: u = m u + g, v = v + u; of v the largest entries are
    sent, and both forget them (factor masking), so that a stale momentum does not carry on. Tensors of one dimension
    are sent whole, as u. The server takes plain steps by the mean. Between 0.8 and 1 times `fraction` of a tensor is
    sent: a sample gives a threshold, which is lowered by a fifth while too few reach it; of too many, the largest are
    taken exactly (the authors' code drops the highest indices instead where they are at most 1.3 times too many).

    Source: Lin et al. (ICLR 2018)
    Example: dgc:0.1%

    Args:
        fraction (above 0 to 1): the share of each tensor's entries that is sent
        momentum (from 0, below 1): of u
        nesterov: the momentum of Nesterov: u = m (u + g), v = v + u + g
        clip (above 0, or none): a gradient with a larger norm than clip / sqrt(workers) is scaled down to it
        masking: whether the momentum forgets what is sent
        warm_up (from 0): epochs that begin with milder fractions: 25, 6.25, 1.5625, 0.4, 0.1 %
        sample (above 0 to 1): the share of a tensor's entries that its threshold is taken from
    """

    residual: ClassVar[bool] = True
    by_tensor: ClassVar[bool] = True
    draws: ClassVar[bool] = True

    fraction: float = 0.001
    momentum: float = 0.9
    nesterov: bool = False
    clip: float | None = None
    masking: bool = True
    warm_up: int = 4
    sample: float = 0.01

    def __post_init__(self) -> None:
        _share("dgc", "fraction", self.fraction)
        _share("dgc", "sample", self.sample)
        _number("dgc", "momentum", self.momentum, "from 0 and below 1, as in 0.9")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"dgc: momentum={self.momentum} must be from 0 and below 1, as in 0.9")
        if self.nesterov and not self.momentum:
            raise ValueError("dgc: nesterov=on needs a momentum above 0, as in momentum=0.9")
        if self.clip is not None:
            _number("dgc", "clip", self.clip, "above 0, or none, as in 5")
            if not 0 < self.clip < math.inf:
                raise ValueError(f"dgc: clip={self.clip} must be above 0, or none, as in 5")
        _switches("dgc", nesterov=self.nesterov, masking=self.masking)
        _epochs("dgc", self.warm_up)

    def at(self, epoch: float) -> DGC:
        """In the warm-up the list's fraction, but never less than its own."""
        density = warm(epoch, self.warm_up)
        return self if density is None else dataclasses.replace(self, fraction=max(density, self.fraction), warm_up=0)

    def select(self, v: torch.Tensor, draw: int = 0) -> torch.Tensor:
        """The indices of the about `fraction` n largest |v|, sorted; `draw` says where the sample begins."""
        return select.sampled(v, self.fraction, self.sample, draw)


def _number(rule: str, field: str, value: object, allowed: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{rule}: {field}={value!r} must be {allowed}")


def _share(rule: str, field: str, value: float) -> None:
    _number(rule, field, value, "above 0 and at most 1, as in 0.01 or 1%")
    if not 0 < value <= 1:
        raise ValueError(f"{rule}: {field}={value} must be above 0 and at most 1, as in 0.01 or 1%")


def _switches(rule: str, **switches: object) -> None:
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise ValueError(f"{rule}: {name}={value!r} must be on (True) or off (False)")


def _choice(rule: str, mode: object, allowed: tuple[str, ...]) -> None:
    if mode not in allowed:
        raise ValueError(f"{rule}: mode={mode!r} must be one of {', '.join(allowed)}")


def _epochs(rule: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{rule}: warm_up={value!r} must be a whole number of epochs from 0, as in 4")
