"""What the quantization rules are made of: scales and symbols of a few bits, packed; shared scales; roundings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cache
from types import ModuleType
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pslab.config.parameters import Bounds, check
from pslab.errors import FrameError
from pslab.tensors.compiling import read_only
from pslab.tensors.finite import NonFinite

Array = NDArray[Any]

Residual = Annotated[bool, "whether what the code loses is added to the next gradient"]
Block = Annotated[int, Bounds(at_least=0), "entries that share a scale; 0: all of a tensor"]


class Coded(ABC):
    """A rule whose code is some float32 scales, and then symbols of `width` bits each, lowest bits first, filled up to
    a byte with zeros. There is a symbol for each value, and symbols are below `levels`."""

    residual: bool
    signed: ClassVar[bool] = False  #: whether scales may be negative

    def __post_init__(self) -> None:
        check(self)

    @property
    def width(self) -> int:
        """The bits of a symbol."""
        return 8

    @property
    def levels(self) -> int:
        """The number of symbols."""
        return 1 << self.width

    def scales(self, n: int) -> int:
        """The number of scales of n values."""
        return 0

    def symbols(self, n: int) -> int:
        """The number of symbols of n values."""
        return n

    def bounds(self, n: int) -> tuple[int, int]:
        """The bytes of a code of n values, twice: it is always as long."""
        size = 4 * self.scales(n) + -(-self.symbols(n) * self.width // 8)
        return size, size

    @abstractmethod
    def quantize(self, v: Array, *more: Array) -> tuple[Array, Array]:
        """The scales and the symbols of v."""

    @abstractmethod
    def values(self, scales: Array, code: Array, n: int) -> Array:
        """The values of n packed symbols.

        Raises:
            FrameError: a symbol that there is not.
        """

    def encode(self, v: Array, *more: Array) -> Array:
        """The code of v."""
        scales, symbols = self.quantize(v, *more)
        return np.concatenate([scales.astype("<f4").view(np.uint8), packed(symbols, self.width)])

    def decode(self, code: Array, n: int) -> Array:
        """The values of a code."""
        if len(code) != self.bounds(n)[0]:
            raise FrameError(f"a code of {n} values takes {self.bounds(n)[0]} bytes, not {len(code)}")
        split = 4 * self.scales(n)
        scales = finite(np.frombuffer(code[:split].tobytes(), "<f4"))
        if not self.signed and np.signbit(scales).any():
            raise FrameError("scales that are negative")
        used = self.symbols(n) * self.width % 8
        if used and code[-1] >> used:
            raise FrameError("bits behind the last symbol that are not 0")
        return self.values(scales, code[split:], n)


class Tabled(Coded):
    """Rules whose symbols number the values of a table."""

    @abstractmethod
    def table(self, scales: Array) -> Array:
        """The value of each symbol, before it is multiplied by the scale of its block."""

    def blocks(self, scales: Array, n: int) -> tuple[Array, int]:
        """The scales by which the values of the table are multiplied, and the entries that share one."""
        return np.ones(1), n

    @property
    def divisor(self) -> float:
        """By which the values are divided at last."""
        return 1.0

    def values(self, scales: Array, code: Array, n: int) -> Array:
        table, found = np.zeros(1 << self.width), np.empty(n)
        table[: self.levels] = self.table(scales)
        factors, block = self.blocks(scales, n)
        highest = loops().read(read_only(code), self.width, table, factors, block, self.divisor, found)
        if highest >= self.levels:
            raise FrameError(f"a symbol of {highest}, of {self.levels} that there are")
        return found


class Blockwise(Coded):
    """A rule with a scale for each `block` of consecutive values."""

    block: int

    def scales(self, n: int) -> int:
        """One for each block."""
        return -(-n // (self.block or n))

    def blocks(self, scales: Array, n: int) -> tuple[Array, int]:
        return scales, self.block or n

    def largest(self, v: Array) -> Array:
        """The largest magnitude of each block."""
        found = np.empty(self.scales(len(v)))
        if len(found) == 1:
            return np.abs([max(v.max(), -v.min())])
        loops().largest(v, self.block, found)
        return found

    def of_blocks(self, reduce: np.ufunc, v: Array) -> Array:
        """A reduction of each block."""
        found: Array = reduce.reduceat(v, np.arange(0, len(v), self.block or len(v)))
        return found

    def each(self, scales: Array, n: int) -> Array:
        """The scale of each of n values; the only one, if all share it."""
        return scales if len(scales) == 1 else np.repeat(scales, self.block)[:n]

    def over(self, v: Array, scales: Array) -> Array:
        """Values divided by their scale: 0 where that is 0."""
        found = np.empty(len(v))
        loops().over(v, scales, self.block or len(v), found)
        return found


def single(x: Any) -> Array:
    """Numbers rounded to float32, as float64.

    Raises:
        NonFinite: one of them is too large.
    """
    with np.errstate(over="ignore"):
        found = np.atleast_1d(np.asarray(x, np.float64).astype(np.float32))
    if not np.isfinite(found).all():
        raise NonFinite("a scale of the quantized values is too large for float32: nothing was sent")
    return found.astype(np.float64)


def finite(numbers: Array) -> Array:
    """Numbers as float64, all of them finite; else FrameError."""
    if not np.isfinite(numbers).all():
        raise FrameError("a scale or a symbol that is no finite number")
    return numbers.astype(np.float64)


@cache
def loops() -> ModuleType:
    """The compiled loops, ready."""
    from pslab.tensors.quantize import loops as compiled  # late, because numba's import takes a third of a second

    compiled.warm()
    return compiled


def packed(symbols: Array, width: int) -> Array:
    """Symbols as `width` bits each, lowest first, filled up to a byte with zeros: uint8."""
    if width == 16:
        return symbols.astype("<u2").view(np.uint8)
    if width == 1:
        return np.packbits(symbols.astype(bool), bitorder="little")
    symbols = symbols.astype(np.uint8)
    if width == 8:
        return symbols
    found = np.empty(-(-len(symbols) * width // 8), np.uint8)
    loops().pack(symbols, width, found)
    return found


def bits_of(numbers: Array, width: int) -> Array:
    """The lowest bits of whole numbers: uint8 [numbers, width], lowest first."""
    return ((numbers[:, None] >> np.arange(width)) & 1).astype(np.uint8)


def numbers_of(bits: Array) -> Array:
    """The whole numbers (int64) of such bits."""
    found: Array = bits @ (1 << np.arange(bits.shape[1]))
    return found


def signed(magnitudes: Array, negative: Array, width: int) -> Array:
    """Symbols of `width` bits whose highest bit is the sign: of 0 there is none."""
    found: Array = magnitudes | (negative & (magnitudes > 0)).astype(magnitudes.dtype) << (width - 1)
    return found


def unsigned(symbols: Array, width: int) -> tuple[Array, Array]:
    """The magnitudes of such symbols (int64), and their signs: 1 or -1."""
    return symbols & ((1 << (width - 1)) - 1), 1.0 - 2.0 * (symbols >> (width - 1))


def both(magnitudes: Array) -> Array:
    """The values of such symbols, whose magnitudes these are."""
    return np.concatenate([magnitudes, -magnitudes])


def nearest(x: Array, levels: Array, up: bool) -> Array:
    """The number (uint8) of the level (increasing) that is nearest to x; of two the upper one, or else the even one."""
    middles, found = np.full(loops().MIDDLES, np.inf), np.empty(len(x), np.uint8)
    middles[: len(levels) - 1] = (levels[1:] + levels[:-1]) / 2
    loops().nearest(x, middles, not up, found)
    return found


def up(fractions: Array, u: Array) -> Array:
    """Whether chance rounds up: with the probability of the fraction."""
    found: Array = u.astype(np.float64) < fractions
    return found
