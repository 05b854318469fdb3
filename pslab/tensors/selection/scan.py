"""Parts of every selection on the CPU: a vector that may still be a sum, a sample, scratch memory, a search."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from threading import local
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pslab.tensors.finite import NonFinite

Array = NDArray[Any]
Indices = NDArray[np.int64]
Found = tuple[Indices, Array]  # indices and their magnitudes

DRAWN = 1 << 12, 1 << 14  # entries in a sample, at least and at most
MANY = 0.03  # the density above which moving entries in full registers is faster than finding them one by one
SURE = 4.0  # standard errors between an estimate from a sample and its bounds
MORE = 0.2  # of the entries that are wanted: so many more exceed a guess
LOWER = 0.99  # of a threshold: a guess of that of a similar vector
KEPT_BYTES = 1 << 28  # a larger scratch array is not kept
SPARE, BLOCK = 64, 1 << 11  # of `kernels`, which is imported late: its arrays' extra length, its largest block
NOTHING = np.zeros(0)


@cache
def loops(dtype: np.dtype[Any]) -> ModuleType:
    """The compiled loops, ready for vectors of this dtype."""
    from pslab.tensors.selection import kernels  # late, because numba's import takes a third of a second

    kernels.warm(dtype)
    return kernels


class Sum:
    """x [n], float32 or float64, and what is to be added to it in place.

    That is the gradient [n], or, with a momentum u [n], what u becomes: first u = m u + gradient, or, after Nesterov,
    u = m (u + gradient), to which the gradient is added once more. Every operation rounds as torch's operators do.
    Nothing is to be added without a gradient. The loop that reads the entries first also adds, and sums what it finds:
    that sum tells whether all entries are finite.
    """

    def __init__(
        self, x: Array, gradient: Array | None = None, momentum: Array | None = None, m: float = 0.0,
        nesterov: bool = False,
    ) -> None:  # fmt: skip
        self.x, self._momentum = x, x[:0] if momentum is None else momentum
        self._gradient, self._m, self._nesterov = x[:0] if gradient is None else gradient, x.dtype.type(m), nesterov
        self._total = np.zeros(1)  # of the entries, or of length 0: nobody asks
        #: an edge that a few more entries exceed than are wanted, and their share: after a selection, for the next one
        self.guess: tuple[Any, float] | None = None

    @classmethod
    def of(cls, v: torch.Tensor | Sum) -> Sum:
        """The vector itself, or one that is finite and to which nothing is to be added."""
        if isinstance(v, Sum):
            return v
        found = cls(v.detach().contiguous().numpy())
        found._total = NOTHING
        return found

    def __len__(self) -> int:
        return len(self.x)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the entries."""
        return self.x.dtype

    def drawn(self, read: Callable[[Array], Array]) -> Array:
        """Apply `read` to the entries as they will be after the addition, which is not done yet."""
        x = read(self.x)
        if not len(self._gradient):
            return x
        added = gradient = read(self._gradient)
        if len(self._momentum):
            u = read(self._momentum)
            added = (u + gradient) * self._m + gradient if self._nesterov else u * self._m + gradient
        summed: Array = x + added
        return summed

    def read(self, loop: Callable[..., Any], *arguments: Any) -> Any:
        """What a loop over all entries returns. The first one does the addition, and later ones do not repeat it.

        Raises:
            NonFinite: the first one found NaN or infinite entries.
        """
        (gradient, self._gradient), (total, self._total) = (self._gradient, self.x[:0]), (self._total, NOTHING)
        found = loop((self.x, gradient, self._momentum, self._m, self._nesterov, total), *arguments)
        if len(total) and not (math.isfinite(total[0]) or np.isfinite(self.x).all()):  # a sum may overflow itself
            raise NonFinite("the gradient or the sum with the residual or the momentum contains NaN or infinite entries"
                            ": nothing was sent")  # fmt: skip
        return found

    def settled(self) -> Array:
        """x, with everything in it."""
        if len(self._total):
            self.read(loops(self.dtype).search, self.dtype.type(0), False, *arrays(self.dtype, 0), 0)
        return self.x

    def take(self, indices: Array, masked: Array | None) -> Array:
        """The entries at the indices, which become 0, and so do those of `masked` [n]."""
        values = np.empty(len(indices), self.dtype)
        loops(self.dtype).take(self.settled(), self.x[:0] if masked is None else masked, indices, values)
        return values


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


def search(x: Sum, edge: Any, share: float, room: int) -> Found | None:
    """The entries with |x| > edge, in scratch arrays; None if they do not fit in `room`, which includes one block."""
    indices, magnitudes = arrays(x.dtype, room)
    found = x.read(loops(x.dtype).search, edge, share > MANY, indices, magnitudes, room)
    return None if found < 0 else (indices[:found], magnitudes[:found])


def search_all(x: Sum, edge: Any, share: float) -> Found:
    """The entries with |x| > edge, however many; `share` is the expected density."""
    found = search(x, edge, share, len(x))
    assert found is not None  # there is room for everything
    return found


def arrays(dtype: np.dtype[Any], room: int) -> Found:
    """Scratch arrays for the indices and the magnitudes of `room` entries."""
    return scratch.array("indices", np.int64, room), scratch.array("magnitudes", dtype, room)


def room_for(x: Sum, sample: Array, low: Any, high: Any) -> int:
    """Room for the entries with low < |x| <= high, estimated from the sample of magnitudes."""
    return room(len(x), int(np.count_nonzero((sample > low) & (sample <= high))), len(sample))


def room(n: int, count: int, size: int) -> int:
    """Room for those of n entries of which a sample of this size contains `count`."""
    return min(n, int(n / size * (count + SURE * math.sqrt(count) + SURE)) + BLOCK)


def sample(x: Sum) -> Array:
    """A sample of x in the order of x; the same one for the same x."""
    size = min(max(len(x) >> 10, DRAWN[0]), DRAWN[1])

    def read(entries: Array) -> Array:
        out = np.empty(size, x.dtype)
        loops(x.dtype).sample(entries, out)
        return out

    return x.drawn(read)


def kept(indices: Indices, magnitudes: Array, edge: Any) -> Indices:
    """The indices whose magnitudes exceed the edge."""
    out = np.empty(len(indices) + 1, np.int64)
    return out[: loops(magnitudes.dtype).keep(indices, magnitudes, edge, out)]


def largest(indices: Indices, magnitudes: Array, k: int) -> tuple[Indices, Any]:
    """The indices of the k largest magnitudes, of equal ones the first; and the k-th largest."""
    loop, ordered, out = loops(magnitudes.dtype), bits(magnitudes), np.empty(k + 1, np.int64)
    edge = ordered.dtype.type(loop.kth(ordered, k))
    loop.largest(indices, ordered, edge, out)
    return out[:k], edge.view(magnitudes.dtype)


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
