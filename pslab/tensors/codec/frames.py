"""Frames: the entries of a dense or sparse vector as bytes, and back, without loss.

    frame  = header values positions
    header = length (u64) codec (u8) dtype (u8) zero (u16) n (u32) k (u32) CRC-32 (u32), little endian

The values are the k entries, unchanged. The codec is the page that writes the positions of these entries: a module of
the table of names (`Codec`). A dense frame, of all n entries, has no positions. A request has positions and no values.

The CRC covers every byte of the frame except its own four.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pslab.config.table import ROWS
from pslab.errors import FrameError, nearest
from pslab.tensors.codec.coordinates import increasing

Array = NDArray[Any]

MAX_N = 2**31 - 1
HEADER = struct.Struct("<QBBHII")
CRC = struct.Struct("<I")
START = HEADER.size + CRC.size  # 24 bytes: a multiple of eight, so that the values are aligned
DTYPES = (np.dtype("<f4"), np.dtype("<f8"))
NO_VALUES = len(DTYPES)  # in the place of a dtype


class Codec(Protocol):
    """How positions are written: increasing indices [k] (int32 or int64) of a vector of length n."""

    def size_bytes(self, indices: Array, n: int, most: int) -> int:
        """The length in bytes of what `write` returns; some length above `most` where that is longer."""

    def sliced_bytes(self, slices: Sequence[slice], n: int) -> int:
        """The length in bytes for the indices of slices, which ascend and do not touch."""

    def write(self, indices: Array, n: int) -> Array:
        """The indices as bytes."""

    def read(self, positions: Array, n: int, k: int) -> Array:
        """The indices (int64) from bytes; FrameError if `write` does not produce these."""


#: In the order of their numbers in the header, from 1; 0 is dense.
CODECS: dict[str, Codec] = {name: row.load() for name, row in ROWS["codec"].items() if row.path != __name__}
NAMES = ("dense", *CODECS)


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Some entries of a vector of length n, or all of them."""

    n: int
    indices: Array | None  #: [k] int32 or int64, strictly increasing; None: all n
    values: Array  #: [k] float32 or float64


class Positions(NamedTuple):
    """Positions of k entries of a vector of length n, as a codec writes them."""

    n: int
    k: int
    codec: str
    written: Array


def frame_bytes(n: int, itemsize: int) -> int:
    """The length in bytes of a dense frame of n entries."""
    return START + n * itemsize


def largest_frame_bytes(n: int, itemsize: int) -> int:
    """The bytes that hold any frame of a vector of length n, whatever its density and codec."""
    # the coordinates of all entries are the longest, except where n = 1: a run takes twice as much
    return START + max(n * (itemsize + 4), (itemsize + 8) * min(n, 1))


def sliced_bytes(n: int, slices: Sequence[slice], itemsize: int, codec: str = "auto") -> int:
    """The length in bytes of a frame of these slices of a vector of length n. They ascend and do not touch."""
    k = sum(s.stop - s.start for s in slices)
    if k == n and codec in ("auto", "dense"):
        return frame_bytes(n, itemsize)
    chosen = CODECS.values() if codec == "auto" else (CODECS[codec],)
    return int(START + k * itemsize + min(each.sliced_bytes(slices, n) for each in chosen))


def encode(entries: Entries, codec: str = "auto") -> bytes:
    """One frame, as `encode_into` writes it.

    Raises:
        ValueError: invalid entries or an unknown codec.
    """
    positions = _positions(entries, codec)
    frame = bytearray(START + entries.values.nbytes + positions.written.nbytes)
    write_into(memoryview(frame), positions, entries.values)
    return bytes(frame)


def encode_into(buffer: memoryview, entries: Entries, codec: str = "auto") -> int:
    """Write one frame to the start of `buffer` and return its length in bytes; `auto` takes the shortest codec.

    Raises:
        ValueError: invalid entries (indices that do not increase, for example), an unknown codec, a buffer too small.
    """
    return write_into(buffer, _positions(entries, codec), entries.values)


def positions_of(indices: Array, n: int, codec: str = "auto") -> Positions:
    """Of entries at these indices (int32 or int64, increasing), for frames that ask for them or give them.

    Raises:
        ValueError: as `encode_into`.
    """
    return _positions(Entries(n, indices, np.empty(len(indices), DTYPES[0])), codec)


def write_into(buffer: memoryview, positions: Positions, values: Array | None = None) -> int:
    """Write a frame of these entries to the start of `buffer`, or, without values, one that asks for them; its length.

    Raises:
        ValueError: a buffer too small.
    """
    n, k, codec, written = positions
    split = START + (0 if values is None else values.nbytes)
    length = split + written.nbytes
    view = memoryview(buffer).cast("B")
    if len(view) < length:
        raise ValueError(f"a buffer of {len(view)} bytes cannot hold a frame of {length}; see largest_frame_bytes")
    dtype = NO_VALUES if values is None else DTYPES.index(values.dtype)
    header = HEADER.pack(length, NAMES.index(codec), dtype, 0, n, k)
    view[: HEADER.size] = header
    if values is not None:
        np.frombuffer(view[START:split], values.dtype)[:] = values
    np.frombuffer(view[split:length], np.uint8)[:] = written.view(np.uint8)
    CRC.pack_into(view, HEADER.size, zlib.crc32(view[START:length], zlib.crc32(header)))
    return length


def requested(frame: memoryview | bytes, n: int) -> Array:
    """The indices (int64, increasing) that a frame asks for, of a vector of length n.

    Raises:
        FrameError: as `decode`, or a frame that has values.
    """
    view = memoryview(frame).cast("B")
    codec, dtype, length, k = _header(view)
    if dtype is not None or length != n or k > n:
        raise FrameError(f"a frame of {k} of {length} entries is not one that asks for some of {n}")
    positions = np.frombuffer(view[START:], np.uint8)
    if codec != "dense":
        return CODECS[codec].read(positions, n, k)
    if k != n or len(positions):
        raise FrameError(f"a frame that asks for all {n} entries has {k}, and {len(positions)} bytes of positions")
    return np.arange(n)


def decode(frame: memoryview | bytes, n: int | None = None) -> Entries:
    """The entries of a complete, unchanged frame. With `n`, only a vector of that length is accepted.

    The values are a view of `frame`: copy what has to outlive it. The memory needed is bounded by the frame's length.

    Raises:
        FrameError: truncated, trailing or changed bytes, or contents that do not describe a vector.
    """
    view = memoryview(frame).cast("B")
    codec, dtype, length, k = _header(view)
    if n is not None and n != length:
        raise FrameError(f"frame of a vector of {length} entries where one of {n} is expected")
    if dtype is None:
        raise FrameError(f"a frame that asks for {k} entries has no values")
    split = START + k * dtype.itemsize
    if k > length or split > len(view):
        raise FrameError(f"a frame of {len(view)} bytes cannot hold {k} of {length} entries")
    values = np.frombuffer(view[START:split], dtype)
    positions = np.frombuffer(view[split:], np.uint8)
    if codec != "dense":
        return Entries(length, CODECS[codec].read(positions, length, k), values)
    if k != length or len(positions):
        raise FrameError(f"a dense frame of {length} entries holds {k} values and {len(positions)} bytes of positions")
    return Entries(length, None, values)


def _positions(entries: Entries, codec: str) -> Positions:
    """Of checked entries."""
    n, indices, values = entries.n, entries.indices, entries.values
    if not 0 <= n <= MAX_N:
        raise ValueError(f"n={n}: a frame holds a vector of 0 to {MAX_N} entries")
    if values.dtype not in DTYPES or values.ndim != 1:
        raise ValueError(f"values must be one-dimensional float32 or float64, not {values.ndim}-d {values.dtype}")
    if codec not in ROWS["codec"]:
        raise ValueError(f"codec={codec!r}; {nearest(codec, ROWS['codec'])}")
    if len(values) != (n if indices is None else len(indices)):
        raise ValueError(f"{len(values)} values for {n if indices is None else len(indices)} indices")
    if indices is not None:
        _check(indices, n)
    if len(values) == n and codec in ("auto", "dense"):
        return Positions(n, n, "dense", np.empty(0, np.uint8))
    if codec == "dense":
        raise ValueError(f"{len(values)} of {n} entries cannot be sent as dense: the codec writes no positions")
    at = np.arange(n) if indices is None else indices
    name = _shortest(at, n) if codec == "auto" else codec
    return Positions(n, len(values), name, CODECS[name].write(at, n))


def _check(indices: Array, n: int) -> None:
    if indices.dtype not in (np.int64, np.int32) or indices.ndim != 1:
        raise ValueError(f"indices must be one-dimensional int64 or int32, not {indices.ndim}-d {indices.dtype}")
    if not increasing(indices, n):
        raise ValueError(f"indices must increase strictly and lie in 0 to {n - 1}")


def frame_length(frame: memoryview) -> int:
    """What the header of a frame says of its length in bytes."""
    return int(HEADER.unpack_from(frame)[0])


def _header(view: memoryview) -> tuple[str, np.dtype[Any] | None, int, int]:
    """The codec, dtype (None: no values), n and k of a frame whose length and CRC are right."""
    if len(view) < START:
        raise FrameError(f"{len(view)} bytes are too few for a frame: its header alone takes {START}")
    length, codec, dtype, zero, n, k = HEADER.unpack_from(view)
    if length != len(view):
        raise FrameError(f"a frame of {length} bytes arrived with {len(view)}")
    if CRC.unpack_from(view, HEADER.size)[0] != zlib.crc32(view[START:], zlib.crc32(view[: HEADER.size])):
        raise FrameError(f"a frame of {length} bytes was changed on its way: its CRC-32 does not match")
    if codec >= len(NAMES) or dtype > NO_VALUES or zero or n > MAX_N:
        raise FrameError(f"a frame with codec {codec}, dtype {dtype}, n {n} is not one that this version writes")
    return NAMES[codec], None if dtype == NO_VALUES else DTYPES[dtype], n, k


def _shortest(indices: Array, n: int) -> str:
    best = (8 * MAX_N, "")
    for name, codec in CODECS.items():
        best = min(best, (codec.size_bytes(indices, n, best[0]), name))
    return best[1]
