"""What the quantization rules are made of: scales and symbols of a few bits, packed; shared scales; roundings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
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
SINGLE = np.dtype(np.float32)

Residual = Annotated[bool, "whether what the code loses is added to the next gradient"]
Block = Annotated[int, Bounds(at_least=0), "entries that share a scale; 0: all of a tensor"]


class Coded(ABC):
    """A rule whose code is some float32 scales, and then symbols of `width` bits each, lowest bits first, filled up to
    a byte with zeros. There is a symbol for each value, and symbols are below `levels`."""

    direct: ClassVar[bool] = True
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
        """The scales and the symbols of v, float32 or float64."""

    @abstractmethod
    def values(self, scales: Array, code: Array, out: Array) -> None:
        """Write the values of packed symbols.

        Raises:
            FrameError: a symbol that there is not.
        """

    def encode(self, v: Array, *more: Array) -> Array:
        """The code of v."""
        scales, symbols = self.quantize(v, *more)
        return np.concatenate([scales.astype("<f4").view(np.uint8), packed(symbols, self.width)])

    def decode(self, code: Array, n: int, out: Array | None = None) -> Array:
        """The n values of a code, in `out`, float32 or float64, if it is given."""
        if len(code) != self.bounds(n)[0]:
            raise FrameError(f"a code of {n} values takes {self.bounds(n)[0]} bytes, not {len(code)}")
        split = 4 * self.scales(n)
        scales = finite(np.frombuffer(code[:split].tobytes(), "<f4"))
        if not self.signed and np.signbit(scales).any():
            raise FrameError("scales that are negative")
        used = self.symbols(n) * self.width % 8
        if used and code[-1] >> used:
            raise FrameError("bits behind the last symbol that are not 0")
        found = np.empty(n) if out is None else out
        self.values(scales, code[split:], found)
        return found


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

    def values(self, scales: Array, code: Array, out: Array) -> None:
        table, symbols = np.zeros(1 << self.width), unpacked(code, self.width, len(out))
        table[: self.levels] = self.table(scales)
        if self.levels < len(table):
            check_symbols(symbols, self.levels)
        factors, block = self.blocks(scales, len(out))
        loops(out.dtype).tabled(symbols, factors, block, table, self.divisor, limit(out), out)


class Blockwise(Coded):
    """A rule with a scale for each `block` of consecutive values."""

    block: int

    def scales(self, n: int) -> int:
        """One for each block."""
        return -(-n // (self.block or n))

    def blocks(self, scales: Array, n: int) -> tuple[Array, int]:
        return scales, self.block or n

    def largest(self, v: Array) -> Array:
        """The largest magnitude of each block, as float64."""
        bits = v.view(f"u{v.itemsize}")
        found = np.empty(self.scales(len(v)), bits.dtype)
        magnitude = bits.dtype.type(np.iinfo(bits.dtype).max >> 1)
        loops(v.dtype).largest(read_only(bits), magnitude, self.block or len(v), found)
        return found.view(v.dtype).astype(np.float64)

    def of_blocks(self, reduce: np.ufunc, v: Array) -> Array:
        """A reduction of each block, as float64."""
        found: Array = reduce.reduceat(v, np.arange(0, len(v), self.block or len(v))).astype(np.float64)
        return found

    def scaled(self, loop: Callable[..., None], v: Array, scales: Array, *more: Any) -> Array:
        """The symbols (uint8) that a loop makes of values by the scales of their blocks."""
        symbols, by = np.empty(len(v), np.uint8), np.where(scales > 0, scales, np.inf)
        loop(read_only(v), by, self.block or len(v), *more, symbols)
        return symbols


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


def limit(v: Array) -> float:
    """The largest finite number of a vector's dtype."""
    return float(np.finfo(v.dtype).max)


@cache
def loops(dtype: np.dtype[Any] | None = None) -> ModuleType:
    """The compiled loops, ready for values of this dtype, or those over symbols alone."""
    from pslab.tensors.quantize import loops as compiled  # late, because numba's import takes a third of a second

    compiled.warm(dtype)
    return compiled


def packed(symbols: Array, width: int) -> Array:
    """Symbols as `width` bits each, lowest first, filled up to a byte with zeros: uint8."""
    if width == 16:
        return symbols.astype("<u2", copy=False).view(np.uint8)
    if width == 1:
        return np.packbits(symbols.astype(bool, copy=False), bitorder="little")
    symbols = symbols.astype(np.uint8, copy=False)
    if width == 8:
        return symbols
    found = np.empty(-(-len(symbols) * width // 8), np.uint8)
    loops().pack(symbols, width, found)
    return found


def unpacked(code: Array, width: int, n: int) -> Array:
    """The n symbols (uint8) of at most 8 bits each of a code."""
    if width == 8:
        return read_only(code)
    if width == 1:
        return read_only(np.unpackbits(code, count=n, bitorder="little"))
    found = np.empty(n, np.uint8)
    loops().unpack(read_only(code), width, found)
    return read_only(found)


def check_symbols(symbols: Array, levels: int) -> None:
    """Refuse symbols that there are not, with FrameError."""
    if (highest := symbols.max()) >= levels:
        raise FrameError(f"a symbol of {highest}, of {levels} that there are")


def both(magnitudes: Array) -> Array:
    """The values of such symbols, whose magnitudes these are."""
    return np.concatenate([magnitudes, -magnitudes])
