"""The rules of pruning: which entries of one layer, or of one of its tensors, a push carries.

A rule is a frozen value; what it needs from one gradient to the next is kept for it by
`pslab.tensors.pruning.pruner.Pruner`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol

import torch

from pslab.config.parameters import Bounds, OneOf, check
from pslab.tensors.selection import select

#: What is sent in the first epochs of a warm-up: a quarter, and a quarter of that with every step (Lin et al., 2018).
WARM_UP = (0.25, 0.0625, 0.015625, 0.004, 0.001)
WarmUp = Annotated[int, Bounds(at_least=0), "epochs that start with the fractions 25, 6.25, 1.5625, 0.4, 0.1 % instead"]
SHARE = Bounds(above=0, at_most=1)


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
    """Everything is sent: no pruning."""

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
    """

    fraction: Annotated[float, SHARE, "of each layer's entries that is sent"]
    residual: Annotated[bool, "whether what is not sent is added to the next gradient"] = True
    warm_up: WarmUp = 0
    mode: Annotated[str, OneOf("each", "frozen"), "a threshold for each gradient, or one for all of them"] = "each"

    def __post_init__(self) -> None:
        check(self)

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
    """

    sigmas: Annotated[float, Bounds(above=0), "the threshold, in standard deviations of the layer"]
    residual: Annotated[bool, "whether what is not sent is added to the next gradient"] = True
    warm_up: WarmUp = 0

    def __post_init__(self) -> None:
        check(self)

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
    """

    passes: Annotated[
        int, Bounds(at_least=1), "how often the threshold is raised to the mean of what exceeds it, in the mode passes"
    ] = 5
    residual: Annotated[bool, "whether what is not sent is added to the next gradient"] = True
    mode: Annotated[
        str, OneOf("passes", "literal", "ratchet", "decay"),
        "from 0 for every gradient; or the threshold comes from the gradient before",
    ] = "passes"
    gamma: Annotated[float, Bounds(above=0, below=1), "how fast the threshold decays"] = 0.9
    warm_up: WarmUp = 0

    def __post_init__(self) -> None:
        check(self)

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
    """

    residual: ClassVar[bool] = True
    by_tensor: ClassVar[bool] = True
    draws: ClassVar[bool] = True

    fraction: Annotated[float, SHARE, "of each tensor's entries that is sent"] = 0.001
    momentum: Annotated[float, Bounds(at_least=0, below=1), "of u"] = 0.9
    nesterov: Annotated[bool, "the momentum of Nesterov: u = m (u + g), v = v + u + g"] = False
    clip: Annotated[
        float | None, Bounds(above=0), "a gradient with a norm above clip / sqrt(workers) is scaled down to it"
    ] = None
    masking: Annotated[bool, "whether the momentum forgets what is sent"] = True
    warm_up: WarmUp = 4
    sample: Annotated[float, SHARE, "of a tensor's entries that its threshold is taken from"] = 0.01

    def __post_init__(self) -> None:
        check(self)
        if self.nesterov and not self.momentum:
            raise ValueError("dgc: nesterov=on needs a momentum above 0, as in momentum=0.9")

    def at(self, epoch: float) -> DGC:
        """In the warm-up the list's fraction, but never less than its own."""
        density = warm(epoch, self.warm_up)
        return self if density is None else dataclasses.replace(self, fraction=max(density, self.fraction), warm_up=0)

    def select(self, v: torch.Tensor, draw: int = 0) -> torch.Tensor:
        """The indices of the about `fraction` n largest |v|, sorted; `draw` says where the sample begins."""
        return select.sampled(v, self.fraction, self.sample, draw)
