"""Sparse rows: what may be one, what is read and planted, and the batches that a model has of them."""

from __future__ import annotations

import functools
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from refusals import check_refused
from torch.nn import functional

from pslab.config.run import Run
from pslab.tensors.datasets import functions, libsvm
from pslab.tensors.datasets.planted import Planted
from pslab.tensors.sparse import SparseInputs, numbered, on_keys, rows_of
from pslab.tensors.workload.data import resolve_data
from pslab.tensors.workload.models import Linear

A, B, C = 0, 1, 2
SMALL = rows_of("small", 3, [(np.array(keys), np.ones(len(keys))) for keys in ([A, C], [], [B, C], [C])],
                np.array([1, 0, 1, 0]), np.array([False, False, True, False]))  # fmt: skip
ROWS = Planted(rows=40, keys=60, per_row=5, communities=3).load()


def test_rows_can_be_taken_in_any_order_and_the_holders_of_a_key_are_the_rows_that_hold_it():
    taken, (starts, holders) = SMALL.take(np.array([2, 0, 1])), SMALL.holders
    assert [taken.keys[a:b].tolist() for a, b in pairwise(taken.starts)] == [[B, C], [A, C], []]
    assert taken.labels.tolist() == [1, 1, 0]
    assert SMALL.training.entries_of.tolist() == [2, 0, 1]
    assert [holders[a:b].tolist() for a, b in pairwise(starts)] == [[0], [2], [0, 2, 3]]


def test_what_is_no_row_or_no_file_of_rows_is_refused(tmp_path: Path):
    check_refused(("data", functools.partial(replace, SMALL, **{field: value}), words) for field, value, words in (
        ("starts", np.array([0, 2, 2, 4, 6]), "not decrease"), ("starts", np.array([0, 3, 2, 4, 5]), "not decrease"),
        ("values", np.ones(4, np.float32), "as many values as keys"), ("labels", np.ones(3), "as many labels and test"),
        ("key_count", 2, "must be from 0 to 1"), ("keys", np.array([2, 0, 1, 2, 2], np.int32), "must increase"),
        ("values", np.array([1, 1, np.nan, 1, 1]), "finite")))  # fmt: skip
    file = tmp_path / "rows.txt"
    for text, words in (("1 1:2\nx 1:2\n", "line 2 is not"), ("1 1=2\n", "line 1 is not"),
                        ("1 2:1 1:1\n", "line 1: keys must"), ("1 0:1\n", "from 1"),
                        ("1 99999999999:1\n", "from 1 and increase"), ("", "has no rows")):  # fmt: skip
        file.write_text(text)
        check_refused([("data", lambda: libsvm.load(file), words)])
    file.write_text("1 1:1\n")
    check_refused([
        ("data", lambda: resolve_data(f"libsvm:{file}"), r"has no rows to (test with|train on)"),
        *(("data", lambda path=path: libsvm.load(path), "cannot be read")
          for path in (tmp_path / "none", Path("/dev/zero"))),
        ("data", lambda: functions.load.__wrapped__(tmp_path / "none"), "has no Python source files"),
        ("planted.per_row", lambda: Planted(keys=40, communities=4, per_row=11), "a community has 10 keys"),
    ])  # fmt: skip


def test_planted_communities_share_no_key_without_noise_and_keys_follow_zipfs_law():
    rows = Planted(rows=64, keys=320, per_row=5, communities=4, noise=0.0).load()
    group = np.arange(320)  # of keys that rows hold together: the least of them, spread until nothing changes
    for _ in range(64):
        for first, end in pairwise(rows.starts):
            group[rows.keys[first:end]] = group[rows.keys[first:end]].min()
    assert len(np.unique(group[np.unique(rows.keys)])) >= 4
    rows = Planted(rows=2000, keys=800, per_row=10, communities=2, noise=0.3, exponent=1.1).load()
    frequent = np.sort(np.bincount(rows.keys, minlength=800))[::-1]
    assert (rows.entries_of == 10).all()
    assert frequent[:20].sum() > 5 * frequent[400:420].sum()
    one, again, other = (Planted(rows=50, keys=100, per_row=4, communities=2, seed=seed).load() for seed in (3, 3, 4))
    assert one.content == again.content != other.content


def test_a_libsvm_file_is_read_and_names_a_run_by_what_it_holds(tmp_path: Path):
    (tmp_path / "rows.txt").write_text("+1 1:0.5 3:-2 # a comment\n\n-1 2:1e-3\n0\n")
    rows = libsvm.load(tmp_path / "rows.txt")
    assert (rows.name, rows.key_count, rows.labels.tolist()) == ("rows.txt", 3, [1, 0, 0])
    assert (rows.starts.tolist(), rows.keys.tolist()) == ([0, 2, 3, 3], [0, 2, 1])
    assert rows.values.tolist() == pytest.approx([0.5, -2, 1e-3])
    file = tmp_path / "more.txt"
    lines = [f"{row % 2} {1 + row % 7}:0.5 {9 + row % 5}:1.5" for row in range(60)]
    file.write_text("\n".join(lines))
    found, before = resolve_data(f"libsvm:{file}"), Run(data=f"libsvm:{file}", model="linear").digest
    assert found is resolve_data(f"libsvm:{file}")
    assert (found.classes, found.train_x.shape[1], len(found.train_y) + len(found.test_y)) == (2, 13, 60)
    file.write_text("\n".join(lines[1:]))
    assert Run(data=f"libsvm:{file}", model="linear").digest != before
    assert len((found := resolve_data(f"libsvm:{file}")).train_y) + len(found.test_y) == 59


MODULE = '''
import os

def plain(alpha, beta=alpha):
    """Docs of plain."""
    return alpha + beta

class Thing:
    async def method(self):
        def inner(): pass
        return inner

if os:
    def late(): "docs"
'''


def test_functions_are_rows_of_their_words_without_docstrings(tmp_path: Path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "mod.py").write_text(MODULE)
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "left_out.py").write_text("def hidden(): pass\n")
    rows = functions.load.__wrapped__(tmp_path)
    assert (len(rows), rows.labels.tolist()) == (3, [1, 0, 1])
    # plain: def plain alpha beta return; method: async def method self inner pass return; late: its line is its docs'
    assert rows.entries_of.tolist() == [5, 7, 0]
    assert rows.values[0] == pytest.approx(5**-0.5)


def dense(x: torch.Tensor) -> np.ndarray:
    """Row by row, without torch's own conversion."""
    starts, keys, values = (each.numpy() for each in (x.crow_indices(), x.col_indices(), x.values()))
    found = np.zeros(tuple(x.shape))
    for row in range(len(found)):
        found[row, keys[starts[row] : starts[row + 1]]] = values[starts[row] : starts[row + 1]]
    return found


def test_a_batch_has_the_rows_that_were_asked_for_over_all_keys_or_its_own():
    inputs, rows = SparseInputs.of(ROWS), np.array([7, 0, 39, 7])
    x, keys = inputs[torch.from_numpy(rows)], inputs.keys_of(rows)
    found = dense(x)
    for row, number in zip(found, rows, strict=True):
        here = slice(ROWS.starts[number], ROWS.starts[number + 1])
        assert np.array_equal(np.flatnonzero(row), ROWS.keys[here])
        assert np.allclose(row[ROWS.keys[here]], ROWS.values[here])
    assert np.array_equal(dense(inputs[2:5]), dense(inputs[torch.arange(2, 5)]))
    assert np.array_equal(keys, np.flatnonzero(found.any(0)))
    assert np.array_equal(dense(on_keys(x, keys)), found[:, keys])


def test_rows_of_several_steps_are_numbered_over_the_keys_of_all():
    inputs, rows = SparseInputs.of(ROWS), np.array([3, 11, 30, 3, 0])
    narrow = inputs.narrowed(rows)
    for begin, end in pairwise([0, 2, 3, 3, 5]):
        x = on_keys(inputs[torch.from_numpy(rows[begin:end])], narrow.keys)
        found = narrow.inputs(begin, end)
        assert found.shape == (end - begin, len(narrow.keys))
        for name in ("crow_indices", "col_indices", "values"):
            assert torch.equal(getattr(found, name)(), getattr(x, name)())


def test_keys_are_numbered_as_a_search_among_the_distinct_ones_would():
    for count, most in ((0, 9), (1, 9), (7, 2**31 - 1), (5000, 999)):
        keys = np.random.default_rng(count).integers(0, most, count).astype(np.int32)
        distinct, numbers = numbered(keys)
        assert all(map(np.array_equal, (distinct, numbers), np.unique(keys, return_inverse=True)))
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
