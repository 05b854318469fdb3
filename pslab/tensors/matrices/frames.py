"""From the entries of a push to a frame of what a rule makes of its matrices, and back.

A *matrix* is one parameter tensor as far as it lies in the range that is pushed: its rows are keys. A frame is a dense
one of the rule's values of each matrix, one behind the other, quantized if the run's values are; behind them lie the
places of those that have some, two bytes each.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pslab.errors import FrameError
from pslab.tensors.codec import DTYPES, START, Entries, decode, encode_into
from pslab.tensors.pruning.rules import rule_traits
from pslab.tensors.quantize.codes import limit
from pslab.tensors.quantize.push_frames import PushContext, PushFrames, RangeCoding
from pslab.tensors.random_streams import numpy_generator
from pslab.tensors.update.store import Part
from pslab.tensors.workload.keyspace import Keyspace

Array = NDArray[Any]


class Matrix(NamedTuple):
    """Where a matrix of a range lies."""

    start: int  #: in the flat vector
    shape: tuple[int, int]
    inside: slice  #: in the range
    kept: slice  #: in what a worker keeps for the rule

    @property
    def entries(self) -> int:
        """Its entries in the range; it may be filled with zeros."""
        found: int = self.inside.stop - self.inside.start
        return found

    def values(self, rule: Any, turn: int) -> int:
        """The number of values that a rule makes of it in push number `turn` of its worker."""
        found: int = min(rule.count(self.shape, turn), self.entries)
        return found

    def encode(
        self, rule: Any, entries: Array, turn: int, kept: Array, seed: int, worker: int
    ) -> tuple[Array, Array]:
        """The values of its entries, and their places, if they have some; `kept` is what the worker keeps of it."""
        v = np.zeros(self.shape)
        v.ravel()[: self.entries] = entries
        values, places = rule.encode(v, turn, kept, partial(self._stream, seed), worker)
        return values[: self.values(rule, turn)], places

    def decode(self, rule: Any, values: Array, turn: int, kept: Array, seed: int) -> Array:
        """Its entries (float64), of such values."""
        own = np.zeros(self.shape[0] * self.shape[1] if rule.place_bytes else rule.count(self.shape, turn))
        own[: len(values)] = values
        found: Array = rule.decode(own, turn, self.shape, kept, partial(self._stream, seed)).ravel()[: self.entries]
        return found

    def following(self, rule: Any, mean: Array, seed: int) -> Array:
        """What a rule tells workers of it after a mean of their values."""
        found: Array = rule.following(mean, partial(self._stream, seed))
        return found

    def _stream(self, seed: int, name: str, *more: int) -> np.random.Generator:
        return numpy_generator(seed, name, *more, self.start)


@dataclass(frozen=True, eq=False)
class _Placed:
    """Values as they are, or by a quantization rule, and their places behind them."""

    inner: RangeCoding | None
    dtype: np.dtype[Any]
    places: Array  #: as bytes, to be written; to be read, as many

    @property
    def number(self) -> int:
        return DTYPES.index(self.dtype) if self.inner is None else self.inner.number

    def write(self, entries: Entries) -> Array:
        values = entries.values.view(np.uint8) if self.inner is None else self.inner.write(entries)
        return np.concatenate([values, self.places])

    def read(self, code: Array, indices: Array | None, k: int) -> Array:
        own, size = code[: max(0, len(code) - len(self.places))], k * self.dtype.itemsize
        if self.inner is not None:
            return self.inner.read(own, indices, k)
        if len(own) != size:
            raise FrameError(f"{k} values and their places take {size + len(self.places)} bytes, not {len(code)}")
        return np.frombuffer(own.tobytes(), self.dtype)


class MatrixFrames(PushFrames):
    """The frames of a run's pushes whose pruning rule is one of whole matrices."""

    def __init__(
        self, rule: Any, prune: Any, parts: Sequence[Part], keyspace: Keyspace, codec: str = "auto", seed: int = 0
    ) -> None:
        super().__init__(rule, prune, parts, keyspace, codec, seed)
        self.exact, self.aggregate = False, rule_traits(prune).aggregate
        self.matrices, self.kept = [], 0
        for index in range(len(parts)):
            found = list[Matrix]()
            for start, size, shape in self._shapes(index):
                at, kept = found[-1].inside.stop if found else 0, prune.kept(shape)
                found.append(Matrix(start, shape, slice(at, at + size), slice(self.kept, self.kept + kept)))
                self.kept += kept
            self.matrices.append(tuple(found))
        self.feeds_back, self.states = bool(prune.residual), hasattr(prune, "stated")

    def _shapes(self, index: int) -> Iterator[tuple[int, int, tuple[int, int]]]:
        """Of each of a range's matrices where it starts in the flat vector, its entries, and its shape."""
        if getattr(self.prune, "square", False):
            size = self._parts[index].size
            side = isqrt(size - 1) + 1
            yield self._parts[index].slices[0].start, size, (-(-size // side), side)
            return
        slots = self._keyspace.parameters
        for own in self.tensors(index):
            slot = slots[bisect_right(slots, own.start, key=lambda slot: slot.offset) - 1]
            size, row = own.stop - own.start, slot.row if len(slot.shape) > 1 else 1
            if size % row and self.prune.place_bytes:  # a slice of a layer, that is cut amid a row
                row = 1
            yield own.start, size, (-(-size // row), row)

    def facts(self) -> dict[str, Any]:
        """The rows, columns and entries of each range's matrices."""
        return {"matrices": [[[*each.shape, each.entries] for each in own] for own in self.matrices]}

    def counts(self, index: int, turn: int) -> list[int]:
        """The values of each of a range's matrices in push number `turn` of its worker."""
        return [each.values(self.prune, turn) for each in self.matrices[index]]

    def count(self, index: int, entries: Entries, turn: int) -> int:
        return sum(self.counts(index, turn))

    def write(
        self, buffer: memoryview, index: int, entries: Entries, worker: int, step: int, kept: Array | None = None,
        turn: int | None = None,
    ) -> int:  # fmt: skip
        turn, found = step if turn is None else turn, list[tuple[Array, Array]]()
        kept = np.empty(0, self._dtype) if kept is None else kept
        for each in self.matrices[index]:
            own = entries.values[each.inside]
            found.append(each.encode(self.prune, own, turn, kept[each.kept], self._seed, worker))
        values = np.concatenate([values for values, _ in found]).astype(self._dtype)
        places = np.concatenate([places for _, places in found]).astype("<u2").view(np.uint8)
        coding = self._placed(index, turn, places)
        if coding is not None and coding.inner is not None:
            context = PushContext(self._seed, worker, step)
            coding = replace(coding, inner=replace(coding.inner, context=context))
        return encode_into(buffer, Entries(len(values), None, values), "dense", coding)

    def read(self, frame: memoryview | bytes, index: int, step: int, turn: int | None = None) -> Entries:
        """As `PushFrames.read`; of a rule whose pushes are aggregated as they are, its values: of one with places the
        entries of a vector as long as the range."""
        turn = step if turn is None else turn
        if (width := self.prune.place_bytes) == 0:
            values = self._values(frame, index, turn, np.empty(0, np.uint8))
            if self.aggregate:
                return Entries(len(values), None, values)
            return self.decoded(Entries(len(values), None, values), index, turn)
        size_bytes = width * self.count(index, Entries(0, None, np.empty(0)), turn)
        values = self._values(frame, index, turn, np.empty(size_bytes, np.uint8))
        places, found, at = np.frombuffer(bytes(frame)[-size_bytes:], "<u2"), list[Array](), 0
        for each, count in zip(self.matrices[index], self.counts(index, turn), strict=True):
            found.append(each.inside.start + self.prune.positions(places[at : at + count], each.shape))
            at += count
        return Entries(self._parts[index].size, np.concatenate(found), values)

    def decoded(self, entries: Entries, index: int, turn: int, kept: Array | None = None) -> Entries:
        """All entries of a range, of the values that `read` gives."""
        kept, values = np.empty(0, self._dtype) if kept is None else kept, entries.dense()
        found, at = np.empty(self._parts[index].size, self._dtype), 0
        most = limit(found)
        for each, count in zip(self.matrices[index], self.counts(index, turn), strict=True):
            own = values[at : at + count] if entries.indices is None else values[each.inside]
            found[each.inside] = each.decode(self.prune, own, turn, kept[each.kept], self._seed).clip(-most, most)
            at += count
        return Entries(len(found), None, found)

    def sent(
        self, frame: memoryview | bytes, index: int, step: int, turn: int | None = None, kept: Array | None = None
    ) -> Entries:
        turn = step if turn is None else turn
        found = self.read(frame, index, step, turn)
        return self.decoded(found, index, turn, kept) if self.aggregate else found

    def stated(self, index: int, turn: int) -> list[int]:
        return [self.prune.stated(each.shape, turn) if self.states else 0 for each in self.matrices[index]]

    def install(self, index: int, turn: int, entries: Entries, kept: Array | None) -> Entries:
        if not self.states:
            return entries
        assert kept is not None
        size, stated = self._parts[index].size, sum(self.stated(index, turn))
        if entries.indices is not None or len(entries.values) != size + stated:
            raise FrameError(f"a frame that is not {size} weights and {stated} values for the rule, all of them")
        self.keep_stated(index, turn, entries.values[size:], kept)
        return Entries(size, None, entries.values[:size])

    def keep_stated(self, index: int, turn: int, values: Array, kept: Array) -> None:
        at = 0
        for each, size in zip(self.matrices[index], self.stated(index, turn), strict=True):
            kept[each.kept][:size] = values[at : at + size]
            at += size

    def spread_bytes(
        self, index: int, pieces: Sequence[tuple[int, int, int]], turn: int = 0
    ) -> tuple[int, int]:
        counts = self.counts(index, turn)
        return START + self._value_bytes(index, counts) + self.prune.place_bytes * sum(counts), sum(counts)

    def _values(self, frame: memoryview | bytes, index: int, turn: int, places: Array) -> Array:
        """The values of a frame, all of them finite numbers."""
        count = sum(self.counts(index, turn))
        entries = decode(frame, count, self._placed(index, turn, places))
        if len(entries.values) != count or entries.indices is not None or not np.isfinite(entries.values).all():
            raise FrameError(f"a frame that is not {count} finite values, all of them")
        return entries.values

    def _placed(self, index: int, turn: int, places: Array) -> _Placed | None:
        """How values are written; None if they are as they would be without this rule."""
        inner = None
        if self._codings is not None:
            edges = np.cumsum([0, *self.counts(index, turn)])
            starts = tuple(each.start for each in self.matrices[index])
            inner = replace(self._codings[index], starts=starts, edges=edges)
        return None if inner is None and not len(places) else _Placed(inner, self._dtype, places)


def frames_of(
    rule: Any, prune: Any, parts: Sequence[Part], keyspace: Keyspace, codec: str = "auto", seed: int = 0
) -> PushFrames:
    """The frames of a run's pushes, whatever its pruning rule."""
    return (MatrixFrames if rule_traits(prune).matrices else PushFrames)(rule, prune, parts, keyspace, codec, seed)
