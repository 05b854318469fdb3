"""Sparse vectors, vectors that a worker stores between gradients, and the order of keys at servers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[Any]
Flat = TypeVar("Flat", Array, torch.Tensor)


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Some entries of a vector of length n, or all of them."""

    n: int
    indices: Array | None  #: [k] int64, strictly increasing; None: all n
    values: Array  #: [k] float32 or float64

    def dense(self) -> Array:
        """Return the vector [n], zero where an entry is absent; `values` itself if it has all entries."""
        if self.indices is None:
            return self.values
        vector = np.zeros(self.n, self.values.dtype)
        vector[self.indices] = self.values
        return vector


class KeptVector(NamedTuple):
    """A vector that a worker stores from one gradient to the next, zero at first."""

    entries: int
    dtype: torch.dtype
    scalars: bool = False  #: whether entries are read and set one by one; such a vector stays on the CPU

    def zeros(self, device: torch.device | str) -> torch.Tensor:
        """Return the vector's initial value, on `device` unless it has scalars."""
        return torch.zeros(self.entries, dtype=self.dtype, device="cpu" if self.scalars else device)


def as_held(weights: Flat, places: Array | None) -> Flat:
    """Reorder weights from the order of keys to the servers' order.

    `places` has the position of each key in the servers' order; None: the orders are equal.
    """
    return weights if places is None else weights[np.argsort(places)]


def by_key(flat: Flat, places: Array | None) -> Flat:
    """Reorder weights from the servers' order to the order of keys; `places` as for `as_held`."""
    return flat if places is None else flat[places]


def renumbered(owner: Array) -> Array:
    """Return a new number for each key (int64 [keys]). Keys are numbered server by server, in the order of keys."""
    numbers = np.empty(len(owner), np.int64)
    numbers[np.argsort(owner, kind="stable")] = np.arange(len(owner))
    return numbers
