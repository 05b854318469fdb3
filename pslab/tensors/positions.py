"""The loops that write and read the positions of sparse entries, compiled by numba for the first frame of some.

What is read comes from other processes: whatever the bytes are, no loop reads or writes outside its arrays. Indices
that are written have been `counted` before. Which gaps take a second byte as varints no processor guesses: no branch
depends on it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslab.tensors.compiling import Loops, read_only
from pslab.tensors.selection import simd

Array = NDArray[Any]

VARINT_BYTES = 5  # at most, of a number below 2**32
COMPLETE, INCOMPLETE, TOO_LONG, OUTSIDE = range(4)  # what `read_varints` finds

loops = Loops(simd)
loop = loops.loop


@loop
def counted(indices: Array, n: int) -> tuple[int, int]:
    """The bytes of the gaps between the indices (int64) as varints, and the number of runs of consecutive indices.

    -1 and 0 if the indices do not increase strictly or do not lie in 0 to n - 1.
    """
    if not len(indices):
        return 0, 0
    if indices[0] < 0 or indices[-1] >= n:
        return -1, 0
    gap, size, runs, wrong = indices[0], len(indices), 1, 0
    size += (gap >= 1 << 7) + (gap >= 1 << 14) + (gap >= 1 << 21) + (gap >= 1 << 28)
    for j in range(1, len(indices)):
        wrong += indices[j] <= indices[j - 1]
        gap = indices[j] - indices[j - 1] - 1
        runs += gap != 0
        size += (gap >= 1 << 7) + (gap >= 1 << 14) + (gap >= 1 << 21) + (gap >= 1 << 28)
    return (-1, 0) if wrong else (size, runs)


@loop
def write_varints(indices: Array, out: Array) -> int:
    """Write the gaps to `out` (uint8), which has VARINT_BYTES for each; the number of bytes written."""
    size, after = 0, 0
    for index in indices:
        gap, after = np.uint32(index - after), index + 1
        while gap >= 1 << 14:
            out[size] = gap & 127 | 128
            gap, size = np.uint32(gap >> 7), size + 1
        two = int(gap >= 1 << 7)
        out[size] = gap & 127 | two << 7
        out[size + 1] = gap >> 7
        size += 1 + two
    return size


@loop
def read_varints(positions: Array, n: int, out: Array) -> int:
    """Read as many indices below n as `out` (int64) holds from bytes (uint8); COMPLETE, or what is wrong."""
    found = index = shift = 0
    too_long: Any = False
    for at in range(len(positions)):
        if found == len(out):
            return INCOMPLETE
        byte: Any = np.int64(positions[at])
        last: Any = byte < 128
        index += (byte & 127) << shift
        too_long |= (shift > 28) | ((shift > 0) & (byte == 0))
        out[found] = index
        found += last
        index = min(index + last, n + 1)  # never less than that after an index that lies outside
        shift = 0 if last else min(shift + 7, 35)
    if found < len(out):  # so it is where the last one does not end: a byte after all of them was refused
        return INCOMPLETE
    return TOO_LONG if too_long else OUTSIDE if index > n else COMPLETE


@loop
def write_bits(indices: Array, out: Array) -> None:
    """Set the bits of a bitmap of zeros (uint8, lowest bit first)."""
    for index in indices:
        out[index >> 3] |= 1 << (index & 7)


@loop
def read_bits(words: Array, out: Array) -> int:
    """Write the positions of the set bits to `out` (int64) while they fit; the number of set bits in the words."""
    found = 0
    for i in range(len(words)):
        word, first = words[i], found
        found += simd.ones(word)
        if found <= len(out):
            for j in range(first, found):
                out[j] = 64 * i + simd.lowest(word)
                word &= word - np.uint64(1)
    return found


@loop
def write_runs(indices: Array, starts: Array, lengths: Array) -> int:
    """Write where each run of consecutive indices starts, and its length; the number of runs."""
    runs, after = 0, -1
    for index in indices:
        if index != after:
            starts[runs], lengths[runs] = index, 0
            runs += 1
        lengths[runs - 1] += 1
        after = index + 1
    return runs


@loop
def read_runs(starts: Array, lengths: Array, n: int, out: Array) -> bool:
    """Write the indices of runs to `out` (all int64); whether they fill it, increase, do not touch and lie below n."""
    found, after = 0, -1
    for start, length in zip(starts, lengths):  # noqa: B905
        if start <= after or length <= 0 or start + length > n or found + length > len(out):
            return False
        for i in range(length):
            out[found + i] = start + i
        found, after = found + length, start + length
    return found == len(out)


def warm() -> None:
    """Compile every loop, or load what an earlier process has compiled."""
    loops.warm("positions", _call_all)


def _call_all() -> None:
    indices, out = np.zeros(1, np.int64), np.zeros(VARINT_BYTES, np.uint8)
    counted(indices, 1)
    write_varints(indices, out)
    read_varints(read_only(out[:1]), 1, indices)
    write_bits(indices, out)
    read_bits(np.ones(1, np.uint64), indices)
    write_runs(indices, *np.zeros((2, 1), np.uint32))
    read_runs(indices, indices, 1, indices)
