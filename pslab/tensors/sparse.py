"""Sparse rows: what workers share out among them, and the inputs of a model, whose batches are sparse CSR tensors."""

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
        ConfigError: arrays that do not belong together.
    """

    name: str
    key_count: int
    starts: Array  #: int64 [rows + 1]
    keys: Array  #: int32 [entries], increasing within a row
    values: Array  #: float32 [entries]
    labels: Array  #: float32 [rows], 0 or 1
    test: Array  #: bool [rows]: held back for testing

    def __post_init__(self) -> None:
        rows, entries = len(self.starts) - 1, len(self.keys)
        inner = np.ones(entries, bool)
        inner[self.starts[:-1][self.starts[:-1] < entries]] = False  # where a row begins, keys may begin anew
        problems = {
            "its rows do not cover its entries": rows < 0 or self.starts[0] != 0 or self.starts[-1] != entries
            or bool((np.diff(self.starts) < 0).any()),
            "as many values as keys, and a label for each row, are wanted":
                len(self.values) != entries or len(self.labels) != rows or len(self.test) != rows,
            f"its keys must lie in 0 to {self.key_count - 1}": entries > 0
            and not 0 <= int(self.keys.min()) <= int(self.keys.max()) < self.key_count,
            "the keys of a row must increase": bool((np.diff(self.keys, prepend=-1)[inner] <= 0).any()),
            "its values must be finite": not bool(np.isfinite(self.values).all()),
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
        """The rows that hold each key, the other way round (CSC): starts int64 [keys + 1], rows int64 [entries]."""
        starts = np.zeros(self.key_count + 1, np.int64)
        np.cumsum(np.bincount(self.keys, minlength=self.key_count), out=starts[1:])
        return starts, self.row_of[np.argsort(self.keys, kind="stable")]

    @property
    def entries_of(self) -> Array:
        """How many keys each row holds: int64 [rows]."""
        return np.diff(self.starts)

    def take(self, rows: Array) -> SparseRows:
        """These rows, in this order; keys keep their numbers."""
        counts = self.entries_of[rows]
        starts = np.concatenate([[0], np.cumsum(counts)])
        at = np.repeat(self.starts[:-1][rows] - starts[:-1], counts) + np.arange(starts[-1])
        return SparseRows(
            self.name, self.key_count, starts, self.keys[at], self.values[at], self.labels[rows], self.test[rows]
        )

    @cached_property
    def training(self) -> SparseRows:
        """The rows that are not held back."""
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
    """Make SparseRows of the keys and values of each row."""
    starts = np.concatenate([[0], np.cumsum([len(keys) for keys, _ in rows])]).astype(np.int64)
    keys, values = (np.concatenate([pair[at] for pair in rows] or [np.empty(0)]) for at in (0, 1))
    return SparseRows(name, key_count, starts, keys.astype(np.int32), values.astype(np.float32),
                      np.asarray(labels, np.float32), np.asarray(test, bool))  # fmt: skip


# --- inputs of a model -----------------------------------------------------------------------------------------------


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
        starts, keys, values = (np.ascontiguousarray(array, kind) for array, kind in (
            (rows.starts, np.int64), (rows.keys, np.int32), (rows.values, np.float32)))  # fmt: skip
        return cls(rows.key_count, *map(torch.from_numpy, (starts, keys, values)))

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """The tensors that determine the inputs together with the number of keys."""
        return self.starts, self.keys, self.values

    def rows(self, name: str) -> SparseRows:
        """These inputs as SparseRows without labels."""
        none = np.zeros(len(self))
        starts, keys, values = (tensor.numpy() for tensor in self.tensors)
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
        """The offsets of these rows in a batch of them, and the places of their entries in all inputs."""
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
        span = slice(starts[0], starts[-1])
        return csr(starts - starts[0], self.local[span], self.values[span], len(self.keys))


def numbered(keys: Array) -> tuple[Array, Array]:
    """The distinct ones of some keys (int32): int64 [k], increasing; and the number of each among them: int32.

    As np.unique with `return_inverse`, by one sort of whole numbers of which each holds a key and its place.
    """
    pairs = np.sort((keys.astype(np.int64) << 32) + np.arange(len(keys)))
    distinct, number = pairs >> 32, np.empty(len(keys), np.int32)
    new = np.diff(distinct, prepend=-1) != 0
    number[pairs & 0xFFFFFFFF] = np.cumsum(new) - 1
    return distinct[new], number


def csr(starts: Array, keys: Array, values: Array, key_count: int) -> Tensor:
    """A sparse CSR tensor [rows, keys]."""
    rows, columns = (torch.from_numpy(np.ascontiguousarray(array, np.int32)) for array in (starts, keys))
    size = [len(starts) - 1, key_count]
    return torch.sparse_csr_tensor(rows, columns, torch.from_numpy(values), size=size, check_invariants=False)


def on_keys(x: Tensor, keys: Array) -> Tensor:
    """Rows over these keys alone, numbered in their order; every key of the rows must be among them."""
    local = np.searchsorted(keys, x.col_indices().numpy())
    return csr(x.crow_indices().numpy(), local, x.values().numpy(), len(keys))
