"""The compression of a run's ranges, piece by piece."""

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

DRAWN = 2**20  # normal numbers that are compressed to estimate the lengths of pushes


class Compression:
    """A run's rules applied to its ranges: a worker converts gradients to parts, a server converts parts to entries.

    Args:
        rule: selects or transforms the entries of a push.
        code: encodes the values that the rule selects.
    """

    def __init__(self, rule: Rule, code: Rule, parts: Sequence[Part], keyspace: Keyspace, seed: int) -> None:
        self.rule, self._parts, self._dtype, self._size = rule, parts, keyspace.dtype, keyspace.size
        made = At(dtype=keyspace.dtype, code=code, seed=seed)
        self._at = [[made._replace(start=start, shape=shape) for start, shape in _pieces(rule.unit, part, keyspace)]
                    for part in parts]  # fmt: skip
        self._served = [[0, *accumulate(rule.server(at.shape) for at in pieces)] for pieces in self._at]
        self._vectors = ("residual",) * bool(rule.residual or code.residual) + rule.vectors + code.vectors
        self._lengths: dict[Any, list[int]] = {}
        self._samples = _known(rule, code, seed, keyspace.dtype, keyspace.size)

    @property
    def pieces(self) -> list[At]:
        """The pieces of all ranges."""
        return [at for pieces in self._at for at in pieces]

    @property
    def memories(self) -> dict[str, KeptVector]:
        """The vectors that each worker stores from one gradient to the next."""
        vectors = {name: KeptVector(self._size, self._dtype) for name in self._vectors}
        if count := self.rule.numbers * sum(map(len, self._at)):
            vectors["numbers"] = KeptVector(count, torch.float64, scalars=True)
        if self.rule.tells:
            vectors["told"] = KeptVector(sum(offsets[-1] for offsets in self._served), self._dtype)
        return vectors

    def forget(self) -> None:
        """Drop the vectors that are stored from one push to the next, such as the residual."""
        self._vectors = ()

    def served(self, index: int) -> int:
        """Return the number of values that the server stores for a range."""
        return self._served[index][-1]

    def told(self, index: int, memories: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the memory in which a worker stores the server's values for a range; empty if the rule sends none."""
        if "told" not in memories:
            return torch.empty(0)
        begin = sum(offsets[-1] for offsets in self._served[:index])
        return memories["told"][begin : begin + self.served(index)]

    def push(
        self, index: int, gradient: torch.Tensor, memory: Mapping[str, torch.Tensor], **whose: Any
    ) -> tuple[list[Parts], int]:
        """Return the push of a range, as `pushes` does: its parts, piece by piece, and its number of values."""
        return self.pushes([index], gradient, memory, **whose)[0]

    def pushes(
        self, indices: Sequence[int], gradient: torch.Tensor, memory: Mapping[str, torch.Tensor], **whose: Any
    ) -> list[tuple[list[Parts], int]]:
        """Return the pushes of several ranges: the parts of each, piece by piece, on the CPU, and its number of values.

        A GPU is waited for twice, for the check that the gradient is finite and for the parts, and each time that a
        rule must know a number of entries.

        Raises:
            NonFinite: the gradient, or its sum with the residual or momentum, is not finite.
        """
        ranges = [list(self._placed(index, memory, self.told(index, memory), whose)) for index in indices]
        if not are_finite([gradient[piece] for pieces in ranges for _, piece in pieces]):
            raise NonFinite("the gradient is not finite: use a smaller learning rate")
        try:
            codes = [[self.rule.push(gradient[piece], at) for at, piece in pieces] for pieces in ranges]
        except FrameError as error:  # raised for the worker's own parts: a norm of finite numbers can overflow
            raise NonFinite(f"the gradient plus the residual is too large ({error})") from error
        if gradient.device.type != "cpu":
            here = iter(fetched([part for arrays in codes for parts in arrays for part in parts]))
            codes = [[[next(here) for _ in parts] for parts in arrays] for arrays in codes]
        if not are_finite([part for arrays in codes for parts in arrays for part in parts if part.is_floating_point()]):
            raise NonFinite("the gradient plus the residual or momentum is not finite: use a smaller learning rate")
        return [(arrays, sum(self.rule.count(parts, at) for parts, (at, _) in zip(arrays, pieces, strict=True)))
                for arrays, pieces in zip(codes, ranges, strict=True)]  # fmt: skip

    def read(self, index: int, parts: Sequence[Parts], served: torch.Tensor, **whose: Any) -> Entries:
        """Convert the parts of a push to entries of the range; `served`: the server's values for the range.

        Raises:
            FrameError: the parts are not a valid push of this rule.
        """
        return self._joined(index, self.rule.decompress, parts, served, whose)

    def combined(self, index: int, pushes: Sequence[Sequence[Parts]], served: torch.Tensor, **whose: Any) -> Entries:
        """Combine all pushes of a step to entries of the range, by the rule's `combine`, which may change `served`."""
        return self._joined(index, self.rule.combine, list(zip(*pushes, strict=True)), served, whose)

    def largest(self, index: int) -> int:
        """Return the largest possible length of a range's frame, in bytes."""
        answer = self.served(index) * self.rule.tells
        entry = max(9, self._dtype.itemsize + 4)  # a value and its position
        pushed = sum(96 + entry * max(at.size, 256) for at in self._at[index])
        return max(pushed, dense_bytes(self._parts[index].size, 8) + 8 * answer)

    def sizes(self, index: int, number_bytes: int, **whose: Any) -> list[int]:
        """Return the length in bytes of the frame of a push of random normal numbers, and its number of values.

        In a model with more than DRAWN weights, the length of a later piece is estimated from a sample of its rows. An
        uncompressed number takes `number_bytes`.
        """
        at = self._at[index][0]._replace(**whose)
        sent = tuple(self.rule.sends(piece.size, at) for piece in self._at[index]) if self.rule.sends else None
        key = index, tuple((s.start, s.stop) for s in at.slices), sent
        if key not in self._lengths:
            pieces = [self._sized(piece._replace(**whose), number_bytes) for piece in self._at[index]]
            self._lengths[key] = [length([parts for parts, _ in pieces]), sum(count for _, count in pieces)]
        return self._lengths[key]

    def _sized(self, at: At, number_bytes: int) -> tuple[Parts, int]:
        """Return empty parts as long as the parts of a piece of normal numbers, and their number of values."""
        if at.start + at.size > DRAWN and not at.slices:
            at = at._replace(start=0)
        key = at.start, at.shape, self._vectors, number_bytes, (self.rule.sends(at.size, at) if self.rule.sends else 0)
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
        copies = -(-sample.size // DRAWN)
        gradient = (drawn.repeat(copies) if copies > 1 else drawn)[sample.start : sample.start + sample.size]
        if values is not None:
            parts, count = at.code.compress(gradient, sample), values
        else:
            parts = self.rule.push(gradient, sample._replace(memory=memory))
            count = self.rule.count(parts, sample) * whole // sample.size
        sizes = [number_bytes if part.dtype == self._dtype else part.element_size() for part in parts]
        empty = [torch.empty(part.numel() * size * whole // sample.size, dtype=torch.uint8, device="meta")
                 for part, size in zip(parts, sizes, strict=True)]  # fmt: skip
        if not at.slices:  # with slices, pieces are drawn anew, and a run without slices must not use them
            self._samples[key] = empty, count
        return empty, count

    def _joined(
        self, index: int, made: Any, parts: Sequence[Any], served: torch.Tensor, whose: Mapping[str, Any]
    ) -> Entries:
        pieces = list(self._placed(index, {}, served, whose))
        if len(pieces) != len(parts):
            raise FrameError(f"a push has {len(parts)} pieces, but its range has {len(pieces)}")
        try:
            part = self._parts[index]
            decoded = [(made(codes, at), at) for (at, _), codes in zip(pieces, parts, strict=True)]
        except (IndexError, RuntimeError, ValueError) as error:  # raised by torch and NumPy if bytes do not fit
            raise FrameError(f"the parts are not a push of the rule {type(self.rule).__name__}: {error}") from error
        for piece, at in decoded:
            wanted = len(piece.indices) if isinstance(piece, Sparse) else at.size
            if (values := piece.values if isinstance(piece, Sparse) else piece).numel() != wanted:
                raise FrameError(f"a push has {values.numel()} values for {wanted} entries")
        if all(isinstance(piece, torch.Tensor) for piece, _ in decoded):
            return Entries(part.size, None, torch.cat([piece.reshape(-1) for piece, _ in decoded]).numpy())
        sparse = [piece if isinstance(piece, Sparse) else Sparse(torch.arange(at.size), piece) for piece, at in decoded]
        begins = [0, *accumulate(at.size for _, at in decoded)]
        indices = torch.cat([piece.indices + begin for piece, begin in zip(sparse, begins[:-1], strict=True)])
        # with positions even if all entries are there by chance: entries without them are added in another order
        return Entries(part.size, indices.numpy(), torch.cat([piece.values for piece in sparse]).numpy())

    def _placed(
        self, index: int, vectors: Mapping[str, torch.Tensor], served: torch.Tensor, whose: Mapping[str, Any]
    ) -> Iterator[tuple[At, slice]]:
        first, count = sum(map(len, self._at[:index])), self.rule.numbers
        pieces = zip(self._at[index], pairwise(self._served[index]), strict=True)
        for number, (at, (begin, end)) in enumerate(pieces, first):
            piece = slice(at.start, at.start + at.size)
            memory = {name: vectors[name][piece] for name in self._vectors if name in vectors}
            memory["server"] = served[begin:end]
            if count:
                memory["numbers"] = vectors.get("numbers", torch.zeros(0))[number * count : (number + 1) * count]
            yield at._replace(memory=memory, **whose), piece


@lru_cache(maxsize=1)
def normal(count: int, dtype: torch.dtype) -> torch.Tensor:
    """Return random normal numbers, the same at each call."""
    return torch.randn(count, generator=generator(0, "sizes"), dtype=dtype)


def _known(*whose: Any) -> dict[Any, tuple[Parts, int]]:
    """Return the dictionary of samples that runs with these rules and weights share."""
    try:
        return _samples(*whose)
    except TypeError:  # an own rule that cannot be hashed
        return {}


@lru_cache(maxsize=64)
def _samples(*whose: Any) -> dict[Any, tuple[Parts, int]]:
    return {}


def _pieces(unit: str, part: Part, keyspace: Keyspace) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the start of each piece of a range in the flat vector, and its shape: rows (keys) and columns."""
    slots = keyspace.parameters
    whole = {
        "range": [(s.start, s.stop, 0) for s in part.slices],
        "layer": [(layer.start, layer.stop, 0) for layer in keyspace.layers],
        "tensor": [(s.offset, s.offset + s.size, s.row if len(s.shape) > 1 else 0) for s in slots],
    }[unit]
    for span in part.slices:
        for start, stop, row in whole:
            low, high = max(span.start, start), min(span.stop, stop)
            if low < high:
                size, matrix = high - low, row > 0
                yield low, (size // row, row) if matrix and size % row == 0 else (size, 1) if matrix else (size,)
