"""Codes of signs: one or two bits for each entry."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch

from pslab.config.parameters import Bounds, check
from pslab.tensors.compression.bits import floats, pack, unpack
from pslab.tensors.compression.codes import Residual, means
from pslab.tensors.compression.rule import At, Parts, Rule
from pslab.tensors.compression.select import std


def negative(v: torch.Tensor) -> torch.Tensor:
    """Return a bit for each entry: 1 if it is negative."""
    return pack((v < 0).to(torch.uint8), 1)


@dataclass(frozen=True)
class TernGrad(Rule):
    """Send a sign or 0: an entry v becomes ± the largest magnitude m with probability |v| / m, and 0 otherwise.

    Entries are clipped first, to 2.5 standard deviations unless these are 0. There is no residual, because it would
    grow without bound.

    Source: Wen et al. (NIPS 2017)
    """

    draws = True
    residual: Residual = False

    def __post_init__(self) -> None:
        check(self)
        if self.residual:
            raise ValueError("terngrad takes no residual, which would grow without bound: use residual=off, or qsgd:4")

    def compress(self, v: torch.Tensor, at: At) -> Parts:
        most = 2.5 * std(v) or math.inf
        scale = v.abs().max().clamp(max=most).float()
        sent = at.chance(v) * scale < v.abs().clamp(max=most if scale > 0 else 0.0)
        return [scale.view(1), pack((sent * (1 + (v < 0))).to(torch.uint8), 2)]

    def decompress(self, parts: Parts, at: At) -> torch.Tensor:
        scale, zero = floats(parts[0]), torch.zeros(1, dtype=torch.float64, device=parts[0].device)
        values = torch.cat([zero, scale, -scale, zero]).to(at.dtype)
        return values.index_select(0, unpack(parts[1], 2, at.size).int())


@dataclass(frozen=True)
class OneBit(Rule):
    """Send one bit for each entry: a negative entry becomes the mean of all negative entries, another the others' mean.

    Source: Seide et al. (Interspeech 2014)
    """

    residual: Residual = True

    def compress(self, v: torch.Tensor, at: At) -> Parts:
        return [means(v.double().abs(), v < 0, 2), negative(v)]

    def decompress(self, parts: Parts, at: At) -> torch.Tensor:
        high, low = floats(parts[0]).to(at.dtype)
        return torch.where(unpack(parts[1], 1, at.size) > 0, -low, high)


@dataclass(frozen=True)
class ScaledSign(Rule):
    """Send the sign of each entry times the mean magnitude, with error feedback.

    Source: Karimireddy et al. (ICML 2019)
    """

    residual: Residual = True

    def compress(self, v: torch.Tensor, at: At) -> Parts:
        return [v.abs().mean(dtype=torch.float64).float().view(1), negative(v)]

    def decompress(self, parts: Parts, at: At) -> torch.Tensor:
        return (1 - 2 * unpack(parts[1], 1, at.size).to(at.dtype)) * floats(parts[0]).to(at.dtype)


class Signs(Rule):
    """The base of rules that send only signs: 1, -1, or 0 for 0. A piece with zeros takes a second bit for each entry.

    If several pushes are applied together, the majority decides: 1 in a tie, 0 if all are 0.
    """

    every = True  # after pruning, signs would move all entries that are sent equally far

    def compress(self, v: torch.Tensor, at: At) -> Parts:
        return [negative(v)] if bool((some := v != 0).all()) else [negative(v), pack(some.to(torch.uint8), 1)]

    def decompress(self, parts: Parts, at: At) -> torch.Tensor:
        signs = 1 - 2 * unpack(parts[0], 1, at.size).to(at.dtype)
        return signs if len(parts) == 1 else signs * unpack(parts[1], 1, at.size)

    def combine(self, pushes: Sequence[Parts], at: At) -> torch.Tensor:
        votes = torch.stack([self.decompress(parts, at) for parts in pushes])
        return torch.where(votes.sum(0) < 0, -1.0, 1.0).to(at.dtype) * votes.any(0)


@dataclass(frozen=True)
class Sign(Signs):
    """Send each entry's sign: 1, -1, or 0. A step moves each weight by the learning rate: use about 1/100 of SGD's.

    Source: Bernstein et al. (ICML 2018; vote: ICLR 2019)
    """

    residual: Residual = False


@dataclass(frozen=True)
class Signum(Signs):
    """Send the sign of a worker's momentum, m = beta m + (1 - beta) v; the majority of pushes decides, as for `sign`.

    Source: Bernstein et al. (ICML 2018)
    """

    vectors = ("average",)

    beta: Annotated[float, Bounds(at_least=0, below=1), "the factor of the last momentum"] = 0.9
    residual: Residual = False

    def __post_init__(self) -> None:
        check(self)

    def compress(self, v: torch.Tensor, at: At) -> Parts:
        m = at.memory["average"]
        m.copy_(m.double().mul_(self.beta).add_(v.double().mul_(1 - self.beta)))
        return super().compress(m, at)
