"""Sparse rows and their labels: what workers share out among them, and whose keys they ask servers for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pslab.errors import ConfigError

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
        for problem, found in problems.items():
            if found:
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
        found = sha256()
        for array, kind in ((self.starts, "<i8"), (self.keys, "<i4"), (self.values, "<f4"), (self.labels, "<f4"),
                            (self.test, "?")):  # fmt: skip
            found.update(np.ascontiguousarray(array, kind).tobytes() + b"|")
        return found.hexdigest()


def rows_of(name: str, key_count: int, each: list[tuple[Array, Array]], labels: Array, test: Array) -> SparseRows:
    """From the keys and values of each row."""
    starts = np.concatenate([[0], np.cumsum([len(keys) for keys, _ in each])]).astype(np.int64)
    keys, values = (np.concatenate([pair[at] for pair in each] or [np.empty(0)]) for at in (0, 1))
    return SparseRows(name, key_count, starts, keys.astype(np.int32), values.astype(np.float32),
                      np.asarray(labels, np.float32), np.asarray(test, bool))  # fmt: skip
