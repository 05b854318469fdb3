"""Sparse rows as the inputs of a model: batches are torch's sparse CSR tensors."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pslab.tensors.sparse.rows import Array, SparseRows

warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")


class SparseInputs:
    """Inputs [rows, keys], of which each row holds few; as far as a tensor of them is asked for its shape and its rows.

    Args:
        starts: int64 [rows + 1].
        keys: int32 [entries], increasing within a row.
        values: float32 [entries].
    """

    dtype, ndim = torch.float32, 2

    def __init__(self, key_count: int, starts: Tensor, keys: Tensor, values: Tensor) -> None:
        self.key_count, self.starts, self.keys, self.values = key_count, starts, keys, values
        self.shape = torch.Size([len(starts) - 1, key_count])

    @classmethod
    def of(cls, rows: SparseRows) -> SparseInputs:
        """The inputs of all these rows."""
        starts, keys, values = (np.ascontiguousarray(each, kind) for each, kind in (
            (rows.starts, np.int64), (rows.keys, np.int32), (rows.values, np.float32)))  # fmt: skip
        return cls(rows.key_count, *map(torch.from_numpy, (starts, keys, values)))

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """All that they are, beside the number of keys."""
        return self.starts, self.keys, self.values

    def rows(self, name: str) -> SparseRows:
        """The same as rows without labels."""
        none = np.zeros(len(self))
        starts, keys, values = (each.numpy() for each in self.tensors)
        return SparseRows(name, self.key_count, starts, keys, values, none, none > 0)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        """These rows: a sparse CSR tensor [B, keys] of float32, with int32 indices."""
        places = np.arange(len(self))[rows] if isinstance(rows, slice) else rows.numpy()
        starts, at = self._entries(places)
        return csr(starts, self.keys.numpy()[at], self.values.numpy()[at], self.key_count)

    def numel(self) -> int:
        """Entries in all of them."""
        return len(self.values)

    def is_floating_point(self) -> bool:
        """Inputs are numbers."""
        return True

    def keys_of(self, rows: Array) -> Array:
        """The distinct keys that these rows hold: int64, increasing."""
        return self.narrowed(rows).keys

    def narrowed(self, rows: Array) -> Narrow:
        """These rows over their own keys."""
        starts, at = self._entries(rows)
        return Narrow(*numbered(self.keys.numpy()[at]), starts, self.values.numpy()[at])

    def _entries(self, rows: Array) -> tuple[Array, Array]:
        """Where rows begin in a batch of them, and the places of their entries here."""
        all_starts = self.starts.numpy()
        begins = all_starts[rows]
        counts = all_starts[rows + 1] - begins
        starts = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(counts, out=starts[1:])
        return starts, np.repeat(begins - starts[:-1], counts) + np.arange(starts[-1])


class Narrow(NamedTuple):
    """Rows over the keys that they hold alone, numbered in their order."""

    keys: Array  #: int64 [k], increasing
    local: Array  #: int32 [entries], of each its key's number among these
    starts: Array  #: int64 [rows + 1]
    values: Array  #: float32 [entries]

    def inputs(self, begin: int, end: int) -> Tensor:
        """Some of the rows: a sparse CSR tensor [end - begin, k]."""
        starts = self.starts[begin : end + 1]
        own = slice(starts[0], starts[-1])
        return csr(starts - starts[0], self.local[own], self.values[own], len(self.keys))


def numbered(keys: Array) -> tuple[Array, Array]:
    """The distinct ones of some keys (int32): int64 [k], increasing; and the number of each among them: int32.

    As np.unique with `return_inverse`, by one sort of whole numbers of which each holds a key and its place.
    """
    found = np.sort((keys.astype(np.int64) << 32) + np.arange(len(keys)))
    held, number = found >> 32, np.empty(len(keys), np.int32)
    new = np.diff(held, prepend=-1) != 0
    number[found & 0xFFFFFFFF] = np.cumsum(new) - 1
    return held[new], number


def csr(starts: Array, keys: Array, values: Array, key_count: int) -> Tensor:
    """A sparse CSR tensor [rows, keys]."""
    rows, columns = (torch.from_numpy(np.ascontiguousarray(each, np.int32)) for each in (starts, keys))
    size = [len(starts) - 1, key_count]
    return torch.sparse_csr_tensor(rows, columns, torch.from_numpy(values), size=size, check_invariants=False)


def on_keys(x: Tensor, keys: Array) -> Tensor:
    """The same rows over these keys alone, numbered in their order, which hold all of theirs."""
    local = np.searchsorted(keys, x.col_indices().numpy())
    return csr(x.crow_indices().numpy(), local, x.values().numpy(), len(keys))
