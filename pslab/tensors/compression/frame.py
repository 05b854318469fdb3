"""Frames: the parts of a push, piece by piece, as bytes, and back; and entries as parts.

    frame = CRC-32 (u32) length (u32) number of pieces (u32) their numbers of parts (u8 each) the lengths of all parts
            (u32 each), the parts, each from a multiple of 8 bytes on
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import numpy as np
import torch

from pslab.errors import FrameError
from pslab.tensors.compression.bits import as_bytes, indices_of, positions
from pslab.tensors.compression.rule import Parts
from pslab.tensors.entries import Entries

HEAD = struct.Struct("<III")


def write(buffer: memoryview, pieces: Sequence[Parts]) -> int:
    """Write a frame to the start of a buffer; its length in bytes."""
    flat = [as_bytes(part).numpy() for parts in pieces for part in parts]
    head = np.array([len(parts) for parts in pieces], "u1").tobytes() + np.array([*map(len, flat)], "<u4").tobytes()
    at = HEAD.size + len(head)
    buffer[HEAD.size : at] = head
    for part in flat:
        buffer[at : at + -at % 8] = bytes(-at % 8)
        at += -at % 8
        buffer[at : at + len(part)] = part.data
        at += len(part)
    HEAD.pack_into(buffer, 0, zlib.crc32(buffer[HEAD.size : at]), at, len(pieces))
    return at


def length(pieces: Sequence[Parts]) -> int:
    """The length in bytes of a frame."""
    at = HEAD.size + sum(1 + 4 * len(parts) for parts in pieces)
    for parts in pieces:
        for part in parts:
            at += -at % 8 + part.numel() * part.element_size()
    return at


def read(frame: memoryview) -> list[Parts]:
    """The parts of a frame, piece by piece, as bytes, each aligned.

    Raises:
        FrameError: it was changed on its way.
    """
    if len(frame) < HEAD.size:
        raise FrameError(f"{len(frame)} bytes are no frame")
    checked, size, pieces = HEAD.unpack_from(frame)
    if size > len(frame) or checked != zlib.crc32(frame[HEAD.size : size]):
        raise FrameError(f"a frame of {size} bytes was changed on its way: its CRC-32 does not match")
    counts = bytes(frame[HEAD.size : HEAD.size + pieces])
    at = HEAD.size + len(counts) + 4 * sum(counts)
    if at > size:
        raise FrameError(f"a frame of {size} bytes has no room for the lengths of its {sum(counts)} parts")
    lengths = iter(np.frombuffer(frame, "<u4", sum(counts), HEAD.size + len(counts)).tolist())
    whole, found = torch.frombuffer(frame, dtype=torch.uint8), []
    for count in counts:
        found.append(Parts())
        for _ in range(count):
            at += -at % 8
            length = next(lengths)
            found[-1].append(whole[at : at + length])
            at += length
    if at != size:
        raise FrameError(f"the parts of a frame of {size} bytes end at {at}")
    return found


def parts_of(entries: Entries) -> Parts:
    """Entries as parts: their positions, unless they are all, and their values."""
    values = torch.from_numpy(entries.values)
    return [values] if entries.indices is None else [positions(torch.from_numpy(entries.indices), entries.n), values]


def entries_of(parts: Parts, n: int, dtype: torch.dtype) -> Entries:
    """The entries of a vector of length n of such parts; FrameError if they are none."""
    values = parts[-1].view(dtype).numpy()
    indices = None if len(parts) == 1 else indices_of(parts[0], n).numpy()
    if len(values) != (n if indices is None else len(indices)):
        raise FrameError(f"{len(values)} values for {n if indices is None else len(indices)} entries")
    return Entries(n, indices, values)
