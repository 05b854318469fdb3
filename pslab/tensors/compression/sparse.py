"""Sparse rules: they select the entries of a piece that are sent; `at.code` encodes the values.

Selection runs on the CPU or a GPU; see `select`.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch

from pslab.config.parameters import SHARE, Bounds, OneOf, check
from pslab.errors import ConfigError
from pslab.tensors.compression.bits import count_of, indices_of, positions
from pslab.tensors.compression.rule import At, Parts, Rule, Sparse
from pslab.tensors.compression.select import above, add_top, dynamic, reaching, sample_stride, sampled, share, std, top
from pslab.tensors.device import sent
from pslab.tensors.update.vectors import clipped
from pslab.tensors.workload.keyspace import KeyRange

#: The densities of a warm-up: a quarter, then a quarter of the one before (Lin et al., ICLR 2018).
WARM_UP = (0.25, 0.0625, 0.015625, 0.004, 0.001)
WarmUp = Annotated[int, Bounds(at_least=0), "epochs of larger fractions at the start: 25, 6.25, 1.5625, 0.4, 0.1 %"]
Residual = Annotated[bool, "whether unsent entries are added to the next gradient"]
ANYWHERE = At(memory={"numbers": torch.zeros(1)})
Fraction = Annotated[float, SHARE, "the share of the entries that is sent"]


def warm(epoch: float, epochs: int) -> float:
    """Return the fraction of entries that is sent at time `epoch` of a warm-up of `epochs` epochs; 0 afterwards.

    A warm-up with fewer epochs than WARM_UP takes one value an epoch and ends early; a longer warm-up repeats values.
    """
    return WARM_UP[int(epoch * len(WARM_UP) / max(epochs, len(WARM_UP)))] if 0 <= epoch < epochs else 0.0


class Chosen(Rule):
    """The base of rules that send some entries: `select(v, at)` returns their indices, `at.code` encodes the values."""

    unit = "layer"
    chooses = True

    def __post_init__(self) -> None:
        check(self)

    def select(self, v: torch.Tensor, at: At = ANYWHERE) -> torch.Tensor:
        """Return the increasing indices of the entries of v [n] to send."""
        raise NotImplementedError

    def largest(self, n: int, at: At) -> int | None:
        """Return k if the rule sends the k largest of n entries; None if it selects otherwise."""
        return None

    def compress(self, v: torch.Tensor, at: At) -> Parts:
        indices = self.select(v, at)
        return [positions(indices, len(v)), *self.coded(v[indices], at)]

    def coded(self, values: torch.Tensor, at: At) -> Parts:
        """Return the parts of selected values; an empty list for no values, because a code would have no scale."""
        return at.code.compress(values, at) if len(values) else []

    def decompress(self, parts: Parts, at: At) -> Any:
        indices = indices_of(parts[0], at.size)
        if not len(indices) and len(parts) == 1:
            return Sparse(indices, torch.empty(0, dtype=at.dtype, device=indices.device))
        return Sparse(indices, at.code.decompress(parts[1:], at.of(len(indices))))

    def push(self, gradient: torch.Tensor, at: At) -> Parts:
        if "residual" not in at.memory:
            return self.compress(gradient, at)
        v = at.memory["residual"]
        if (k := self.largest(len(v), at)) is not None:
            indices, values = add_top(v, k, gradient)
        else:
            indices = self.select(v.add_(gradient), at)
            values = v[indices]
        code = self.coded(values, at)
        if code:
            v.index_copy_(0, indices, values - at.code.decompress(code, at.of(len(indices))))
        return [*self.where(indices, len(v)), *code]

    def where(self, indices: torch.Tensor, n: int) -> Parts:
        """Return a list with the encoded indices; an empty list if the server draws them itself."""
        return [positions(indices, n)]

    def count(self, parts: Parts, at: At) -> int:
        return count_of(parts[0])


@dataclass(frozen=True)
class Users(Chosen):
    """Wraps a user's rule: an object with `residual`, optionally `unit`, and `select(v)`, which returns a mask or
    indices in any order."""

    rule: Any

    def __post_init__(self) -> None:
        if (count := len(inspect.signature(self.rule.select).parameters)) != 1:
            problem = f"select takes {count} arguments, but must take one, v"
            more = "derive from pslab.tensors.compression.Rule if it needs more"
            raise ConfigError("prune", type(self.rule).__name__, f"{problem}: {more}")

    @property
    def unit(self) -> str:  # type: ignore[override]
        """The piece that is given to `select`: the rule's `unit`, by default "layer"."""
        return str(getattr(self.rule, "unit", "layer"))

    @property
    def residual(self) -> bool:  # type: ignore[override]
        """Whether the entries that are not sent are added to the next gradient."""
        return bool(self.rule.residual)

    def select(self, v: torch.Tensor, at: At = ANYWHERE) -> torch.Tensor:
        indices = torch.as_tensor(self.rule.select(v), device=v.device)
        if indices.dtype == torch.bool and indices.shape == v.shape:
            return indices.nonzero().flatten()
        indices = indices.to(torch.int64).flatten().sort().values
        if len(indices) and (indices[0] < 0 or indices[-1] >= len(v) or bool((indices[1:] == indices[:-1]).any())):
            raise ValueError(f"{self.rule}: select must give distinct indices from 0 to {len(v) - 1}")
        return indices


FIT = "fit"


@dataclass(frozen=True)
class Ranges(Chosen):
    """Push and pull one range of keys an iteration, in turn; the entries of the other ranges accumulate.

    Every entry of every gradient is sent once, at most K - 1 iterations late, where K is the number of ranges. The
    slides do not give the order of the ranges; this rule takes them in turn, and Li et al. choose them at random. With
    size `fit`, each worker measures how long exchanging and computing take. The ranges of its next sweep over the keys
    get as many keys as it can exchange while it computes, so workers may use different sizes. Needs pull="range". To
    overlap exchanging with computing, use sync="eager".

    Source: Tsai (slides 2017); Li et al. (OSDI 2014)
    """

    unit = "range"
    size: Annotated[int | str, Bounds(at_least=1), OneOf(FIT), "the number of keys in a range, or fit"]
    residual: Annotated[
        bool, "whether unsent entries are added to the next gradient; off: cyclic block-coordinate SGD"
    ] = True
    local_apply: Annotated[
        bool, "whether a worker applies the entries that it has not sent to its own weights, by plain SGD"
    ] = True
    quantile: Annotated[
        float | None,
        Bounds(at_least=0, at_most=1),
        "with fit: the quantile of the last computing times that is used; none: their moving mean",
    ] = None
    pull = "range"

    @property
    def fitted(self) -> bool:
        """Whether the size is chosen during the run."""
        return self.size == FIT

    @property
    def applies(self) -> bool:
        """Whether a worker applies its residual to its own weights."""
        return self.residual and self.local_apply

    def select(self, v: torch.Tensor, at: At = ANYWHERE) -> torch.Tensor:
        spans = [slice(max(s.start, at.start), min(s.stop, at.start + at.size)) for s in at.slices]
        return torch.cat(
            [
                v.new_empty(0, dtype=torch.int64),
                *(
                    torch.arange(s.start - at.start, s.stop - at.start, device=v.device)
                    for s in spans
                    if s.start < s.stop
                ),
            ]
        )

    def decompress(self, parts: Parts, at: At) -> Any:
        made = super().decompress(parts, at)
        return made.values if len(made.indices) == at.size else made  # one range of all keys is plain training


def ranges_in(size: int, keys: int) -> int:
    """Return the number of ranges in a sweep over all keys, with `size` keys in a range."""
    return -(-keys // size)


def keys_of(size: int, keys: int, index: int) -> KeyRange:
    """Return the keys of the range with this index; indices count on from sweep to sweep."""
    start = size * (index % ranges_in(size, keys))
    return KeyRange(start, min(keys, start + size))


@dataclass(frozen=True)
class Static(Chosen):
    """Send the k of n entries of each layer with the largest magnitudes, k = max(1, ceil(fraction * n)).

    Of equal entries those with the lower index are sent. During `warm_up` the fraction is larger.

    The static thresholds of Tsai's thesis report (2018). With `residual`, unsent entries accumulate, as in Lin et al.,
    Deep Gradient Compression (ICLR 2018). Without it they are dropped, as in the report. In mode `frozen`, a layer's
    threshold is the k-th largest magnitude of its first gradient with k nonzero entries. After that, the number of
    entries above the threshold varies.

    Source: Tsai (2018); Aji and Heafield (EMNLP 2017)
    """

    numbers = 1
    fraction: Fraction
    residual: Residual = True
    warm_up: WarmUp = 0
    mode: Annotated[str, OneOf("each", "frozen"), "a threshold for each gradient, or one for all gradients"] = "each"

    @property
    def sends(self) -> Any:
        """The function sends(n, at), which returns how many of n entries are sent; None in mode frozen."""
        return self._count if self.mode == "each" else None

    def _count(self, n: int, at: At) -> int:
        return share(max(self.fraction, warm(at.epoch, self.warm_up)), n)

    def largest(self, n: int, at: At) -> int | None:
        return self._count(n, at) if self.mode == "each" else None

    def select(self, v: torch.Tensor, at: At = ANYWHERE) -> torch.Tensor:
        if self.mode == "each":
            return top(v, self._count(len(v), at))
        memory = at.memory["numbers"]
        if threshold := float(memory[0]):
            return reaching(v, threshold)
        chosen = top(v, self._count(len(v), at))
        memory[0] = v[chosen].abs().min() if len(chosen) else 0.0
        return chosen


@dataclass(frozen=True)
class Deviation(Chosen):
    """Send the entries with |v| above `sigmas` standard deviations (population) of their layer.

    Tsai's thesis report (2018) uses 1, 2 and 3, which send 31.7, 4.6 and 0.27 % of a Gaussian layer. A constant layer
    is sent completely, since its deviation is 0. `residual` is as in Lin et al. (ICLR 2018).

    Source: Tsai (2018)
    """

    sigmas: Annotated[float, Bounds(above=0), "the threshold, in standard deviations of the layer"]
    residual: Residual = True
    warm_up: WarmUp = 0

    def select(self, v: torch.Tensor, at: At = ANYWHERE) -> torch.Tensor:
        if density := warm(at.epoch, self.warm_up):
            return top(v, share(density, len(v)))
        return above(v, self.sigmas * std(v))


@dataclass(frozen=True)
class Dynamic(Chosen):
    """Send the entries with |v| above a threshold: the mean of |v| over the entries above the last threshold.

    The dynamic threshold of Tsai's thesis report (2018). In mode passes, each gradient starts at the threshold 0 and
    raises it `passes` times; five passes leave 1 % of a Gaussian layer. In mode literal, as in the report, a gradient
    gives the threshold for the next gradient. The mean of the entries above a threshold is always larger than the
    threshold, so the threshold only rises, until hardly any entry is sent. Mode ratchet starts again with the mean of
    |v| when no entry exceeds the threshold. In mode decay, the threshold is multiplied by `gamma` first.

    Source: Tsai (2018)
    """

    numbers = 1
    passes: Annotated[
        int, Bounds(at_least=1), "how often the threshold is raised to the mean of the entries above it, in mode passes"
    ] = 5
    residual: Residual = True
    mode: Annotated[
        str,
        OneOf("passes", "literal", "ratchet", "decay"),
        "passes: start from 0 for each gradient; literal, ratchet, decay: the last gradient gives the threshold",
    ] = "passes"
    gamma: Annotated[float, Bounds(above=0, below=1), "the factor of the threshold in mode decay"] = 0.9
    warm_up: WarmUp = 0

    def select(self, v: torch.Tensor, at: At = ANYWHERE) -> torch.Tensor:
        if density := warm(at.epoch, self.warm_up):
            return top(v, share(density, len(v)))
        if self.mode == "passes":
            return dynamic(v, self.passes)[0]
        previous = at.memory["numbers"]
        threshold = float(previous[0]) * (self.gamma if self.mode == "decay" else 1.0)
        indices = above(v, threshold)
        if len(indices):
            threshold = float(v[indices].abs().mean(dtype=torch.float64))
        elif self.mode == "ratchet":
            indices, thresholds = dynamic(v, 1)
            threshold = thresholds[0] if thresholds else 0.0
        previous[0] = threshold
        return indices


@dataclass(frozen=True)
class Threshold(Chosen):
    """Send the entries with |v| of at least `theta`, which may be none.

    Source: Sahu et al. (NeurIPS 2021)
    """

    theta: Annotated[float, Bounds(above=0), "the threshold"]
    residual: Residual = True

    def select(self, v: torch.Tensor, at: At = ANYWHERE) -> torch.Tensor:
        return reaching(v, self.theta)


@dataclass(frozen=True)
class BothSigns(Chosen):
    """Send the largest `fraction` of the positive entries and of the negative entries, each number rounded up.

    With `quantize="onebit"`, which sends the mean of each sign, this is the adaptive quantization of Dryden et al.

    Source: Dryden et al. (MLHPC 2016)
    """

    fraction: Fraction
    residual: Residual = True

    def select(self, v: torch.Tensor, at: At = ANYWHERE) -> torch.Tensor:
        halves = [(half, int(half.count_nonzero())) for half in (v.clamp(min=0), v.clamp(max=0))]
        return torch.cat([top(half, share(self.fraction, count)) for half, count in halves]).sort().values


@dataclass(frozen=True)
class RandomK(Chosen):
    """Send a random `fraction` of each tensor's entries, k = max(1, ceil(fraction * n)), the same for all workers.

    Server and workers draw the same positions, so frames do not contain them. Without `residual`, sent entries are
    multiplied by n / k, so that the expected value is the gradient.

    Source: Stich et al. (NeurIPS 2018)
    """

    unit = "tensor"
    fraction: Fraction
    residual: Residual = True

    def sends(self, n: int, at: At) -> int:
        """Return how many of n entries are sent."""
        return share(self.fraction, n)

    def select(self, v: torch.Tensor, at: At = ANYWHERE) -> torch.Tensor:
        chance = np.random.Generator(np.random.PCG64(at.draw("shared")))
        # without shuffle, time and memory are proportional to the drawn entries, not to all
        drawn = chance.choice(at.size, share(self.fraction, at.size), replace=False, shuffle=False)
        return sent(torch.from_numpy(np.sort(drawn)), v.device)

    def where(self, indices: torch.Tensor, n: int) -> Parts:
        return []

    def compress(self, v: torch.Tensor, at: At) -> Parts:
        values = v[self.select(v, at)]
        return at.code.compress(values if self.residual else values * (len(v) / max(1, len(values))), at)

    def count(self, parts: Parts, at: At) -> int:
        return share(self.fraction, at.size)

    def decompress(self, parts: Parts, at: At) -> Sparse:
        indices = self.select(parts[0], at)
        return Sparse(indices, at.code.decompress(parts, at.of(len(indices))))


@dataclass(frozen=True)
class DGC(Chosen):
    """Deep gradient compression: send the largest `fraction` of each tensor's summed momentum, by a sampled threshold.

    Each worker stores a momentum u and a residual v: u = m u + g, v = v + u. The largest entries of v are sent, and set
    to 0 in u and v (factor masking), so that a stale momentum has no further effect. Tensors of one dimension are sent
    unpruned. The server takes plain steps with the mean. Between 0.8 and 1 times `fraction` of a tensor is sent: a
    sample gives a threshold, which is lowered by a fifth while too few entries reach it. If too many entries reach it,
    only the largest are sent.

    Source: Lin et al. (ICLR 2018)
    """

    unit = "tensor"
    vectors = ("momentum",)
    residual = True

    fraction: Fraction = 0.001
    momentum: Annotated[float, Bounds(at_least=0, below=1), "the factor m of the last momentum"] = 0.9
    nesterov: Annotated[bool, "Nesterov's momentum: u = m (u + g), v = v + u + g"] = False
    clip: Annotated[
        float | None, Bounds(above=0), "a gradient's norm is limited to clip / sqrt(workers); none: no limit"
    ] = None
    masking: Annotated[bool, "whether entries that are sent are set to 0 in the momentum"] = True
    warm_up: WarmUp = 4
    sample: Annotated[float, SHARE, "the share of a tensor's entries that is sampled for its threshold"] = 0.01

    def __post_init__(self) -> None:
        check(self)
        if self.nesterov and not self.momentum:
            raise ValueError("dgc: nesterov=on needs a momentum above 0, as in momentum=0.9")

    def before(self, gradient: torch.Tensor, workers: int) -> torch.Tensor:
        return clipped(gradient, self.clip / workers**0.5) if self.clip else gradient

    def push(self, gradient: torch.Tensor, at: At) -> Parts:
        u = at.memory["momentum"]
        if self.nesterov:
            added = u.add_(gradient).mul_(self.momentum) + gradient
        else:
            added = u.mul_(self.momentum).add_(gradient)
        if len(at.shape) == 1:
            return Rule.push(self, added, at)
        parts = super().push(added, at)
        if self.masking:
            u.index_fill_(0, indices_of(parts[0], at.size), 0.0)
        return parts

    def compress(self, v: torch.Tensor, at: At) -> Parts:
        return at.code.compress(v, at)  # only called for tensors of one dimension: for others `push` selects entries

    def count(self, parts: Parts, at: At) -> int:
        return at.size if len(at.shape) == 1 else super().count(parts, at)

    def decompress(self, parts: Parts, at: At) -> Any:
        return at.code.decompress(parts, at) if len(at.shape) == 1 else super().decompress(parts, at)

    def sends(self, n: int, at: At) -> int:
        """Return how many of n entries are sent."""
        return share(max(self.fraction, warm(at.epoch, self.warm_up)), n)

    def select(self, v: torch.Tensor, at: At = ANYWHERE) -> torch.Tensor:
        n, fraction = len(v), max(self.fraction, warm(at.epoch, self.warm_up))
        if (stride := sample_stride(n, fraction, self.sample)) == 1:
            return top(v, share(fraction, n))
        first = at.draw("sample", at.worker) % stride
        return sampled(v, share(fraction, n), first, stride, share(fraction, n // stride))


@dataclass(frozen=True)
class EF21(Chosen):
    """Send the largest `fraction` of each layer's difference between the gradient and the worker's estimate of it.

    A worker's estimate is the sum of all differences that it has sent. The server adds the mean of the differences to
    its own estimate, and steps by this estimate, so each step moves all weights. There is no residual. Needs rounds.

    Source: Richtárik et al. (NeurIPS 2021)
    """

    vectors = ("estimate",)
    rounds = remembers = True

    fraction: Fraction

    def server(self, shape: tuple[int, ...]) -> int:
        return int(np.prod(shape))

    def push(self, gradient: torch.Tensor, at: At) -> Parts:
        estimate = at.memory["estimate"]
        parts = self.compress(gradient - estimate, at)
        sent = self.decompress(parts, at)
        estimate.index_add_(0, sent.indices, sent.values)
        return parts

    def sends(self, n: int, at: At) -> int:
        """Return how many of n entries are sent."""
        return share(self.fraction, n)

    def select(self, v: torch.Tensor, at: At = ANYWHERE) -> torch.Tensor:
        return top(v, share(self.fraction, len(v)))

    def combine(self, pushes: Sequence[Parts], at: At) -> torch.Tensor:
        for parts in pushes:
            sent = self.decompress(parts, at)
            at.memory["server"].index_add_(0, sent.indices, sent.values, alpha=1 / len(pushes))
        return at.memory["server"].clone()
