"""The quantization rules: how the values of one piece of a push become a few bits each, and what these bits say.

A *piece* is one parameter tensor as far as it lies in the range that is pushed; v are the n of its entries that pruning
has left. Codes are computed in float64, with scales that are rounded to float32 already, so that both sides have the
same numbers. A piece of zeros, and one whose scale rounds to 0, is read as zeros; `sign` and `signum` send no zeros.

A rule is a frozen value. `residual` says whether what its code loses is added to the next gradient.

After the survey and the code of Xu et al., "GRACE" (ICDCS 2021), without its defects: signs and ternary values travel
as bits, not as bytes; an empty bucket is no division by zero; the largest entry has a level of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from pslab.config.parameters import Bounds, OneOf, check
from pslab.errors import FrameError
from pslab.tensors.compiling import read_only
from pslab.tensors.quantize.codes import (
    SINGLE,
    Block,
    Blockwise,
    Coded,
    Residual,
    Tabled,
    both,
    check_symbols,
    limit,
    loops,
    single,
    unpacked,
)

Array = NDArray[Any]


class QuantizationRule(Protocol):
    """What the stage needs of a rule, which may also have the attributes of `QuantizationTraits`."""

    @property
    def residual(self) -> bool:
        """Whether what the code loses is added to the next gradient."""

    @property
    def encode(self) -> Callable[..., Array]:
        """encode(v): the code (uint8) of values v [n], float64, n > 0."""

    def decode(self, code: Array, n: int) -> Array:
        """The n values (float64) of a code (uint8) of the right length.

        Raises:
            FrameError: a code that `encode` does not write.
        """

    def bounds(self, n: int) -> tuple[int, int]:
        """The least and the most bytes of a code of n > 0 values."""


@dataclass(frozen=True)
class QuantizationTraits:
    """The attributes that a rule may have beside those of `QuantizationRule`, with their defaults."""

    direct: bool = False  #: v has the run's dtype, not to be changed; decode(code, n, out) may write to and return out
    draws: bool = False  #: the call is encode(v, u), with chance u, float32 [n] in [0, 1)
    keeps: bool = False  #: the call is encode(v, kept), with a vector [n] of the piece, zeros at first, to be changed
    every: bool = False  #: it needs every entry of the gradient: none is pruned before
    leaves_zeros: bool = False  #: it has no code for 0: entries of 0 are not sent
    aggregate: str = ""  #: what the server makes of the pushes of a step: see `pslab.tensors.aggregates`
    length: Callable[[Array, int], int] | None = None  #: length(code, n): of a code with more behind it, if it varies


def quantization_traits(rule: object) -> QuantizationTraits:
    """The traits of a rule, read from its attributes."""
    default = QuantizationTraits()
    return QuantizationTraits(**{name: getattr(rule, name, value) for name, value in vars(default).items()})


@dataclass(frozen=True)
class Unquantized:
    """No quantization: values are sent as they are."""

    residual: ClassVar[bool] = False


# --- short floating-point numbers ------------------------------------------------------------------------------------


class Short(Coded):
    """Floating-point numbers of 16 bits, of torch: the nearest, ties to even, never infinite."""

    INFINITE: ClassVar[int]  # the bits of infinity
    kind: ClassVar[torch.dtype]
    width: ClassVar[int] = 16

    def quantize(self, v: Array, *more: Array) -> tuple[Array, Array]:
        top = torch.finfo(self.kind).max
        return v[:0], self.rounded(np.clip(v, -top, top))

    def rounded(self, v: Array) -> Array:
        """The bits (uint16) of the nearest numbers."""
        found: Array = torch.from_numpy(v.astype(SINGLE, copy=False)).to(self.kind).view(torch.int16).numpy()
        return found.view("<u2")

    def values(self, scales: Array, code: Array, out: Array) -> None:
        bits, most = code.copy().view("<u2"), np.empty(1, "<u2")
        loops().largest(read_only(bits), bits.dtype.type(0x7FFF), len(bits), most)
        if most[0] >= self.INFINITE:
            raise FrameError("a symbol that is no finite number")
        torch.from_numpy(out).copy_(torch.from_numpy(bits.view(np.int16)).view(self.kind))


@dataclass(frozen=True)
class Half(Short):
    """The nearest float16, ties to even, within ±65504.

    Source: Micikevicius et al. (ICLR 2018)
    """

    INFINITE: ClassVar[int] = 0x7C00
    kind: ClassVar[torch.dtype] = torch.float16
    residual: Residual = False

    def rounded(self, v: Array) -> Array:
        # torch would round float64 twice
        return super().rounded(v) if v.dtype == SINGLE else v.astype("<f2").view("<u2")


@dataclass(frozen=True)
class Brain(Short):
    """The bfloat16 that is nearest to the value as float32, ties to even: 7 bits of fraction; never infinite.

    Source: Kalamkar et al. (arXiv 2019)
    """

    INFINITE: ClassVar[int] = 0x7F80
    kind: ClassVar[torch.dtype] = torch.bfloat16
    residual: Residual = False


EIGHTHS = np.arange(127)
#: The magnitudes of E4M3, of which 448 is the largest: 4 bits of exponent, 3 of fraction.
E4M3 = np.where(EIGHTHS < 8, EIGHTHS / 512.0, (1 + EIGHTHS % 8 / 8) * 2.0 ** (EIGHTHS // 8 - 7))


@dataclass(frozen=True)
class Float8(Blockwise, Tabled):
    """Float8 (E4M3) of v / s, ties to even, where s is the largest magnitude of the block / 448.

    Source: Micikevicius et al. (arXiv 2022)
    """

    block: Block = 0
    residual: Residual = False

    def quantize(self, v: Array, *more: Array) -> tuple[Array, Array]:
        scales = single(self.largest(v) / E4M3[-1])
        return scales, self.scaled(loops(v.dtype).float8, v, scales)

    def table(self, scales: Array) -> Array:
        return both(np.append(E4M3, np.nan))

    def values(self, scales: Array, code: Array, out: Array) -> None:
        if (code & 127).max() == len(E4M3):
            raise FrameError("a symbol that is no finite number")
        super().values(scales, code, out)


@dataclass(frozen=True)
class PowersOfTwo(Blockwise, Tabled):
    """E3M0: a sign and one of 0, 1/64, 1/32, ..., 1 times the largest magnitude of the block: the nearest, ties up.

    Source: Douillard et al. (arXiv 2025)
    """

    LEVELS: ClassVar[Array] = np.array([0.0, *(2.0**e for e in range(-6, 1))])
    width: ClassVar[int] = 4
    block: Block = 0
    residual: Residual = False

    def quantize(self, v: Array, *more: Array) -> tuple[Array, Array]:
        scales = single(self.largest(v))
        return scales, self.scaled(loops(v.dtype).powers, v, scales)

    def table(self, scales: Array) -> Array:
        return both(self.LEVELS)


# --- levels at equal distances ---------------------------------------------------------------------------------------


class EvenLevels(Blockwise):
    """Whole multiples of a scale: symbols are these plus a zero."""

    def symbols_of(self, v: Array, scales: Array, zeros: Array) -> Array:
        """The symbols (uint8) of values."""
        return self.scaled(loops(v.dtype).linear, v, scales, zeros, self.levels - 1.0)

    def write_values(self, symbols: Array, scales: Array, zeros: Array, out: Array) -> None:
        """Write the values of symbols."""
        loops(out.dtype).leveled(read_only(symbols), scales, self.block or len(out), zeros, limit(out), out)


@dataclass(frozen=True)
class Int8(EvenLevels):
    """The nearest of 255 levels at equal distances, from minus to plus the largest magnitude of the block.

    Source: Dettmers (ICLR 2016)
    """

    block: Block = 0
    residual: Residual = False

    @property
    def levels(self) -> int:
        """From -127 to 127."""
        return 255

    def quantize(self, v: Array, *more: Array) -> tuple[Array, Array]:
        scales = single(self.largest(v) / 127)
        return scales, self.symbols_of(v, scales, np.full(len(scales), 127.0))

    def values(self, scales: Array, code: Array, out: Array) -> None:
        check_symbols(code, self.levels)
        self.write_values(code, scales, np.full(len(scales), 127.0), out)


@dataclass(frozen=True)
class UInt8(EvenLevels):
    """The nearest of 256 levels at equal distances, from the least to the largest value of the block; 0 is one of them.

    Each block has, beside its scale, the level of 0. As PyTorch's quantization hooks.

    Source: Li et al. (VLDB 2020)
    """

    LEAST: ClassVar[float] = 2.0**-23  # scale
    block: Block = 0
    residual: Residual = False

    def symbols(self, n: int) -> int:
        """One of each block, the level of 0, and then one of each value."""
        return self.scales(n) + n

    def quantize(self, v: Array, *more: Array) -> tuple[Array, Array]:
        low, high = np.minimum(self.of_blocks(np.minimum, v), 0), np.maximum(self.of_blocks(np.maximum, v), 0)
        scales = single(np.maximum((high - low) / 255, self.LEAST))
        zeros = np.clip(-np.rint(low / scales), 0, 255)
        return scales, np.concatenate([zeros.astype(np.uint8), self.symbols_of(v, scales, zeros)])

    def values(self, scales: Array, code: Array, out: Array) -> None:
        zeros, symbols = np.split(code, [len(scales)])
        self.write_values(symbols, scales, zeros.astype(np.float64), out)


@dataclass(frozen=True)
class QSGD(Blockwise, Tabled):
    """Random rounding to 2^(bits - 1) - 1 levels of the bucket's norm, so that the mean is right.

    With l = levels |v| / norm, an entry becomes the level below l, or with the probability of the fraction of l the one
    above. With `residual`, the values that are read are divided by 1 + w, where w = min(B / s^2, sqrt(B) / s) bounds
    the variance of a bucket of B entries and s levels: without that, the residual of a coarse code grows for ever.

    Source: Alistarh et al. (NIPS 2017)
    """

    draws: ClassVar[bool] = True

    bits: Annotated[int, Bounds(at_least=2, at_most=8), "of each entry, one of them its sign"]
    bucket: Annotated[int, Bounds(at_least=1), "entries that share a norm"] = 128
    norm: Annotated[str, OneOf("l2", "max"), "the Euclidean norm of the bucket, or its largest magnitude"] = "l2"
    residual: Residual = False

    @property
    def width(self) -> int:
        """The bits of an entry."""
        return self.bits

    @property
    def block(self) -> int:  # type: ignore[override]
        """The bucket."""
        return self.bucket

    @property
    def variance(self) -> float:
        """The bound w: the mean squared error is at most w times the squared norm."""
        top = 2 ** (self.bits - 1) - 1
        return float(min(self.bucket / top**2, math.sqrt(self.bucket) / top))

    def quantize(self, v: Array, *more: Array) -> tuple[Array, Array]:
        (u,), top = more, 2 ** (self.bits - 1) - 1
        squares = np.multiply(v, v, dtype=np.float64)
        scales = single(self.largest(v) if self.norm == "max" else np.sqrt(self.of_blocks(np.add, squares)))
        return scales, self.scaled(loops(v.dtype).by_chance, v, scales, u, top)

    def table(self, scales: Array) -> Array:
        return both(np.arange(2.0 ** (self.bits - 1)))

    @property
    def divisor(self) -> float:
        """The number of levels, and what bounds the residual."""
        return float((2 ** (self.bits - 1) - 1) * (1 + self.variance * self.residual))


@dataclass(frozen=True)
class Uniform8(Tabled):
    """The mean of the entry's bin, of 256 bins that cover six standard deviations around the mean.

    The outer bins have all that lies beyond. As hivemind's.

    Source: Ryabinin et al. (ICML 2023)
    """

    BINS: ClassVar[int] = 256
    signed: ClassVar[bool] = True
    residual: Residual = False

    def scales(self, n: int) -> int:
        """The mean, the standard deviation, and the mean of each bin."""
        return 2 + self.BINS

    def quantize(self, v: Array, *more: Array) -> tuple[Array, Array]:
        exact = v.astype(np.float64, copy=False)
        mean, deviation = single([exact.mean(), exact.std(ddof=1) if len(v) > 1 else 0.0])
        bins = np.full(len(v), self.BINS // 2, np.uint8)
        if deviation > 0:
            middle = np.rint((exact - mean) / (6 * deviation / self.BINS)) + self.BINS // 2
            bins = np.clip(middle, 0, self.BINS - 1).astype(np.uint8)
        return np.concatenate([[mean, deviation], single(means(v, bins, self.BINS))]), bins

    def table(self, scales: Array) -> Array:
        return scales[2:]


@dataclass(frozen=True)
class Quantile(Tabled):
    """The mean of the entry's run, where sorting cuts the entries into `runs` of nearly equally many.

    Source: Jiang et al. (SIGMOD 2018)
    """

    signed: ClassVar[bool] = True

    runs: Annotated[int, Bounds(at_least=2, at_most=256), "into which the sorted entries are cut"]
    residual: Residual = False

    @property
    def width(self) -> int:
        """The bits of a run's number."""
        return (self.runs - 1).bit_length()

    @property
    def levels(self) -> int:
        """The number of runs."""
        return self.runs

    def scales(self, n: int) -> int:
        """The mean of each run."""
        return self.runs

    def quantize(self, v: Array, *more: Array) -> tuple[Array, Array]:
        run = np.empty(len(v), np.uint8)
        run[np.argsort(v, kind="stable")] = np.arange(len(v)) * self.runs // len(v)
        return single(means(v, run, self.runs)), run

    def table(self, scales: Array) -> Array:
        return scales


def means(v: Array, groups: Array, count: int) -> Array:
    """The mean of each group (uint8) of values; 0 of none."""
    sums, counts = np.zeros(count), np.zeros(count, np.int64)
    loops(v.dtype).grouped(read_only(v), read_only(groups), sums, counts)
    return sums / np.maximum(counts, 1)


# --- levels at unequal distances -------------------------------------------------------------------------------------


def dynamic_levels() -> Array:
    """The 256 levels from -1 to 1 of a dynamic exponent: 0, 1, and ± the middles of 2^i parts of [0.1, 1], times
    10^(i - 6), for i from 0 to 6."""
    edges = [np.linspace(0.1, 1, 2**i + 1) for i in range(7)]
    magnitudes = np.concatenate([10.0 ** (i - 6) * (each[1:] + each[:-1]) / 2 for i, each in enumerate(edges)])
    return np.sort(np.concatenate([[0.0, 1.0], magnitudes, -magnitudes]))


@cache
def dynamic_steps() -> tuple[Array, Array]:
    """What the loop `nearest` needs of these levels: where steps of magnitudes lie, and the middles between levels."""
    middles = (Dynamic8.LEVELS[1:] + Dynamic8.LEVELS[:-1]) / 2
    return loops().steps_of(middles), np.append(middles, np.inf)


@dataclass(frozen=True)
class Dynamic8(Blockwise, Tabled):
    """The nearest of 256 levels, dense towards 0, times the largest magnitude of the block.

    Source: Dettmers et al. (ICLR 2022)
    """

    LEVELS: ClassVar[Array] = dynamic_levels()
    block: Block = 4096
    residual: Residual = False

    def quantize(self, v: Array, *more: Array) -> tuple[Array, Array]:
        scales = single(self.largest(v))
        return scales, self.scaled(loops(v.dtype).nearest, v, scales, *dynamic_steps())

    def table(self, scales: Array) -> Array:
        return self.LEVELS


@dataclass(frozen=True)
class Natural(Tabled):
    """The power of two below an entry, or with the probability of its fraction the one above: the mean is right.

    A sign, and an exponent from -108 to 18; what is smaller becomes 0. With `residual`, the values that are read are
    divided by 9/8, as for `qsgd`.

    Source: Horváth et al. (MSML 2022)
    """

    LEAST: ClassVar[int] = -108
    draws: ClassVar[bool] = True

    residual: Residual = False

    def quantize(self, v: Array, *more: Array) -> tuple[Array, Array]:
        symbols = np.empty(len(v), np.uint8)
        loops(v.dtype).exponents(read_only(v), more[0], self.LEAST, symbols)
        return v[:0], symbols

    def table(self, scales: Array) -> Array:
        powers = np.ldexp(1.0, np.arange(128) + self.LEAST - 1) / (1 + self.residual / 8)
        return both(powers) * (np.arange(256) % 128 > 0)


@dataclass(frozen=True)
class Inceptionn:
    """A tag, and as few bits as a truncation error below 2^-e allows: none, 8, 16, or all 32 of a float32.

    None below 2^-e; a sign and 7 bits (the last one 2^-e) below 2^(7 - e); a sign and 15 bits (2^-15) below 1.

    Source: Li et al. (MICRO 2018)
    """

    direct: ClassVar[bool] = True
    WIDTHS: ClassVar[Array] = np.array([0, 8, 16, 32])

    e: Annotated[int, Bounds(at_least=7, at_most=15), "entries below 2^-e become 0"] = 10
    residual: Residual = False

    def __post_init__(self) -> None:
        check(self)

    def bounds(self, n: int) -> tuple[int, int]:
        """From tags alone to all of a float32."""
        return -(-2 * n // 8), -(-34 * n // 8)

    def length(self, code: Array, n: int) -> int:
        """The tags determine it."""
        return -(-self._bits(self._tags(code, n)) // 8)

    def _tags(self, code: Array, n: int) -> Array:
        size = -(-2 * n // 8)
        if len(code) < size:
            raise FrameError(f"{len(code)} bytes are too few for the tags of {n} values")
        return unpacked(code[:size], 2, n)

    def _bits(self, tags: Array) -> int:
        return int(2 * len(tags) + self.WIDTHS @ np.bincount(tags, minlength=4))

    def encode(self, v: Array) -> Array:
        """All tags, then the bits of each value."""
        code = np.empty(self.bounds(len(v))[1], np.uint8)
        return code[: loops(v.dtype).classed(read_only(v), 2.0**-self.e, 2.0 ** (7 - self.e), code)]

    def decode(self, code: Array, n: int, out: Array | None = None) -> Array:
        """The values of a code, in `out` if it is given."""
        tags = self._tags(code, n)
        bits = self._bits(tags)
        if len(code) != -(-bits // 8):
            raise FrameError(f"a code with these tags takes {-(-bits // 8)} bytes, not {len(code)}")
        if bits % 8 and code[-1] >> bits % 8:
            raise FrameError("bits behind the last value that are not 0")
        found = np.empty(n) if out is None else out
        if not loops(found.dtype).unclassed(read_only(code), tags, 2.0**-self.e, limit(found), found):
            raise FrameError("a scale or a symbol that is no finite number")
        return found


# --- signs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TernGrad(Tabled):
    """A sign or 0: each entry becomes the largest magnitude with the probability of its share of that.

    Entries are clipped first, to 2.5 standard deviations if that is not 0. It has no residual: with one, the errors of
    this code would grow for ever.

    Source: Wen et al. (NIPS 2017)
    """

    CLIP: ClassVar[float] = 2.5
    draws: ClassVar[bool] = True
    width: ClassVar[int] = 2

    residual: Residual = False

    def __post_init__(self) -> None:
        check(self)
        if self.residual:
            raise ValueError("terngrad takes no residual, which would grow for ever: use residual=off, or qsgd:4")

    @property
    def levels(self) -> int:
        """0, plus and minus."""
        return 3

    def scales(self, n: int) -> int:
        """The largest magnitude."""
        return 1

    def quantize(self, v: Array, *more: Array) -> tuple[Array, Array]:
        deviation, symbols = v.astype(np.float64, copy=False).std(), np.empty(len(v), np.uint8)
        most = self.CLIP * deviation or math.inf
        scale = single(min(most, float(np.abs([v.min(), v.max()]).max())))
        loops(v.dtype).ternary(read_only(v), more[0], most if scale > 0 else 0.0, scale[0], symbols)
        return scale, symbols

    def table(self, scales: Array) -> Array:
        return np.array([0.0, 1.0, -1.0]) * scales


@dataclass(frozen=True)
class OneBit(Tabled):
    """The sign: the mean of the negative entries, or the mean of the others.

    Source: Seide et al. (Interspeech 2014)
    """

    width: ClassVar[int] = 1
    residual: Residual = True

    def scales(self, n: int) -> int:
        """The magnitude of each mean."""
        return 2

    def quantize(self, v: Array, *more: Array) -> tuple[Array, Array]:
        negative = v < 0
        return single(means(np.abs(v), negative.view(np.uint8), 2)), negative

    def table(self, scales: Array) -> Array:
        return scales * [1.0, -1.0]


class Signs(Tabled):
    """Signs alone."""

    every: ClassVar[bool] = True  # of a pruned vector, signs would move each entry that is sent by the same
    leaves_zeros: ClassVar[bool] = True
    aggregate: ClassVar[str] = "vote"
    width: ClassVar[int] = 1

    def quantize(self, v: Array, *more: Array) -> tuple[Array, Array]:
        return v[:0], v < 0

    def table(self, scales: Array) -> Array:
        return np.array([1.0, -1.0])


@dataclass(frozen=True)
class Sign(Signs):
    """The sign: 1 or -1. Entries of 0 are not sent. Steps are as long as the learning rate: use about 1/100 of SGD's.

    Of pushes that are applied together the majority decides, and 1 in a tie.

    Source: Bernstein et al. (ICML 2018)
    """

    residual: Residual = False


@dataclass(frozen=True)
class Signum(Signs):
    """The sign of a momentum m = beta m + (1 - beta) v that each worker keeps, if it is not 0; by majority, too.

    Source: Bernstein et al. (ICML 2018)
    """

    keeps: ClassVar[bool] = True

    beta: Annotated[float, Bounds(at_least=0, below=1), "the share of the momentum before"] = 0.9
    residual: Residual = False

    def quantize(self, v: Array, *more: Array) -> tuple[Array, Array]:
        (kept,) = more
        loops(v.dtype).averaged(kept, read_only(v), self.beta)
        return super().quantize(kept)


@dataclass(frozen=True)
class ScaledSign(Tabled):
    """The sign times the mean magnitude, with error feedback.

    Source: Karimireddy et al. (ICML 2019)
    """

    width: ClassVar[int] = 1
    residual: Residual = True

    def scales(self, n: int) -> int:
        """The mean magnitude."""
        return 1

    def quantize(self, v: Array, *more: Array) -> tuple[Array, Array]:
        return single(np.abs(v).astype(np.float64, copy=False).mean()), v < 0

    def table(self, scales: Array) -> Array:
        return scales * [1.0, -1.0]
