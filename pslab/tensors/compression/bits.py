"""Symbols and positions as bytes, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from pslab.errors import FrameError
from pslab.tensors.compression import select
from pslab.tensors.entries import Array

GAPS, BITS, RUNS = range(3)


def pack(symbols: torch.Tensor, width: int) -> torch.Tensor:
    """Pack symbols (uint8 [n]) of `width` bits into bytes: first all lowest bits, then all second bits, and so on."""
    if width == 8:
        return symbols
    if symbols.device.type == "cpu":
        bits = symbols.numpy() & (1 << np.arange(width, dtype=np.uint8))[:, None]
        return torch.from_numpy(np.packbits(bits, axis=-1, bitorder="little").reshape(-1))
    padded = torch.nn.functional.pad(symbols, (0, -len(symbols) % 8)).view(-1, 8)
    digits = torch.arange(8, dtype=torch.uint8, device=symbols.device)
    return torch.cat([((padded >> bit & 1) << digits).sum(1, dtype=torch.uint8) for bit in range(width)])


def unpack(code: torch.Tensor, width: int, n: int) -> torch.Tensor:
    """Return the n symbols in bytes made by `pack`.

    Raises:
        FrameError: the bytes are not n symbols of this width.
    """
    if len(code) != (n if width == 8 else width * -(-n // 8)):
        raise FrameError(f"{len(code)} bytes cannot be {n} symbols of {width} bits")
    if width == 8:
        return code
    rows = code.view(width, -1)
    if code.device.type == "cpu":
        planes = torch.from_numpy(np.unpackbits(rows.numpy(), axis=1, bitorder="little", count=n))
    else:
        digits = torch.arange(8, dtype=torch.uint8, device=code.device)
        planes = (rows[:, :, None] >> digits & 1).view(width, -1)[:, :n]
    symbols = planes[0]
    for bit in range(1, width):
        symbols.add_(planes[bit], alpha=1 << bit)
    return symbols


class Positions(NamedTuple):
    """Increasing indices below n on a device, to be converted to bytes on the CPU."""

    indices: torch.Tensor
    n: int


def positions(indices: torch.Tensor, n: int) -> Any:
    """Convert increasing indices below n to bytes: the form and the number of indices (u32 each), then the indices in
    the shortest of three forms: GAPS between indices as LEB128, BITS (one for each position), or the starts and then
    the lengths of RUNS (u32). Indices on a GPU are returned as `Positions`, which `fetched` converts."""
    if indices.device.type != "cpu":
        return Positions(indices, n)
    cpu = indices.numpy()
    out = np.empty(5 * len(cpu), np.uint8)
    length, runs = select.loops().write_gaps(cpu, out)
    size, how = min((length, GAPS), (-(-n // 8), BITS), (8 * runs, RUNS))
    head = np.array([how, len(cpu)], np.int32).view(np.uint8)
    if how == RUNS:
        starts = np.flatnonzero(np.diff(cpu, prepend=-2) > 1)
        lengths = np.diff(starts, append=len(cpu))
        body = np.concatenate([cpu[starts], lengths]).astype(np.int32).view(np.uint8)
    elif how == BITS:
        mask = np.zeros(n, bool)
        mask[cpu] = True
        body = np.packbits(mask, bitorder="little")
    else:
        body = out[:size]
    return torch.from_numpy(np.concatenate([head, body]))


def fetched(parts: Sequence[Any]) -> list[torch.Tensor]:
    """Return parts on the CPU, with positions as bytes; all parts on a device come in one transfer."""
    arrays = [part.indices if isinstance(part, Positions) else part for part in parts]
    there = [number for number, part in enumerate(arrays) if part.device.type != "cpu"]
    there.sort(key=lambda number: -arrays[number].element_size())  # keeps each part aligned to its element size
    whole, at = torch.cat([as_bytes(arrays[number]) for number in there]).cpu(), 0
    for number in there:
        part, size = arrays[number], arrays[number].numel() * arrays[number].element_size()
        arrays[number] = whole[at : at + size].view(part.dtype).view(part.shape)
        at += size
    return [positions(here, part.n) if isinstance(part, Positions) else here
            for here, part in zip(arrays, parts, strict=True)]  # fmt: skip


def as_bytes(part: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor, flat."""
    flat = part.reshape(-1) if part.numel() else part.new_empty(0)  # an empty tensor may have no stride
    return flat.view(torch.uint8)


def count_of(written: torch.Tensor) -> int:
    """Return the number of indices in bytes made by `positions`."""
    return int(written[4:8].view(torch.int32))


def indices_of(written: Any, n: int) -> torch.Tensor:
    """Return the indices (int64) in bytes made by `positions`.

    Raises:
        FrameError: the bytes are not increasing indices below n.
    """
    if isinstance(written, Positions):
        return written.indices
    data = written.numpy()
    if len(data) < 8:
        raise FrameError(f"{len(data)} bytes are too few for positions, which take at least 8")
    (how, count), body = data[:8].view(np.int32).tolist(), data[8:]
    indices: Array
    if how == BITS:
        indices = np.flatnonzero(unpack(torch.from_numpy(body), 1, n))
    elif how == RUNS:
        if len(body) % 8:
            raise FrameError(f"{len(body)} bytes cannot be starts and lengths of runs, which take 8 each")
        starts, lengths = body.view(np.int32).reshape(2, -1).astype(np.int64)
        after = np.append(starts[1:], n)
        if len(starts) and (starts[0] < 0 or (lengths < 1).any() or (starts + lengths > after).any()):
            raise FrameError(f"a frame has runs of positions that overlap, do not increase, or leave 0 to {n - 1}")
        begins = np.repeat(starts - (lengths.cumsum() - lengths), lengths)
        indices = begins + np.arange(len(begins))
    else:
        indices = np.empty(max(0, min(count, len(body))), np.int64)
        read = select.loops().read_gaps(body, indices)
        indices = indices[: read if read == len(indices) else 0]
    if len(indices) != count or (count and not 0 <= indices[0] <= indices[-1] < n):
        raise FrameError(f"a frame does not have {count} increasing positions from 0 to {n - 1}, as it states")
    return torch.from_numpy(indices)


def floats(part: torch.Tensor) -> torch.Tensor:
    """Return the float32 numbers of a part, as float64.

    Raises:
        FrameError: a number is not finite. (On a device, where no frame arrives, a push checks all parts at once.)
    """
    values = part.view(torch.float32).double()
    if part.device.type == "cpu" and not bool(values.isfinite().all()):
        raise FrameError("a frame has a scale that is not finite")
    return values


def prepare(dtype: torch.dtype, *, selects: bool = True) -> None:
    """Compile the loops for positions, and for the selection from vectors of this dtype, unless they are cached. This
    takes seconds, so call it before a run is timed."""
    if selects:
        v = torch.ones(64, dtype=dtype)
        select.add_top(v, 1, v.clone())
        select.std(v)
    indices_of(positions(torch.arange(3), 64), 64)
