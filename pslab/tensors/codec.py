"""Frames: the entries of a dense or sparse vector as bytes, and back.

    frame  = header body
    header = length (u64) codec (u8) dtype (u8) zero (u16) n (u32) k (u32) CRC-32 (u32), little endian

The CRC covers every byte of the frame except its own four. The body is the k values, and then the positions of these
entries, which each codec writes in its own way. A dense frame, of all n entries, has no positions. A request for
entries has positions and no values.

Values travel unchanged, as float32 or float64, or as what a quantization rule has made of them (`Coding`): then the
positions come first, since only they say how many of the values lie in which tensor, and so how long the codes are.

To add a codec, write a class with the methods of `PositionCodec`, and give it a row in `pslab.config.table`.
"""

from __future__ import annotations

import struct
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pslab.config.table import ROWS
from pslab.errors import FrameError, nearest
from pslab.tensors.compiling import read_only

Array = NDArray[Any]

MAX_N = 2**31 - 1
HEADER = struct.Struct("<QBBHII")
CRC = struct.Struct("<I")
START = HEADER.size + CRC.size  # 24 bytes: a multiple of eight, so that the values are aligned
DTYPES = (np.dtype("<f4"), np.dtype("<f8"))
INDICES = (np.dtype(np.int64), np.dtype(np.int32))
NO_VALUES = len(DTYPES)  # in the place of a dtype
NAMES = tuple(name for name in ROWS["codec"] if name != "auto")  #: in the order of their numbers in the header
#: In the order of their numbers in the header, behind NO_VALUES; one more is a rule of the user's.
QUANTIZED = tuple(name for name in ROWS["quantize"] if name != "none")


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Some entries of a vector of length n, or all of them."""

    n: int
    indices: Array | None  #: [k] int32 or int64, strictly increasing; None: all n
    values: Array  #: [k] float32 or float64

    def dense(self) -> Array:
        """[n], zero where an entry is absent; the values themselves of all n."""
        if self.indices is None:
            return self.values
        found = np.zeros(self.n, self.values.dtype)
        found[self.indices] = self.values
        return found


class Positions(NamedTuple):
    """Positions of k entries of a vector of length n, as a codec writes them."""

    n: int
    k: int
    codec: str
    written: Array


class Coding(Protocol):
    """How the values of a frame become bytes, where they are not sent as they are."""

    @property
    def number(self) -> int:
        """In the header, in the place of a dtype."""

    def write(self, entries: Entries) -> Array:
        """The values as bytes (uint8)."""

    def read(self, code: Array, indices: Array | None, k: int) -> Array:
        """The k values of the entries at these indices (int64; None: all of them) from bytes (uint8).

        Raises:
            FrameError: bytes that `write` does not produce.
        """


class Counts(NamedTuple):
    """What decides how many bytes the positions of k entries of a vector of length n take."""

    n: int
    k: int
    varint_bytes: int  #: of the gaps between them
    runs: int  #: of consecutive entries


# --- codecs -----------------------------------------------------------------------------------------------------------


class PositionCodec(ABC):
    """How the positions of a frame's entries are written: increasing indices [k] (int32 or int64) of a vector of
    length n."""

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
    def extent(self, body: Array, n: int, k: int) -> int:
        """How many bytes the positions of k entries take that begin a body (uint8); perhaps more than it has."""

    @abstractmethod
    def size_bytes(self, counts: Counts) -> int:
        """The length in bytes of `positions`."""

    @abstractmethod
    def bounds(self, k: Array, n: Array) -> tuple[Array, Array]:
        """The least and the most bytes of `positions` of k of n entries (arrays of one shape)."""


class AllEntries(PositionCodec):
    """Every entry of the vector, without positions."""

    def size_bytes(self, counts: Counts) -> int:
        return 0

    def extent(self, body: Array, n: int, k: int) -> int:
        return 0

    def bounds(self, k: Array, n: Array) -> tuple[Array, Array]:
        return 0 * k, 0 * k

    def positions(self, indices: Array, n: int) -> Array:
        return np.empty(0, np.uint8)

    def indices(self, positions: Array, n: int, k: int) -> None:
        if k != n or len(positions):
            raise FrameError(f"a dense frame of {n} entries has {k} entries and {len(positions)} bytes of positions")


class Coordinates(PositionCodec):
    """Positions of sparse entries: each index as i32."""

    def size_bytes(self, counts: Counts) -> int:
        return 4 * counts.k

    def extent(self, body: Array, n: int, k: int) -> int:
        return 4 * k

    def bounds(self, k: Array, n: Array) -> tuple[Array, Array]:
        return 4 * k, 4 * k

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

    def extent(self, body: Array, n: int, k: int) -> int:
        return -(-n // 8)

    def bounds(self, k: Array, n: Array) -> tuple[Array, Array]:
        return np.ceil(n / 8), np.ceil(n / 8)

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

    def extent(self, body: Array, n: int, k: int) -> int:
        last = np.flatnonzero(body < 128)[:k]  # the last byte of each
        return int(last[-1]) + 1 if 0 < k == len(last) else k

    def bounds(self, k: Array, n: Array) -> tuple[Array, Array]:
        return k, k + sum(np.minimum(k, (n - k) // 2**bits) for bits in self.LIMITS)

    def positions(self, indices: Array, n: int) -> Array:
        room = np.empty(loops().VARINT_BYTES * len(indices), np.uint8)
        return room[: loops().write_varints(_int64(indices), room)]

    def indices(self, positions: Array, n: int, k: int) -> Array:
        loop, indices = loops(), np.empty(min(k, len(positions)), np.int64)  # a varint has a byte at least
        found = loop.read_varints(read_only(positions), n, indices)
        if k > len(positions) or found == loop.INCOMPLETE:
            raise FrameError(f"{len(positions)} bytes are not {k} complete varints")
        if found == loop.TOO_LONG:
            raise FrameError("a varint that is longer than necessary")
        if found == loop.OUTSIDE:
            raise FrameError(f"varints outside 0 to {n - 1}")
        return indices


class RunLengths(PositionCodec):
    """Positions of consecutive entries: the lengths of all runs as u32, then their starts."""

    RUN_BYTES = 8

    def size_bytes(self, counts: Counts) -> int:
        return self.RUN_BYTES * counts.runs

    def extent(self, body: Array, n: int, k: int) -> int:
        lengths = np.frombuffer(body[: len(body) // 4 * 4], "<u4").astype(np.int64)
        return self.RUN_BYTES * (int(np.cumsum(lengths).searchsorted(k)) + 1) if k else 0  # they add up to k

    def bounds(self, k: Array, n: Array) -> tuple[Array, Array]:
        fewest, most = np.minimum(1, k), np.minimum(k, n - k + 1)
        return self.RUN_BYTES * fewest, self.RUN_BYTES * most

    def positions(self, indices: Array, n: int) -> Array:
        lengths, starts = room = np.empty((2, len(indices)), "<u4")
        runs = loops().write_runs(_int64(indices), starts, lengths)
        return room[:, :runs].ravel()

    def indices(self, positions: Array, n: int, k: int) -> Array:
        if len(positions) % self.RUN_BYTES:
            raise FrameError(f"{len(positions)} bytes are not a whole number of runs of {self.RUN_BYTES}")
        lengths, starts = np.frombuffer(positions, "<u4").reshape(2, -1).astype(np.int64)
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
def codec_of(name: str) -> PositionCodec:
    """The codec of a name of the table, but for "auto"."""
    found: PositionCodec = ROWS["codec"][name].load()()
    return found


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
    return START + k * itemsize + _position_bytes(Counts(n, k, k + more, len(slices)), codec)


def spread_bytes(n: int, k: int, itemsize: int, codec: str = "auto") -> int:
    """The length in bytes of a frame of k entries, evenly spread over a vector of length n: entry i is at i n // k."""
    if k == n and codec in ("auto", "dense"):
        return frame_bytes(n, itemsize)
    gaps, gap = max(k - 1, 0), n // max(k, 1)
    longer = gaps * n // max(k, 1) - gap * gaps  # of the gaps between entries: those that are one longer
    more = (gaps - longer) * _more_bytes(gap - 1) + longer * _more_bytes(gap)
    counts = Counts(n, k, k + more, min(k, 1 + (longer if gap == 1 else gaps)))
    return START + k * itemsize + _position_bytes(counts, codec)


def _position_bytes(counts: Counts, codec: str) -> int:
    return _shortest(counts)[0] if codec == "auto" else codec_of(codec).size_bytes(counts)


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


def position_bounds(k: Array, n: Array, codec: str) -> tuple[Array, Array]:
    """The least and the most bytes that the positions of k of n entries (arrays of one shape) take in a frame."""
    if codec != "auto":
        return codec_of(codec).bounds(k, n)
    low, high = zip(*(codec_of(name).bounds(k, n) for name in AUTO), strict=True)
    return np.where(k == n, 0, np.minimum.reduce(low)), np.where(k == n, 0, np.minimum.reduce(high))


# --- frames -----------------------------------------------------------------------------------------------------------


def encode(entries: Entries, codec: str = "auto", coding: Coding | None = None) -> bytes:
    """One frame, as `encode_into` writes it.

    Raises:
        ValueError: invalid entries or an unknown codec.
    """
    content = _content(entries, codec, coding)
    frame = bytearray(START + sum(part.nbytes for part in content.body))
    _lay(memoryview(frame), content)
    return bytes(frame)


def encode_into(
    buffer: memoryview, entries: Entries, codec: str = "auto", coding: Coding | None = None
) -> int:
    """Write one frame to the start of `buffer` and return its length in bytes; `auto` takes the shortest codec.

    Raises:
        ValueError: invalid entries (indices that do not increase, for example), an unknown codec, a buffer too small.
    """
    return _lay(buffer, _content(entries, codec, coding))


def positions_of(indices: Array, n: int, codec: str = "auto") -> Positions:
    """The positions of entries at these indices (int32 or int64, increasing), for frames that ask for or give them.

    Raises:
        ValueError: as `encode_into`.
    """
    name = _chosen(Entries(n, indices, np.empty(len(indices), DTYPES[0])), codec)
    written = codec_of(name).positions(indices, n).copy()  # without the room beside them
    return Positions(n, len(indices), name, written)


def write_into(buffer: memoryview, positions: Positions, values: Array | None = None) -> int:
    """Write a frame of these entries to the start of `buffer`, or, without values, one that asks for them; its length.

    Raises:
        ValueError: a buffer too small.
    """
    n, k, codec, written = positions
    if values is None:
        return _lay(buffer, Content(codec, NO_VALUES, n, k, (written,)))
    return _lay(buffer, Content(codec, DTYPES.index(values.dtype), n, k, (values, written)))


def requested(frame: memoryview | bytes, n: int) -> Array:
    """The indices (int64, increasing) that a frame asks for, of a vector of length n.

    Raises:
        FrameError: as `decode`, or a frame that has values.
    """
    view = memoryview(frame).cast("B")
    codec, number, length, k = _header(view)
    if number != NO_VALUES or length != n or k > n:
        raise FrameError(f"a frame of {k} of {length} entries is not one that asks for some of {n}")
    found = codec_of(codec).indices(np.frombuffer(view[START:], np.uint8), n, k)
    return np.arange(n) if found is None else found


def decode(frame: memoryview | bytes, n: int | None = None, coding: Coding | None = None) -> Entries:
    """The entries of a complete, unchanged frame. With `n`, only a vector of that length is accepted, with a `coding`
    only values that are written so.

    The values may be a view of `frame`: copy what has to outlive it. The frame's length bounds the memory needed.

    Raises:
        FrameError: truncated, trailing or changed bytes, or contents that do not describe a vector.
    """
    view = memoryview(frame).cast("B")
    codec, number, length, k = _header(view)
    if n is not None and n != length:
        raise FrameError(f"frame of a vector of {length} entries where one of {n} is expected")
    if number == NO_VALUES:
        raise FrameError(f"a frame that asks for {k} entries has no values")
    if number != coding.number if coding else number > NO_VALUES:
        wanted = f"of {coding.number}" if coding else "that is a dtype"
        raise FrameError(f"a frame of values of code {number}, where one {wanted} is expected")
    body, itemsize = np.frombuffer(view[START:], np.uint8), 0 if coding else DTYPES[number].itemsize
    # without a coding the values come first, and the positions take what is left
    split = codec_of(codec).extent(body, length, k) if coding else k * itemsize
    if k > length or split > len(body):
        raise FrameError(f"a frame of {len(view)} bytes cannot hold {k} of {length} entries")
    first, rest = body[:split], body[split:]
    indices = codec_of(codec).indices(first if coding else rest, length, k)
    values = coding.read(rest, indices, k) if coding else np.frombuffer(first, DTYPES[number])
    return Entries(length, indices, values)


def frame_length(frame: memoryview) -> int:
    """The length in bytes that the header of a frame states."""
    return int(HEADER.unpack_from(frame)[0])


class Content(NamedTuple):
    """What a frame holds: the codec of its positions, the number of its kind of values, n, k, and its body."""

    codec: str
    number: int
    n: int
    k: int
    body: tuple[Array, ...]


def _content(entries: Entries, codec: str, coding: Coding | None) -> Content:
    """The content of a frame of these entries, once they are checked."""
    name, n, k = _chosen(entries, codec), entries.n, len(entries.values)
    at = np.arange(n) if entries.indices is None and name != "dense" else entries.indices
    positions = () if at is None or name == "dense" else (codec_of(name).positions(at, n),)
    if coding is not None:
        return Content(name, coding.number, n, k, (*positions, coding.write(entries)))
    return Content(name, DTYPES.index(entries.values.dtype), n, k, (entries.values, *positions))


def _lay(buffer: memoryview, content: Content) -> int:
    """Write header and body to the start of a buffer; the frame's length."""
    codec, number, n, k, body = content
    length = START + sum(part.nbytes for part in body)
    view = memoryview(buffer).cast("B")
    if len(view) < length:
        raise ValueError(f"a buffer of {len(view)} bytes cannot hold a frame of {length}; see largest_frame_bytes")
    header = HEADER.pack(length, NAMES.index(codec), number, 0, n, k)
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


def _header(view: memoryview) -> tuple[str, int, int, int]:
    """The codec, the number of the kind of values, n and k of a frame whose length and CRC are right."""
    if len(view) < START:
        raise FrameError(f"{len(view)} bytes are too few for a frame: its header alone takes {START}")
    length, codec, number, zero, n, k = HEADER.unpack_from(view)
    if length != len(view):
        raise FrameError(f"a frame of {length} bytes arrived with {len(view)}")
    if CRC.unpack_from(view, HEADER.size)[0] != zlib.crc32(view[START:], zlib.crc32(view[: HEADER.size])):
        raise FrameError(f"a frame of {length} bytes was changed on its way: its CRC-32 does not match")
    if codec >= len(NAMES) or number > NO_VALUES + 1 + len(QUANTIZED) or zero or n > MAX_N:
        raise FrameError(f"a frame with codec {codec}, dtype {number}, n {n} is not one that this version writes")
    return NAMES[codec], number, n, k


def _counted(indices: Array, n: int) -> Counts | None:
    """What the indices take; None if they do not increase strictly or do not lie in 0 to n - 1."""
    varint_bytes, runs = loops().counted(_int64(indices), n)
    return None if varint_bytes < 0 else Counts(n, len(indices), varint_bytes, runs)


def _int64(indices: Array) -> Array:
    """As the loops are compiled for."""
    return np.ascontiguousarray(indices, np.int64)


def _shortest(counts: Counts) -> tuple[int, str]:
    """The bytes of the shortest positions of these entries, and the codec that writes them."""
    return min((codec_of(name).size_bytes(counts), name) for name in AUTO)
