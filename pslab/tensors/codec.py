"""Frames: the entries of a dense or sparse vector as bytes, and back.

    frame  = header body
    header = length (u64) codec (u8) dtype (u8) zero (u16) n (u32) k (u32) CRC-32 (u32), little endian

The CRC covers every byte of the frame except its own four. A codec writes the body. The codecs of this page lose
nothing: their body is the k values, unchanged, and then the positions of these entries, which each codec writes in its
own way. A dense frame, of all n entries, has no positions. A request for entries has positions and no values.

To add a codec, write a class with the methods of `PositionCodec`, or of `Codec` if it writes values in its own way, and
give it a row in the table (`pslab.config.table`).
A lossy compressor (quantized values, signs, low-rank factors) touches three files:

    codec            its `write` gives a shorter body, its `read` a dense or sparse vector near the one that was
                     written; with `exact = False` the worker adds what was lost to its residual
    pruning rule     which entries are compressed; `Static(1.0)` takes all of them and has a residual
    table of names   a row for each
"""

from __future__ import annotations

import struct
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pslab.config.table import ROWS
from pslab.errors import FrameError, nearest

Array = NDArray[Any]

MAX_N = 2**31 - 1
HEADER = struct.Struct("<QBBHII")
CRC = struct.Struct("<I")
START = HEADER.size + CRC.size  # 24 bytes: a multiple of eight, so that the values are aligned
DTYPES = (np.dtype("<f4"), np.dtype("<f8"))
INDICES = (np.dtype(np.int64), np.dtype(np.int32))
NO_VALUES = len(DTYPES)  # in the place of a dtype
NAMES = tuple(name for name in ROWS["codec"] if name != "auto")  #: in the order of their numbers in the header


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


class Counts(NamedTuple):
    """What decides how many bytes the positions of k entries of a vector of length n take."""

    n: int
    k: int
    varint_bytes: int  #: of the gaps between them
    runs: int  #: of consecutive entries


# --- codecs -----------------------------------------------------------------------------------------------------------


class Codec(ABC):
    """How entries become the body of a frame."""

    exact: ClassVar[bool] = True  #: whether `read` gives the very entries that were written

    @abstractmethod
    def write(self, entries: Entries) -> tuple[Array, ...]:
        """The body: arrays that follow each other."""

    @abstractmethod
    def read(self, body: Array, n: int, k: int, dtype: np.dtype[Any]) -> Entries:
        """The entries from a body (uint8); their values may be a view of it.

        Raises:
            FrameError: a body that `write` does not produce.
        """

    @abstractmethod
    def bounds(self, k: Array, n: Array, itemsize: int) -> tuple[Array, Array]:
        """The least and the most bytes of a body with k of n entries (arrays of one shape)."""

    def body_bytes(self, counts: Counts, itemsize: int) -> int:
        """The length in bytes of a body; where only its bounds are known, the most that it may have."""
        return int(self.bounds(np.array(counts.k), np.array(counts.n), itemsize)[1])


class PositionCodec(Codec):
    """The values of entries as they are, then their positions: increasing indices [k] (int32 or int64) of a vector of
    length n."""

    def write(self, entries: Entries) -> tuple[Array, ...]:
        at = np.arange(entries.n) if entries.indices is None else entries.indices
        return entries.values, self.positions(at, entries.n)

    def read(self, body: Array, n: int, k: int, dtype: np.dtype[Any]) -> Entries:
        split = k * dtype.itemsize
        if k > n or split > len(body):
            raise FrameError(f"a frame of {START + len(body)} bytes cannot hold {k} of {n} entries")
        return Entries(n, self.indices(body[split:], n, k), np.frombuffer(body[:split], dtype))

    def body_bytes(self, counts: Counts, itemsize: int) -> int:
        return counts.k * itemsize + self.size_bytes(counts)

    @abstractmethod
    def positions(self, indices: Array, n: int) -> Array:
        """The indices as bytes."""

    @abstractmethod
    def indices(self, positions: Array, n: int, k: int) -> Array | None:
        """The k indices (int64) from bytes (uint8); None for all n.

        Raises:
            FrameError: bytes that `positions` does not produce.
        """

    @abstractmethod
    def size_bytes(self, counts: Counts) -> int:
        """The length in bytes of `positions`."""


class AllEntries(PositionCodec):
    """Every entry of the vector, without positions."""

    def write(self, entries: Entries) -> tuple[Array, ...]:
        return (entries.values,)

    def bounds(self, k: Array, n: Array, itemsize: int) -> tuple[Array, Array]:
        return k * itemsize, k * itemsize

    def size_bytes(self, counts: Counts) -> int:
        return 0

    def positions(self, indices: Array, n: int) -> Array:
        return np.empty(0, np.uint8)

    def indices(self, positions: Array, n: int, k: int) -> None:
        if k != n or len(positions):
            raise FrameError(f"a dense frame of {n} entries has {k} entries and {len(positions)} bytes of positions")


class Coordinates(PositionCodec):
    """Positions of sparse entries: each index as i32."""

    def size_bytes(self, counts: Counts) -> int:
        return 4 * counts.k

    def bounds(self, k: Array, n: Array, itemsize: int) -> tuple[Array, Array]:
        return k * (itemsize + 4), k * (itemsize + 4)

    def positions(self, indices: Array, n: int) -> Array:
        return indices.astype("<i4")

    def indices(self, positions: Array, n: int, k: int) -> Array:
        if len(positions) != 4 * k:
            raise FrameError(f"{k} coordinates take {4 * k} bytes, not {len(positions)}")
        indices = np.frombuffer(positions, "<i4").astype(np.int64)
        if _counted(indices, n) is None:
            raise FrameError(f"coordinates that do not increase or lie outside 0 to {n - 1}")
        return indices


class Bitmap(PositionCodec):
    """Positions of sparse entries: one bit per entry of the vector, lowest first."""

    def size_bytes(self, counts: Counts) -> int:
        return -(-counts.n // 8)

    def bounds(self, k: Array, n: Array, itemsize: int) -> tuple[Array, Array]:
        size = k * itemsize + np.ceil(n / 8)
        return size, size

    def positions(self, indices: Array, n: int) -> Array:
        written = np.zeros(-(-n // 8), np.uint8)
        loops().write_bits(_int64(indices), written)
        return written

    def indices(self, positions: Array, n: int, k: int) -> Array:
        if len(positions) != -(-n // 8):
            raise FrameError(f"a bitmap of {n} entries takes {-(-n // 8)} bytes, not {len(positions)}")
        if n % 8 and positions[-1] >> (n % 8):
            raise FrameError("a bitmap with bits set beyond its last entry")
        words, indices = np.zeros(-(-n // 64), "<u8"), np.empty(k, np.int64)
        words.view(np.uint8)[: len(positions)] = positions
        if (count := loops().read_bits(words, indices)) != k:
            raise FrameError(f"a bitmap with {count} bits set for {k} values")
        return indices


class Varint(PositionCodec):
    """Positions of sparse entries: LEB128 of each gap to the index before, less one."""

    LIMITS = (7, 14, 21, 28)  # the bits that one byte, two bytes, ... hold

    def size_bytes(self, counts: Counts) -> int:
        return counts.varint_bytes

    def bounds(self, k: Array, n: Array, itemsize: int) -> tuple[Array, Array]:
        least = k * (itemsize + 1)
        return least, least + sum(np.minimum(k, (n - k) // 2**bits) for bits in self.LIMITS)

    def positions(self, indices: Array, n: int) -> Array:
        room = np.empty(loops().VARINT_BYTES * len(indices), np.uint8)
        return room[: loops().write_varints(_int64(indices), room)]

    def indices(self, positions: Array, n: int, k: int) -> Array:
        loop, indices = loops(), np.empty(min(k, len(positions)), np.int64)  # a varint has a byte at least
        found = loop.read_varints(loop.read_only(positions), n, indices)
        if k > len(positions) or found == loop.INCOMPLETE:
            raise FrameError(f"{len(positions)} bytes are not {k} complete varints")
        if found == loop.TOO_LONG:
            raise FrameError("a varint that is longer than necessary")
        if found == loop.OUTSIDE:
            raise FrameError(f"varints outside 0 to {n - 1}")
        return indices


class RunLengths(PositionCodec):
    """Positions of consecutive entries: the starts of all runs as u32, then their lengths."""

    RUN_BYTES = 8

    def size_bytes(self, counts: Counts) -> int:
        return self.RUN_BYTES * counts.runs

    def bounds(self, k: Array, n: Array, itemsize: int) -> tuple[Array, Array]:
        fewest, most = np.minimum(1, k), np.minimum(k, n - k + 1)
        return k * itemsize + self.RUN_BYTES * fewest, k * itemsize + self.RUN_BYTES * most

    def positions(self, indices: Array, n: int) -> Array:
        room = np.empty((2, len(indices)), "<u4")
        runs = loops().write_runs(_int64(indices), *room)
        return room[:, :runs].ravel()

    def indices(self, positions: Array, n: int, k: int) -> Array:
        if len(positions) % self.RUN_BYTES:
            raise FrameError(f"{len(positions)} bytes are not a whole number of runs of {self.RUN_BYTES}")
        starts, lengths = np.frombuffer(positions, "<u4").reshape(2, -1).astype(np.int64)
        if int(lengths.sum()) != k:  # so that the memory needed is bounded by k
            raise FrameError(f"runs of {lengths.sum()} entries for {k} values")
        indices = np.empty(k, np.int64)
        if not loops().read_runs(starts, lengths, n, indices):
            raise FrameError(f"runs that are empty, touch each other or lie outside 0 to {n - 1}")
        return indices


@cache
def loops() -> ModuleType:
    """The compiled loops over positions, ready."""
    from pslab.tensors import positions  # late, because numba's import takes a third of a second

    positions.warm()
    return positions


def prepare() -> None:
    """Compile or load the loops now, and not in the first frame of some entries."""
    loops()


@cache
def codec_of(name: str) -> Codec:
    """The codec of a name of the table, but for "auto"."""
    found: Codec = ROWS["codec"][name].load()()
    return found


def _positional(name: str) -> PositionCodec:
    """The codec of a name, for a frame of positions alone; FrameError if it writes none."""
    found = codec_of(name)
    if not isinstance(found, PositionCodec):
        raise FrameError(f"a frame of codec {name} has no positions")
    return found


def is_exact(name: str) -> bool:
    """Whether frames hold the very entries that were written, with this codec or "auto"."""
    return name == "auto" or codec_of(name).exact


AUTO = ("coordinates", "bitmap", "varint", "runs")  #: of these `auto` takes the shortest


# --- sizes ------------------------------------------------------------------------------------------------------------


def frame_bytes(n: int, itemsize: int) -> int:
    """The length in bytes of a dense frame of n entries."""
    return START + n * itemsize


def largest_frame_bytes(n: int, itemsize: int) -> int:
    """The bytes that hold any frame of a vector of length n, whatever its density and codec."""
    # the coordinates of all entries are the longest, except where n = 1: a run takes twice as much
    return START + max(n * (itemsize + 4), (itemsize + 8) * min(n, 1))


def sliced_bytes(n: int, slices: Sequence[slice], itemsize: int, codec: str = "auto") -> int:
    """The length in bytes of a frame of these slices of a vector of length n. They ascend and do not touch."""
    k: int = sum(s.stop - s.start for s in slices)
    if k == n and codec in ("auto", "dense"):
        return frame_bytes(n, itemsize)
    skipped = [s.start - before for s, before in zip(slices, [0, *(s.stop for s in slices)], strict=False)]
    more = sum(map(_more_bytes, skipped))  # each entry has a byte, and a gap's has these
    counts = Counts(n, k, k + more, len(slices))
    return START + codec_of(_shortest(counts)[1] if codec == "auto" else codec).body_bytes(counts, itemsize)


def spread_bytes(n: int, k: int, itemsize: int, codec: str = "auto") -> int:
    """The length in bytes of a frame of k entries, evenly spread over a vector of length n: entry i is at i n // k."""
    if k == n and codec in ("auto", "dense"):
        return frame_bytes(n, itemsize)
    gaps, gap = max(k - 1, 0), n // max(k, 1)
    longer = gaps * n // max(k, 1) - gap * gaps  # of the gaps between entries: those that are one longer
    more = (gaps - longer) * _more_bytes(gap - 1) + longer * _more_bytes(gap)
    counts = Counts(n, k, k + more, min(k, 1 + (longer if gap == 1 else gaps)))
    return START + codec_of(_shortest(counts)[1] if codec == "auto" else codec).body_bytes(counts, itemsize)


def _more_bytes(skipped: int) -> int:
    """What the varint of so many skipped entries takes beyond a byte."""
    return max(skipped.bit_length() - 1, 0) // 7


def position_bytes(indices: Array, n: int) -> int:
    """The length in bytes of the positions of these entries (increasing), as `auto` writes them."""
    if len(indices) == n:
        return 0
    counts = _counted(indices, n)
    assert counts is not None
    return _shortest(counts)[0]


def body_bounds(k: Array, n: Array, itemsize: int, codec: str) -> tuple[Array, Array]:
    """The least and the most bytes that a frame of k of n entries (arrays of one shape) has after its header."""
    if codec != "auto":
        return codec_of(codec).bounds(k, n, itemsize)
    low, high = zip(*(codec_of(name).bounds(k, n, itemsize) for name in AUTO), strict=True)
    return (np.where(k == n, n * itemsize, np.minimum.reduce(low)),
            np.where(k == n, n * itemsize, np.minimum.reduce(high)))  # fmt: skip


# --- frames -----------------------------------------------------------------------------------------------------------


def encode(entries: Entries, codec: str = "auto") -> bytes:
    """One frame, as `encode_into` writes it.

    Raises:
        ValueError: invalid entries or an unknown codec.
    """
    name = _chosen(entries, codec)
    body = codec_of(name).write(entries)
    frame = bytearray(START + sum(part.nbytes for part in body))
    _lay(memoryview(frame), name, entries.n, len(entries.values), entries.values.dtype, body)
    return bytes(frame)


def encode_into(buffer: memoryview, entries: Entries, codec: str = "auto") -> int:
    """Write one frame to the start of `buffer` and return its length in bytes; `auto` takes the shortest codec.

    Raises:
        ValueError: invalid entries (indices that do not increase, for example), an unknown codec, a buffer too small.
    """
    name = _chosen(entries, codec)
    body = codec_of(name).write(entries)
    return _lay(buffer, name, entries.n, len(entries.values), entries.values.dtype, body)


def positions_of(indices: Array, n: int, codec: str = "auto") -> Positions:
    """The positions of entries at these indices (int32 or int64, increasing), for frames that ask for or give them.

    Raises:
        ValueError: as `encode_into`.
    """
    name = _chosen(Entries(n, indices, np.empty(len(indices), DTYPES[0])), codec)
    written = _positional(name).positions(indices, n).copy()  # without the room beside them
    return Positions(n, len(indices), name, written)


def write_into(buffer: memoryview, positions: Positions, values: Array | None = None) -> int:
    """Write a frame of these entries to the start of `buffer`, or, without values, one that asks for them; its length.

    Raises:
        ValueError: a buffer too small.
    """
    n, k, codec, written = positions
    body = (written,) if values is None else (values, written)
    return _lay(buffer, codec, n, k, None if values is None else values.dtype, body)


def requested(frame: memoryview | bytes, n: int) -> Array:
    """The indices (int64, increasing) that a frame asks for, of a vector of length n.

    Raises:
        FrameError: as `decode`, or a frame that has values.
    """
    view = memoryview(frame).cast("B")
    codec, dtype, length, k = _header(view)
    if dtype is not None or length != n or k > n:
        raise FrameError(f"a frame of {k} of {length} entries is not one that asks for some of {n}")
    found = _positional(codec).indices(np.frombuffer(view[START:], np.uint8), n, k)
    return np.arange(n) if found is None else found


def decode(frame: memoryview | bytes, n: int | None = None) -> Entries:
    """The entries of a complete, unchanged frame. With `n`, only a vector of that length is accepted.

    The values may be a view of `frame`: copy what has to outlive it. The frame's length bounds the memory needed.

    Raises:
        FrameError: truncated, trailing or changed bytes, or contents that do not describe a vector.
    """
    view = memoryview(frame).cast("B")
    codec, dtype, length, k = _header(view)
    if n is not None and n != length:
        raise FrameError(f"frame of a vector of {length} entries where one of {n} is expected")
    if dtype is None:
        raise FrameError(f"a frame that asks for {k} entries has no values")
    return codec_of(codec).read(np.frombuffer(view[START:], np.uint8), length, k, dtype)


def frame_length(frame: memoryview) -> int:
    """The length in bytes that the header of a frame states."""
    return int(HEADER.unpack_from(frame)[0])


def _lay(
    buffer: memoryview, codec: str, n: int, k: int, dtype: np.dtype[Any] | None, body: tuple[Array, ...]
) -> int:
    """Write header and body to the start of a buffer; the frame's length."""
    length = START + sum(part.nbytes for part in body)
    view = memoryview(buffer).cast("B")
    if len(view) < length:
        raise ValueError(f"a buffer of {len(view)} bytes cannot hold a frame of {length}; see largest_frame_bytes")
    header = HEADER.pack(length, NAMES.index(codec), NO_VALUES if dtype is None else DTYPES.index(dtype), 0, n, k)
    view[: HEADER.size] = header
    at = START
    for part in body:
        np.frombuffer(view[at : at + part.nbytes], part.dtype)[:] = part
        at += part.nbytes
    CRC.pack_into(view, HEADER.size, zlib.crc32(view[START:length], zlib.crc32(header)))
    return length


def _chosen(entries: Entries, codec: str) -> str:
    """The name of the codec that writes these entries, once they are checked."""
    n, indices, values = entries.n, entries.indices, entries.values
    if not 0 <= n <= MAX_N:
        raise ValueError(f"n={n}: a frame holds a vector of 0 to {MAX_N} entries")
    if values.dtype not in DTYPES or values.ndim != 1:
        raise ValueError(f"values must be one-dimensional float32 or float64, not {values.ndim}-d {values.dtype}")
    if codec not in ROWS["codec"]:
        raise ValueError(f"codec={codec!r}; {nearest(codec, ROWS['codec'])}")
    if len(values) != (n if indices is None else len(indices)):
        raise ValueError(f"{len(values)} values for {n if indices is None else len(indices)} indices")
    if indices is not None and (indices.dtype not in INDICES or indices.ndim != 1):
        raise ValueError(f"indices must be one-dimensional int64 or int32, not {indices.ndim}-d {indices.dtype}")
    counts = None if indices is None else _counted(indices, n)
    if indices is not None and counts is None:
        raise ValueError(f"indices must increase strictly and lie in 0 to {n - 1}")
    if codec == "auto":
        return "dense" if counts is None or counts.k == n else _shortest(counts)[1]
    if codec == "dense" and len(values) < n:
        raise ValueError(f"{len(values)} of {n} entries cannot be sent as dense: the codec writes no positions")
    return codec


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


def _counted(indices: Array, n: int) -> Counts | None:
    """What the indices take; None if they do not increase strictly or do not lie in 0 to n - 1."""
    varint_bytes, runs = loops().counted(_int64(indices), n)
    return None if varint_bytes < 0 else Counts(n, len(indices), varint_bytes, runs)


def _int64(indices: Array) -> Array:
    """As the loops are compiled for."""
    return np.ascontiguousarray(indices, np.int64)


def _shortest(counts: Counts) -> tuple[int, str]:
    """The bytes of the shortest positions of these entries, and the codec that writes them."""
    return min((_positional(name).size_bytes(counts), name) for name in AUTO)
