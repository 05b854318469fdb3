"""Decoupled momentum: the largest coefficients of a cosine transform of each chunk of a matrix."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from pslab.config.parameters import Bounds, OneOf, check
from pslab.errors import FrameError
from pslab.tensors.matrices.lowrank import Shape, Stream

Array = NDArray[Any]


def side(length: int, most: int) -> int:
    """The largest divisor of a length that is at most this."""
    return next(found for found in range(min(length, most), 0, -1) if length % found == 0)


@cache
def cosines(n: int) -> Array:
    """The orthonormal cosine transform (DCT-II) of n numbers, as a matrix [n, n], a row for each coefficient."""
    rows, columns = np.arange(n)[:, None], np.arange(n)
    found: Array = np.cos(np.pi * (columns + 0.5) * rows / n) * np.sqrt(2 / n)
    found[0] = np.sqrt(1 / n)
    return found


@dataclass(frozen=True)
class DeMo:
    """The `topk` largest cosine coefficients of each chunk of a momentum that each worker keeps; the steps are signs.

    A worker's d = decay d + g is cut into chunks, whose sides are the largest divisors, at most `chunk`, of its
    tensors' sides; what is sent is subtracted from d. The server takes the mean of each coefficient over the workers
    that sent it (by=senders) or over all of them, transforms it back, and steps by the sign: use a learning rate as for
    `sign`. 6 bytes a coefficient. Needs rounds.

    Source: Peng et al. (arXiv 2024)
    """

    matrices: ClassVar[bool] = True
    compiled: ClassVar[bool] = False
    place_bytes: ClassVar[int] = 2
    aggregate: ClassVar[str] = "coefficients"
    residual: ClassVar[bool] = True

    topk: Annotated[int, Bounds(at_least=1), "coefficients of a chunk that are sent"] = 32
    chunk: Annotated[int, Bounds(at_least=1, at_most=256), "entries of a chunk's side, at most"] = 64
    decay: Annotated[float, Bounds(above=0, at_most=1), "of the momentum at each gradient"] = 0.999
    by: Annotated[str, OneOf("senders", "all"), "the workers over which the mean of a coefficient is taken"] = "senders"

    def __post_init__(self) -> None:
        check(self)

    @property
    def residual_decay(self) -> float:
        """The momentum is what is not yet sent."""
        return self.decay

    def select(self, v: torch.Tensor) -> torch.Tensor:
        """All indices of v: coefficients are made of all entries."""
        return torch.arange(len(v), device=v.device)

    def sends(self, n: int) -> int:
        """All n entries, in another form."""
        return n

    def count(self, shape: Shape, turn: int) -> int:
        """The number of coefficients of a matrix that are sent."""
        chunk = self._chunk(shape)
        return shape[0] * shape[1] // chunk * min(self.topk, chunk)

    def kept(self, shape: Shape) -> int:
        """A worker keeps nothing but the momentum."""
        return 0

    def encode(self, matrix: Array, turn: int, kept: Array, stream: Stream, worker: int) -> tuple[Array, Array]:
        """The coefficients (float64) that are sent of each chunk, and their places there, increasing."""
        shape: Shape = matrix.shape
        a, b = (side(length, self.chunk) for length in shape)
        chunks = matrix.reshape(shape[0] // a, a, shape[1] // b, b).swapaxes(1, 2)
        found = (cosines(a) @ chunks @ cosines(b).T).reshape(-1, a * b)
        size, least = np.abs(found), max(0, a * b - self.topk)
        edge = np.partition(size, least, axis=1)[:, least, None]
        sent, equal = size > edge, size == edge
        sent |= equal & (equal.cumsum(axis=1) <= a * b - least - sent.sum(axis=1, keepdims=True))  # the first of these
        return found[sent], np.nonzero(sent)[1]

    def positions(self, places: Array, shape: Shape) -> Array:
        """Where such coefficients are among all of a matrix, chunk by chunk (int64, increasing).

        Raises:
            FrameError: places that do not increase in their chunk, or lie outside it.
        """
        chunk = self._chunk(shape)
        own = places.astype(np.int64).reshape(-1, min(self.topk, chunk))
        if (own >= chunk).any() or (np.diff(own, axis=1) <= 0).any():
            raise FrameError(f"places of coefficients that do not increase, or lie outside a chunk of {chunk}")
        return (own + chunk * np.arange(len(own))[:, None]).ravel()

    def decode(self, values: Array, turn: int, shape: Shape, kept: Array, stream: Stream) -> Array:
        """The matrix [rows, columns] of all of its coefficients, chunk by chunk; float64."""
        a, b = (side(length, self.chunk) for length in shape)
        chunks = values.astype(np.float64).reshape(shape[0] // a, shape[1] // b, a, b)
        return (cosines(a).T @ chunks @ cosines(b)).swapaxes(1, 2).reshape(shape)

    def _chunk(self, shape: Shape) -> int:
        """The entries of a chunk."""
        return side(shape[0], self.chunk) * side(shape[1], self.chunk)
