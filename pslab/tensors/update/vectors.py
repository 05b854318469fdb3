"""Arithmetic of dense and sparse vectors of one range; positions count from the start of the range."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from pslab.tensors.entries import Entries
from pslab.tensors.update.part import Gradient, Part

Vector = torch.Tensor | Entries  # [size of the range], or sparse entries: their indices are not None


def inside(part: Part, gradient: Gradient) -> Vector:
    """Restrict a gradient to a range, without a copy if the range is one slice."""
    if isinstance(gradient, torch.Tensor):
        views = part.views(gradient)
        return views[0] if len(views) == 1 else torch.cat(views)
    return torch.from_numpy(gradient.values) if gradient.indices is None else gradient


def outside(vector: Vector) -> Entries:
    """Convert a vector of a range to a gradient for the store."""
    return Entries(len(vector), None, vector.numpy()) if isinstance(vector, torch.Tensor) else vector


def cuts(part: Part, layers: Sequence[slice]) -> list[slice]:
    """Return the parts of layers (slices of the flat vector) that are in a range, as slices of the range."""

    def position(flat: int) -> int:
        return sum(min(max(flat - s.start, 0), s.stop - s.start) for s in part.slices)

    slices = [slice(position(layer.start), position(layer.stop)) for layer in layers]
    return [cut for cut in slices if cut.stop > cut.start]


def copied(vector: Vector) -> Vector:
    """Copy a vector, so that it outlives the buffers of a push."""
    if isinstance(vector, torch.Tensor):
        return vector.clone()
    assert vector.indices is not None
    return Entries(vector.n, vector.indices.copy(), vector.values.copy())


def scaled(vector: Vector, factor: float) -> Vector:
    """Return factor * vector."""
    if isinstance(vector, torch.Tensor):
        return vector * factor
    return Entries(vector.n, vector.indices, vector.values * vector.values.dtype.type(factor))


def plus(a: Vector, b: Vector, weight: float = 1.0) -> Vector:
    """Return a + weight * b. The sum of two sparse vectors has the entries of both; else the sum is dense."""
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return torch.add(dense(a), dense(b), alpha=weight)
    assert a.indices is not None
    assert b.indices is not None
    indices = np.union1d(a.indices, b.indices)
    values = np.zeros(len(indices), a.values.dtype)
    values[np.searchsorted(indices, a.indices)] = a.values
    values[np.searchsorted(indices, b.indices)] += values.dtype.type(weight) * b.values
    return Entries(a.n, indices, values)


def mean(vectors: Sequence[Vector]) -> Vector:
    """Return the mean of vectors; for a single vector the vector itself, not a copy."""
    total = vectors[0]
    for more in vectors[1:]:
        total = plus(total, more)
    return total if len(vectors) == 1 else scaled(total, 1 / len(vectors))


def radial_directional(vectors: Sequence[torch.Tensor], weights: Sequence[float]) -> torch.Tensor:
    """Return the radial-directional average of vectors [n]: float64 [n]. Its direction is the weighted mean of their
    directions, its length the weighted mean of their lengths. If the directions cancel, to less than 1e-12, it is the
    weighted mean of the vectors.

    Source: Douillard et al. (arXiv 2604.21428, 2026)
    """
    doubles, shares = [vector.double() for vector in vectors], [weight / sum(weights) for weight in weights]
    lengths = [float(torch.linalg.vector_norm(vector)) for vector in doubles]
    direction, mean_vector = torch.zeros_like(doubles[0]), torch.zeros_like(doubles[0])
    for vector, length, share in zip(doubles, lengths, shares, strict=True):
        direction.add_(vector, alpha=share / length if length else 0.0)
        mean_vector.add_(vector, alpha=share)
    norm = float(torch.linalg.vector_norm(direction))
    if norm < 1e-12:
        return mean_vector
    return direction * (sum(share * length for share, length in zip(shares, lengths, strict=True)) / norm)


def dense(vector: Vector) -> torch.Tensor:
    """Return the dense vector [size of the range], zero where an entry is absent."""
    return vector if isinstance(vector, torch.Tensor) else torch.from_numpy(vector.dense())


def positions(entries: Entries) -> torch.Tensor:
    """Return the indices of sparse entries as int64 [k]."""
    return torch.from_numpy(np.asarray(entries.indices, dtype=np.int64))


def mean_over_users(vectors: Sequence[Vector]) -> tuple[Vector, NDArray[np.int64]]:
    """Return each entry's mean over the vectors that have the entry, and the number of these vectors.

    A dense vector has all entries.
    """
    whole = [vector for vector in vectors if isinstance(vector, torch.Tensor)]
    if len(whole) == len(vectors):
        return mean(vectors), np.full(len(whole[0]), len(vectors), np.int64)
    sparse = [vector for vector in vectors if isinstance(vector, Entries)]
    positions = [np.asarray(entries.indices, np.int64) for entries in sparse]
    indices = np.arange(sparse[0].n) if whole else np.unique(np.concatenate(positions))
    total, counts = np.zeros(len(indices), sparse[0].values.dtype), np.full(len(indices), len(whole), np.int64)
    for vector in whole:
        total += vector.numpy()
    for entries, keys in zip(sparse, positions, strict=True):
        where = np.searchsorted(indices, keys)
        total[where] += entries.values
        counts[where] += 1
    average = total / counts.astype(total.dtype)
    return (torch.from_numpy(average) if whole else Entries(sparse[0].n, indices, average)), counts


def clipped(gradient: torch.Tensor, norm: float) -> torch.Tensor:
    """Return the gradient, scaled down if its norm exceeds `norm`, as torch.nn.utils.clip_grad_norm_ does."""
    length = float(torch.linalg.vector_norm(gradient, dtype=torch.float64)) + 1e-6
    return gradient * (norm / length) if length > norm else gradient
