"""Means of vectors: lengths and directions apart."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from pslab.tensors.random_streams import numpy_generator
from pslab.tensors.update.vectors import radial_directional


def averaged(*vectors: tuple[float, ...], weights: tuple[float, ...] = (1.0, 1.0)) -> list[float]:
    return radial_directional([torch.tensor(vector) for vector in vectors], weights).tolist()


def test_a_radial_directional_average_as_in_the_specification():
    np.testing.assert_allclose(averaged((3.0, 0.0), (0.0, 4.0)), [2.47487373, 2.47487373], atol=1e-8)
    found = averaged((3.0, 0.0), (0.0, 4.0), weights=(3.0, 1.0))
    np.testing.assert_allclose(found, [3.08322072, 1.02774024], atol=1e-8)


def test_where_directions_cancel_it_is_the_mean():
    assert averaged((2.0, 0.0), (-2.0, 0.0)) == [0, 0]
    assert averaged((3.0, 0.0), (-1.0, 0.0)) == [1, 0]
    assert averaged((0.0, 0.0), (0.0, 0.0)) == [0, 0]


@given(st.integers(1, 5), st.integers(1, 20), st.integers(0, 99))
def test_its_length_is_the_mean_of_the_lengths_and_equal_vectors_are_it(count: int, size: int, seed: int):
    rng = numpy_generator(seed, "vectors")
    vectors = [torch.from_numpy(rng.random(size) + 0.1) for _ in range(count)]  # whose directions never cancel
    weights = rng.integers(1, 9, count).tolist()
    found = radial_directional(vectors, weights)
    lengths = [float(vector.norm()) for vector in vectors]
    np.testing.assert_allclose(float(found.norm()), np.average(lengths, weights=weights), rtol=1e-12)
    np.testing.assert_allclose(radial_directional(vectors[:1] * count, weights), vectors[0], rtol=1e-12)
    np.testing.assert_allclose(radial_directional([5 * vector for vector in vectors], weights), 5 * found, rtol=1e-12)
