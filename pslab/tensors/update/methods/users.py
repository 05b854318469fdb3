"""Means over the workers that have a weight: those of sparse data push the keys of their examples alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from pslab.protocol.server import Step
from pslab.tensors.codec import Entries
from pslab.tensors.update.store import Gradient, Part
from pslab.tensors.update.vectors import Vector, inside, mean, outside


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


class Users:
    """The server's half of an averaging: models are averaged over the workers that have moved them."""

    converged = False

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts

    def adjust(self, step: Step, gradients: Sequence[Gradient]) -> Sequence[Gradient]:
        """Of one range, as its entries."""
        vectors = [inside(self._parts[step.range], gradient) for gradient in gradients]
        return [outside(mean_over_users(vectors)[0])]

    def tell(self) -> None:
        """Workers need to know no more than the weights."""

    def facts(self) -> dict[str, object]:
        """Nothing for the manifest."""
        return {}
