"""Sparse data: rows with labels, and the inputs of a model as sparse CSR tensors."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pslab.errors import ConfigError

warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class SparseRows:
    """Rows in compressed form (CSR): row i holds the keys and values from starts[i] to starts[i + 1].

    Raises:
        ConfigError: the arrays are not valid rows; the message has the reason.
    """

    name: str
    key_count: int
    starts: Array  #: int64 [rows + 1]
    keys: Array  #: int32 [entries], increasing within a row
    values: Array  #: float32 [entries]
    labels: Array  #: float32 [rows], 0 or 1
    test: Array  #: bool [rows]: whether a row is for testing

    def __post_init__(self) -> None:
        rows, entries = len(self.starts) - 1, len(self.keys)
        inner = np.ones(entries, bool)
        inner[self.starts[:-1][self.starts[:-1] < entries]] = False  # a row's first key may be below the key before
        problems = {
            f"starts must not decrease from 0 to {entries}, the number of keys": rows < 0 or self.starts[0] != 0
            or self.starts[-1] != entries or bool((np.diff(self.starts) < 0).any()),
            "there must be as many values as keys, and as many labels and test flags as rows":
                len(self.values) != entries or len(self.labels) != rows or len(self.test) != rows,
            f"keys must be from 0 to {self.key_count - 1}": entries > 0
            and not 0 <= int(self.keys.min()) <= int(self.keys.max()) < self.key_count,
            "the keys of a row must increase: sort them": bool((np.diff(self.keys, prepend=-1)[inner] <= 0).any()),
            "values must be finite: replace NaN and infinity": not bool(np.isfinite(self.values).all()),
        }  # fmt: skip
        for problem, wrong in problems.items():
            if wrong:
                raise ConfigError("data", self.name, problem)

    def __len__(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def row_of(self) -> Array:
        """The row of each entry: int64 [entries]."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))

    @cached_property
    def holders(self) -> tuple[Array, Array]:
        """The rows that contain each key, as CSC: starts int64 [keys + 1], rows int64 [entries]."""
        starts = np.zeros(self.key_count + 1, np.int64)
        np.cumsum(np.bincount(self.keys, minlength=self.key_count), out=starts[1:])
        return starts, self.row_of[np.argsort(self.keys, kind="stable")]

    @property
    def entries_of(self) -> Array:
        """The number of keys in each row: int64 [rows]."""
        return np.diff(self.starts)

    def take(self, rows: Array) -> SparseRows:
        """Return these rows, in this order. Keys keep their numbers."""
        counts = self.entries_of[rows]
        starts = np.concatenate([[0], np.cumsum(counts)])
        at = np.repeat(self.starts[:-1][rows] - starts[:-1], counts) + np.arange(starts[-1])
        return SparseRows(
            self.name, self.key_count, starts, self.keys[at], self.values[at], self.labels[rows], self.test[rows]
        )

    @cached_property
    def training(self) -> SparseRows:
        """The rows that are not for testing."""
        return self.take(np.flatnonzero(~self.test))

    @cached_property
    def content(self) -> str:
        """The SHA-256 of structure, values, labels and test flags."""
        digest = sha256()
        for array, kind in ((self.starts, "<i8"), (self.keys, "<i4"), (self.values, "<f4"), (self.labels, "<f4"),
                            (self.test, "?")):  # fmt: skip
            digest.update(np.ascontiguousarray(array, kind).tobytes() + b"|")
        return digest.hexdigest()


def rows_of(name: str, key_count: int, rows: list[tuple[Array, Array]], labels: Array, test: Array) -> SparseRows:
    """Build SparseRows from the keys and values of each row."""
    starts = np.concatenate([[0], np.cumsum([len(keys) for keys, _ in rows])]).astype(np.int64)
    keys, values = (np.concatenate([pair[at] for pair in rows] or [np.empty(0)]) for at in (0, 1))
    return SparseRows(name, key_count, starts, keys.astype(np.int32), values.astype(np.float32),
                      np.asarray(labels, np.float32), np.asarray(test, bool))  # fmt: skip


# --- inputs of a model -----------------------------------------------------------------------------------------------


class SparseInputs:
    """Sparse inputs [rows, keys] that a run uses like a tensor: they have a shape and are indexed by rows.

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
        """Convert SparseRows to inputs, without their labels."""
        starts, keys, values = (np.ascontiguousarray(array, kind) for array, kind in (
            (rows.starts, np.int64), (rows.keys, np.int32), (rows.values, np.float32)))  # fmt: skip
        return cls(rows.key_count, *map(torch.from_numpy, (starts, keys, values)))

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """The starts, keys and values: with `key_count` they determine the inputs."""
        return self.starts, self.keys, self.values

    def rows(self, name: str) -> SparseRows:
        """Convert the inputs to SparseRows, with 0 as the label of each row."""
        none = np.zeros(len(self))
        starts, keys, values = (tensor.numpy() for tensor in self.tensors)
        return SparseRows(name, self.key_count, starts, keys, values, none, none > 0)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        """Return these rows: a sparse CSR tensor [B, keys] of float32, with int32 indices."""
        places = np.arange(len(self))[rows] if isinstance(rows, slice) else rows.numpy()
        starts, at = self._entries(places)
        return csr(starts, self.keys.numpy()[at], self.values.numpy()[at], self.key_count)

    def numel(self) -> int:
        """Return the number of entries in all rows."""
        return len(self.values)

    def is_floating_point(self) -> bool:
        """Return True: the values are float32."""
        return True

    def keys_of(self, rows: Array) -> Array:
        """Return the distinct keys in these rows: int64, increasing."""
        return self.narrowed(rows).keys

    def narrowed(self, rows: Array) -> Narrow:
        """Return these rows with one column for each key that occurs in them."""
        starts, at = self._entries(rows)
        return Narrow(*numbered(self.keys.numpy()[at]), starts, self.values.numpy()[at])

    def _entries(self, rows: Array) -> tuple[Array, Array]:
        """Return the starts of these rows as a batch (int64 [rows + 1]), and the index of each entry in `values`."""
        all_starts = self.starts.numpy()
        begins = all_starts[rows]
        counts = all_starts[rows + 1] - begins
        starts = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(counts, out=starts[1:])
        return starts, np.repeat(begins - starts[:-1], counts) + np.arange(starts[-1])


class Narrow(NamedTuple):
    """Sparse rows with one column for each key that occurs in them, in the order of the keys."""

    keys: Array  #: int64 [k], increasing
    local: Array  #: int32 [entries]: the number of each entry's key among `keys`
    starts: Array  #: int64 [rows + 1]
    values: Array  #: float32 [entries]

    def inputs(self, begin: int, end: int) -> Tensor:
        """Return the rows from `begin` to `end`: a sparse CSR tensor [end - begin, k]."""
        starts = self.starts[begin : end + 1]
        span = slice(starts[0], starts[-1])
        return csr(starts - starts[0], self.local[span], self.values[span], len(self.keys))


def numbered(keys: Array) -> tuple[Array, Array]:
    """Return the distinct keys (int64 [k], increasing), and for each of `keys` (int32) its index among them (int32).

    The result equals np.unique's with `return_inverse`.
    """
    # faster than np.unique: one sort of numbers with a key in the upper 32 bits and its position in the lower 32 bits
    pairs = np.sort((keys.astype(np.int64) << 32) + np.arange(len(keys)))
    distinct, number = pairs >> 32, np.empty(len(keys), np.int32)
    new = np.diff(distinct, prepend=-1) != 0
    number[pairs & 0xFFFFFFFF] = np.cumsum(new) - 1
    return distinct[new], number


def csr(starts: Array, keys: Array, values: Array, key_count: int) -> Tensor:
    """Return a sparse CSR tensor [rows, keys]."""
    rows, columns = (torch.from_numpy(np.ascontiguousarray(array, np.int32)) for array in (starts, keys))
    size = [len(starts) - 1, key_count]
    return torch.sparse_csr_tensor(rows, columns, torch.from_numpy(values), size=size, check_invariants=False)


def on_keys(x: Tensor, keys: Array) -> Tensor:
    """Return sparse rows with only `keys` (sorted) as columns. They must include every key of the rows."""
    local = np.searchsorted(keys, x.col_indices().numpy())
    return csr(x.crow_indices().numpy(), local, x.values().numpy(), len(keys))
