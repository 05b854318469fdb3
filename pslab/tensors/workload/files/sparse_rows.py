"""Sparse data: rows that hold few of many keys, for models whose workers ask for the keys of their batches alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch

from pslab.config import sources
from pslab.config.parameters import check
from pslab.errors import ConfigError
from pslab.tensors.sparse import functions, libsvm, planted
from pslab.tensors.sparse.inputs import SparseInputs
from pslab.tensors.sparse.rows import SparseRows
from pslab.tensors.workload.data import Dataset


@dataclass(frozen=True)
class Functions:
    """One row for each function of the interpreter's own library; its keys are the words, the label: was it documented?

    12,000 rows, 24,000 keys, 22 in a row, on every machine without a download. Each release of Python is another set.
    """

    def dataset(self, name: str, root: Path) -> Dataset:
        """The rows; the same object each time."""
        return _kept("functions", lambda: functions.load())


@dataclass(frozen=True)
class Libsvm:
    """Rows of a file in LIBSVM's format: ``label key:value key:value ...``. Labels above 0 are 1, all others 0.

    Source: Chang and Lin (ACM TIST 2011)
    """

    path: Annotated[str, "absolute, from ~, or from the working directory"]

    def __post_init__(self) -> None:
        check(self)

    def dataset(self, name: str, root: Path) -> Dataset:
        """The rows; the same object until the file changes."""
        place = Path(self.path).expanduser().absolute()
        return _kept(f"{place}\0{sources.file(place)}", lambda: libsvm.load(place))


@dataclass(frozen=True)
class Planted(planted.Planted):
    __doc__ = planted.Planted.__doc__

    def dataset(self, name: str, root: Path) -> Dataset:
        """The rows; the same object each time."""
        return _kept(repr(self), self.load)


def dataset_of(rows: SparseRows) -> Dataset:
    """The rows that are held back for testing, and the others for training.

    Raises:
        ConfigError: none of one kind.
    """
    test = rows.take(np.flatnonzero(rows.test))
    for each, what in ((rows.training, "train on"), (test, "test with")):
        if not len(each):
            raise ConfigError("data", rows.name, f"has no rows to {what}")
    labels = [torch.from_numpy(each.labels).long() for each in (rows.training, test)]
    inputs = [SparseInputs.of(each) for each in (rows.training, test)]
    return Dataset(rows.name, inputs[0], labels[0], inputs[1], labels[1], 0.0, 1.0, 2)


_made: dict[str, Dataset] = {}


def _kept(key: str, load: Callable[[], SparseRows]) -> Dataset:
    """The dataset that was made last, if it is asked for again."""
    if key not in _made:
        _made.clear()
        _made[key] = dataset_of(load())
    return _made[key]
