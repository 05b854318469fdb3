"""From the entries of a push to its frame, and back: quantized by the run's rule, with or without their places.

    gradient, or change of weights  + residual -> pruned -> quantized -> places by a codec -> frame

Worker and server make the same PushFrames of the run: what is in no frame, such as the parameters of the rule and the
places of a pruning rule that draws them for all workers, both have from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pslab.config.table import find
from pslab.errors import FrameError
from pslab.tensors.codec import (
    NO_VALUES,
    QUANTIZED,
    START,
    Entries,
    decode,
    encode_into,
    largest_frame_bytes,
    prepare,
    sliced_bytes,
    spread_bytes,
)
from pslab.tensors.compiling import read_only
from pslab.tensors.pruning.rules import rule_traits
from pslab.tensors.quantize.codes import limit, loops
from pslab.tensors.quantize.rules import Unquantized, quantization_traits
from pslab.tensors.random_streams import numpy_generator, seed_of
from pslab.tensors.update.store import Part
from pslab.tensors.workload.keyspace import Keyspace

Array = NDArray[Any]

RECENT = 8  # steps of which the places that both sides draw are kept


@dataclass(frozen=True)
class PushContext:
    """Whose push a frame holds: random choices depend on it, and what the rule keeps is this worker's."""

    seed: int = 0
    worker: int = 0
    step: int = 0  #: of the worker's batches, from 0
    kept: Array | None = None  #: [size], of a rule that keeps something


@dataclass(frozen=True, eq=False)
class RangeCoding:
    """The values of one range's pushes as codes of a rule, piece by piece."""

    rule: Any
    starts: tuple[int, ...]  #: of each piece, in the flat vector
    edges: Array  #: [pieces + 1] where the pieces begin in the range, and where the last one ends
    dtype: np.dtype[Any]
    places: Array | None = None  #: in the range, of the values of a dense frame that holds these alone
    context: PushContext = PushContext()

    @cached_property
    def number(self) -> int:
        """The rule's place in the table; a user's rule has the one behind all."""
        row = find("quantize", self.rule)
        return NO_VALUES + 1 + (QUANTIZED.index(row.name) if row else len(QUANTIZED))

    def counts(self, indices: Array | None) -> Array:
        """How many of the entries at these indices lie in each piece."""
        at = self.places if indices is None else indices
        return np.diff(self.edges if at is None else np.searchsorted(at, self.edges))

    def write(self, entries: Entries) -> Array:
        """The codes of the pieces, one behind the other.

        Raises:
            NonFinite: a scale is too large for float32.
        """
        codes = [np.empty(0, np.uint8)]
        traits, context = quantization_traits(self.rule), self.context
        for start, own in self._pieces(self.counts(entries.indices)):
            v, more = read_only(entries.values[own]), list[Array]()
            if not traits.direct:
                v = v.astype(np.float64)
            if traits.draws:
                stream = numpy_generator(context.seed, "quantize", context.worker, context.step, start)
                more.append(stream.random(len(v), np.float32))
            if traits.keeps:
                assert context.kept is not None
                at = self._flat(start, entries.indices, own)
                more.append(context.kept[at])
            codes.append(np.asarray(self.rule.encode(v, *more), np.uint8))
            if context.kept is not None and traits.keeps and not isinstance(at, slice):  # the rule has changed a copy
                context.kept[at] = more[-1]
        return np.concatenate(codes)

    def read(self, code: Array, indices: Array | None, k: int) -> Array:
        """The values of a frame's entries; FrameError for bytes that `write` does not produce."""
        values, at, traits = np.empty(k, self.dtype), 0, quantization_traits(self.rule)
        for _, own in self._pieces(self.counts(indices)):
            n = own.stop - own.start
            size = self.rule.bounds(n)[1] if traits.length is None else traits.length(code[at:], n)
            if at + size > len(code):
                raise FrameError(f"{len(code)} bytes are too few for the codes of {k} values")
            out = values[own]
            found = self.rule.decode(code[at : at + size], n, *[out] * traits.direct)
            if found is not out:
                out[:] = np.clip(found, -limit(out), limit(out))
            at += size
        if at != len(code):
            raise FrameError(f"{len(code)} bytes are too many for the codes of {k} values, which take {at}")
        return values

    def bounds(self, counts: Sequence[int] | Array) -> tuple[int, int]:
        """The least and the most bytes of the codes of so many entries of each piece."""
        each = [self.rule.bounds(int(n)) for n in counts if n]
        return sum(low for low, _ in each), sum(high for _, high in each)

    def _flat(self, start: int, indices: Array | None, own: slice) -> slice | Array:
        """The entries of the piece that starts there in the flat vector: a slice if they are all of it."""
        piece = self.starts.index(start)
        edge, stop = self.edges[piece : piece + 2]
        if indices is None or own.stop - own.start == stop - edge:
            return slice(start, start + own.stop - own.start)
        return np.asarray(indices[own] - edge + start)

    def _pieces(self, counts: Array) -> Iterator[tuple[int, slice]]:
        """Where each piece with entries starts in the flat vector, and which of the entries are in it."""
        ends = np.cumsum(counts).tolist()
        for start, begin, end in zip(self.starts, [0, *ends], ends, strict=False):
            if begin < end:
                yield start, slice(begin, end)


class PushFrames:
    """The frames of a run's pushes.

    Args:
        rule: the quantization rule.
        prune: the pruning rule, of which it matters whether its places are drawn for all workers.
        codec: how places are written.
    """

    def __init__(
        self, rule: Any, prune: Any, parts: Sequence[Part], keyspace: Keyspace, codec: str = "auto", seed: int = 0
    ) -> None:
        self.prune, self._parts, self._keyspace, self._codec, self._seed = prune, parts, keyspace, codec, seed
        self._dtype = torch.empty(0, dtype=keyspace.dtype).numpy().dtype
        self.exact = isinstance(rule, Unquantized)  #: whether a reader has the very entries that were written
        self._codings = None if self.exact else [self._coding(rule, index) for index in range(len(parts))]
        traits = rule_traits(prune)
        self.shares = traits.shared  #: whether the places are in no frame
        self.kept = keyspace.size if quantization_traits(rule).keeps else 0  #: values that a worker keeps for the rules
        self._leaves_zeros = quantization_traits(rule).leaves_zeros
        self.states = False  #: whether something comes with the weights for the rules
        #: whether a worker's residual has what the codes of its push lose
        self.feeds_back = rule.residual or (traits.estimates and not self.exact)
        self._drawn = dict[int, Array]()  # by step, of the last ones: workers ask for those of nearly the same steps

    def prepare(self) -> None:
        """Compile or load the loops now, and not in the first frame."""
        prepare()
        if not self.exact:
            loops()
            loops(self._dtype)

    def sendable(self, indices: Array, values: Array, kept: Array | None = None) -> tuple[Array, Array]:
        """Entries of the flat vector without those of which the code says nothing: a sign of 0 is neither 1 nor -1.

        `kept` is what the rule keeps of this worker: of what it keeps something, the code says the sign of that.
        """
        if not self._leaves_zeros:
            return indices, values
        some = values != 0
        if self.kept and kept is not None and not some.all():
            some |= kept[indices] != 0
        return (indices, values) if some.all() else (indices[some], values[some])

    def count(self, index: int, entries: Entries, turn: int) -> int:
        """The number of values in the frame of these entries of a range."""
        return len(entries.values)

    def write(
        self, buffer: memoryview, index: int, entries: Entries, worker: int, step: int, kept: Array | None = None,
        turn: int | None = None,
    ) -> int:  # fmt: skip
        """Write the frame of a range's entries, of a worker's step, to the start of a buffer; its length in bytes.

        `kept` is what the rules keep of this worker, `turn` the number of its push: that of the step if it is None.

        Raises:
            NonFinite: a scale of the values is too large for float32.
            ValueError: as `encode_into`.
        """
        coding = None if self._codings is None else replace(
            self._codings[index], context=PushContext(self._seed, worker, step, kept),
            places=entries.indices if self.shares else None)  # fmt: skip
        if self.shares:
            return encode_into(buffer, Entries(len(entries.values), None, entries.values), "dense", coding)
        return encode_into(buffer, entries, self._codec, coding)

    def read(self, frame: memoryview | bytes, index: int, step: int, turn: int | None = None) -> Entries:
        """The entries of a range's push of a step.

        Raises:
            FrameError: as `decode`.
        """
        n, coding = self._parts[index].size, self._codings[index] if self._codings else None
        if not self.shares:
            return decode(frame, n, coding)
        places = self.places(index, step)
        if coding is not None:
            coding = replace(coding, places=places)
        return Entries(n, places, decode(frame, len(places), coding).values)

    def sent(
        self, frame: memoryview | bytes, index: int, step: int, turn: int | None = None, kept: Array | None = None
    ) -> Entries:
        """What the server makes of this push alone, of a worker for which the rules keep this: entries of the range."""
        return self.read(frame, index, step, turn)

    def add_lost(
        self, lost: torch.Tensor, frame: memoryview | bytes, index: int, entries: Entries, step: int,
        turn: int | None = None, kept: Array | None = None,
    ) -> Entries:  # fmt: skip
        """Add to a flat vector what the frame of a range's entries lacks of them; what is `sent`."""
        found, part = self.sent(frame, index, step, turn, kept), self._parts[index]
        part.add(lost, entries, 1.0)
        part.add(lost, found, -1.0)
        return found

    def stated(self, index: int, turn: int) -> list[int]:
        """Of each of a range's matrices the values that come with the weights for push number `turn`, for the rule."""
        return []

    def install(self, index: int, turn: int, entries: Entries, kept: Array | None) -> Entries:
        """The weights of a range, of a frame that also has what is stated for push number `turn`, to be kept.

        Raises:
            FrameError: it has not all of these.
        """
        return entries

    def keep_stated(self, index: int, turn: int, values: Array, kept: Array) -> None:
        """Keep what is stated for push number `turn`."""

    def places(self, index: int, step: int) -> Array:
        """The places in a range (int64) that all workers push of a step, where a rule draws them for all."""
        if step not in self._drawn:
            for oldest in [*self._drawn][: -RECENT + 1]:
                del self._drawn[oldest]
            self._drawn[step] = self._draw(step)
        flat = self._drawn[step]
        return np.asarray(self._parts[index].inside(flat, flat).indices)

    def largest(self, index: int) -> int:
        """The bytes that hold any frame of a range."""
        n = self._parts[index].size
        exact = largest_frame_bytes(n, self._dtype.itemsize)
        if self._codings is None:
            return exact
        coding = self._codings[index]
        return max(exact, largest_frame_bytes(n, 0) + coding.bounds(np.diff(coding.edges))[1])

    def spread_bytes(
        self, index: int, pieces: Sequence[tuple[int, int, int]], turn: int = 0
    ) -> tuple[int, int]:
        """The length of a frame of entries of a range, and their number, where of each of the pieces (start, stop, k)
        of the flat vector k entries, evenly spread, are sent."""
        held = [sum(evenly(own, piece) for piece in pieces) for own in self.tensors(index)]
        where = START if self.shares else spread_bytes(self._parts[index].size, sum(held), 0, self._codec)
        return where + self._value_bytes(index, held), sum(held)

    def sliced_bytes(self, index: int, slices: Sequence[slice]) -> tuple[int, int]:
        """The length of a frame of a range's entries in these slices of the flat vector, and their number."""
        (own,) = self._parts[index].slices
        pieces = [(s.start, s.stop, s.stop - s.start) for s in slices]
        held = [sum(evenly(tensor, piece) for piece in pieces) for tensor in self.tensors(index)]
        inside = [slice(s.start - own.start, s.stop - own.start) for s in slices]
        where = sliced_bytes(self._parts[index].size, inside, 0, self._codec)
        return where + self._value_bytes(index, held), sum(held)

    def _value_bytes(self, index: int, counts: Sequence[int]) -> int:
        """What so many entries of each of a range's tensors take, at most, without their places."""
        return self._codings[index].bounds(counts)[1] if self._codings else sum(counts) * self._dtype.itemsize

    def facts(self) -> dict[str, Any]:
        """What decides how long the codes of a push are: how many entries each range has of each tensor."""
        if self.exact:
            return {}
        return {"tensors": [[own.stop - own.start for own in self.tensors(index)] for index in range(len(self._parts))]}

    def tensors(self, index: int) -> list[slice]:
        """The slices of the flat vector in which a range has something of one parameter tensor each."""
        part = self._parts[index]
        whole = [(slot.offset, slot.offset + slot.size) for slot in self._keyspace.parameters]
        each = [(max(s.start, start), min(s.stop, stop)) for s in part.slices for start, stop in whole]
        return [slice(start, stop) for start, stop in each if start < stop]

    def _coding(self, rule: Any, index: int) -> RangeCoding:
        held = self.tensors(index)
        edges = np.cumsum([0, *(own.stop - own.start for own in held)])
        return RangeCoding(rule, tuple(own.start for own in held), edges, self._dtype)

    def _draw(self, step: int) -> Array:
        found = [slot.offset + self.prune.places(slot.size, seed_of(self._seed, "shared", step, slot.offset))
                 for slot in self._keyspace.parameters]  # fmt: skip
        return np.concatenate(found)


def evenly(own: slice, piece: tuple[int, int, int]) -> int:
    """Of the k entries from `start` to `stop` of a flat vector, evenly spread, those in a slice of it."""
    start, stop, k = piece
    first, last = (max(own.start, start) - start, min(own.stop, stop) - start)
    found: int = -(-last * k // (stop - start)) + (-first * k // (stop - start))
    return max(0, found)
