"""Codes of the values of a piece, or of the values that a sparse rule has chosen: short floating-point numbers, and
levels times a scale of each block.

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
    """The nearest float16, ties to even, within ±65504.

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
    """The nearest bfloat16, ties to even: 7 bits of fraction.

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
    """Return what each symbol of so many bits stands for by a rule's `levels`."""
    return rule.levels(torch.arange(1 << width, dtype=torch.uint8, device=device)).to(dtype)  # type: ignore[no-any-return]


# --- levels times the scale of a block -------------------------------------------------------------------------------


class Blockwise(Rule):
    """Each block of consecutive values has a scale, its largest magnitude by `top`; symbols are of values by it."""

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
        """The symbols (uint8) of values by their scales (float64)."""
        raise NotImplementedError

    def levels(self, symbols: torch.Tensor) -> torch.Tensor:
        """The values (float64) by their scales that symbols stand for."""
        raise NotImplementedError

    def values(self, symbols: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the levels of symbols, which are read from a table of all of them."""
        return values_of(self, self.width, dtype, symbols.device).index_select(0, symbols.int())

    def rows(self, v: torch.Tensor) -> torch.Tensor:
        """A row for each block, the last one filled with zeros."""
        block = self.block or max(1, len(v))
        missing = -len(v) % block
        return (torch.nn.functional.pad(v, (0, missing)) if missing else v).view(-1, block)


@dataclass(frozen=True)
class Int8(Blockwise):
    """The nearest of 255 levels at equal distances, from minus to plus the largest magnitude of the block.

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
    """The nearest of 256 levels at equal distances, from the least to the largest value of the block; 0 is one of them.

    Each block has, beside its scale, the level of 0. As PyTorch's quantization hooks.

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
    """Float8 (E4M3) of v / s, ties to even, where s is the largest magnitude of the block / 448.

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
    """E3M0: a sign and one of 0, 1/64, 1/32, ..., 1 times the largest magnitude of the block: the nearest, ties up.

    Source: Douillard et al. (arXiv 2025)
    """

    block: Block = 0
    residual: Residual = False
    width = 4

    def symbols(self, scaled: torch.Tensor, at: At) -> torch.Tensor:
        size = scaled.abs()
        _, exponent = torch.frexp(size * (4 / 3))  # from 3/2 of a level the next one
        level = (exponent + 6).clamp(1, 7).to(torch.uint8) * (size >= 1 / 128)
        return level | ((scaled < 0) & (level > 0)).to(torch.uint8) << 3

    def levels(self, symbols: torch.Tensor) -> torch.Tensor:
        level = symbols & 7
        magnitude = torch.ldexp(torch.ones_like(level, dtype=torch.float64), level.int() - 7) * (level > 0)
        return torch.where(symbols > 7, -magnitude, magnitude)


@dataclass(frozen=True)
class QSGD(Blockwise):
    """Random rounding to 2^(bits - 1) - 1 levels of the bucket's norm, so that the mean is right.

    With `residual`, the values that are read are divided by 1 + w, where w = min(B / s^2, sqrt(B) / s) bounds the
    variance of a bucket of B entries and s levels: without that, the residual of a coarse code grows for ever.

    Source: Alistarh et al. (NIPS 2017)
    """

    draws = True
    bits: Annotated[int, Bounds(at_least=2, at_most=8), "of each entry, one of them its sign"]
    bucket: Annotated[int, Bounds(at_least=1), "entries that share a norm"] = 128
    norm: Annotated[str, OneOf("l2", "max"), "the Euclidean norm of the bucket, or its largest magnitude"] = "l2"
    residual: Residual = False
    @property
    def block(self) -> int:  # type: ignore[override]
        """Entries that share a norm."""
        return self.bucket

    @property
    def width(self) -> int:  # type: ignore[override]
        """Bits of a symbol."""
        return self.bits

    @property
    def most(self) -> int:
        """The largest level."""
        return int(2 ** (self.bits - 1) - 1)

    def scales(self, rows: torch.Tensor) -> torch.Tensor:
        return (rows.norm(dim=1) if self.norm == "l2" else rows.abs().amax(1)).float()

    def symbols(self, scaled: torch.Tensor, at: At) -> torch.Tensor:
        exact = self.most * scaled.abs()
        whole = exact.floor()
        level = (whole + (at.chance(scaled) < exact - whole)).clamp(max=self.most).to(torch.uint8)
        return level | ((scaled < 0) & (level > 0)).to(torch.uint8) << self.bits - 1

    def levels(self, symbols: torch.Tensor) -> torch.Tensor:
        variance = min(self.bucket / self.most**2, math.sqrt(self.bucket) / self.most)
        level = (symbols & self.most).float() / (self.most * (1 + self.residual * variance))
        return torch.where(symbols > self.most, -level, level)


@dataclass(frozen=True)
class Dynamic8(Blockwise):
    """The nearest of 256 levels, dense towards 0, times the largest magnitude of the block.

    Source: Dettmers et al. (ICLR 2022)
    """

    block: Block = 4096
    residual: Residual = False

    def symbols(self, scaled: torch.Tensor, at: At) -> torch.Tensor:
        least, steps = dynamic_steps(scaled.device)
        symbol = least.index_select(0, scaled.float().view(torch.int32) >> 16 & 0xFFFF)
        return symbol + (scaled >= steps.index_select(0, symbol.int()))

    def levels(self, symbols: torch.Tensor) -> torch.Tensor:
        return dynamic_levels(symbols.device)


@lru_cache
def dynamic_steps(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return, for the upper halves of float32 numbers, the symbol of the least number with that half; and for each
    symbol the number from which on the next symbol is nearer. Numbers that share a half have at most one such step
    between them, so that a look at two tables takes the place of a search."""
    levels = dynamic_levels(torch.device("cpu"))
    steps = torch.cat([(levels[1:] + levels[:-1]) / 2, torch.tensor([math.inf], dtype=torch.float64)])
    halves = torch.arange(1 << 16, dtype=torch.int32) << 16
    least = torch.where(halves < 0, halves | 0xFFFF, halves).view(torch.float32).nan_to_num().clamp(-1, 1)
    return torch.bucketize(least.double(), steps, right=True).to(device, torch.uint8), steps.to(device)


@lru_cache
def dynamic_levels(device: torch.device) -> torch.Tensor:
    """From -1 to 1: 0, 1, and ± the middles of 2^i parts of [0.1, 1], times 10^(i - 6), for i from 0 to 6."""
    edges = [torch.linspace(0.1, 1, 2**i + 1, dtype=torch.float64) for i in range(7)]
    magnitudes = torch.cat([10.0 ** (i - 6) * (each[1:] + each[:-1]) / 2 for i, each in enumerate(edges)])
    return torch.cat([torch.tensor([0.0, 1.0], dtype=torch.float64), magnitudes, -magnitudes]).sort().values.to(device)


# --- tables that are sent --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Uniform8(Rule):
    """The mean of the entry's bin, of 256 bins that cover six standard deviations around the mean.

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
    """The mean of the entry's run, where sorting cuts the entries into `runs` of nearly equally many.

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
    """The mean of each group (uint8) of values, float32; 0 of none."""
    where = groups.long()
    return (torch.bincount(where, v, count) / torch.bincount(where, minlength=count).clamp(min=1)).float()


@dataclass(frozen=True)
class Natural(Rule):
    """Round to the power of two below an entry, or with the probability of its fraction to that above: unbiased.

    A sign, and an exponent from -108 to 18; smaller entries become 0. With `residual`, the decoded values are
    divided by 9/8, as for `qsgd`.

    Source: Horváth et al. (MSML 2022)
    """

    draws = True
    residual: Residual = False

    def compress(self, v: torch.Tensor, at: At) -> Parts:
        mantissa, exponent = torch.frexp(v.abs())
        up = at.chance(v) < 2 * mantissa - 1
        level = (exponent + 108 + up).clamp(0, 127).to(torch.uint8) * (v != 0)
        return [level | ((v < 0) & (level > 0)).to(torch.uint8) << 7]

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
    """A tag, and as few bits as a truncation error below 2^-e allows: none, 8, 16, or all 32 of a float32.

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
        tags, found = unpack(parts[0], 2, at.size), torch.zeros(at.size, dtype=torch.float64, device=parts[0].device)
        found[tags == 1] = parts[1].view(torch.int8).double() * 2.0**-self.e
        found[tags == 2] = parts[2].view(torch.int16).double() * 2.0**-15
        found[tags == 3] = floats(parts[3])
        return found.to(at.dtype)
