"""Rules for whole matrices: thin factors, the largest coefficients of a cosine transform, and count sketches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isqrt
from typing import Annotated, Any

import numpy as np
import torch

from pslab.config.parameters import Bounds, OneOf, check
from pslab.tensors.compression.rule import At, Parts, Rule
from pslab.tensors.compression.select import top
from pslab.tensors.device import sent
from pslab.tensors.random_streams import numpy_generator

Shape = tuple[int, ...]
DEPENDENT = 1e-10  # a remainder below this share of a column's length is rounding error


def orthonormal(x: torch.Tensor) -> torch.Tensor:
    """Orthonormalize the columns of x [n, r] from left to right, in float64; dependent columns become zero."""
    basis = x.double()
    for number in range(basis.shape[1]):
        column, length = basis[:, number], basis[:, number].norm()
        for before in basis.T[:number]:
            column -= (column @ before) * before
        left = column.norm()
        column[:] = torch.where(left > DEPENDENT * length, column / left, 0.0)  # without a wait for a device
    return basis


@dataclass(frozen=True)
class Factors(Rule):
    """The base of rules that send two factors of a matrix, if these have less than half as many entries as the matrix.

    Other pieces are sent unchanged.
    """

    changes_all = True

    rank: int
    after: int

    def __post_init__(self) -> None:
        check(self)

    def shape(self, at: At) -> Shape:
        """Return the shape to which a piece is reshaped: rows and columns if it is a matrix."""
        return at.shape

    def factored(self, at: At) -> bool:
        """Whether a piece is sent as factors."""
        rows, columns = self.shape(at) if len(self.shape(at)) == 2 else (1, 1)
        return 2 * self.rank * (rows + columns) < rows * columns

    def sends(self, n: int, at: At) -> Any:
        """Return a key: pushes of a piece with equal keys have equally many values."""
        return at.turn < self.after, (at.turn - self.after) % 2

    def values(self, at: At) -> int:
        """Return the number of values that are sent for a piece."""
        raise NotImplementedError

    def count(self, parts: Parts, at: At) -> int:
        return self.values(at)

    def fixed(self, at: At) -> int:
        return self.values(at)

    def drawn(self, at: At, size: int, device: torch.device, *names: str | int) -> torch.Tensor:
        """Draw orthonormal columns [size, rank] for a piece, the same in every push."""
        chance = numpy_generator(at.seed, *names, at.start)
        return sent(orthonormal(torch.from_numpy(chance.standard_normal((size, self.rank)))), device)


@dataclass(frozen=True)
class LowRank(Factors):
    """Approximate each matrix M by a product of two thin matrices, P Q^T, by one power iteration at each worker.

    P = orth(M Q), and then Q = M^T P; the next push starts with this Q. P and Q are sent, 4 rank (rows + columns)
    bytes. The server takes the mean of the workers' products. With one worker this is PowerSGD. Tensors of one
    dimension, and matrices of which the factors would not save half, are sent unchanged.

    Source: Vogels et al. (NeurIPS 2019)
    """

    vectors = ("q",)
    rank: Annotated[int, Bounds(at_least=1), "the number of columns of a factor"]
    residual: Annotated[bool, "whether the entries that factors lose are added to the next gradient"] = True
    after: Annotated[int, Bounds(at_least=0), "the number of pushes before the first factors"] = 0
    square: Annotated[bool, "whether a range is sent as one nearly square matrix, padded with zeros"] = False

    @property
    def unit(self) -> str:  # type: ignore[override]
        """The piece that is factored: "tensor", or "range" if `square`."""
        return "range" if self.square else "tensor"

    def shape(self, at: At) -> Shape:
        side = isqrt(at.size - 1) + 1
        return (-(-at.size // side), side) if self.square else at.shape

    def values(self, at: At) -> int:
        """Return the number of values that are sent for a piece."""
        return self.rank * sum(self.shape(at)) if self.factored(at) and at.turn >= self.after else at.size

    def compress(self, v: torch.Tensor, at: At) -> Parts:
        if not self.factored(at) or at.turn < self.after:
            return at.code.compress(v, at)
        rows, columns = self.shape(at)
        previous = at.memory["q"][: self.rank * columns]
        q = previous.view(-1, self.rank).double()
        m = torch.nn.functional.pad(v, (0, rows * columns - at.size)).view(rows, columns).double()
        # replace columns of zeros, which would stay zero
        q = torch.where(q.any(0), q, self.drawn(at, len(q), v.device, "lowrank", at.worker))
        p = orthonormal(m @ q).to(v.dtype)
        previous.copy_((m.T @ p.double()).flatten())
        return at.code.compress(torch.cat([p.flatten(), previous]), at)

    def decompress(self, parts: Parts, at: At) -> Any:
        if not self.factored(at) or at.turn < self.after:
            return at.code.decompress(parts, at)
        values = at.code.decompress(parts, at.of(self.values(at))).double()
        p, q = values.split([self.rank * side for side in self.shape(at)])
        product: torch.Tensor = p.view(-1, self.rank) @ q.view(-1, self.rank).T
        return product.to(at.dtype).reshape(-1)[: at.size]


@dataclass(frozen=True)
class PowerSGD(Factors):
    """Push the left or the right factor of each matrix, by turns; the other factor is the mean of the last pushes.

    Let F be the orthonormal factor that all workers have. Even pushes send M^T F, odd pushes M F. The server averages
    the pushes, steps by the product of the mean and F, and sends the orthonormalized mean with the weights as the next
    F. The mean of the workers' pushes is the push of their mean M. Needs rounds. `after` delays the start; the authors
    delay it by about a tenth of a run.

    Source: Vogels et al. (NeurIPS 2019)
    """

    tells = rounds = alternates = summable = True
    rank: Annotated[int, Bounds(at_least=1), "the number of columns of a factor"]
    residual: Annotated[bool, "whether the entries that factors lose are added to the next gradient"] = True
    after: Annotated[int, Bounds(at_least=0), "the number of pushes before the first factors"] = 0

    def server(self, shape: Shape) -> int:
        return self.rank * max(shape) if len(shape) == 2 else 0

    def compress(self, v: torch.Tensor, at: At) -> Parts:
        if not self.factored(at) or at.turn < self.after:
            return at.code.compress(v, at)
        m = v.view(at.shape).double()
        factor = (m if self._odd(at) else m.T) @ self._basis(at)
        return at.code.compress(factor.flatten().to(v.dtype), at)

    def decompress(self, parts: Parts, at: At) -> torch.Tensor:
        return self._product(self._values(parts, at), at)

    def combine(self, pushes: Sequence[Parts], at: At) -> torch.Tensor:
        mean = torch.stack([self._values(parts, at) for parts in pushes]).mean(0)
        product = self._product(mean, at)
        if self.factored(at) and at.turn >= self.after:
            basis = orthonormal(mean.view(-1, self.rank))
            basis = torch.where(basis.any(0), basis, self.drawn(at, len(basis), basis.device, "powersgd"))
            at.memory["server"][: mean.numel()] = orthonormal(basis).flatten()
        return product

    def values(self, at: At) -> int:
        """Return the number of values that are sent for a piece."""
        sent = self.factored(at) and at.turn >= self.after
        return self.rank * at.shape[0 if self._odd(at) else 1] if sent else at.size

    def _values(self, parts: Parts, at: At) -> torch.Tensor:
        values: torch.Tensor = at.code.decompress(parts, at.of(self.values(at)))
        return values

    def _product(self, values: torch.Tensor, at: At) -> torch.Tensor:
        if not self.factored(at) or at.turn < self.after:
            return values
        rows, basis = values.double().view(-1, self.rank), self._basis(at)
        return (rows @ basis.T if self._odd(at) else basis @ rows.T).to(at.dtype)

    def _odd(self, at: At) -> bool:
        return (at.turn - self.after) % 2 == 1

    def _basis(self, at: At) -> torch.Tensor:
        """Return F [n, rank] for this push: the server's factor, or at first a factor that all workers draw."""
        size = at.shape[1 if self._odd(at) else 0]
        if at.turn <= self.after:
            return self.drawn(at, size, at.memory["server"].device, "powersgd").to(at.dtype).double()
        return at.memory["server"][: self.rank * size].view(size, self.rank).double()


@lru_cache
def cosines(n: int, device: torch.device) -> torch.Tensor:
    """Return the orthonormal cosine transform (DCT-II) of n numbers: a matrix [n, n], a row for each coefficient."""
    rows, columns = torch.arange(n, dtype=torch.float64)[:, None], torch.arange(n, dtype=torch.float64)
    transform: torch.Tensor = torch.cos(torch.pi * (columns + 0.5) * rows / n) * (2 / n) ** 0.5
    transform[0] = (1 / n) ** 0.5
    return transform.to(device)


@dataclass(frozen=True)
class DeMo(Rule):
    """Send the `topk` largest cosine coefficients of each chunk of a worker's momentum; step by the sign of their mean.

    The momentum d = decay d + g of a tensor is cut into chunks. Their sides are the largest divisors of the tensor's
    sides that are at most `chunk`. The sent coefficients are subtracted from d. The server takes the mean of each
    coefficient over the workers that sent it (by=senders) or over all workers (by=all), transforms the means back, and
    steps by the sign of each entry: use a learning rate as for `sign`. Needs rounds.

    Source: Peng et al. (arXiv 2024)
    """

    residual = rounds = changes_all = own_momentum = True

    topk: Annotated[int, Bounds(at_least=1), "the number of coefficients of a chunk that are sent"] = 32
    chunk: Annotated[int, Bounds(at_least=1, at_most=256), "the largest number of entries in a chunk's side"] = 64
    decay: Annotated[float, Bounds(above=0, at_most=1), "the factor of the momentum at each gradient"] = 0.999
    by: Annotated[str, OneOf("senders", "all"), "the workers over which the mean of a coefficient is taken"] = "senders"

    def __post_init__(self) -> None:
        check(self)

    def compress(self, v: torch.Tensor, at: At) -> Parts:
        chunks = self._chunks(v.double(), at)
        a, b = chunks.shape[1:]
        spectrum = (cosines(a, v.device) @ chunks @ cosines(b, v.device).T).reshape(len(chunks), -1)
        chosen = torch.stack([top(row, min(self.topk, a * b)) for row in spectrum])
        return [chosen.to(torch.int16), spectrum.gather(1, chosen).to(v.dtype)]

    def count(self, parts: Parts, at: At) -> int:
        return parts[1].numel()

    def sends(self, n: int, at: At) -> Any:
        """Return None: all pushes of a piece have equally many values."""

    def decompress(self, parts: Parts, at: At) -> torch.Tensor:
        return self._back(*self._coefficients(parts, at)[:1], at)

    def push(self, gradient: torch.Tensor, at: At) -> Parts:
        at.memory["residual"].mul_(self.decay)
        return super().push(gradient, at)

    def combine(self, pushes: Sequence[Parts], at: At) -> torch.Tensor:
        pairs = [self._coefficients(parts, at) for parts in pushes]
        values, sent = (torch.stack(pair).sum(0) for pair in zip(*pairs, strict=True))
        mean = values / (sent.clamp(min=1) if self.by == "senders" else len(pushes))
        return self._back(mean.to(at.dtype).double(), at).sign()

    def _sides(self, at: At) -> tuple[int, int, int, int]:
        rows, columns = at.shape if len(at.shape) == 2 else (at.size, 1)
        a, b = (next(n for n in range(min(side, self.chunk), 0, -1) if side % n == 0) for side in (rows, columns))
        return rows // a, a, columns // b, b

    def _chunks(self, v: torch.Tensor, at: At) -> torch.Tensor:
        i, a, j, b = self._sides(at)
        return v.view(i, a, j, b).swapaxes(1, 2).reshape(i * j, a, b)

    def _coefficients(self, parts: Parts, at: At) -> tuple[torch.Tensor, torch.Tensor]:
        """Return all coefficients [chunks, entries], 0 if not sent, and an array with 1 for each sent coefficient."""
        i, a, j, b = self._sides(at)
        where = parts[0].view(torch.int16).long().view(i * j, -1).clamp(0, a * b - 1)
        grid = torch.zeros(i * j, a * b, dtype=torch.float64, device=where.device)
        values = parts[1].view(at.dtype).double().view(where.shape)
        return grid.scatter(1, where, values), grid.scatter(1, where, torch.ones_like(values))

    def _back(self, coefficients: torch.Tensor, at: At) -> torch.Tensor:
        i, a, j, b = self._sides(at)
        there = coefficients.device
        chunks = cosines(a, there).T @ coefficients.view(-1, a, b) @ cosines(b, there)
        return chunks.view(i, j, a, b).swapaxes(1, 2).reshape(-1).to(at.dtype)


@dataclass(frozen=True)
class CountSketch(Rule):
    """Send a count sketch of each range's gradient (rows x cols values); the server estimates large entries (FetchSGD).

    Workers store nothing. The server stores a momentum u and an error e as sketches: u = decay u + the mean of the
    pushes, e = e + u. It steps by the `topk` largest estimated entries of e, and subtracts their sketch from e. A range
    with no more entries than a sketch is sent unchanged. Needs rounds.

    Source: Rothchild et al. (ICML 2020); the sketch: Charikar, Chen and Farach-Colton (ICALP 2002)
    """

    unit = "range"
    rounds = own_momentum = True

    cols: Annotated[int, Bounds(at_least=1), "the number of buckets of a row"]
    rows: Annotated[int, Bounds(at_least=1, at_most=99), "the number of rows; their median is the estimate"] = 5
    topk: Annotated[
        int | None, Bounds(at_least=1), "entries of each range that change in a step; none: a tenth of the buckets"
    ] = None
    decay: Annotated[float, Bounds(at_least=0, below=1), "the factor of the momentum at each step"] = 0.9

    def __post_init__(self) -> None:
        check(self)

    def count(self, parts: Parts, at: At) -> int:
        return parts[0].numel()

    def fixed(self, at: At) -> int:
        return min(self.rows * self.cols, at.size)

    def sends(self, n: int, at: At) -> Any:
        """Return None: all pushes of a piece have equally many values."""

    def server(self, shape: Shape) -> int:
        return 2 * min(self.rows * self.cols, int(np.prod(shape)))

    def compress(self, v: torch.Tensor, at: At) -> Parts:
        if self.rows * self.cols >= at.size:
            return [v.clone()]
        buckets, signs = (sent(numbers, v.device) for numbers in self._hashes(at))
        table = torch.zeros(self.rows, self.cols, dtype=torch.float64, device=v.device)
        return [table.scatter_add_(1, buckets, signs * v.double()).flatten().to(v.dtype)]

    def decompress(self, parts: Parts, at: At) -> torch.Tensor:
        table = parts[0].view(at.dtype)
        if self.rows * self.cols >= at.size:
            return table
        buckets, signs = (sent(numbers, table.device) for numbers in self._hashes(at))
        estimates = (table.double().view(self.rows, self.cols).gather(1, buckets) * signs).sort(0).values
        return ((estimates[self.rows // 2] + estimates[(self.rows - 1) // 2]) / 2).to(at.dtype)

    def combine(self, pushes: Sequence[Parts], at: At) -> torch.Tensor:
        momentum, error = at.memory["server"].view(2, -1)
        momentum.mul_(self.decay).add_(torch.stack([parts[0].view(at.dtype) for parts in pushes]).mean(0))
        error.add_(momentum)
        estimate = self.decompress([error], at)
        indices = top(estimate, min(self.topk or max(1, self.cols // 10), at.size))
        applied = torch.zeros_like(estimate).index_copy_(0, indices, estimate[indices])
        error.sub_(self.compress(applied, at)[0])
        return applied

    def _hashes(self, at: At) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the bucket and the sign of each entry in each row: [rows, n]."""
        draw = int(numpy_generator(at.seed, "sketch", at.start).integers(2**63))
        chance = np.random.Generator(np.random.PCG64(draw))
        buckets = chance.integers(0, self.cols, (self.rows, at.size), np.int32)
        signs = 2 * chance.integers(0, 2, (self.rows, at.size), np.int8) - 1
        return torch.from_numpy(buckets).long(), torch.from_numpy(signs).double()
