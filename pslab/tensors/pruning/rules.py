"""The pruning rules: which entries of one layer, or of one of its tensors, a push contains.

A rule is a frozen value. The Pruner (`pslab.tensors.pruning.pruner`) keeps what it needs from one gradient to the next.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from pslab.config.parameters import SHARE, Bounds, OneOf, check
from pslab.tensors.selection import select

#: The densities of a warm-up: a quarter, then a quarter of the one before (Lin et al., ICLR 2018).
WARM_UP = (0.25, 0.0625, 0.015625, 0.004, 0.001)
WarmUp = Annotated[int, Bounds(at_least=0), "epochs of larger fractions at the start: 25, 6.25, 1.5625, 0.4, 0.1 %"]


class PruningRule(Protocol):
    """The attributes that a Pruner needs of a rule, which may also have those of `RuleTraits`."""

    @property
    def residual(self) -> bool:
        """Whether what is not sent is added to the next gradient."""

    @property
    def select(self) -> Callable[..., Any]:
        """select(v): the indices (integers, in any order) or a mask (bool [n]) of the entries of v [n] to send."""


@dataclass(frozen=True)
class RuleTraits:
    """The attributes that a rule may have beside those of `PruningRule`, with their defaults."""

    at: Callable[[float], PruningRule] | None = None  #: at(epoch): the rule at this moment, in epochs from the start
    sends: Callable[[int], int] | None = None  #: sends(n): how many of n entries are sent, if that is always the same
    keeps: bool = False  #: the call is select(v, kept), with a float64 tensor [1] of the layer, 0 at first, to be set
    draws: bool = False  #: the call is select(v, draw), with a random integer, a new one for every gradient
    by_tensor: bool = False  #: select is called for each tensor of a layer; those of one dimension are sent unpruned,
    #: unless it is shared
    compiled: bool = True  #: of a rule of this package: select reads v by `pslab.tensors.selection` alone
    momentum: float = 0.0  #: this, `nesterov` and `masking`: gradients are accumulated in a momentum first, as in `DGC`
    nesterov: bool = False
    masking: bool = False
    shared: bool = False  #: it draws the same for all workers: places(n, draw) says where, and no frame does
    scale: Callable[[int], float] | None = None  #: scale(n): the factor of the entries that are sent of n
    residual_decay: float = 1.0  #: the residual is multiplied by this before a gradient is added
    estimates: bool = False  #: the residual is minus the sum of what was sent: the difference to a gradient is pruned
    matrices: bool = False  #: pushes are made of whole matrices: see `pslab.tensors.matrices.frames`
    aggregate: str = ""  #: what the server makes of the pushes of a step: see `pslab.tensors.aggregates`
    clip: float | None = None  #: the norm that gradients are scaled down to, times the root of the number of workers


def rule_traits(rule: object) -> RuleTraits:
    """The traits of a rule, read from its attributes."""
    values: dict[str, Any] = {f.name: getattr(rule, f.name, f.default) for f in dataclasses.fields(RuleTraits)}
    return RuleTraits(**values)


def warm(epoch: float, epochs: int) -> float | None:
    """The density at moment `epoch` of a warm-up of `epochs` epochs; None once it is over.

    A warm-up shorter than the list takes one entry an epoch and ends early; a longer one stays longer at each entry.
    """
    if not 0 <= epoch < epochs:
        return None
    return WARM_UP[int(epoch * len(WARM_UP) / max(epochs, len(WARM_UP)))]


@dataclass(frozen=True)
class Dense:
    """No pruning: all entries are sent."""

    residual: ClassVar[bool] = False
    compiled: ClassVar[bool] = False

    def sends(self, n: int) -> int:
        """All n entries."""
        return n

    def select(self, v: torch.Tensor) -> torch.Tensor:
        """All indices of v."""
        return torch.arange(len(v), device=v.device)


@dataclass(frozen=True)
class Static:
    """The largest `fraction` of each layer, k = max(1, ceil(fraction * n)); ties go to the lower index.

    The static thresholds of Tsai's thesis report (2018). With `residual`, unsent entries accumulate, as in Lin et al.,
    Deep Gradient Compression (ICLR 2018); without, they are dropped, as in the report. In mode `frozen`, a layer's
    threshold is the k-th largest magnitude of its first gradient with k nonzero entries, and densities vary afterwards.

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
        """Whether a layer's threshold is kept from one gradient to the next."""
        return self.mode == "frozen"

    def at(self, epoch: float) -> Static:
        """During the warm-up the fraction of the list, but never less than the rule's own."""
        density = warm(epoch, self.warm_up)
        return self if density is None else Static(max(density, self.fraction), self.residual)

    @property
    def sends(self) -> Callable[[int], int] | None:
        """The number of entries sent of n; None with a threshold that is kept."""
        return None if self.keeps else self.count

    def count(self, n: int) -> int:
        """The number of entries sent of n."""
        return select.share(self.fraction, n)

    def select(self, v: select.Vector, kept: torch.Tensor | None = None) -> torch.Tensor:
        """The sorted indices of the k largest |v|, or of those that reach the `kept` threshold."""
        if self.mode == "frozen" and kept is not None and kept.item():
            return select.reaching(v, kept.item())
        found = select.top(v, self.count(len(v)))
        if self.mode == "frozen" and kept is not None:
            kept.fill_(float(select.magnitudes(v, found).min()) if len(found) else 0.0)
        return found


@dataclass(frozen=True)
class Deviation:
    """The entries with |v| above `sigmas` standard deviations (population) of their layer.

    The standard-deviation thresholds (1, 2, 3) of Tsai's thesis report (2018); `residual` as in Lin et al. (ICLR 2018).
    Of a Gaussian layer 31.7, 4.6 and 0.27 % are sent; of a constant layer all entries, since its deviation is 0.

    Source: Tsai (2018)
    """

    sigmas: Annotated[float, Bounds(above=0), "the threshold, in standard deviations of the layer"]
    residual: Annotated[bool, "whether what is not sent is added to the next gradient"] = True
    warm_up: WarmUp = 0

    def __post_init__(self) -> None:
        check(self)

    def at(self, epoch: float) -> Deviation | Static:
        """During the warm-up the fraction of the list."""
        density = warm(epoch, self.warm_up)
        return self if density is None else Static(density, self.residual)

    def select(self, v: select.Vector) -> torch.Tensor:
        """The sorted indices with |v| > sigmas * std(v)."""
        return select.deviation(v, self.sigmas)


@dataclass(frozen=True)
class Dynamic:
    """The entries above a threshold that is the mean of |v| over the entries above the last threshold.

    The dynamic threshold of Tsai's thesis report (2018). By default it is computed for every gradient, in `passes` that
    start from 0; five passes leave 1 % of a Gaussian layer. In the report's literal form, each gradient gives the
    threshold for the next one. Since the mean of the entries above a threshold is always larger than the threshold, it
    only rises, until hardly any entry is sent. A ratchet starts again with the mean of |v| when no entry exceeds the
    threshold; with decay, the threshold is multiplied by gamma before each gradient.

    Source: Tsai (2018)
    """

    passes: Annotated[
        int, Bounds(at_least=1), "how often the threshold is raised to the mean of the entries above it, in mode passes"
    ] = 5
    residual: Annotated[bool, "whether what is not sent is added to the next gradient"] = True
    mode: Annotated[
        str, OneOf("passes", "literal", "ratchet", "decay"),
        "passes: from 0 for every gradient; literal, ratchet, decay: the last gradient gives the threshold",
    ] = "passes"
    gamma: Annotated[float, Bounds(above=0, below=1), "how fast the threshold decays"] = 0.9
    warm_up: WarmUp = 0

    def __post_init__(self) -> None:
        check(self)

    @property
    def keeps(self) -> bool:
        """Whether a layer's threshold is kept from one gradient to the next."""
        return self.mode != "passes"

    def at(self, epoch: float) -> Dynamic | Static:
        """During the warm-up the fraction of the list."""
        density = warm(epoch, self.warm_up)
        return self if density is None else Static(density, self.residual)

    def select(self, v: select.Vector, kept: torch.Tensor | None = None) -> torch.Tensor:
        """The sorted indices above the threshold in `kept`, which is then set to the next threshold.

        In mode `passes`, and where a ratchet starts again, those that reach the threshold if none exceeds it.
        """
        if self.mode == "passes":
            return select.dynamic(v, self.passes)[0]
        threshold = 0.0 if kept is None else kept.item() * (self.gamma if self.mode == "decay" else 1.0)
        found = select.above(v, threshold)
        if len(found):
            threshold = float(select.magnitudes(v, found).mean(dtype=torch.float64))
        elif self.mode == "ratchet":
            found, thresholds = select.dynamic(v, 1)
            threshold = thresholds[0] if thresholds else 0.0
        if kept is not None:
            kept.fill_(threshold)
        return found


@dataclass(frozen=True)
class DGC:
    """Deep gradient compression: the largest `fraction` of each tensor's summed momentum, by a sampled threshold.

    Each worker keeps a momentum u and a residual v: u = m u + g, v = v + u. The largest entries of v are sent, and set
    to 0 in both (factor masking), so that a stale momentum does not carry on. Tensors of one dimension are sent
    unpruned, as u. The server takes plain steps with the mean. Between 0.8 and 1 times `fraction` of a tensor is sent:
    a sample gives a threshold, which is lowered by a fifth while too few entries reach it; of too many, exactly the
    largest are taken (the authors' code drops those of highest index if they are at most 1.3 times too many).

    Source: Lin et al. (ICLR 2018)
    """

    residual: ClassVar[bool] = True
    by_tensor: ClassVar[bool] = True
    draws: ClassVar[bool] = True

    fraction: Annotated[float, SHARE, "of each tensor's entries that is sent"] = 0.001
    momentum: Annotated[float, Bounds(at_least=0, below=1), "m"] = 0.9
    nesterov: Annotated[bool, "Nesterov's momentum: u = m (u + g), v = v + u + g"] = False
    clip: Annotated[
        float | None, Bounds(above=0), "a gradient with a norm above clip / sqrt(workers) is scaled down to it"
    ] = None
    masking: Annotated[bool, "whether entries that are sent are set to 0 in the momentum"] = True
    warm_up: WarmUp = 4
    sample: Annotated[float, SHARE, "of a tensor's entries that gives its threshold"] = 0.01

    def __post_init__(self) -> None:
        check(self)
        if self.nesterov and not self.momentum:
            raise ValueError("dgc: nesterov=on needs a momentum above 0, as in momentum=0.9")

    def at(self, epoch: float) -> DGC:
        """During the warm-up the fraction of the list, but never less than the rule's own."""
        density = warm(epoch, self.warm_up)
        return self if density is None else dataclasses.replace(self, fraction=max(density, self.fraction), warm_up=0)

    def sends(self, n: int) -> int:
        """The number of entries sent of n; where the sampled threshold is too high, up to a fifth fewer."""
        return select.share(self.fraction, n)

    def select(self, v: select.Vector, draw: int = 0) -> torch.Tensor:
        """The sorted indices of about `fraction` n of the largest |v|; `draw` says where the sample starts."""
        return select.sampled(v, self.fraction, self.sample, draw)


@dataclass(frozen=True)
class Threshold:
    """The entries with |v| of at least `theta`, which may be none.

    With the residual, the hard threshold of Sahu et al. (NeurIPS 2021): the same one for all layers and gradients.

    Source: Sahu et al. (NeurIPS 2021)
    """

    theta: Annotated[float, Bounds(above=0), "the threshold"]
    residual: Annotated[bool, "whether what is not sent is added to the next gradient"] = True

    def __post_init__(self) -> None:
        check(self)

    def select(self, v: select.Vector) -> torch.Tensor:
        """The sorted indices with |v| >= theta."""
        return select.reaching(v, self.theta)


@dataclass(frozen=True)
class EF21:
    """The largest `fraction` of each layer of the difference of a gradient and its estimate, the sum of those sent.

    The server adds the mean of the differences to an estimate of its own, and steps by that: nothing is added to the
    next gradient, and each step moves all weights. Needs rounds.

    Source: Richtárik et al. (NeurIPS 2021)
    """

    residual: ClassVar[bool] = True  # minus the estimate
    estimates: ClassVar[bool] = True
    aggregate: ClassVar[str] = "estimates"
    compiled: ClassVar[bool] = False

    fraction: Annotated[float, SHARE, "of each layer's entries that is sent"]

    def __post_init__(self) -> None:
        check(self)

    def sends(self, n: int) -> int:
        """The number of entries sent of n."""
        return select.share(self.fraction, n)

    def select(self, v: select.Vector) -> torch.Tensor:
        """The sorted indices of the k largest |v|."""
        return select.top(v, self.sends(len(v)))


@dataclass(frozen=True)
class RandomK:
    """A random `fraction` of each tensor's entries, k = max(1, ceil(fraction * n)), the same for all workers.

    Server and workers draw the places alike, so no frame has them. Without the residual, the entries that are sent are
    multiplied by n / k, which makes their mean right.

    Source: Stich et al. (NeurIPS 2018)
    """

    shared: ClassVar[bool] = True
    draws: ClassVar[bool] = True
    by_tensor: ClassVar[bool] = True
    compiled: ClassVar[bool] = False

    fraction: Annotated[float, SHARE, "of each tensor's entries that is sent"]
    residual: Annotated[bool, "whether what is not sent is added to the next gradient"] = True

    def __post_init__(self) -> None:
        check(self)

    def sends(self, n: int) -> int:
        """The number of entries sent of n."""
        return select.share(self.fraction, n)

    def scale(self, n: int) -> float:
        """n / k without the residual."""
        return 1.0 if self.residual or not n else n / self.sends(n)

    def places(self, n: int, draw: int) -> NDArray[np.int64]:
        """The k places among n, sorted: int64."""
        return np.sort(np.random.Generator(np.random.PCG64(draw)).permutation(n)[: self.sends(n)])

    def select(self, v: torch.Tensor, draw: int = 0) -> torch.Tensor:
        """The places for this draw."""
        return torch.from_numpy(self.places(len(v), draw)).to(v.device)


@dataclass(frozen=True)
class BothSigns:
    """The largest `fraction` of the positive entries and of the negative ones, ceil(fraction * count) of each.

    With `quantize="onebit"`, which sends the mean of each sign, it is the adaptive quantization of Dryden et al.

    Source: Dryden et al. (MLHPC 2016)
    """

    compiled: ClassVar[bool] = False

    fraction: Annotated[float, SHARE, "of the entries of each sign that is sent"]
    residual: Annotated[bool, "whether what is not sent is added to the next gradient"] = True

    def __post_init__(self) -> None:
        check(self)

    def select(self, v: torch.Tensor) -> torch.Tensor:
        """The sorted indices; of equal entries those with lower indices."""
        found = []
        for own in (v.clamp(min=0), v.clamp(max=0)):
            if count := int(own.count_nonzero()):
                found.append(select.top(own, select.share(self.fraction, count)))
        if not found:
            return torch.empty(0, dtype=torch.int64, device=v.device)
        return torch.cat(found).sort().values
