"""The loops over the values of a push, compiled by numba for the first code: scaled, rounded, packed; and back.

Values are float32 or float64, symbols uint8; each is computed in float64. To scale values, a scale of 0 is passed as
infinity, by which each becomes 0. Loops over slices, without branches, are what the compiler makes vector instructions
of. Codes come from other processes: whatever their bytes are, no loop reads or writes outside its arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslab.tensors.compiling import Loops, read_only

Array = NDArray[Any]

loops = Loops()
loop = loops.loop

LARGEST = float(np.finfo(np.float32).max)
OCTAVES, STEPS = 24, 128  # of `nearest`: magnitudes from 2^-OCTAVES to 1, each octave in equal steps


@loop
def largest(bits: Array, mask: int, block: int, out: Array) -> None:
    """The largest number in each block of unsigned ones, of which only the bits of the mask count."""
    for b in range(len(out)):
        own, most = bits[b * block : (b + 1) * block], mask ^ mask
        for i in range(len(own)):
            masked = own[i] & mask
            if masked > most:
                most = masked
        out[b] = most


@loop
def linear(v: Array, scales: Array, block: int, zeros: Array, top: float, out: Array) -> None:
    """The whole number that is nearest to v / scale, plus the zero of its block, from 0 to `top`."""
    for b in range(len(scales)):
        own, found = v[b * block : (b + 1) * block], out[b * block : (b + 1) * block]
        scale, zero = scales[b], zeros[b]
        for i in range(len(own)):
            level = np.rint(np.float64(own[i]) / scale) + zero
            found[i] = np.int32(min(max(level, 0.0), top))


@loop
def float8(v: Array, scales: Array, block: int, out: Array) -> None:
    """E4M3 of v / scale: sign, 4 bits of exponent, 3 of fraction; ties to even, at most 448."""
    for b in range(len(scales)):
        own, found, scale = v[b * block : (b + 1) * block], out[b * block : (b + 1) * block], scales[b]
        for i in range(len(own)):
            x = np.float64(abs(np.float64(own[i]) / scale))
            exponent: Any = max(np.int64(x.view(np.uint64) >> np.uint64(52)) - 1023, -6)
            eighths = np.int64(np.rint(x * np.uint64((1026 - exponent) << 52).view(np.float64)))
            level: Any = min((exponent + 6) * 8 + eighths, 126)
            found[i] = level + 128 * ((own[i] < 0) & (level > 0))


@loop
def powers(v: Array, scales: Array, block: int, out: Array) -> None:
    """E3M0 of v / scale: a sign, and the number of the nearest of 0, 1/64, 1/32, ..., 1; of two as near the upper."""
    for b in range(len(scales)):
        own, found, scale = v[b * block : (b + 1) * block], out[b * block : (b + 1) * block], scales[b]
        for i in range(len(own)):
            x = np.float64(abs(np.float64(own[i]) / scale))
            above = np.int64((x.view(np.uint64) + np.uint64(1 << 51)) >> np.uint64(52)) - 1016  # from 3/2 the next one
            level: Any = min(max(above, np.int64(x >= 1 / 128)), 7)
            found[i] = level + 8 * ((own[i] < 0) & (level > 0))


@loop
def nearest(v: Array, scales: Array, block: int, below: Array, middles: Array, out: Array) -> None:
    """The number of the level that is nearest to v / scale, of two as near the upper one.

    `middles` lie between the levels; `below` says for each step of a magnitude, first of positive values, then of
    negative ones, how many middles are below all of it, where at most one lies in it: see `steps_of`.
    """
    first, last, size = np.uint64((1023 - OCTAVES) * STEPS), np.uint64(1023 * STEPS), min(block, len(v))
    scaled, at = np.empty(size), np.empty(size, np.uint16)  # apart from the search, which makes no vector instructions
    for b in range(len(scales)):
        own, found, scale = v[b * block : (b + 1) * block], out[b * block : (b + 1) * block], scales[b]
        for i in range(len(own)):
            scaled[i] = np.float64(own[i]) / scale
            bits = np.float64(scaled[i]).view(np.uint64)
            magnitude = (bits & np.uint64((1 << 63) - 1)) >> np.uint64(45)  # 11 bits of exponent, 7 of fraction
            at[i] = min(max(magnitude, first), last) - first + (last - first + np.uint64(1)) * (bits >> np.uint64(63))
        for i in range(len(own)):
            level = below[at[i]]
            found[i] = level + (middles[level] <= scaled[i])


@loop
def by_chance(v: Array, scales: Array, block: int, u: Array, top: int, out: Array) -> None:
    """The level of top |v| / scale below, or if u is below its fraction the one above, at most `top`; with top + 1
    added where v is negative and the level is not 0."""
    for b in range(len(scales)):
        own, found, scale = v[b * block : (b + 1) * block], out[b * block : (b + 1) * block], scales[b]
        chance, most = u[b * block : (b + 1) * block], np.float64(top)
        for i in range(len(own)):
            exact = top * abs(np.float64(own[i]) / scale)
            level = np.floor(exact)
            level = min(level + (1.0 if np.float64(chance[i]) < exact - level else 0.0), most)
            found[i] = np.int32(level + (most + 1 if (own[i] < 0) & (level > 0) else 0.0))


@loop
def ternary(v: Array, u: Array, limit: float, scale: float, out: Array) -> None:
    """1, or 2 where v is negative, with the chance of |v|, at most the limit, by the scale; else 0."""
    for i in range(len(v)):
        x = np.float64(v[i])
        out[i] = (np.float64(u[i]) * scale < min(abs(x), limit)) * (1 + (x < 0))


@loop
def exponents(v: Array, u: Array, least: int, out: Array) -> None:
    """The exponent of 2 below |v|, or if u is below its fraction the one above: less `least`, plus 1, from 0 to 127;
    with 128 added where v is negative and that is not 0."""
    for i in range(len(v)):
        bits = np.float64(abs(np.float64(v[i]))).view(np.uint64)
        fraction = np.float64(np.int64(bits & np.uint64((1 << 52) - 1))) * 2.0**-52
        exponent = np.int64(bits >> np.uint64(52)) - 1023 + (np.float64(u[i]) < fraction)
        level: Any = min(max(exponent - least + 1, 0), 127)
        out[i] = level + 128 * ((v[i] < 0) & (level > 0))


@loop
def averaged(kept: Array, v: Array, share: float) -> None:
    """Make of what is kept, in place, so large a share of itself and the rest of v."""
    for i in range(len(kept)):
        kept[i] = share * np.float64(kept[i]) + (1 - share) * np.float64(v[i])


@loop
def grouped(v: Array, groups: Array, sums: Array, counts: Array) -> None:
    """Add each value to the sum of its group, in order, and 1 to its count. Groups are in range."""
    for i in range(len(v)):
        sums[groups[i]] += np.float64(v[i])
        counts[groups[i]] += 1


@loop
def pack(symbols: Array, width: int, out: Array) -> None:
    """Write symbols of so many bits, at most 8, lowest first, to as many bytes as they take."""
    at, done = 0, 0
    if width == 4:
        at, done = len(symbols) // 2, len(symbols) // 2 * 2
        for i in range(at):
            out[i] = symbols[2 * i] | symbols[2 * i + 1] << 4
    elif width == 2:
        at, done = len(symbols) // 4, len(symbols) // 4 * 4
        for i in range(at):
            j = 4 * i
            out[i] = symbols[j] | symbols[j + 1] << 2 | symbols[j + 2] << 4 | symbols[j + 3] << 6
    bits, held = np.uint32(0), 0
    for symbol in symbols[done:]:
        bits |= np.uint32(symbol) << np.uint32(held)
        held += width
        if held >= 8:
            out[at] = bits & np.uint32(255)
            bits, held, at = bits >> np.uint32(8), held - 8, at + 1
    if held:
        out[at] = bits


@loop
def unpack(code: Array, width: int, out: Array) -> None:
    """The symbols of so many bits in a code that has as many bytes as they take."""
    mask, done = (1 << width) - 1, 0
    if width == 4:
        done = len(out) // 2 * 2
        for i in range(len(out) // 2):
            out[2 * i], out[2 * i + 1] = code[i] & 15, code[i] >> 4
    elif width == 2:
        done = len(out) // 4 * 4
        for i in range(len(out) // 4):
            byte = code[i]
            out[4 * i], out[4 * i + 1] = byte & 3, byte >> 2 & 3
            out[4 * i + 2], out[4 * i + 3] = byte >> 4 & 3, byte >> 6
    for i in range(done, len(out)):
        at = i * width
        first, shift = at >> 3, at & 7
        bits = np.int64(code[first]) >> shift
        if shift + width > 8:
            bits |= np.int64(code[first + 1]) << (8 - shift)
        out[i] = bits & mask


@loop
def classed(v: Array, least: float, middle: float, code: Array) -> int:
    """Write a tag of 2 bits for each value, and then its bits, lowest first; the number of bytes.

    Magnitudes below `least` have tag 0 and no bits; below `middle` a sign and 7 bits, the last of which is `least`;
    below 1 a sign and 15 bits; else all of a float32. What is beyond the last bit is cut off.
    """
    bits, held, at, units = np.uint64(0), 0, 0, (least, 2.0**-15)
    for part in range(2):
        for i in range(len(v)):
            size = min(abs(np.float64(v[i])), LARGEST)
            tag = np.int64(size >= least) + np.int64(size >= middle) + np.int64(size >= 1)
            symbol, width = np.uint64(tag), 2
            if part:
                if tag == 0:
                    continue
                width = 32 if tag == 3 else 8 * int(tag)
                single = np.float32(size)
                cut = np.uint64(single.view(np.uint32)) - np.uint64(np.float64(single) > size)
                symbol = cut if tag == 3 else np.uint64(size / units[tag - 1])
                symbol |= np.uint64(v[i] < 0) << np.uint64(width - 1)
            bits |= symbol << np.uint64(held)
            held += width
            while held >= 8:
                code[at] = bits & np.uint64(255)
                bits, held, at = bits >> np.uint64(8), held - 8, at + 1
    if held:
        code[at] = bits
        at += 1
    return at


@loop
def unclassed(code: Array, tags: Array, least: float, limit: float, out: Array) -> bool:
    """The values of such bits, which lie behind the tags, in a code that has them all; whether they are finite."""
    at, finite = 2 * len(out), True
    for i in range(len(out)):
        if tags[i] == 0:
            out[i] = 0.0
            continue
        width = 32 if tags[i] == 3 else 8 * int(tags[i])
        symbol, begin = np.uint64(0), at >> 3
        for k in range(begin, (at + width + 7) >> 3):
            symbol |= np.uint64(code[k]) << np.uint64(8 * (k - begin))
        symbol = symbol >> np.uint64(at & 7) & np.uint64((1 << width) - 1)
        at += width
        if width == 32:
            value = np.float64(np.uint32(symbol).view(np.float32))
        else:
            sign = symbol >> np.uint64(width - 1)
            magnitude = np.float64(symbol - (sign << np.uint64(width - 1))) * (2.0**-15 if width == 16 else least)
            value = -magnitude if sign else magnitude
        finite &= np.isfinite(value)
        out[i] = min(max(value, -limit), limit)
    return finite


@loop
def tabled(symbols: Array, scales: Array, block: int, table: Array, divisor: float, limit: float, out: Array) -> None:
    """The value of each symbol by the table, which has as many, times its block's scale, divided; at most the limit."""
    found = np.empty(len(table), out.dtype)
    for b in range(len(scales)):
        own, read, scale = symbols[b * block : (b + 1) * block], out[b * block : (b + 1) * block], scales[b]
        if len(own) < len(table):
            for i in range(len(own)):
                read[i] = min(max(table[own[i]] * scale / divisor, -limit), limit)
        else:
            for s in range(len(table)):
                found[s] = min(max(table[s] * scale / divisor, -limit), limit)
            for i in range(len(own)):
                read[i] = found[own[i]]


@loop
def leveled(symbols: Array, scales: Array, block: int, zeros: Array, limit: float, out: Array) -> None:
    """Each symbol less its block's zero, times its block's scale; at most the limit."""
    for b in range(len(scales)):
        own, read = symbols[b * block : (b + 1) * block], out[b * block : (b + 1) * block]
        scale, zero = scales[b], zeros[b]
        for i in range(len(own)):
            read[i] = min(max((np.float64(own[i]) - zero) * scale, -limit), limit)


def steps_of(middles: Array) -> Array:
    """For `nearest`, how many of the middles (increasing) are below all of each step, of both signs: uint8."""
    at = np.arange(OCTAVES * STEPS + 1)
    low = (1 + at % STEPS / STEPS) * 2.0 ** (at // STEPS - OCTAVES)
    low, high = np.append(0.0, low[1:]), np.append(low[1:], np.inf)
    return np.searchsorted(middles, np.concatenate([low, -high]), side="right").astype(np.uint8)


def warm(dtype: np.dtype[Any] | None) -> None:
    """Compile the loops over values of this dtype, or over symbols alone, or load what another process has compiled."""
    loops.warm(str(dtype), _call_those_of_symbols if dtype is None else lambda: _call_those_of(dtype))


def _call_those_of_symbols() -> None:
    symbols, bits = np.zeros(1, np.uint8), np.zeros(1, "u2")
    largest(read_only(bits), bits.dtype.type(1), 1, bits)
    pack(symbols, 8, symbols)
    unpack(read_only(symbols), 8, symbols)


def _call_those_of(dtype: np.dtype[Any]) -> None:
    x, one, symbols = np.zeros(1, dtype), np.ones(1), np.zeros(1, np.uint8)
    v, u, read, bits = read_only(x), np.zeros(1, np.float32), read_only(symbols), x.view(f"u{x.itemsize}")
    largest(read_only(bits), bits.dtype.type(1), 1, bits)
    linear(v, one, 1, one, 1.0, symbols)
    float8(v, one, 1, symbols)
    powers(v, one, 1, symbols)
    nearest(v, one, 1, np.zeros(2 * (OCTAVES * STEPS + 1), np.uint8), np.zeros(256), symbols)
    by_chance(v, one, 1, u, 1, symbols)
    ternary(v, u, 1.0, 1.0, symbols)
    exponents(v, u, 1, symbols)
    averaged(x, v, 0.5)
    grouped(v, read, one.copy(), np.zeros(1, np.int64))
    classed(v, 0.1, 0.2, symbols)
    unclassed(read, read, 0.1, 1.0, x)
    tabled(read, one, 1, np.zeros(256), 1.0, 1.0, x)
    leveled(read, one, 1, one, 1.0, x)
