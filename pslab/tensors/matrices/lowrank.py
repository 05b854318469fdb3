"""Matrices as products of two thin ones: each worker's own (`LowRank`), or one factor of all workers (`PowerSGD`).

Of a worker's matrix M [rows, columns], residual and gradient, P Q^T is sent in place of M, and M - P Q^T is the next
residual. A zero column of a factor would stay zero for ever: another one is drawn in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from pslab.config.parameters import Bounds, check

Array = NDArray[Any]
Shape = tuple[int, int]
Stream = Callable[..., np.random.Generator]  # of names: a stream of this piece

DEPENDENT = 1e-10  # of a column's length: so little that is left of it is rounding
NOWHERE = np.empty(0, np.int64)  # values that need no places


def product(a: Array, b: Array) -> Array:
    """a @ b, by the library and on the threads that gradients are computed with."""
    found: Array = (torch.from_numpy(np.ascontiguousarray(a)) @ torch.from_numpy(np.ascontiguousarray(b))).numpy()
    return found


def outer(p: Array, q: Array) -> Array:
    """p @ q.T [rows, columns], column by column: worker and server then have the same bits."""
    found = np.zeros((len(p), len(q)))
    for own, other in zip(p.T, q.T, strict=True):
        found += np.multiply.outer(own, other)
    return found


def orthonormal(x: Array) -> Array:
    """The columns of x [n, r], orthogonal to those before by Gram-Schmidt, and of norm 1; those that depend on others
    become zero. The usual division by the norm + 1e-8 would leave them parallel to those instead, and count them twice.
    """
    found, lengths = x.astype(np.float64), np.sqrt(np.square(x.astype(np.float64)).sum(axis=0))
    for number, length in enumerate(lengths):
        own = found[:, number]
        for before in found.T[:number]:
            own -= (own * before).sum() * before
        left = np.sqrt((own * own).sum())
        own[:] = own / left if left > DEPENDENT * length else 0.0
    return found


def filled(x: Array, chance: Callable[[], np.random.Generator]) -> Array:
    """x [n, r], float64, with drawn columns in the place of those that are zero, all of them at first."""
    found, empty = x.astype(np.float64), ~x.any(axis=0)
    if empty.any():
        found[:, empty] = orthonormal(chance().standard_normal(x.shape))[:, empty]
    return found


@dataclass(frozen=True)
class LowRank:
    """Each matrix as the product of two thin ones, P Q^T, by one power iteration of each worker's own.

    P = orth(M Q), Q = M^T P: the last Q is the start of the next iteration. Both are sent, 4 rank (rows + columns)
    bytes, and the server takes the mean of the products, whose rank may be that of all workers together. Of one
    worker this is PowerSGD. Tensors of one dimension, and those of which this would not save half, are sent unchanged.

    Source: Vogels et al. (NeurIPS 2019)
    """

    matrices: ClassVar[bool] = True
    compiled: ClassVar[bool] = False
    place_bytes: ClassVar[int] = 0

    rank: Annotated[int, Bounds(at_least=1), "columns of a factor"]
    residual: Annotated[bool, "whether what the factors lose is added to the next gradient"] = True
    after: Annotated[int, Bounds(at_least=0), "pushes of all entries before the first factors"] = 0
    square: Annotated[bool, "whether all of a range is one matrix, as nearly square as can be, filled with zeros"] = (
        False
    )

    def __post_init__(self) -> None:
        check(self)

    def select(self, v: torch.Tensor) -> torch.Tensor:
        """All indices of v: factors are made of all entries."""
        return torch.arange(len(v), device=v.device)

    def sends(self, n: int) -> int:
        """All n entries, in another form."""
        return n

    def factored(self, shape: Shape) -> bool:
        """Whether factors of a matrix take less than half of it."""
        rows, columns = shape
        return 2 * self.rank * (rows + columns) < rows * columns

    def dense(self, shape: Shape, turn: int) -> bool:
        """Whether push number `turn` has all entries of a matrix."""
        return turn < self.after or not self.factored(shape)

    def count(self, shape: Shape, turn: int) -> int:
        """The number of values of a matrix in a worker's push number `turn`."""
        rows, columns = shape
        return rows * columns if self.dense(shape, turn) else self.rank * (rows + columns)

    def kept(self, shape: Shape) -> int:
        """The number of values that a worker keeps of a matrix: Q."""
        return self.rank * shape[1] if self.factored(shape) else 0

    def encode(self, matrix: Array, turn: int, kept: Array, stream: Stream, worker: int) -> tuple[Array, Array]:
        """The values of a matrix (float64), and their places, of which there are none. `kept` is changed."""
        if self.dense(matrix.shape, turn):
            return matrix.ravel(), NOWHERE
        q = filled(kept.reshape(-1, self.rank), lambda: stream("lowrank", worker))
        p = orthonormal(product(matrix, q)).astype(kept.dtype)
        kept[:] = product(matrix.T, p.astype(np.float64)).ravel()
        return np.concatenate([p.ravel(), kept]), NOWHERE

    def decode(self, values: Array, turn: int, shape: Shape, kept: Array, stream: Stream) -> Array:
        """The matrix of such values, float64."""
        if self.dense(shape, turn):
            return values.reshape(shape).astype(np.float64)
        p, q = np.split(values.astype(np.float64), [self.rank * shape[0]])
        return outer(p.reshape(-1, self.rank), q.reshape(-1, self.rank))


@dataclass(frozen=True)
class PowerSGD(LowRank):
    """One factor of each matrix in a push, by turns: all workers have the other one, made of the mean of the last ones.

    With F, orthonormal, even pushes send M^T F, odd ones M F. The server averages them, steps by the product with F,
    orthonormalizes the mean, and sends that with the weights as the next F. The mean of the workers' factors is the
    factor of their mean. Needs rounds. `after` postpones the start, as the authors do, by about a tenth of a run.

    Source: Vogels et al. (NeurIPS 2019)
    """

    aggregate: ClassVar[str] = "factors"

    def count(self, shape: Shape, turn: int) -> int:
        """The number of values of a matrix in push number `turn`."""
        rows, columns = shape
        return rows * columns if self.dense(shape, turn) else self.rank * self._side(shape, turn)

    def kept(self, shape: Shape) -> int:
        """Room for F, of rows or columns by turns."""
        return self.rank * max(shape) if self.factored(shape) else 0

    def stated(self, shape: Shape, turn: int) -> int:
        """The number of values of F that come with the weights for push number `turn`; the first F is drawn."""
        return self.rank * self._side(shape, turn + 1) if turn > self.after and self.factored(shape) else 0

    def encode(self, matrix: Array, turn: int, kept: Array, stream: Stream, worker: int) -> tuple[Array, Array]:
        """The values of a matrix (float64), and their places, of which there are none."""
        shape: Shape = matrix.shape
        if self.dense(shape, turn):
            return matrix.ravel(), NOWHERE
        return product(matrix if self._odd(turn) else matrix.T, self.basis(shape, turn, kept, stream)).ravel(), NOWHERE

    def decode(self, values: Array, turn: int, shape: Shape, kept: Array, stream: Stream) -> Array:
        """The matrix of such values, or of a mean of them, float64."""
        if self.dense(shape, turn):
            return values.reshape(shape).astype(np.float64)
        own, basis = values.astype(np.float64).reshape(-1, self.rank), self.basis(shape, turn, kept, stream)
        return outer(own, basis) if self._odd(turn) else outer(basis, own)

    def basis(self, shape: Shape, turn: int, kept: Array, stream: Stream) -> Array:
        """F of push number `turn`, float64: what was stated, or at first what all draw."""
        size = self._side(shape, turn + 1)
        if turn > self.after:
            return kept[: self.rank * size].reshape(size, self.rank).astype(np.float64)
        return orthonormal(stream("powersgd").standard_normal((size, self.rank))).astype(kept.dtype).astype(np.float64)

    def following(self, mean: Array, stream: Stream) -> Array:
        """The next F [values] after a mean of factors."""
        own = orthonormal(mean.reshape(-1, self.rank))
        return orthonormal(filled(own, lambda: stream("powersgd"))).ravel()

    def _odd(self, turn: int) -> bool:
        return (turn - self.after) % 2 == 1

    def _side(self, shape: Shape, turn: int) -> int:
        """The rows of what push number `turn` sends of a matrix."""
        return shape[0] if self._odd(turn) else shape[1]
