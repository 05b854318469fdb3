"""Sparse rows as the inputs of a model."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from pslab.config.run import Run
from pslab.errors import ConfigError
from pslab.tensors.datasets.planted import Planted
from pslab.tensors.sparse import SparseInputs, numbered, on_keys
from pslab.tensors.workload.data import resolve_data
from pslab.tensors.workload.models import Linear, build_model

ROWS = Planted(rows=40, keys=60, per_row=5, communities=3).load()


def dense(x: torch.Tensor) -> np.ndarray:
    """Row by row, without torch's own conversion."""
    starts, keys, values = (each.numpy() for each in (x.crow_indices(), x.col_indices(), x.values()))
    found = np.zeros(tuple(x.shape))
    for row in range(len(found)):
        found[row, keys[starts[row] : starts[row + 1]]] = values[starts[row] : starts[row + 1]]
    return found


def test_a_batch_has_the_rows_that_were_asked_for():
    inputs, rows = SparseInputs.of(ROWS), np.array([7, 0, 39, 7])
    found = dense(inputs[torch.from_numpy(rows)])
    for row, place in zip(found, rows, strict=True):
        here = slice(ROWS.starts[place], ROWS.starts[place + 1])
        assert np.array_equal(np.flatnonzero(row), ROWS.keys[here])
        assert np.allclose(row[ROWS.keys[here]], ROWS.values[here])
    assert np.array_equal(dense(inputs[2:5]), dense(inputs[torch.arange(2, 5)]))
    assert np.array_equal(inputs.keys_of(rows), np.flatnonzero(found.any(0)))


def test_a_batch_over_its_own_keys_is_the_same_batch():
    inputs, rows = SparseInputs.of(ROWS), np.array([3, 11, 30])
    x, keys = inputs[torch.from_numpy(rows)], inputs.keys_of(rows)
    assert np.array_equal(dense(on_keys(x, keys)), dense(x)[:, keys])


@pytest.mark.parametrize("cuts", [[0, 5], [0, 2, 3, 3, 5]], ids=str)
def test_rows_of_several_steps_are_numbered_over_the_keys_of_all(cuts):
    inputs, rows = SparseInputs.of(ROWS), np.array([3, 11, 30, 3, 0])
    narrow = inputs.narrowed(rows)
    for begin, end in pairwise(cuts):
        x = on_keys(inputs[torch.from_numpy(rows[begin:end])], narrow.keys)
        found = narrow.inputs(begin, end)
        assert found.shape == (end - begin, len(narrow.keys))
        for name in ("crow_indices", "col_indices", "values"):
            assert torch.equal(getattr(found, name)(), getattr(x, name)())


@pytest.mark.parametrize("count", [0, 1, 7, 5000])
def test_keys_are_numbered_as_a_search_among_the_distinct_ones_would(count):
    keys = np.random.default_rng(count).integers(0, 2**31 - 1 if count == 7 else 999, count).astype(np.int32)
    distinct, numbers = numbered(keys)
    expected = np.unique(keys, return_inverse=True)
    assert np.array_equal(distinct, expected[0])
    assert np.array_equal(numbers, expected[1])
    assert (distinct.dtype, numbers.dtype) == (np.int64, np.int32)


def test_the_gradient_of_a_sparse_batch_is_that_of_the_same_dense_batch():
    inputs, y = SparseInputs.of(ROWS), torch.tensor([0, 1, 1, 0])
    x = inputs[torch.tensor([1, 2, 3, 20])]
    gradients = []
    for batch in (x.double(), torch.from_numpy(dense(x))):
        module = Linear(60).double()
        torch.nn.init.normal_(module.weight, generator=torch.Generator().manual_seed(0))
        functional.cross_entropy(module(batch), y).backward()
        gradients.append(module.weight.grad.numpy())
    assert np.allclose(*gradients, atol=1e-12)
    assert np.abs(gradients[0]).max() > 0


def test_a_linear_model_without_data_says_whose_keys_it_needs():
    with pytest.raises(ConfigError, match="the number of keys is the data"):
        build_model("linear", 0)


def test_rows_of_a_file_name_a_run_by_what_the_file_holds(tmp_path: Path):
    file = tmp_path / "rows.txt"
    lines = [f"{row % 2} {1 + row % 7}:0.5 {9 + row % 5}:1.5" for row in range(60)]
    file.write_text("\n".join(lines))
    found = resolve_data(f"libsvm:{file}")
    assert found is resolve_data(f"libsvm:{file}")
    assert (found.classes, found.train_x.shape[1]) == (2, 13)
    assert len(found.train_y) + len(found.test_y) == 60
    before = Run(data=f"libsvm:{file}", model="linear").digest
    file.write_text("\n".join(lines[1:]))
    assert Run(data=f"libsvm:{file}", model="linear").digest != before
    assert len(resolve_data(f"libsvm:{file}").train_y) + len(resolve_data(f"libsvm:{file}").test_y) == 59


def test_data_without_rows_to_test_with_are_refused(tmp_path: Path):
    file = tmp_path / "rows.txt"
    file.write_text("1 1:1\n")
    with pytest.raises(ConfigError, match=r"has no rows to (test with|train on)"):
        resolve_data(f"libsvm:{file}")
