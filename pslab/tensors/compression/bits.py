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
    """Symbols (uint8 [n]) of so many bits as bytes: all lowest bits, then all second ones, and so on."""
    if width == 8:
        return symbols
    if symbols.device.type == "cpu":
        bits = symbols.numpy() if width == 1 else np.stack([symbols.numpy() >> bit & 1 for bit in range(width)])
        return torch.from_numpy(np.packbits(bits, axis=-1, bitorder="little").reshape(-1))
    padded = torch.nn.functional.pad(symbols, (0, -len(symbols) % 8)).view(-1, 8)
    place = torch.arange(8, dtype=torch.uint8, device=symbols.device)
    return torch.cat([((padded >> bit & 1) << place).sum(1, dtype=torch.uint8) for bit in range(width)])


def unpack(code: torch.Tensor, width: int, n: int) -> torch.Tensor:
    """The n symbols of such bytes.

    Raises:
        FrameError: they are not as many bytes.
    """
    if len(code) != (n if width == 8 else width * -(-n // 8)):
        raise FrameError(f"{len(code)} bytes are not {n} symbols of {width} bits")
    if width == 8:
        return code
    rows = code.view(width, -1)
    if code.device.type == "cpu":
        planes = torch.from_numpy(np.unpackbits(rows.numpy(), axis=1, bitorder="little"))[:, :n]
    else:
        place = torch.arange(8, dtype=torch.uint8, device=code.device)
        planes = (rows[:, :, None] >> place & 1).view(width, -1)[:, :n]
    found = planes[0]
    for bit in range(1, width):
        found = found | planes[bit] << bit
    return found


class Positions(NamedTuple):
    """Increasing indices below n on a device, which become bytes on the CPU."""

    indices: torch.Tensor
    n: int


def positions(indices: torch.Tensor, n: int) -> Any:
    """Increasing indices below n as bytes: a form and their number (u32 each), then the shortest of three forms: gaps
    as LEB128, a bit for each of n, or the starts and lengths of runs (u32). On a device they become so in `fetched`."""
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
    """Return parts on the CPU, and positions as bytes: one transfer brings all that is on a device."""
    found = [part.indices if isinstance(part, Positions) else part for part in parts]
    there = [number for number, part in enumerate(found) if part.device.type != "cpu"]
    there.sort(key=lambda number: -found[number].element_size())  # so that each begins at a multiple of its element
    whole, at = torch.cat([as_bytes(found[number]) for number in there]).cpu(), 0
    for number in there:
        part, size = found[number], found[number].numel() * found[number].element_size()
        found[number] = whole[at : at + size].view(part.dtype).view(part.shape)
        at += size
    return [positions(here, part.n) if isinstance(part, Positions) else here
            for here, part in zip(found, parts, strict=True)]  # fmt: skip


def as_bytes(part: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, flat."""
    flat = part.reshape(-1) if part.numel() else part.new_empty(0)  # an empty one may have no stride
    return flat.view(torch.uint8)


def count_of(written: torch.Tensor) -> int:
    """Return how many indices such bytes hold."""
    return int(written[4:8].view(torch.int32))


def indices_of(written: Any, n: int) -> torch.Tensor:
    """Return the indices (int64) of such bytes.

    Raises:
        FrameError: they are not increasing indices below n.
    """
    if isinstance(written, Positions):
        return written.indices
    data = written.numpy()
    if len(data) < 8:
        raise FrameError(f"{len(data)} bytes are no positions")
    (how, count), body = data[:8].view(np.int32).tolist(), data[8:]
    indices: Array
    if how == BITS:
        indices = np.flatnonzero(unpack(torch.from_numpy(body), 1, n))
    elif how == RUNS:
        if len(body) % 8:
            raise FrameError(f"{len(body)} bytes are no starts and lengths of runs")
        starts, lengths = body.view(np.int32).reshape(2, -1).astype(np.int64)
        after = np.append(starts[1:], n)
        if len(starts) and (starts[0] < 0 or (lengths < 1).any() or (starts + lengths > after).any()):
            raise FrameError("runs that overlap, or do not increase")
        begins = np.repeat(starts - (lengths.cumsum() - lengths), lengths)
        indices = begins + np.arange(len(begins))
    else:
        indices = np.empty(max(0, min(count, len(body))), np.int64)
        found = select.loops().read_gaps(body, indices)
        indices = indices[: found if found == len(indices) else 0]
    if len(indices) != count or (count and not 0 <= indices[0] <= indices[-1] < n):
        raise FrameError(f"positions that are not {count} from 0 to {n - 1}")
    return torch.from_numpy(indices)


def floats(part: torch.Tensor) -> torch.Tensor:
    """The float32 numbers of a part, as float64.

    Raises:
        FrameError: some are not finite. On a device, to which no frame comes, a push looks at all its parts at once.
    """
    found = part.view(torch.float32).double()
    if part.device.type == "cpu" and not bool(found.isfinite().all()):
        raise FrameError("a scale that is no finite number")
    return found


def prepare(dtype: torch.dtype, *, selects: bool = True) -> None:
    """Compile the loops for positions, and for this process's selection of vectors of this dtype, where no earlier
    process has: that takes seconds, and no run is to be timed meanwhile."""
    if selects:
        v = torch.ones(64, dtype=dtype)
        select.add_top(v, 1, v.clone())
        select.std(v)
    indices_of(positions(torch.arange(3), 64), 64)
