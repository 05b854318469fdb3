"""Sparse rows: what may be one, and what is read from files, planted, and found in the interpreter's library."""

from __future__ import annotations

import platform
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from pslab.errors import ConfigError
from pslab.tensors.datasets import functions, libsvm
from pslab.tensors.datasets.planted import Planted
from pslab.tensors.sparse import SparseRows, rows_of

DIGESTS = {"3.11.7": "5f41d843", "3.12.1": "b6150962", "3.13.0": "299ce3ea"}  # of these releases as they are published
A, B, C = 0, 1, 2
SMALL = rows_of("small", 3, [(np.array(keys), np.ones(len(keys))) for keys in ([A, C], [], [B, C], [C])],
                np.array([1, 0, 1, 0]), np.array([False, False, True, False]))  # fmt: skip


def test_rows_can_be_taken_in_any_order_and_keep_their_keys():
    taken = SMALL.take(np.array([2, 0, 1]))
    assert [taken.keys[a:b].tolist() for a, b in pairwise(taken.starts)] == [
        [B, C], [A, C], []]  # fmt: skip
    assert taken.labels.tolist() == [1, 1, 0]
    assert SMALL.training.entries_of.tolist() == [2, 0, 1]


def test_the_holders_of_a_key_are_the_rows_that_hold_it():
    starts, holders = SMALL.holders
    assert [holders[a:b].tolist() for a, b in pairwise(starts)] == [[0], [2], [0, 2, 3]]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [("starts", np.array([0, 2, 2, 4, 6]), "do not cover"), ("starts", np.array([0, 3, 2, 4, 5]), "do not cover"),
     ("values", np.ones(4, np.float32), "as many values as keys"), ("labels", np.ones(3), "a label for each row"),
     ("key_count", 2, "must lie in 0 to 1"), ("keys", np.array([2, 0, 1, 2, 2], np.int32), "must increase"),
     ("values", np.array([1, 1, np.nan, 1, 1]), "finite")],
    ids=["beyond", "backwards", "values", "labels", "range", "order", "nan"],
)  # fmt: skip
def test_arrays_that_do_not_belong_together_are_refused(field, value, words):
    given = {name: getattr(SMALL, name) for name in
             ("name", "key_count", "starts", "keys", "values", "labels", "test")}  # fmt: skip
    with pytest.raises(ConfigError, match=words):
        SparseRows(**{**given, field: value})


# --- planted -----------------------------------------------------------------------------------------------------


def test_without_noise_communities_share_no_key():
    rows = Planted(rows=64, keys=320, per_row=5, communities=4, noise=0.0).load()
    group = np.arange(320)  # of keys that rows hold together: the least of them, spread until nothing changes
    for _ in range(64):
        for first, end in pairwise(rows.starts):
            group[rows.keys[first:end]] = group[rows.keys[first:end]].min()
    assert len(np.unique(group[np.unique(rows.keys)])) >= 4
    assert (rows.entries_of == 5).all()


def test_the_frequencies_of_keys_follow_zipfs_law_and_noise_leaves_their_number():
    rows = Planted(rows=2000, keys=800, per_row=10, communities=2, noise=0.3, exponent=1.1).load()
    frequent = np.sort(np.bincount(rows.keys, minlength=800))[::-1]
    assert (rows.entries_of == 10).all()
    assert frequent[:20].sum() > 5 * frequent[400:420].sum()


def test_a_seed_plants_the_same_rows_and_another_seed_others():
    one, again, other = (Planted(rows=50, keys=100, per_row=4, communities=2, seed=seed).load() for seed in (3, 3, 4))
    assert one.content == again.content != other.content


def test_a_row_cannot_hold_more_keys_than_its_community():
    with pytest.raises(ConfigError, match="a community has 10 keys"):
        Planted(keys=40, communities=4, per_row=11)


# --- files -------------------------------------------------------------------------------------------------------


def test_a_libsvm_file_is_read(tmp_path: Path):
    (tmp_path / "rows.txt").write_text("+1 1:0.5 3:-2 # a comment\n\n-1 2:1e-3\n0\n")
    rows = libsvm.load(tmp_path / "rows.txt")
    assert (rows.name, rows.key_count, rows.labels.tolist()) == ("rows.txt", 3, [1, 0, 0])
    assert rows.starts.tolist() == [0, 2, 3, 3]
    assert rows.keys.tolist() == [0, 2, 1]
    assert rows.values.tolist() == pytest.approx([0.5, -2, 1e-3])


@pytest.mark.parametrize(
    ("text", "words"),
    [("1 1:2\nx 1:2\n", "line 2 is not"), ("1 1=2\n", "line 1 is not"), ("1 2:1 1:1\n", "line 1: keys must"),
     ("1 0:1\n", "from 1"), ("1 99999999999:1\n", "from 1 and increase"), ("", "has no rows")],
    ids=["label", "pair", "order", "zero", "huge", "empty"],
)  # fmt: skip
def test_a_line_that_is_none_is_named(tmp_path: Path, text: str, words: str):
    (tmp_path / "rows.txt").write_text(text)
    with pytest.raises(ConfigError, match=words):
        libsvm.load(tmp_path / "rows.txt")


def test_a_file_that_is_not_there_is_said(tmp_path: Path):
    for path in (tmp_path / "none", "/dev/zero"):
        with pytest.raises(ConfigError, match="cannot be read"):
            libsvm.load(path)


# --- functions ---------------------------------------------------------------------------------------------------

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
    assert len(rows) == 3
    assert rows.labels.tolist() == [1, 0, 1]
    # plain: def plain alpha beta return; method: async def method self inner pass return; late: its line is its docs'
    assert rows.entries_of.tolist() == [5, 7, 0]
    assert rows.values[0] == pytest.approx(5**-0.5)


def test_a_library_without_sources_is_said(tmp_path: Path):
    with pytest.raises(ConfigError, match="no sources of Python"):
        functions.load.__wrapped__(tmp_path)


@pytest.mark.slow
def test_the_interpreters_own_library_is_the_data_set_of_its_release():
    rows = functions.load()
    assert len(rows) > 10_000
    assert rows.key_count > 20_000
    assert 0.3 < rows.labels.mean() < 0.5
    known = DIGESTS.get(platform.python_version())
    if known is not None and platform.python_build()[0] == "main":
        assert rows.name == f"functions-{known}"
