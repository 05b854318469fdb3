"""Rules of whole matrices: thin factors, or the largest coefficients of a cosine transform; and count sketches."""

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
DEPENDENT = 1e-10  # of a column's length: so little that is left of it is rounding


def orthonormal(x: torch.Tensor) -> torch.Tensor:
    """Return the columns of x [n, r], orthogonal to earlier columns and of norm 1; dependent columns become zero."""
    found = x.double()
    for number in range(found.shape[1]):
        own, length = found[:, number], found[:, number].norm()
        for before in found.T[:number]:
            own -= (own @ before) * before
        left = own.norm()
        own[:] = torch.where(left > DEPENDENT * length, own / left, 0.0)  # without a wait for a device
    return found


@dataclass(frozen=True)
class Factors(Rule):
    """Rules that send factors of a matrix, where these take less than half of it; others are sent unchanged."""

    changes_all = True

    rank: int
    after: int

    def __post_init__(self) -> None:
        check(self)

    def shape(self, at: At) -> Shape:
        """Return rows and columns of the matrix that is made of a piece."""
        return at.shape

    def factored(self, at: At) -> bool:
        """Whether a piece is sent as factors."""
        rows, columns = self.shape(at) if len(self.shape(at)) == 2 else (1, 1)
        return 2 * self.rank * (rows + columns) < rows * columns

    def sends(self, n: int, at: At) -> Any:
        """Return the state that decides how many values are sent."""
        return at.turn < self.after, (at.turn - self.after) % 2

    def values(self, at: At) -> int:
        """How many values are sent of a piece."""
        raise NotImplementedError

    def count(self, parts: Parts, at: At) -> int:
        return self.values(at)

    def fixed(self, at: At) -> int:
        return self.values(at)

    def drawn(self, at: At, size: int, device: torch.device, *names: str | int) -> torch.Tensor:
        """Orthonormal columns [size, rank], the same in every push."""
        chance = numpy_generator(at.seed, *names, at.start)
        return sent(orthonormal(torch.from_numpy(chance.standard_normal((size, self.rank)))), device)


@dataclass(frozen=True)
class LowRank(Factors):
    """Approximate each matrix by the product of two thin matrices, P Q^T, by one power iteration at each worker.

    P = orth(M Q), Q = M^T P: the last Q is the start of the next iteration. Both are sent, 4 rank (rows + columns)
    bytes, and the server takes the mean of the products, whose rank may be the sum of all workers' ranks. Of one
    worker this is PowerSGD. Tensors of one dimension, and tensors of which this would not save half, are sent
    unchanged.

    Source: Vogels et al. (NeurIPS 2019)
    """

    kept = ("q",)
    rank: Annotated[int, Bounds(at_least=1), "columns of a factor"]
    residual: Annotated[bool, "whether what the factors lose is added to the next gradient"] = True
    after: Annotated[int, Bounds(at_least=0), "pushes of all entries before the first factors"] = 0
    square: Annotated[bool, "whether all of a range is one matrix, as nearly square as can be, filled with zeros"] = (
        False
    )

    @property
    def unit(self) -> str:  # type: ignore[override]
        """The piece that is factored: a tensor, or a range."""
        return "range" if self.square else "tensor"

    def shape(self, at: At) -> Shape:
        side = isqrt(at.size - 1) + 1
        return (-(-at.size // side), side) if self.square else at.shape

    def values(self, at: At) -> int:
        """Return how many values are sent of a piece."""
        return self.rank * sum(self.shape(at)) if self.factored(at) and at.turn >= self.after else at.size

    def compress(self, v: torch.Tensor, at: At) -> Parts:
        if not self.factored(at) or at.turn < self.after:
            return at.code.compress(v, at)
        rows, columns = self.shape(at)
        kept = at.memory["q"][: self.rank * columns]
        q = kept.view(-1, self.rank).double()
        m = torch.nn.functional.pad(v, (0, rows * columns - at.size)).view(rows, columns).double()
        # a column of zeros would stay so
        q = torch.where(q.any(0), q, self.drawn(at, len(q), v.device, "lowrank", at.worker))
        p = orthonormal(m @ q).to(v.dtype)
        kept.copy_((m.T @ p.double()).flatten())
        return at.code.compress(torch.cat([p.flatten(), kept]), at)

    def decompress(self, parts: Parts, at: At) -> Any:
        if not self.factored(at) or at.turn < self.after:
            return at.code.decompress(parts, at)
        values = at.code.decompress(parts, at.of(self.values(at))).double()
        p, q = values.split([self.rank * side for side in self.shape(at)])
        product: torch.Tensor = p.view(-1, self.rank) @ q.view(-1, self.rank).T
        return product.to(at.dtype).reshape(-1)[: at.size]


@dataclass(frozen=True)
class PowerSGD(Factors):
    """Push one factor of each matrix, by turns: all workers have the other factor, of the mean of their last pushes.

    With F, orthonormal, even pushes send M^T F, odd ones M F. The server averages them, steps by the product with F,
    orthonormalizes the mean, and tells it with the weights as the next F. The mean of the workers' factors is the
    factor of their mean. Needs rounds. `after` postpones the start, as the authors do, by about a tenth of a run.

    Source: Vogels et al. (NeurIPS 2019)
    """

    tells = rounds = alternates = summable = True
    rank: Annotated[int, Bounds(at_least=1), "columns of a factor"]
    residual: Annotated[bool, "whether what the factors lose is added to the next gradient"] = True
    after: Annotated[int, Bounds(at_least=0), "pushes of all entries before the first factors"] = 0

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
        found = self._product(mean, at)
        if self.factored(at) and at.turn >= self.after:
            own = orthonormal(mean.view(-1, self.rank))
            own = torch.where(own.any(0), own, self.drawn(at, len(own), own.device, "powersgd"))
            at.memory["server"][: mean.numel()] = orthonormal(own).flatten()
        return found

    def values(self, at: At) -> int:
        """Return how many values are sent of a piece."""
        sent = self.factored(at) and at.turn >= self.after
        return self.rank * at.shape[0 if self._odd(at) else 1] if sent else at.size

    def _values(self, parts: Parts, at: At) -> torch.Tensor:
        values: torch.Tensor = at.code.decompress(parts, at.of(self.values(at)))
        return values

    def _product(self, values: torch.Tensor, at: At) -> torch.Tensor:
        if not self.factored(at) or at.turn < self.after:
            return values
        own, basis = values.double().view(-1, self.rank), self._basis(at)
        return (own @ basis.T if self._odd(at) else basis @ own.T).to(at.dtype)

    def _odd(self, at: At) -> bool:
        return (at.turn - self.after) % 2 == 1

    def _basis(self, at: At) -> torch.Tensor:
        """Return F [n, rank] of this push: the factor that the server told, or at first one that all workers draw."""
        size = at.shape[1 if self._odd(at) else 0]
        if at.turn <= self.after:
            return self.drawn(at, size, at.memory["server"].device, "powersgd").to(at.dtype).double()
        return at.memory["server"][: self.rank * size].view(size, self.rank).double()


@lru_cache
def cosines(n: int, device: torch.device) -> torch.Tensor:
    """The orthonormal cosine transform (DCT-II) of n numbers, as a matrix [n, n], a row for each coefficient."""
    rows, columns = torch.arange(n, dtype=torch.float64)[:, None], torch.arange(n, dtype=torch.float64)
    found: torch.Tensor = torch.cos(torch.pi * (columns + 0.5) * rows / n) * (2 / n) ** 0.5
    found[0] = (1 / n) ** 0.5
    return found.to(device)


@dataclass(frozen=True)
class DeMo(Rule):
    """The `topk` largest cosine coefficients of each chunk of a momentum that each worker keeps; the steps are signs.

    A worker's d = decay d + g is cut into chunks, whose sides are the largest divisors, at most `chunk`, of its
    tensors' sides; sent coefficients are subtracted from d. The server takes the mean of each coefficient over the
    workers that sent it (by=senders) or over all of them, transforms it back, and steps by the sign: use a learning
    rate as for `sign`. Needs rounds.

    Source: Peng et al. (arXiv 2024)
    """

    residual = rounds = changes_all = own_momentum = True

    topk: Annotated[int, Bounds(at_least=1), "coefficients of a chunk that are sent"] = 32
    chunk: Annotated[int, Bounds(at_least=1, at_most=256), "entries of a chunk's side, at most"] = 64
    decay: Annotated[float, Bounds(above=0, at_most=1), "of the momentum at each gradient"] = 0.999
    by: Annotated[str, OneOf("senders", "all"), "the workers over which the mean of a coefficient is taken"] = "senders"

    def __post_init__(self) -> None:
        check(self)

    def compress(self, v: torch.Tensor, at: At) -> Parts:
        chunks = self._chunks(v.double(), at)
        a, b = chunks.shape[1:]
        found = (cosines(a, v.device) @ chunks @ cosines(b, v.device).T).reshape(len(chunks), -1)
        chosen = torch.stack([top(row, min(self.topk, a * b)) for row in found])
        return [chosen.to(torch.int16), found.gather(1, chosen).to(v.dtype)]

    def count(self, parts: Parts, at: At) -> int:
        return parts[1].numel()

    def sends(self, n: int, at: At) -> Any:
        """Always the same."""

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
        """All coefficients [chunks, entries], zero where they are not sent; 1 where they are."""
        i, a, j, b = self._sides(at)
        where = parts[0].view(torch.int16).long().view(i * j, -1).clamp(0, a * b - 1)
        found = torch.zeros(i * j, a * b, dtype=torch.float64, device=where.device)
        values = parts[1].view(at.dtype).double().view(where.shape)
        return found.scatter(1, where, values), found.scatter(1, where, torch.ones_like(values))

    def _back(self, coefficients: torch.Tensor, at: At) -> torch.Tensor:
        i, a, j, b = self._sides(at)
        there = coefficients.device
        chunks = cosines(a, there).T @ coefficients.view(-1, a, b) @ cosines(b, there)
        return chunks.view(i, j, a, b).swapaxes(1, 2).reshape(-1).to(at.dtype)


@dataclass(frozen=True)
class CountSketch(Rule):
    """A count sketch of each range's gradient, rows x cols values, which the server adds up and reads (FetchSGD).

    Workers keep nothing. The server keeps momentum u and error e as sketches: u = decay u + the mean of the pushes,
    e = e + u; it steps by the `topk` largest of the estimated entries of e, and subtracts their sketch from e. Of a
    range with no more entries than a sketch all are sent, and read as they are. Needs rounds.

    Source: Rothchild et al. (ICML 2020); the sketch: Charikar, Chen and Farach-Colton (ICALP 2002)
    """

    unit = "range"
    rounds = own_momentum = True

    cols: Annotated[int, Bounds(at_least=1), "buckets of a row"]
    rows: Annotated[int, Bounds(at_least=1, at_most=99), "rows, of whose estimates the median is taken"] = 5
    topk: Annotated[
        int | None, Bounds(at_least=1), "entries of each range that change in a step; none: a tenth of the buckets"
    ] = None
    decay: Annotated[float, Bounds(at_least=0, below=1), "of the momentum at each step"] = 0.9

    def __post_init__(self) -> None:
        check(self)

    def count(self, parts: Parts, at: At) -> int:
        return parts[0].numel()

    def fixed(self, at: At) -> int:
        return min(self.rows * self.cols, at.size)

    def sends(self, n: int, at: At) -> Any:
        """Always the same."""

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
        each = (table.double().view(self.rows, self.cols).gather(1, buckets) * signs).sort(0).values
        return ((each[self.rows // 2] + each[(self.rows - 1) // 2]) / 2).to(at.dtype)

    def combine(self, pushes: Sequence[Parts], at: At) -> torch.Tensor:
        momentum, error = at.memory["server"].view(2, -1)
        momentum.mul_(self.decay).add_(torch.stack([parts[0].view(at.dtype) for parts in pushes]).mean(0))
        error.add_(momentum)
        found = self.decompress([error], at)
        indices = top(found, min(self.topk or max(1, self.cols // 10), at.size))
        applied = torch.zeros_like(found).index_copy_(0, indices, found[indices])
        error.sub_(self.compress(applied, at)[0])
        return applied

    def _hashes(self, at: At) -> tuple[torch.Tensor, torch.Tensor]:
        """The bucket and the sign of each entry in each row: [rows, n]."""
        draw = int(numpy_generator(at.seed, "sketch", at.start).integers(2**63))
        chance = np.random.Generator(np.random.PCG64(draw))
        buckets = chance.integers(0, self.cols, (self.rows, at.size), np.int32)
        signs = 2 * chance.integers(0, 2, (self.rows, at.size), np.int8) - 1
        return torch.from_numpy(buckets).long(), torch.from_numpy(signs).double()
