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
    """A gradient restricted to a range; no copy where the range is one slice."""
    if isinstance(gradient, torch.Tensor):
        views = part.views(gradient)
        return views[0] if len(views) == 1 else torch.cat(views)
    return torch.from_numpy(gradient.values) if gradient.indices is None else gradient


def outside(vector: Vector) -> Entries:
    """A vector of a range as a gradient that the store takes."""
    return Entries(len(vector), None, vector.numpy()) if isinstance(vector, torch.Tensor) else vector


def cuts(part: Part, layers: Sequence[slice]) -> list[slice]:
    """The parts of the layers (slices of the flat vector) that lie in a range, as slices of the range."""

    def position(flat: int) -> int:
        return sum(min(max(flat - s.start, 0), s.stop - s.start) for s in part.slices)

    found = [slice(position(layer.start), position(layer.stop)) for layer in layers]
    return [cut for cut in found if cut.stop > cut.start]


def copied(vector: Vector) -> Vector:
    """A copy that outlives the buffers of a push."""
    if isinstance(vector, torch.Tensor):
        return vector.clone()
    assert vector.indices is not None
    return Entries(vector.n, vector.indices.copy(), vector.values.copy())


def scaled(vector: Vector, factor: float) -> Vector:
    """factor * vector."""
    if isinstance(vector, torch.Tensor):
        return vector * factor
    return Entries(vector.n, vector.indices, vector.values * vector.values.dtype.type(factor))


def plus(a: Vector, b: Vector, weight: float = 1.0) -> Vector:
    """a + weight * b; of two sparse vectors on the union of their supports."""
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
    """The mean; of a single vector the vector itself, not a copy."""
    total = vectors[0]
    for more in vectors[1:]:
        total = plus(total, more)
    return total if len(vectors) == 1 else scaled(total, 1 / len(vectors))


def radial_directional(vectors: Sequence[torch.Tensor], weights: Sequence[float]) -> torch.Tensor:
    """The weighted mean of the lengths of some vectors [n] in the weighted mean of their directions: float64 [n]. Where
    the directions cancel, to less than 1e-12, the weighted mean of the vectors; of zeros zeros.

    Source: Douillard et al. (arXiv 2604.21428, 2026)
    """
    own, shares = [vector.double() for vector in vectors], [weight / sum(weights) for weight in weights]
    lengths = [float(torch.linalg.vector_norm(vector)) for vector in own]
    direction, mean_vector = torch.zeros_like(own[0]), torch.zeros_like(own[0])
    for vector, length, share in zip(own, lengths, shares, strict=True):
        direction.add_(vector, alpha=share / length if length else 0.0)
        mean_vector.add_(vector, alpha=share)
    norm = float(torch.linalg.vector_norm(direction))
    if norm < 1e-12:
        return mean_vector
    return direction * (sum(share * length for share, length in zip(shares, lengths, strict=True)) / norm)


def dense(vector: Vector) -> torch.Tensor:
    """[size of the range], zero where an entry is absent."""
    return vector if isinstance(vector, torch.Tensor) else torch.from_numpy(vector.dense())


def positions(entries: Entries) -> torch.Tensor:
    """The indices of sparse entries as int64 [k]."""
    return torch.from_numpy(np.asarray(entries.indices, dtype=np.int64))


def mean_over_users(vectors: Sequence[Vector]) -> tuple[Vector, NDArray[np.int64]]:
    """Each entry's mean over the vectors that hold it, and how many do (of each entry that any holds).

    A dense vector holds all of them.
    """
    whole = [vector for vector in vectors if isinstance(vector, torch.Tensor)]
    if len(whole) == len(vectors):
        return mean(vectors), np.full(len(whole[0]), len(vectors), np.int64)
    held = [vector for vector in vectors if isinstance(vector, Entries)]
    own = [np.asarray(entries.indices, np.int64) for entries in held]
    indices = np.arange(held[0].n) if whole else np.unique(np.concatenate(own))
    total, counts = np.zeros(len(indices), held[0].values.dtype), np.full(len(indices), len(whole), np.int64)
    for vector in whole:
        total += vector.numpy()
    for entries, keys in zip(held, own, strict=True):
        where = np.searchsorted(indices, keys)
        total[where] += entries.values
        counts[where] += 1
    found = total / counts.astype(total.dtype)
    return (torch.from_numpy(found) if whole else Entries(held[0].n, indices, found)), counts
