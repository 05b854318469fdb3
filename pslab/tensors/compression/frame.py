"""Frames: conversion of a push's parts, piece by piece, to bytes and back; and of entries to parts.

A frame contains: CRC-32 (u32), length of the frame (u32), number of pieces (u32), each piece's number of parts (u8),
each part's length (u32), and the parts. Each part begins at a multiple of 8 bytes.
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
    """Write a frame to the start of a buffer; return its length in bytes."""
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
    """Return the length in bytes of a frame with these pieces."""
    at = HEAD.size + sum(1 + 4 * len(parts) for parts in pieces)
    for parts in pieces:
        for part in parts:
            at += -at % 8 + part.numel() * part.element_size()
    return at


def read(frame: memoryview) -> list[Parts]:
    """Return the parts of a frame, piece by piece, as bytes.

    Raises:
        FrameError: the frame was changed in transit.
    """
    if len(frame) < HEAD.size:
        raise FrameError(f"{len(frame)} bytes are too few for a frame, which takes at least {HEAD.size}")
    checked, size, pieces = HEAD.unpack_from(frame)
    if size > len(frame) or checked != zlib.crc32(frame[HEAD.size : size]):
        raise FrameError(f"a frame of {size} bytes was changed in transit: its CRC-32 does not match")
    counts = bytes(frame[HEAD.size : HEAD.size + pieces])
    at = HEAD.size + len(counts) + 4 * sum(counts)
    if at > size:
        raise FrameError(f"a frame of {size} bytes is too short for the lengths of its {sum(counts)} parts")
    lengths = iter(np.frombuffer(frame, "<u4", sum(counts), HEAD.size + len(counts)).tolist())
    whole, arrays = torch.frombuffer(frame, dtype=torch.uint8), []
    for count in counts:
        arrays.append(Parts())
        for _ in range(count):
            at += -at % 8
            length = next(lengths)
            arrays[-1].append(whole[at : at + length])
            at += length
    if at != size:
        raise FrameError(f"the parts of a frame end at byte {at}, but the frame has {size} bytes")
    return arrays


def parts_of(entries: Entries) -> Parts:
    """Convert entries to parts: their positions, unless all entries are present, and their values."""
    values = torch.from_numpy(entries.values)
    return [values] if entries.indices is None else [positions(torch.from_numpy(entries.indices), entries.n), values]


def entries_of(parts: Parts, n: int, dtype: torch.dtype) -> Entries:
    """Convert parts to entries of a vector of length n; FrameError if their numbers differ."""
    values = parts[-1].view(dtype).numpy()
    indices = None if len(parts) == 1 else indices_of(parts[0], n).numpy()
    if len(values) != (n if indices is None else len(indices)):
        raise FrameError(f"a frame has {len(values)} values for {n if indices is None else len(indices)} entries")
    return Entries(n, indices, values)
