"""A graph as bytes, with a sum over all of them.

    checkpoint = magic (8 bytes) version (u32) zero (u32) length (u64) SHA-256 (32 bytes) header arrays, little endian

The sum is that of the other fields, and of all that follows. The header, JSON of this length, has the facts, the nodes,
and the type and shape of each array; the arrays follow it one by one, without gaps.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from pslab.engines.experiment.checkpoint.graph import DTYPES, Graph
from pslab.errors import CheckpointError, shortened

MAGIC, VERSION = b"pslabrun", 3  # raise the version when bytes mean something else than before
START = struct.Struct("<8sIIQ")
SUM_BYTES = 32

Facts = Mapping[str, Any]  # plain values: what is asked before the state is restored


def pack(facts: Facts, graph: Graph) -> list[memoryview]:
    """A checkpoint, in pieces that follow each other. They are views of the graph's arrays, which must not change."""
    shapes = [[array.dtype.str, list(array.shape)] for array in graph.arrays]
    header = json.dumps({"facts": facts, "nodes": graph.nodes, "arrays": shapes}, separators=(",", ":")).encode()
    start = START.pack(MAGIC, VERSION, 0, len(header))
    pieces = [memoryview(header), *(array.reshape(-1).view(np.uint8).data for array in graph.arrays)]
    return [memoryview(start + _sum(start, pieces)), *pieces]


def unpack(checkpoint: bytes | memoryview) -> tuple[dict[str, Any], Graph]:
    """The facts, and the graph; its arrays are views of these bytes.

    Raises:
        CheckpointError: these are not the bytes that `pack` has made; nothing was allocated for them.
    """
    view, begin = memoryview(checkpoint), START.size + SUM_BYTES
    if len(view) < begin:
        raise CheckpointError(f"a checkpoint has at least {begin} bytes, not {len(view)}")
    magic, version, _, length = START.unpack_from(view)
    if magic != MAGIC:
        raise CheckpointError(f"this is no checkpoint: it begins with {magic!r}")
    if version != VERSION:
        raise CheckpointError(f"it is a checkpoint of version {version}; this pslab reads version {VERSION}")
    if _sum(bytes(view[: START.size]), [view[begin:]]) != bytes(view[START.size : begin]):
        raise CheckpointError("it is incomplete or was changed: its sum is another one")
    try:
        header = json.loads(bytes(view[begin : begin + length]))
        facts, nodes, shapes = header["facts"], header["nodes"], header["arrays"]
        if not (isinstance(facts, dict) and isinstance(nodes, list) and isinstance(shapes, list)):
            raise TypeError("its header has other parts")
        arrays, at = [], begin + length
        for dtype, shape in shapes:
            if dtype not in DTYPES or min(shape, default=0) < 0:
                raise TypeError(f"there are no arrays of {shortened(dtype)} with the shape {shortened(shape)}")
            count = prod(shape)
            arrays.append(np.frombuffer(view, dtype, count, at if count else 0).reshape(shape))
            at += count * np.dtype(dtype).itemsize
        if at != len(view):
            raise TypeError(f"its arrays end at byte {at}, and the file at {len(view)}")
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise CheckpointError(f"its header cannot be read: {shortened(error, str)}") from error
    return facts, Graph(nodes, arrays)


def _sum(start: bytes, pieces: list[memoryview]) -> bytes:
    found = hashlib.sha256(start)
    for piece in pieces:
        found.update(piece)
    return found.digest()
