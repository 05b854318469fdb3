"""Codes of the values of a piece, or of the values that a sparse rule has selected: short floating-point numbers, and
levels times the scale of a block.

After the survey and the code of Xu et al., "GRACE" (ICDCS 2021).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

import torch

from pslab.config.parameters import Bounds, OneOf, check
from pslab.tensors.compression.bits import floats, pack, unpack
from pslab.tensors.compression.rule import At, Parts, Rule

Residual = Annotated[bool, "whether what the code loses is added to the next gradient"]
Block = Annotated[int, Bounds(at_least=0), "entries that share a scale; 0: all of a tensor"]


@dataclass(frozen=True)
class Half(Rule):
    """Round each entry to the nearest float16 (ties to even), at most ±65504.

    Source: Micikevicius et al. (ICLR 2018)
    """

    summable = True
    residual: Residual = False

    def compress(self, v: torch.Tensor, at: At) -> Parts:
        return [v.clamp(-65504, 65504).half()]

    def decompress(self, parts: Parts, at: At) -> torch.Tensor:
        return parts[0].view(torch.float16).to(at.dtype)


@dataclass(frozen=True)
class Brain(Rule):
    """Round each entry to the nearest bfloat16 (ties to even), which has 7 bits of fraction.

    Source: Kalamkar et al. (arXiv 2019)
    """

    summable = True
    residual: Residual = False

    def compress(self, v: torch.Tensor, at: At) -> Parts:
        top = torch.finfo(torch.bfloat16).max
        return [v.clamp(-top, top).bfloat16()]

    def decompress(self, parts: Parts, at: At) -> torch.Tensor:
        return parts[0].view(torch.bfloat16).to(at.dtype)


@lru_cache
def values_of(rule: Any, width: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a table with the value of each symbol of `width` bits, from the rule's `levels`."""
    return rule.levels(torch.arange(1 << width, dtype=torch.uint8, device=device)).to(dtype)  # type: ignore[no-any-return]


# --- bits of numbers: faster than comparing numbers ----------------------------------------------------------------


def sign_mask(v: torch.Tensor) -> torch.Tensor:
    """Return -1 for each number below 0, and 0 for the others, as integers with as many bits as the numbers."""
    size = 8 * v.element_size()
    return v.view(torch.int32 if size == 32 else torch.int64) >> size - 1


def signed(levels: torch.Tensor, v: torch.Tensor, width: int) -> torch.Tensor:
    """Return symbols (uint8) of `width` bits. The top bit is set if the number in `v` is below 0 and its level not 0;
    the other bits are the level. `levels` are integers with as many bits as the numbers."""
    symbols = sign_mask(v).bitwise_and_(-levels).__irshift__(31).bitwise_and_(1 << width - 1)
    return symbols.bitwise_or_(levels).to(torch.uint8)


def upper_bits(v: torch.Tensor) -> torch.Tensor:
    """Return the upper 16 bits of each number (int32): its sign, its exponent and the start of its fraction."""
    return v.view(torch.uint16).view(len(v), -1)[:, -1].int()


def numbers_of_upper_bits(dtype: torch.dtype) -> torch.Tensor:
    """Return for each value of `upper_bits` the number whose other bits are 0."""
    halves = torch.zeros(1 << 16, dtype.itemsize // 2, dtype=torch.int16)
    halves[:, -1] = torch.arange(1 << 16).to(torch.int16)
    return halves.view(dtype).flatten()


# --- levels times the scale of a block -------------------------------------------------------------------------------


class Blockwise(Rule):
    """The base of codes with a scale for each block, its largest magnitude / `top`. Symbols encode value / scale."""

    block: int
    top = 1.0
    width = 8

    def __post_init__(self) -> None:
        check(self)

    def compress(self, v: torch.Tensor, at: At) -> Parts:
        rows = self.rows(v)
        scales = self.scales(rows)
        scaled = rows / scales.to(v.dtype).masked_fill(scales == 0, math.inf)[:, None]
        return [scales, pack(self.symbols(scaled.flatten()[: len(v)], at), self.width)]

    def decompress(self, parts: Parts, at: At) -> torch.Tensor:
        symbols = unpack(parts[1], self.width, at.size)
        return (self.rows(self.values(symbols, at.dtype)) * floats(parts[0]).to(at.dtype)[:, None]).flatten()[: at.size]

    def scales(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the scale of each block: float32."""
        return (rows.abs().amax(1) / self.top).float()

    def symbols(self, scaled: torch.Tensor, at: At) -> torch.Tensor:
        """Encode `scaled`, the values / scale (float64), as symbols (uint8)."""
        raise NotImplementedError

    def levels(self, symbols: torch.Tensor) -> torch.Tensor:
        """Decode symbols to values / scale (float64)."""
        raise NotImplementedError

    def values(self, symbols: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Decode symbols to values / scale in `dtype`, by a table."""
        return values_of(self, self.width, dtype, symbols.device).index_select(0, symbols.int())

    def rows(self, v: torch.Tensor) -> torch.Tensor:
        """Return a row for each block, the last one padded with zeros."""
        block = self.block or max(1, len(v))
        missing = -len(v) % block
        return (torch.nn.functional.pad(v, (0, missing)) if missing else v).view(-1, block)


@dataclass(frozen=True)
class Int8(Blockwise):
    """Round to the nearest of 255 equidistant levels, from minus to plus the largest magnitude of the block.

    Source: Dettmers (ICLR 2016)
    """

    block: Block = 0
    residual: Residual = False
    top = 127.0

    def symbols(self, scaled: torch.Tensor, at: At) -> torch.Tensor:
        return scaled.round().clamp(-127, 127).to(torch.int8).view(torch.uint8)

    def values(self, symbols: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return symbols.view(torch.int8).to(dtype)


@dataclass(frozen=True)
class UInt8(Blockwise):
    """Round to the nearest of 256 equidistant levels, from the least to the largest value of the block; 0 is a level.

    A block is sent with its scale and the number of the level 0, as by PyTorch's quantization hooks.

    Source: Li et al. (VLDB 2020)
    """

    block: Block = 0
    residual: Residual = False

    def compress(self, v: torch.Tensor, at: At) -> Parts:
        rows = self.rows(v.double())
        low, high = rows.amin(1).clamp(max=0), rows.amax(1).clamp(min=0)
        scales = ((high - low) / 255).clamp(min=2.0**-23).float()
        zeros = (-(low / scales).round()).clamp(0, 255)
        symbols = ((rows / scales[:, None]).round() + zeros[:, None]).clamp(0, 255).to(torch.uint8)
        return [scales, zeros.to(torch.uint8), symbols.flatten()[: len(v)]]

    def decompress(self, parts: Parts, at: At) -> torch.Tensor:
        scales, zeros = floats(parts[0])[:, None], parts[1].double()[:, None]
        return ((self.rows(unpack(parts[2], 8, at.size).double()) - zeros) * scales).flatten()[: at.size].to(at.dtype)


@dataclass(frozen=True)
class Float8(Blockwise):
    """Round v / s to the nearest float8 (E4M3, ties to even), where s is the largest magnitude of the block / 448.

    Source: Micikevicius et al. (arXiv 2022)
    """

    block: Block = 0
    residual: Residual = False
    top = 448.0

    def symbols(self, scaled: torch.Tensor, at: At) -> torch.Tensor:
        return scaled.float().clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)

    def levels(self, symbols: torch.Tensor) -> torch.Tensor:
        return symbols.view(torch.float8_e4m3fn)


@dataclass(frozen=True)
class PowersOfTwo(Blockwise):
    """Round to the nearest of 0, ±1/64, ±1/32, ..., ±1 times the largest magnitude of the block, ties up (E3M0).

    Source: Douillard et al. (arXiv 2025)
    """

    block: Block = 0
    residual: Residual = False
    width = 4

    def symbols(self, scaled: torch.Tensor, at: At) -> torch.Tensor:
        return powers_of_two(scaled.dtype, scaled.device).index_select(0, upper_bits(scaled))

    def levels(self, symbols: torch.Tensor) -> torch.Tensor:
        level = symbols & 7
        magnitude = torch.ldexp(torch.ones_like(level, dtype=torch.float64), level.int() - 7) * (level > 0)
        return torch.where(symbols > 7, -magnitude, magnitude)


@lru_cache
def powers_of_two(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a table of the symbols of `PowersOfTwo` by a number's `upper_bits`: numbers with the same bits there have
    the same symbol."""
    numbers = numbers_of_upper_bits(dtype).double()
    size = numbers.abs()
    _, exponent = torch.frexp(size * (4 / 3))  # rounds up from 3/2 of a level
    level = (exponent + 6).clamp(1, 7) * (size >= 1 / 128)
    return (level + 8 * ((numbers < 0) & (level > 0))).to(device, torch.uint8)


@dataclass(frozen=True)
class QSGD(Blockwise):
    """Round at random to multiples of the bucket's norm / (2^(bits - 1) - 1); the expected value is the entry.

    With `residual`, the decoded values are divided by 1 + w, where w = min(B / s^2, sqrt(B) / s) bounds the variance of
    a bucket of B entries and s levels. Without this division, the residual of a coarse code grows without bound.

    Source: Alistarh et al. (NIPS 2017)
    """

    draws = True
    bits: Annotated[int, Bounds(at_least=2, at_most=8), "of each entry, one of them its sign"]
    bucket: Annotated[int, Bounds(at_least=1), "entries that share a norm"] = 128
    norm: Annotated[str, OneOf("l2", "max"), "the Euclidean norm of the bucket, or its largest magnitude"] = "l2"
    residual: Residual = False

    @property
    def block(self) -> int:  # type: ignore[override]
        """The number of entries that share a norm."""
        return self.bucket

    @property
    def width(self) -> int:  # type: ignore[override]
        """The number of bits of a symbol."""
        return self.bits

    @property
    def most(self) -> int:
        """The largest level."""
        return int(2 ** (self.bits - 1) - 1)

    def scales(self, rows: torch.Tensor) -> torch.Tensor:
        return (rows.norm(dim=1) if self.norm == "l2" else rows.abs().amax(1)).float()

    def symbols(self, scaled: torch.Tensor, at: At) -> torch.Tensor:
        exact = scaled.abs().mul_(self.most)
        whole = exact.floor()
        up = sign_mask(at.chance(scaled) - exact.sub_(whole))
        return signed((whole.to(up.dtype).sub_(up)).clamp_(max=self.most), scaled, self.bits)

    def levels(self, symbols: torch.Tensor) -> torch.Tensor:
        variance = min(self.bucket / self.most**2, math.sqrt(self.bucket) / self.most)
        level = (symbols & self.most).float() / (self.most * (1 + self.residual * variance))
        return torch.where(symbols > self.most, -level, level)


@dataclass(frozen=True)
class Dynamic8(Blockwise):
    """Round to the nearest of 256 levels, denser towards 0, times the largest magnitude of the block.

    Source: Dettmers et al. (ICLR 2022)
    """

    block: Block = 4096
    residual: Residual = False

    def symbols(self, scaled: torch.Tensor, at: At) -> torch.Tensor:
        least, steps = dynamic_steps(scaled.dtype, scaled.device)
        symbol = least.index_select(0, upper_bits(scaled.float()))
        return (symbol + 1 + sign_mask(scaled - steps.index_select(0, symbol))).to(torch.uint8)

    def levels(self, symbols: torch.Tensor) -> torch.Tensor:
        return dynamic_levels(symbols.device)


@lru_cache
def dynamic_steps(dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two tables that replace a search for the nearest level. The first has, for the upper 16 bits of a float32,
    the symbol (int32) of the least number with these bits; the second has, for each symbol, the least number of `dtype`
    to which the next level is nearer. Between numbers with the same upper 16 bits there is at most one such number."""
    levels = dynamic_levels(torch.device("cpu"))
    steps = torch.cat([(levels[1:] + levels[:-1]) / 2, torch.tensor([math.inf], dtype=torch.float64)])
    numbers = numbers_of_upper_bits(torch.float32)
    least = torch.where(numbers < 0, (numbers.view(torch.int32) | 0xFFFF).view(torch.float32), numbers)
    symbols = torch.bucketize(least.nan_to_num().clamp(-1, 1).double(), steps, right=True)
    rounded = steps.to(dtype)
    rounded = torch.where(rounded < steps, rounded.nextafter(rounded.new_tensor(math.inf)), rounded)
    return symbols.to(device, torch.int32), rounded.to(device)


@lru_cache
def dynamic_levels(device: torch.device) -> torch.Tensor:
    """Return the levels from -1 to 1: 0, 1, and ± the middles of 2^i parts of [0.1, 1] times 10^(i - 6), i = 0 to 6."""
    edges = [torch.linspace(0.1, 1, 2**i + 1, dtype=torch.float64) for i in range(7)]
    magnitudes = torch.cat([10.0 ** (i - 6) * (edge[1:] + edge[:-1]) / 2 for i, edge in enumerate(edges)])
    return torch.cat([torch.tensor([0.0, 1.0], dtype=torch.float64), magnitudes, -magnitudes]).sort().values.to(device)


# --- codes whose tables are sent -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Uniform8(Rule):
    """Replace each entry by the mean of its bin; 256 equal bins cover six standard deviations around the mean.

    Source: Ryabinin et al. (ICML 2023)
    """

    residual: Residual = False

    def compress(self, v: torch.Tensor, at: At) -> Parts:
        wide = v.double()
        mean, deviation = wide.mean().float(), wide.std().float() if len(v) > 1 else wide.new_zeros(()).float()
        bins = torch.full_like(wide, 128) if deviation == 0 else (wide - mean) / (6 * deviation.double() / 256) + 128
        symbols = bins.round().clamp(0, 255).to(torch.uint8)
        return [means(wide, symbols, 256), symbols]

    def decompress(self, parts: Parts, at: At) -> torch.Tensor:
        return floats(parts[0]).to(at.dtype).index_select(0, unpack(parts[1], 8, at.size).int())


@dataclass(frozen=True)
class Quantile(Rule):
    """Replace each entry by the mean of its run; the sorted entries are cut into `runs` runs of about equal length.

    Source: Jiang et al. (SIGMOD 2018)
    """

    runs: Annotated[int, Bounds(at_least=2, at_most=256), "into which the sorted entries are cut"]
    residual: Residual = False

    def __post_init__(self) -> None:
        check(self)

    def compress(self, v: torch.Tensor, at: At) -> Parts:
        run = torch.empty_like(v, dtype=torch.uint8)
        run[v.argsort(stable=True)] = (torch.arange(len(v), device=v.device) * self.runs // len(v)).to(torch.uint8)
        return [means(v.double(), run, self.runs), pack(run, (self.runs - 1).bit_length())]

    def decompress(self, parts: Parts, at: At) -> torch.Tensor:
        symbols = unpack(parts[1], (self.runs - 1).bit_length(), at.size)
        return floats(parts[0]).to(at.dtype).index_select(0, symbols.int())


def means(v: torch.Tensor, groups: torch.Tensor, count: int) -> torch.Tensor:
    """Return the mean of the values of each of `count` groups: float32, 0 for an empty group."""
    where = groups.long()
    return (torch.bincount(where, v, count) / torch.bincount(where, minlength=count).clamp(min=1)).float()


@dataclass(frozen=True)
class Natural(Rule):
    """Round at random to the power of two below or above the entry; the expected value is the entry.

    An entry is sent as its sign and an exponent from -108 to 18; smaller entries become 0. With `residual`, the decoded
    values are divided by 9/8, for the same reason as in `qsgd`.

    Source: Horváth et al. (MSML 2022)
    """

    draws = True
    residual: Residual = False

    def compress(self, v: torch.Tensor, at: At) -> Parts:
        whole, fraction = (torch.int32, 23) if v.dtype == torch.float32 else (torch.int64, 52)  # the bits of a number
        drawn = (at.chance(v).to(v.dtype) * 2**fraction).to(whole)
        # a fraction above the drawn number carries into the exponent
        rounded = v.abs().view(whole).sub_(drawn).add_(2**fraction - 1).__irshift__(fraction)
        return [signed(rounded.sub_(18 if whole == torch.int32 else 914).clamp_(0, 127), v, 8)]

    def decompress(self, parts: Parts, at: At) -> torch.Tensor:
        table = values_of(self, 8, at.dtype, parts[0].device)
        return table.index_select(0, unpack(parts[0], 8, at.size).int())

    def levels(self, symbols: torch.Tensor) -> torch.Tensor:
        """Return the values (float64) that symbols stand for."""
        level = symbols & 127
        power = torch.ldexp(torch.ones_like(level, dtype=torch.float64), level.int() - 109) * (level > 0)
        return torch.where(symbols > 127, -power, power) / (1 + self.residual / 8)


@dataclass(frozen=True)
class Inceptionn(Rule):
    """Send 0, 8, 16 or 32 bits of each entry, as few as keep the truncation error below 2^-e, and a tag of 2 bits.

    Source: Li et al. (MICRO 2018)
    """

    e: Annotated[int, Bounds(at_least=7, at_most=15), "entries below 2^-e become 0"] = 10
    residual: Residual = False

    def __post_init__(self) -> None:
        check(self)

    def compress(self, v: torch.Tensor, at: At) -> Parts:
        size = v.double().abs()
        tags = (size >= 2.0**-self.e).int() + (size >= 2.0 ** (7 - self.e)) + (size >= 1)
        short, middle, large = (torch.where(v < 0, -size, size)[tags == tag] for tag in (1, 2, 3))
        return [pack(tags.to(torch.uint8), 2), (short * 2.0**self.e).trunc().to(torch.int8),
                (middle * 2.0**15).trunc().to(torch.int16), large.float()]  # fmt: skip

    def decompress(self, parts: Parts, at: At) -> torch.Tensor:
        tags, values = unpack(parts[0], 2, at.size), torch.zeros(at.size, dtype=torch.float64, device=parts[0].device)
        values[tags == 1] = parts[1].view(torch.int8).double() * 2.0**-self.e
        values[tags == 2] = parts[2].view(torch.int16).double() * 2.0**-15
        values[tags == 3] = floats(parts[3])
        return values.to(at.dtype)
