"""What every selection on the CPU needs: a sample, scratch memory, and the search for the entries above an edge."""

from __future__ import annotations

import math
from functools import cache
from threading import local
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Indices = NDArray[np.int64]
Found = tuple[Indices, Array]  # indices and their magnitudes

DRAWN = 1 << 12, 1 << 14  # entries in a sample, at least and at most
MANY = 0.03  # the density above which moving entries in full registers is faster than finding them one by one
SURE = 4.0  # standard errors between an estimate from a sample and its bounds
KEPT_BYTES = 1 << 28  # a larger scratch array is not kept
SPARE, BLOCK = 64, 1 << 11  # of `kernels`, which is imported late: its arrays' extra length, its largest block


class _Scratch(local):
    """Arrays that a thread reuses from call to call: new memory costs more than a pass over it."""

    def __init__(self) -> None:
        self.arrays: dict[tuple[str, Any], Array] = {}

    def array(self, name: str, dtype: Any, room: int) -> Array:
        """An array of `room` entries and the SPARE that the loops need."""
        size = room + SPARE
        if size * np.dtype(dtype).itemsize > KEPT_BYTES:
            return np.empty(size, dtype)
        found = self.arrays.get((name, dtype))
        if found is None or len(found) < size:
            found = self.arrays[name, dtype] = np.empty(size + size // 4, dtype)
        return found


scratch = _Scratch()


@cache
def loops(dtype: np.dtype[Any]) -> ModuleType:
    """The compiled loops, ready for vectors of this dtype."""
    from pslab.tensors.selection import kernels  # late, because numba's import takes a third of a second

    kernels.warm(dtype)
    return kernels


def search(x: Array, edge: Any, share: float, room: int) -> Found | None:
    """The entries with |x| > edge, in scratch arrays; None if they do not fit in `room`, which includes one block."""
    indices, magnitudes = arrays(x.dtype, room)
    found = loops(x.dtype).search(x, edge, share > MANY, indices, magnitudes, room)
    return None if found < 0 else (indices[:found], magnitudes[:found])


def search_all(x: Array, edge: Any, share: float) -> Found:
    """The entries with |x| > edge, however many; `share` is the expected density."""
    found = search(x, edge, share, len(x))
    assert found is not None  # there is room for everything
    return found


def arrays(dtype: np.dtype[Any], room: int) -> Found:
    """Scratch arrays for the indices and the magnitudes of `room` entries."""
    return scratch.array("indices", np.int64, room), scratch.array("magnitudes", dtype, room)


def room_for(x: Array, sample: Array, low: Any, high: Any) -> int:
    """Room for the entries with low < |x| <= high, estimated from the sample of magnitudes."""
    return room(len(x), int(np.count_nonzero((sample > low) & (sample <= high))), len(sample))


def room(n: int, count: int, size: int) -> int:
    """Room for those of n entries of which a sample of this size contains `count`."""
    return min(n, int(n / size * (count + SURE * math.sqrt(count) + SURE)) + BLOCK)


def sample(x: Array) -> Array:
    """A sample of x in the order of x; the same one for the same x."""
    size = min(max(len(x) >> 10, DRAWN[0]), DRAWN[1])
    out = scratch.array("drawn", x.dtype, size)[:size]
    loops(x.dtype).sample(x, out)
    return out


def kept(indices: Indices, magnitudes: Array, edge: Any) -> Indices:
    """The indices whose magnitudes exceed the edge."""
    out = np.empty(len(indices) + 1, np.int64)
    return out[: loops(magnitudes.dtype).keep(indices, magnitudes, edge, out)]


def largest(indices: Indices, magnitudes: Array, k: int) -> Indices:
    """The indices of the k largest magnitudes; of equal ones the first."""
    loop, ordered, out = loops(magnitudes.dtype), bits(magnitudes), np.empty(k + 1, np.int64)
    loop.largest(indices, ordered, ordered.dtype.type(loop.kth(ordered, k)), out)
    return out[:k]


def kth(magnitudes: Array, k: int) -> Any:
    """The k-th largest magnitude."""
    ordered = bits(magnitudes)
    return np.array(loops(magnitudes.dtype).kth(ordered, k), ordered.dtype).view(magnitudes.dtype)[()]


def bits(magnitudes: Array) -> Array:
    """Magnitudes as integers, which have the same order."""
    return magnitudes.view(f"i{magnitudes.itemsize}")


def below(edge: Any) -> Any:
    """The next smaller value: exceeding it means reaching the edge."""
    return np.nextafter(edge, edge.dtype.type(-1))
