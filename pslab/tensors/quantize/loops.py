"""The loops over the values of a push, compiled by numba for the first code: scaled, rounded, packed; and back.

Values are float64, symbols uint8. Codes come from other processes: whatever their bytes are, no loop reads or writes
outside its arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslab.tensors.compiling import Loops, read_only

Array = NDArray[Any]

loops = Loops()
loop = loops.loop

MIDDLES = 255  # between as many levels as a byte can number


@loop
def largest(v: Array, block: int, out: Array) -> None:
    """The largest magnitude of each block of v."""
    for b in range(len(out)):
        most = 0.0
        for i in range(b * block, min(len(v), (b + 1) * block)):
            most = max(most, abs(v[i]))
        out[b] = most


@loop
def over(v: Array, scales: Array, block: int, out: Array) -> None:
    """Each value divided by the scale of its block: 0 where that is 0."""
    for b in range(len(scales)):
        begin, end, scale = b * block, min(len(v), (b + 1) * block), scales[b]
        if scale > 0:
            for i in range(begin, end):
                out[i] = v[i] / scale
        else:
            out[begin:end] = 0.0


@loop
def nearest(x: Array, middles: Array, even: bool, out: Array) -> None:
    """The number of the level that is nearest to each x; `even`: of two as near the even one, else the upper one.

    `middles` (MIDDLES of them, increasing, the last ones perhaps infinite) lie between the levels. Eight steps halve
    them, whatever x is: no branch depends on it, which no processor guesses.
    """
    one = np.uint64(1)
    for i in range(len(x)):
        found = np.uint64(0)
        for k in range(8):
            step = np.uint64(128 >> k)
            found += step * np.uint64(middles[found + step - one] <= x[i])
        tied = (found > 0) & (middles[found - np.uint64(found > 0)] == x[i])
        out[i] = found - (np.uint64(even & tied) & found)


@loop
def by_chance(x: Array, u: Array, top: int, out: Array) -> None:
    """The level of top |x| below, or if u is below its fraction the one above, at most `top`; with 2^m = top + 1 added
    where x is negative and the level is not 0."""
    for i in range(len(x)):
        exact = top * abs(x[i])
        level = np.floor(exact)
        level = min(level + (np.float64(u[i]) < exact - level), np.float64(top))
        out[i] = np.int64(level) + (top + 1) * ((x[i] < 0) & (level > 0))


@loop
def pack(symbols: Array, width: int, out: Array) -> None:
    """Write symbols of so many bits, at most 8, lowest first, to as many bytes as they take."""
    bits, held, at = np.uint32(0), 0, 0
    for symbol in symbols:
        bits |= np.uint32(symbol) << np.uint32(held)
        held += width
        if held >= 8:
            out[at] = bits & np.uint32(255)
            bits, held, at = bits >> np.uint32(8), held - 8, at + 1
    if held:
        out[at] = bits


@loop
def read(code: Array, width: int, table: Array, scales: Array, block: int, divisor: float, out: Array) -> int:
    """The value of each symbol by the table, of 2^width values, times its block's scale, divided; the highest symbol.

    `code` has as many bytes as the symbols take.
    """
    highest, mask = 0, (1 << width) - 1
    for b in range(len(scales)):
        scale = scales[b]
        for i in range(b * block, min(len(out), (b + 1) * block)):
            at = i * width
            byte, shift = at >> 3, at & 7
            bits = np.int64(code[byte]) >> shift
            if shift + width > 8:
                bits |= np.int64(code[byte + 1]) << (8 - shift)
            symbol: Any = bits & mask
            highest = max(highest, symbol)
            out[i] = table[symbol] * scale / divisor
    return highest


def warm() -> None:
    """Compile every loop, or load what an earlier process has compiled."""
    loops.warm("quantize", _call_all)


def _call_all() -> None:
    x, symbols = np.zeros(1), np.zeros(1, np.uint8)
    largest(x, 1, x)
    over(x, x, 1, x)
    nearest(x, np.zeros(MIDDLES), True, symbols)
    by_chance(x, x.astype(np.float32), 1, symbols)
    pack(symbols, 8, symbols)
    read(read_only(symbols), 8, np.zeros(256), x, 1, 1.0, x)
