"""Vectors of which some entries are known, vectors that a worker keeps, and the order of keys at servers."""

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
        """[n], zero where an entry is absent; the values themselves of all n."""
        if self.indices is None:
            return self.values
        vector = np.zeros(self.n, self.values.dtype)
        vector[self.indices] = self.values
        return vector


class KeptVector(NamedTuple):
    """A vector that a worker keeps from one gradient to the next, zero at first."""

    entries: int
    dtype: torch.dtype
    scalars: bool = False  #: its entries are read and set one by one, so it never lies on a GPU

    def zeros(self, device: torch.device | str) -> torch.Tensor:
        """A new one."""
        return torch.zeros(self.entries, dtype=self.dtype, device="cpu" if self.scalars else device)


def as_held(weights: Flat, places: Array | None) -> Flat:
    """Weights as servers hold them, each at its place, of weights in the order of their keys; None: the same order."""
    return weights if places is None else weights[np.argsort(places)]


def by_key(flat: Flat, places: Array | None) -> Flat:
    """Weights in the order of their keys, of weights as servers hold them."""
    return flat if places is None else flat[places]


def renumbered(owner: Array) -> Array:
    """Return new numbers of the keys (int64 [keys]): the keys of a server follow each other, in their old order."""
    numbers = np.empty(len(owner), np.int64)
    numbers[np.argsort(owner, kind="stable")] = np.arange(len(owner))
    return numbers
