"""Coefficients of chunks: the vectors of the specification, the transform, and places that no worker sends."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslab.config.spec import build
from pslab.errors import FrameError
from pslab.tensors.matrices.demo import DeMo, cosines, side
from pslab.tensors.matrices.lowrank import Shape

NOTHING = np.empty(0)


def encode(rule: DeMo, matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return rule.encode(matrix, 0, NOTHING, np.random.default_rng, 0)


def decode(rule: DeMo, values: np.ndarray, shape: Shape) -> np.ndarray:
    return rule.decode(values, 0, shape, NOTHING, np.random.default_rng)


def test_two_gradients_as_in_the_specification():
    rule = build("prune", "demo:topk=1,chunk=4,decay=0.5")
    gradient = 0.1 * np.array([[1.0], [2.0], [3.0], [4.0]])
    delta, left = np.zeros((4, 1)), []
    for _ in range(2):
        delta = rule.decay * delta + gradient
        values, places = encode(rule, delta)
        assert places.tolist() == [0]
        np.testing.assert_allclose(values, [0.5], atol=1e-12)
        delta -= decode(rule, np.array([*values, 0, 0, 0]), (4, 1))
        left.append(delta.ravel().tolist())
    np.testing.assert_allclose(left, [[-0.15, -0.05, 0.05, 0.15], [-0.225, -0.075, 0.075, 0.225]], atol=1e-12)


@pytest.mark.parametrize("n", [1, 2, 7, 56, 64])
def test_the_transform_is_orthonormal(n: int):
    np.testing.assert_allclose(cosines(n) @ cosines(n).T, np.eye(n), atol=1e-12)


def test_the_transform_is_that_of_the_definition():
    n, x = 8, np.random.default_rng(0).standard_normal(8)
    wanted = [sum(x[i] * np.cos(np.pi * (2 * i + 1) * k / (2 * n)) for i in range(n)) for k in range(n)]
    np.testing.assert_allclose(cosines(n) @ x, wanted * np.sqrt(np.where(np.arange(n) == 0, 1, 2) / n), atol=1e-12)


@pytest.mark.parametrize(("length", "most", "found"), [(784, 64, 56), (1024, 64, 64), (10, 64, 10), (67, 64, 1),
                                                      (4, 4, 4), (64, 16, 16)])  # fmt: skip
def test_a_chunks_side_is_the_largest_divisor(length: int, most: int, found: int):
    assert side(length, most) == found


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 9), st.integers(1, 6), st.integers(0, 99))
def test_what_is_sent_are_the_largest_coefficients_of_each_chunk(a: int, b: int, topk: int, chunk: int, seed: int):
    rule, matrix = DeMo(topk, chunk), np.random.default_rng(seed).standard_normal((a, b))
    values, places = encode(rule, matrix)
    assert len(values) == len(places) == rule.count((a, b), 0)
    at = rule.positions(places, (a, b))
    every, _ = encode(DeMo(chunk * chunk, chunk), matrix)
    np.testing.assert_allclose(decode(rule, every, (a, b)), matrix, atol=1e-12)
    assert np.array_equal(every[at], values)
    own = side(a, chunk) * side(b, chunk)
    for number in range(a * b // own):
        mine = np.abs(every[own * number : own * (number + 1)])
        sent = (at // own) == number
        assert np.abs(values[sent]).min() >= np.sort(mine)[::-1][: min(topk, own)].min()
    kept = np.zeros(a * b)
    kept[at] = values
    lost = matrix - decode(rule, kept, (a, b))
    np.testing.assert_allclose((lost**2).sum(), (every**2).sum() - (values**2).sum(), atol=1e-9)


@pytest.mark.parametrize("places", [[0, 0, 1, 2], [1, 0, 1, 2], [0, 4, 1, 2], [0, 1, 3, 2]], ids=str)
def test_places_that_no_worker_sends_are_refused(places: list[int]):
    rule = DeMo(topk=2, chunk=2)
    assert rule.positions(np.array([0, 3, 1, 2], np.uint16), (4, 2)).tolist() == [0, 3, 5, 6]
    with pytest.raises(FrameError, match="do not increase, or lie outside a chunk of 4"):
        rule.positions(np.array(places, np.uint16), (4, 2))
