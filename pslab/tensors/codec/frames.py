"""Frames: the entries of a dense or sparse vector as bytes, and back, without loss.

    frame  = header values positions
    header = length (u64) codec (u8) dtype (u8) zero (u16) n (u32) k (u32) CRC-32 (u32), little endian

The values are the k entries, unchanged. The codec says how the positions of these entries are written:

    dense        nothing: k = n                          coordinates  the indices as i32
    bitmap       one bit per entry of the vector         varint       LEB128 of each gap to the index before, less one
    runs         start and length of each run, as u32

The CRC covers every byte of the frame except its own four.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslab.errors import FrameError, nearest
from pslab.tensors.codec import run_length, varint

Array = NDArray[Any]

MAX_N = 2**31 - 1
HEADER = struct.Struct("<QBBHII")
CRC = struct.Struct("<I")
START = HEADER.size + CRC.size  # 24 bytes: a multiple of eight, so that the values are aligned
CODECS = ("dense", "coordinates", "bitmap", "varint", "runs")
DTYPES = (np.dtype("<f4"), np.dtype("<f8"))
CHUNK = 1 << 17  # bytes of a bitmap that are searched at a time
UNPACKED = 10  # with more than one bit set in so many, unpacking all of them and searching the mask is faster


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Some entries of a vector of length n, or all of them."""

    n: int
    indices: Array | None  #: [k] int32 or int64, strictly increasing; None: all n
    values: Array  #: [k] float32 or float64


def frame_bytes(n: int, itemsize: int) -> int:
    """The length in bytes of a dense frame of n entries."""
    return START + n * itemsize


def largest_frame_bytes(n: int, itemsize: int) -> int:
    """The bytes that hold any frame of a vector of length n, whatever its density and codec."""
    # the coordinates of all entries are the longest, except where n = 1: a run takes more than a coordinate
    return START + max(n * (itemsize + 4), (itemsize + run_length.RUN_BYTES) * min(n, 1))


def sliced_bytes(n: int, slices: Sequence[slice], itemsize: int, codec: str = "auto") -> int:
    """The length in bytes of a frame of these slices of a vector of length n. They ascend and do not touch."""
    k = sum(s.stop - s.start for s in slices)
    if k == n and codec in ("auto", "dense"):
        return frame_bytes(n, itemsize)
    skipped = [s.start - before for s, before in zip(slices, [0, *(s.stop for s in slices)], strict=False)]
    gaps = varint.size_bytes(np.array(skipped, np.uint32))  # the others, inside a slice, take one byte each
    positions = {"coordinates": 4 * k, "bitmap": -(-n // 8), "runs": run_length.RUN_BYTES * len(slices),
                 "varint": k - len(slices) + gaps}  # fmt: skip
    return int(START + k * itemsize + (min(positions.values()) if codec == "auto" else positions[codec]))


def encode(entries: Entries, codec: str = "auto") -> bytes:
    """One frame, as `encode_into` writes it.

    Raises:
        ValueError: invalid entries or an unknown codec.
    """
    values, name, positions = _plan(entries, codec)
    frame = bytearray(START + values.nbytes + positions.nbytes)
    _write(memoryview(frame), entries.n, values, name, positions)
    return bytes(frame)


def encode_into(buffer: memoryview, entries: Entries, codec: str = "auto") -> int:
    """Write one frame to the start of `buffer` and return its length in bytes; `auto` takes the shortest codec.

    Raises:
        ValueError: invalid entries (indices that do not increase, for example), an unknown codec, a buffer too small.
    """
    values, name, positions = _plan(entries, codec)
    return _write(buffer, entries.n, values, name, positions)


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
    split = START + k * dtype.itemsize
    if k > length or split > len(view):
        raise FrameError(f"a frame of {len(view)} bytes cannot hold {k} of {length} entries")
    values = np.frombuffer(view[START:split], dtype)
    return Entries(length, _READERS[codec](np.frombuffer(view[split:], np.uint8), length, k), values)


def set_bits(bitmap: Array) -> NDArray[np.int64]:
    """The positions of the set bits of a bitmap (uint8, lowest bit first), increasing."""
    if len(bitmap) <= CHUNK:
        return _set_bits(bitmap)
    return np.concatenate([_set_bits(bitmap[i : i + CHUNK]) + i * 8 for i in range(0, len(bitmap), CHUNK)])


def _set_bits(bitmap: Array) -> NDArray[np.int64]:
    words = np.zeros(-(-len(bitmap) // 8) * 2, "<u4")
    words.view(np.uint8)[: len(bitmap)] = bitmap
    if int(np.bitwise_count(words.view("<u8")).sum(dtype=np.int64)) > len(bitmap) * 8 // UNPACKED:
        return np.flatnonzero(np.unpackbits(bitmap, bitorder="little").view(np.bool_))
    word = np.flatnonzero(words != 0)  # few words have a bit set, and few bytes of these: only they are unpacked
    octets = words[word].view(np.uint8)
    byte = np.flatnonzero(octets != 0)
    bit = np.flatnonzero(np.unpackbits(octets[byte], bitorder="little").view(np.bool_))
    found: NDArray[np.int64] = ((word[byte >> 2] << 5) + ((byte & 3) << 3))[bit >> 3] + (bit & 7)
    return found


def _plan(entries: Entries, codec: str) -> tuple[Array, str, Array]:
    """The checked values, the codec's name and the encoded positions."""
    n, indices, values = entries.n, entries.indices, entries.values
    if not 0 <= n <= MAX_N:
        raise ValueError(f"n={n}: a frame holds a vector of 0 to {MAX_N} entries")
    if values.dtype not in DTYPES or values.ndim != 1:
        raise ValueError(f"values must be one-dimensional float32 or float64, not {values.ndim}-d {values.dtype}")
    if codec != "auto" and codec not in CODECS:
        raise ValueError(f"codec={codec!r}; {nearest(codec, (*CODECS, 'auto'))}")
    if len(values) != (n if indices is None else len(indices)):
        raise ValueError(f"{len(values)} values for {n if indices is None else len(indices)} indices")
    if indices is not None:
        _check(indices, n)
    if len(values) == n and codec in ("auto", "dense"):
        return values, "dense", np.empty(0, np.uint8)
    if codec == "dense":
        raise ValueError(f"{len(values)} of {n} entries cannot be sent as dense: the codec writes no positions")
    at = np.arange(n) if indices is None else indices
    name = _shortest(at, n) if codec == "auto" else codec
    return values, name, _WRITERS[name](at, n)


def _check(indices: Array, n: int) -> None:
    if indices.dtype not in (np.int64, np.int32) or indices.ndim != 1:
        raise ValueError(f"indices must be one-dimensional int64 or int32, not {indices.ndim}-d {indices.dtype}")
    if not _increasing(indices, n):
        raise ValueError(f"indices must increase strictly and lie in 0 to {n - 1}")


def _increasing(indices: Array, n: int) -> bool:
    """Whether the indices increase strictly and lie in 0 to n - 1."""
    if not len(indices):
        return True
    return bool(indices[0] >= 0 and indices[-1] < n and (indices[1:] > indices[:-1]).all())


def _write(buffer: memoryview, n: int, values: Array, name: str, positions: Array) -> int:
    split = START + values.nbytes
    length = split + positions.nbytes
    view = memoryview(buffer).cast("B")
    if len(view) < length:
        raise ValueError(f"a buffer of {len(view)} bytes cannot hold a frame of {length}; see largest_frame_bytes")
    header = HEADER.pack(length, CODECS.index(name), DTYPES.index(values.dtype), 0, n, len(values))
    view[: HEADER.size] = header
    np.frombuffer(view[START:split], values.dtype)[:] = values
    np.frombuffer(view[split:length], np.uint8)[:] = positions.view(np.uint8)
    CRC.pack_into(view, HEADER.size, zlib.crc32(view[START:length], zlib.crc32(header)))
    return length


def _header(view: memoryview) -> tuple[str, np.dtype[Any], int, int]:
    """The codec, dtype, n and k of a frame whose length and CRC are right."""
    if len(view) < START:
        raise FrameError(f"{len(view)} bytes are too few for a frame: its header alone takes {START}")
    length, codec, dtype, zero, n, k = HEADER.unpack_from(view)
    if length != len(view):
        raise FrameError(f"a frame of {length} bytes arrived with {len(view)}")
    if CRC.unpack_from(view, HEADER.size)[0] != zlib.crc32(view[START:], zlib.crc32(view[: HEADER.size])):
        raise FrameError(f"a frame of {length} bytes was changed on its way: its CRC-32 does not match")
    if codec >= len(CODECS) or dtype >= len(DTYPES) or zero or n > MAX_N:
        raise FrameError(f"a frame with codec {codec}, dtype {dtype}, n {n} is not one that this version writes")
    return CODECS[codec], DTYPES[dtype], n, k


def _shortest(indices: Array, n: int) -> str:
    k, bitmap = len(indices), -(-n // 8)
    most = min(bitmap, 4 * k) // run_length.RUN_BYTES
    lengths = [(bitmap, "bitmap"), (run_length.RUN_BYTES * run_length.count(indices, most), "runs")]
    if k < bitmap:  # a varint takes at least one byte
        lengths += [(varint.size_bytes(varint.gaps_of(indices)), "varint"), (4 * k, "coordinates")]
    return min(lengths)[1]


def _write_coordinates(indices: Array, n: int) -> Array:
    return indices.astype("<i4")


def _write_bitmap(indices: Array, n: int) -> Array:
    mask = np.zeros(n, np.bool_)
    mask[indices] = True
    return np.packbits(mask, bitorder="little")


def _read_dense(positions: Array, n: int, k: int) -> None:
    if k != n or len(positions):
        raise FrameError(f"a dense frame of {n} entries holds {k} values and {len(positions)} bytes of positions")


def _read_coordinates(positions: Array, n: int, k: int) -> Array:
    if len(positions) != 4 * k:
        raise FrameError(f"{k} coordinates take {4 * k} bytes, not {len(positions)}")
    indices = np.frombuffer(positions, "<i4")
    if not _increasing(indices, n):
        raise FrameError(f"coordinates that do not increase or lie outside 0 to {n - 1}")
    return indices.astype(np.int64)


def _read_bitmap(positions: Array, n: int, k: int) -> Array:
    if len(positions) != -(-n // 8):
        raise FrameError(f"a bitmap of {n} entries takes {-(-n // 8)} bytes, not {len(positions)}")
    if n % 8 and positions[-1] >> (n % 8):
        raise FrameError("a bitmap with bits set beyond its last entry")
    if (count := int(np.bitwise_count(positions).sum(dtype=np.int64))) != k:
        raise FrameError(f"a bitmap with {count} bits set for {k} values")
    return set_bits(positions)


_WRITERS: dict[str, Callable[[Array, int], Array]] = {
    "coordinates": _write_coordinates,
    "bitmap": _write_bitmap,
    "varint": varint.write,
    "runs": run_length.write,
}
_READERS: dict[str, Callable[[Array, int, int], Array | None]] = {
    "dense": _read_dense,
    "coordinates": _read_coordinates,
    "bitmap": _read_bitmap,
    "varint": varint.read,
    "runs": run_length.read,
}
