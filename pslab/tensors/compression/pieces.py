"""A run's compression rules on its ranges, piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import torch

from pslab.errors import FrameError
from pslab.tensors.compression.bits import fetched
from pslab.tensors.compression.frame import length
from pslab.tensors.compression.rule import At, Parts, Rule, Sparse
from pslab.tensors.compression.uncompressed import dense_bytes
from pslab.tensors.entries import Entries, KeptVector
from pslab.tensors.finite import NonFinite, are_finite
from pslab.tensors.random_streams import generator
from pslab.tensors.update.part import Part
from pslab.tensors.workload.keyspace import Keyspace

DRAWN = 2**20  # normal numbers by which the lengths of pushes are known


class Compression:
    """A run's rules on its ranges: at a worker from a gradient to parts, at a server from parts to entries.

    Args:
        rule: what a push is made of.
        code: how the values go that it chooses.
    """

    def __init__(self, rule: Rule, code: Rule, parts: Sequence[Part], keyspace: Keyspace, seed: int) -> None:
        self.rule, self._parts, self._dtype, self._size = rule, parts, keyspace.dtype, keyspace.size
        made = At(dtype=keyspace.dtype, code=code, seed=seed)
        self._at = [[made._replace(start=start, shape=shape) for start, shape in _pieces(rule.unit, part, keyspace)]
                    for part in parts]  # fmt: skip
        self._served = [[0, *accumulate(rule.server(at.shape) for at in own)] for own in self._at]
        self._vectors = ("residual",) * bool(rule.residual or code.residual) + rule.kept + code.kept
        self._lengths: dict[Any, list[int]] = {}
        self._samples: dict[Any, tuple[Parts, int]] = {}

    @property
    def pieces(self) -> list[At]:
        """All pieces that are compressed."""
        return [at for own in self._at for at in own]

    @property
    def memories(self) -> dict[str, KeptVector]:
        """The memories of each worker from one gradient to the next."""
        found = {name: KeptVector(self._size, self._dtype) for name in self._vectors}
        if count := self.rule.numbers * sum(map(len, self._at)):
            found["numbers"] = KeptVector(count, torch.float64, scalars=True)
        if self.rule.tells:
            found["told"] = KeptVector(sum(own[-1] for own in self._served), self._dtype)
        return found

    def forget(self) -> None:
        """Keep no vector from one push to the next."""
        self._vectors = ()

    def served(self, index: int) -> int:
        """Return how many numbers the server keeps of a range."""
        return self._served[index][-1]

    def told(self, index: int, memories: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the memory in which a worker keeps the server's numbers of a range."""
        if "told" not in memories:
            return torch.empty(0)
        begin = sum(own[-1] for own in self._served[:index])
        return memories["told"][begin : begin + self.served(index)]

    def push(
        self, index: int, gradient: torch.Tensor, kept: Mapping[str, torch.Tensor], **whose: Any
    ) -> tuple[list[Parts], int]:
        """The parts of a range's push, piece by piece, on the CPU, and how many values are sent. Raises as `pushes`."""
        return self.pushes([index], gradient, kept, **whose)[0]

    def pushes(
        self, indices: Sequence[int], gradient: torch.Tensor, kept: Mapping[str, torch.Tensor], **whose: Any
    ) -> list[tuple[list[Parts], int]]:
        """The pushes of several ranges. A device is waited for twice for all of them: until it is known whether the
        gradient is finite, and until the parts are on the CPU; and where a rule must see how many entries it sends.

        Raises:
            NonFinite: the gradient, or its sum with the residual or momentum.
        """
        ranges = [list(self._placed(index, kept, self.told(index, kept), whose)) for index in indices]
        if not are_finite([gradient[piece] for each in ranges for _, piece in each]):
            raise NonFinite("the gradient is not finite")
        try:
            found = [[self.rule.push(gradient[piece], at) for at, piece in each] for each in ranges]
        except FrameError as error:  # of the worker's own parts: a norm of finite numbers can overflow
            raise NonFinite(f"the gradient's sum with the residual is too large: {error}") from error
        if gradient.device.type != "cpu":
            here = iter(fetched([part for own in found for parts in own for part in parts]))
            found = [[[next(here) for _ in parts] for parts in own] for own in found]
        if not are_finite([part for own in found for parts in own for part in parts if part.is_floating_point()]):
            raise NonFinite("the gradient's sum with the residual or the momentum is not finite")
        return [(own, sum(self.rule.count(parts, at) for parts, (at, _) in zip(own, each, strict=True)))
                for own, each in zip(found, ranges, strict=True)]  # fmt: skip

    def read(self, index: int, parts: Sequence[Parts], served: torch.Tensor, **whose: Any) -> Entries:
        """Return the entries of a range that a push says, by what the server keeps of it.

        Raises:
            FrameError: no worker pushes such parts.
        """
        return self._joined(index, self.rule.decompress, parts, served, whose)

    def combined(self, index: int, pushes: Sequence[Sequence[Parts]], served: torch.Tensor, **whose: Any) -> Entries:
        """Return the entries that a rule makes of all pushes of a step; the server's numbers are changed."""
        return self._joined(index, self.rule.combine, list(zip(*pushes, strict=True)), served, whose)

    def largest(self, index: int) -> int:
        """Return how many bytes hold any frame of a range."""
        told = self.served(index) * self.rule.tells
        pushed = sum(96 + 9 * max(at.size, 256) for at in self._at[index])
        return max(pushed, dense_bytes(self._parts[index].size, 8) + 8 * told)

    def sizes(self, index: int, number_bytes: int, **whose: Any) -> list[int]:
        """Return the length of the frame of a push of normal numbers, and how many values it has.

        In a model of more than DRAWN weights, a piece that does not lie among the first of them is as long as a sample
        of its rows suggests; a number that no code shortens takes `number_bytes`.
        """
        at = self._at[index][0]._replace(**whose)
        sent = tuple(self.rule.sends(piece.size, at) for piece in self._at[index]) if self.rule.sends else None
        key = index, tuple((s.start, s.stop) for s in at.slices), sent
        if key not in self._lengths:
            pieces = [self._sized(piece._replace(**whose), number_bytes) for piece in self._at[index]]
            self._lengths[key] = [length([parts for parts, _ in pieces]), sum(count for _, count in pieces)]
        return self._lengths[key]

    def _sized(self, at: At, number_bytes: int) -> tuple[Parts, int]:
        """Return parts without numbers, as long as the parts of a piece of normal numbers, and how many values."""
        if at.start + at.size > DRAWN and not at.slices:
            at = at._replace(start=0)
        key = at.start, at.shape, (self.rule.sends(at.size, at) if self.rule.sends else None)
        if key in self._samples and not at.slices:
            return self._samples[key]
        drawn = normal(self._size if at.slices else min(self._size, DRAWN), self._dtype)
        values = self.rule.fixed(at) if at.size > DRAWN else None
        whole = at.size if values is None else values
        rows = at.shape[0] if at.slices else min(at.shape[0], max(1, DRAWN * at.shape[0] // at.size))
        sample = at._replace(shape=(min(DRAWN, values),) if values is not None else (rows, *at.shape[1:]))
        memory = {name: torch.zeros(sample.size, dtype=self._dtype) for name in self._vectors}
        memory["numbers"] = torch.zeros(self.rule.numbers, dtype=torch.float64)
        memory["server"] = torch.zeros(self.rule.server(sample.shape) * self.rule.tells)
        gradient = drawn.repeat(-(-sample.size // DRAWN))[sample.start : sample.start + sample.size]
        if values is not None:
            parts, count = at.code.compress(gradient, sample), values
        else:
            parts = self.rule.push(gradient, sample._replace(memory=memory))
            count = self.rule.count(parts, sample) * whole // sample.size
        sizes = [number_bytes if part.dtype == self._dtype else part.element_size() for part in parts]
        empty = [torch.empty(part.numel() * size * whole // sample.size, dtype=torch.uint8, device="meta")
                 for part, size in zip(parts, sizes, strict=True)]  # fmt: skip
        self._samples[key] = empty, count
        return empty, count

    def _joined(
        self, index: int, made: Any, parts: Sequence[Any], served: torch.Tensor, whose: Mapping[str, Any]
    ) -> Entries:
        each = list(self._placed(index, {}, served, whose))
        if len(each) != len(parts):
            raise FrameError(f"{len(parts)} pieces, where there are {len(each)}")
        try:
            part, found = self._parts[index], [(made(own, at), at) for (at, _), own in zip(each, parts, strict=True)]
        except (IndexError, RuntimeError, ValueError) as error:  # of torch and NumPy, where bytes do not fit
            raise FrameError(f"no push of {type(self.rule).__name__}: {error}") from error
        for piece, at in found:
            wanted = len(piece.indices) if isinstance(piece, Sparse) else at.size
            if (values := piece.values if isinstance(piece, Sparse) else piece).numel() != wanted:
                raise FrameError(f"{values.numel()} values for {wanted} entries")
        if all(isinstance(piece, torch.Tensor) for piece, _ in found):
            return Entries(part.size, None, torch.cat([piece.reshape(-1) for piece, _ in found]).numpy())
        sparse = [piece if isinstance(piece, Sparse) else Sparse(torch.arange(at.size), piece) for piece, at in found]
        begins = [0, *accumulate(at.size for _, at in found)]
        indices = torch.cat([piece.indices + begin for piece, begin in zip(sparse, begins[:-1], strict=True)])
        values = torch.cat([piece.values for piece in sparse]).numpy()
        return Entries(part.size, None if len(values) == part.size else indices.numpy(), values)

    def _placed(
        self, index: int, kept: Mapping[str, torch.Tensor], served: torch.Tensor, whose: Mapping[str, Any]
    ) -> Iterator[tuple[At, slice]]:
        first, count = sum(map(len, self._at[:index])), self.rule.numbers
        own = zip(self._at[index], pairwise(self._served[index]), strict=True)
        for number, (at, (begin, end)) in enumerate(own, first):
            piece = slice(at.start, at.start + at.size)
            memory = {name: kept[name][piece] for name in self._vectors if name in kept}
            memory["server"] = served[begin:end]
            if count:
                memory["numbers"] = kept.get("numbers", torch.zeros(0))[number * count : (number + 1) * count]
            yield at._replace(memory=memory, **whose), piece


@lru_cache(maxsize=1)
def normal(count: int, dtype: torch.dtype) -> torch.Tensor:
    """Normal numbers, the same at each call."""
    return torch.randn(count, generator=generator(0, "sizes"), dtype=dtype)


def _pieces(unit: str, part: Part, keyspace: Keyspace) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield where each piece of a range starts in the flat vector, and its shape: rows (keys) and columns."""
    slots = keyspace.parameters
    whole = {
        "range": [(s.start, s.stop, 0) for s in part.slices],
        "layer": [(layer.start, layer.stop, 0) for layer in keyspace.layers],
        "tensor": [(s.offset, s.offset + s.size, s.row if len(s.shape) > 1 else 0) for s in slots],
    }[unit]
    for own in part.slices:
        for start, stop, row in whole:
            low, high = max(own.start, start), min(own.stop, stop)
            if low < high:
                size, matrix = high - low, row > 0
                yield low, (size // row, row) if matrix and size % row == 0 else (size, 1) if matrix else (size,)
