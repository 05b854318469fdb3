"""Matrices as products of thin factors: the vectors of the specification, and what no matrix may break."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pslab.config.spec import build
from pslab.tensors.matrices.lowrank import LowRank, PowerSGD, filled, orthonormal, outer, product
from pslab.tensors.random_streams import numpy_generator

STREAM = partial(numpy_generator, 0)
MATRICES = arrays.arrays(np.float64, st.tuples(st.integers(6, 12), st.integers(6, 12)),
                         elements=st.floats(-100, 100, width=32))  # fmt: skip


class Always:
    """Factors of matrices that are too small to gain by them."""

    def factored(self, shape: tuple[int, int]) -> bool:
        return True


class Low(Always, LowRank):
    pass


class Power(Always, PowerSGD):
    pass


def test_factors_of_the_specifications_matrix():
    kept, matrix = np.array([1.0, 1.0]), np.array([[2.0, 0.0], [0.0, 1.0]])
    values, places = Low(1).encode(matrix, 0, kept, STREAM, 0)
    np.testing.assert_allclose(values, [0.894427, 0.447214, 1.788854, 0.447214], atol=5e-7)
    assert not len(places)
    assert np.array_equal(kept, values[2:])
    found = Low(1).decode(values, 0, (2, 2), kept, STREAM)
    np.testing.assert_allclose(found, [[1.6, 0.8 / 2], [0.8, 0.2]], atol=5e-7)


def test_the_first_factor_is_drawn_from_the_stream_of_its_worker_and_orthonormal():
    rule, kept = Low(2), np.zeros(14)
    matrix = np.random.default_rng(0).standard_normal((9, 7))
    rule.encode(matrix, 0, kept, STREAM, 3)
    start = orthonormal(numpy_generator(0, "lowrank", 3).standard_normal((7, 2)))
    np.testing.assert_allclose(start.T @ start, np.eye(2), atol=1e-7)
    wanted = matrix.T @ orthonormal(matrix @ start)
    np.testing.assert_allclose(kept.reshape(7, 2), wanted, atol=1e-12)


@given(MATRICES)
def test_a_matrix_of_the_factors_rank_is_sent_exactly_and_others_lose_what_is_orthogonal(matrix: np.ndarray):
    kept = np.zeros(2 * matrix.shape[1])
    thin = outer(matrix[:, :1], np.ones((5, 1)))
    values, _ = (rule := Low(2)).encode(thin, 0, own := np.zeros(10), STREAM, 0)
    scale = np.abs(matrix).max() + 1e-6
    found = rule.decode(values, 0, thin.shape, own, STREAM)
    assert np.abs(found - thin).max() <= 1e-6 * scale or np.abs(thin).max() < 1e-3
    values, _ = rule.encode(matrix, 0, kept, STREAM, 0)
    lost = matrix - rule.decode(values, 0, matrix.shape, kept, STREAM)
    assert np.linalg.norm(lost) <= np.linalg.norm(matrix) * (1 + 1e-9)


def test_a_matrix_of_zeros_stays_one_and_the_next_one_is_seen():
    for rule, size in ((Low(1), 3), (Power(1), 3)):
        kept = np.zeros(size)
        values, _ = rule.encode(np.zeros((3, 3)), 0, kept, STREAM, 0)
        assert np.isfinite(values).all()
        assert not rule.decode(values, 0, (3, 3), kept, STREAM).any()
    kept = np.zeros(3)
    for matrix in (np.zeros((3, 3)), np.eye(3)):
        values, _ = Low(1).encode(matrix, 0, kept, STREAM, 0)
    assert Low(1).decode(values, 0, (3, 3), kept, STREAM).any()


def test_a_zero_column_is_drawn_and_others_are_kept():
    x = np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]])
    found = filled(x, lambda: numpy_generator(0, "one"))
    assert np.array_equal(found[:, 0], x[:, 0])
    assert found[:, 1].all()


def test_one_factor_of_two_workers_as_in_the_specification():
    rule, basis = Power(1), np.array([1.0, 0.0])
    matrices = [np.array([[2.0, 0.0], [0.0, 1.0]]), np.array([[0.0, 2.0], [2.0, 0.0]])]
    # push 2 is an even one, whose F was stated
    own = [rule.encode(matrix, 2, basis, STREAM, worker)[0] for worker, matrix in enumerate(matrices)]
    assert rule.decode(sum(own) / 2, 2, (2, 2), basis, STREAM).tolist() == [[1, 1], [0, 0]]
    lost = [m - rule.decode(v, 2, (2, 2), basis, STREAM) for m, v in zip(matrices, own, strict=True)]
    assert [each.tolist() for each in lost] == [[[0, 0], [0, 1]], [[0, 0], [2, 0]]]


@given(st.lists(MATRICES, min_size=2, max_size=4).map(lambda found: [each[:6, :6] for each in found]), st.booleans())
def test_the_mean_of_factors_is_the_factor_of_the_mean(matrices: list[np.ndarray], odd: bool):
    rule, turn = Power(2), 3 if odd else 2
    basis = orthonormal(np.random.default_rng(1).standard_normal((6, 2))).ravel()
    own = [rule.encode(matrix, turn, basis, STREAM, 0)[0] for matrix in matrices]
    joined = rule.decode(np.mean(own, axis=0), turn, (6, 6), basis, STREAM)
    each = [rule.decode(values, turn, (6, 6), basis, STREAM) for values in own]
    np.testing.assert_allclose(joined, np.mean(each, axis=0), atol=1e-10)


def test_both_sides_are_refined_by_turns_as_by_power_iterations():
    """After some pushes of the same matrix of one worker, F spans what its largest singular vectors span."""
    matrix = np.diag([5.0, 3.0, 1.0, 0.5]) + 0.01 * np.random.default_rng(2).standard_normal((4, 4))
    rule, kept = Power(2), np.zeros(8)
    for turn in range(40):
        values, _ = rule.encode(matrix, turn, kept, STREAM, 0)
        found = rule.decode(values, turn, (4, 4), kept, STREAM)
        kept = rule.following(values, STREAM)
    u, s, v = np.linalg.svd(matrix)
    np.testing.assert_allclose(found, u[:, :2] * s[:2] @ v[:2], atol=1e-6)


@pytest.mark.parametrize(("name", "shape", "counts"), [
    ("lowrank:4", (1000, 500), (6000, 6000)), ("powersgd:4", (1000, 500), (2000, 4000)),
    ("lowrank:4", (500000, 1), (500000, 500000)), ("powersgd:2", (8, 8), (64, 64)), ("lowrank:2", (8, 8), (64, 64)),
    ("lowrank:2", (9, 9), (36, 36)), ("powersgd:2,after=1", (9, 10), (90, 20)),
])  # fmt: skip
def test_factors_are_sent_where_they_take_less_than_half(name: str, shape: tuple[int, int], counts: tuple[int, int]):
    rule = build("prune", name)
    assert (rule.count(shape, 0), rule.count(shape, 1)) == counts


def test_what_comes_with_the_weights_is_what_was_averaged():
    rule = build("prune", "powersgd:2,after=2")
    shape = (100, 30)
    assert [rule.stated(shape, turn) for turn in range(6)] == [0, 0, 0, 60, 200, 60]
    assert [rule.count(shape, turn) for turn in range(2, 5)] == [60, 200, 60]
    assert rule.kept(shape) == 200


def test_products_have_the_same_bits_in_any_layout():
    a, b = np.random.default_rng(0).standard_normal((2, 30, 20))
    assert np.array_equal(product(a.T, b), product(np.ascontiguousarray(a.T), b))
    np.testing.assert_allclose(outer(a, b), a @ b.T, atol=1e-12)
