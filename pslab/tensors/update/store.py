"""The server's weights: one flat vector, cut into ranges, each with its own optimizer and versions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from pslab.tensors.codec.frames import Entries
from pslab.tensors.update.optimizers import OptimizerSpec

INTEGER = {torch.float32: torch.int32, torch.float64: torch.int64}
NEARLY_ALL = 0.875
CHUNK = 1 << 16  # elements that are summed at once: a few vectors of them stay in a core's cache
Gradient = torch.Tensor | Entries  # flat and dense over the whole model, or the entries of one range


@dataclass(frozen=True)
class Part:
    """The slices of the flat vector that one range covers; inside a range positions count from 0."""

    slices: tuple[slice, ...]
    layer: int = 0  #: of which it is (a part of) the range, if requests are layer-wise

    @cached_property
    def size(self) -> int:
        """Elements in the range."""
        return sum(s.stop - s.start for s in self.slices)

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The range's slices of a flat vector, no copies."""
        return [flat[s] for s in self.slices]

    def pieces(self, length: int) -> Iterator[tuple[int, slice]]:
        """The range in pieces of at most `length` elements: (position in the range, slice of the flat vector)."""
        offset = 0
        for s in self.slices:
            for start in range(s.start, s.stop, length):
                piece = slice(start, min(start + length, s.stop))
                yield offset, piece
                offset += piece.stop - piece.start

    def inside(self, indices: torch.Tensor, values: torch.Tensor) -> Entries:
        """Entries of the flat vector (sorted indices) -> those of this range, by their positions in it."""
        found, taken, offset = [], [], 0
        for s in self.slices:
            low, high = (int(x) for x in torch.searchsorted(indices, torch.tensor([s.start, s.stop])))
            found.append(indices[low:high] - (s.start - offset))
            taken.append(values[low:high])
            offset += s.stop - s.start
        if len(found) == 1:
            return Entries(self.size, found[0].numpy(), taken[0].numpy())
        return Entries(self.size, torch.cat(found).numpy(), torch.cat(taken).numpy())

    def put(self, flat: torch.Tensor, entries: Entries) -> None:
        """Write entries of this range into a flat vector."""
        values = torch.from_numpy(entries.values)
        if entries.indices is None:
            offset = 0
            for view in self.views(flat):
                view.copy_(values[offset : offset + view.numel()])
                offset += view.numel()
            return
        flat.index_copy_(0, self.flat_indices(entries), values)

    def add(self, flat: torch.Tensor, entries: Entries, factor: float) -> None:
        """Add a multiple of entries of this range to a flat vector."""
        values = torch.from_numpy(entries.values)
        if entries.indices is not None:
            flat.index_add_(0, self.flat_indices(entries), values, alpha=factor)
            return
        for offset, piece in self.pieces(self.size):
            flat[piece].add_(values[offset : offset + piece.stop - piece.start], alpha=factor)

    def flat_indices(self, entries: Entries) -> torch.Tensor:
        """Positions in the flat vector of sparse entries of this range (int64[k])."""
        indices = torch.from_numpy(np.asarray(entries.indices, dtype=np.int64))
        if len(self.slices) == 1:
            start = self.slices[0].start
            return indices + start if start else indices
        starts, offset = torch.zeros_like(indices), 0
        for s in self.slices:
            starts = torch.where(indices >= offset, s.start - offset, starts)
            offset += s.stop - s.start
        return indices + starts


class _Slice:
    """One range: its optimizer over views of the weights, and the version at which each element last changed."""

    def __init__(self, part: Part, weights: torch.Tensor, optimizer: OptimizerSpec, track: bool) -> None:
        self.part = part
        self.parameters = [view.requires_grad_(False) for view in part.views(weights)]
        # plain SGD is one addition: torch.optim would first import its compiler, for a second
        self.optimizer = None if optimizer.plain_sgd else optimizer.make(self.parameters, 1.0)
        self.changed_at = torch.zeros(part.size, dtype=torch.int32) if track else None
        self.version = self.dense_version = 0  # the last step, and the last one that changed everything
        self.found: tuple[int, int, Entries | None] | None = None  # what was asked for last: since, version, answer

    def mark(self, before: list[torch.Tensor] | None) -> None:
        """Note which elements the last step changed: compared with `before`, or all of them where it was dense."""
        assert self.changed_at is not None
        if before is None:
            self.dense_version = self.version
            return
        kind = INTEGER[self.parameters[0].dtype]  # as bits: 0.0 and -0.0 are not the same
        changed = [b.view(kind) != p.view(kind) for b, p in zip(before, self.parameters, strict=True)]
        self.changed_at.masked_fill_(torch.cat(changed), self.version)


class Store:
    """Weights and optimizer states. The policy decides what is applied; `step` applies it."""

    def __init__(
        self, weights: torch.Tensor, parts: Sequence[Part], optimizer: OptimizerSpec, *, track_changes: bool = False
    ) -> None:
        self.weights = weights
        self._plain = optimizer.plain_sgd
        self._slices = [_Slice(part, weights, optimizer, track_changes) for part in parts]
        # plain SGD adds chunk by chunk; torch.optim wants the gradient of a whole range
        room = CHUNK if self._plain else max(part.size for part in parts)
        self._sum = torch.empty(min(room, len(weights)), dtype=weights.dtype)

    def step(self, index: int, gradients: Sequence[Gradient], learning_rate: float) -> None:
        """Apply the mean of some gradients to a range as one step of its optimizer."""
        cut = self._slices[index]
        cut.version += 1
        if self._plain and all(isinstance(g, Entries) and g.indices is not None for g in gradients):
            self._sparse_step(cut, [g for g in gradients if isinstance(g, Entries)], learning_rate)
            return
        dense = any(map(_whole, gradients))
        before = [p.clone() for p in cut.parameters] if cut.changed_at is not None and not dense else None
        self._dense_step(cut, gradients, learning_rate)
        if cut.changed_at is not None:
            cut.mark(before)

    def changed(self, index: int, since_version: int) -> Entries | None:
        """The weights of a range that steps after `since_version` touched, lossless; None if nearly all were.

        Then the whole range is at most a seventh longer, and there is nothing to encode.
        """
        cut = self._slices[index]
        if cut.changed_at is None:
            raise ValueError("this store does not track changes")
        if cut.found is None or cut.found[:2] != (since_version, cut.version):  # workers of one round ask the same
            cut.found = since_version, cut.version, self._find(cut, since_version)
        return cut.found[2]

    def _find(self, cut: _Slice, since_version: int) -> Entries | None:
        assert cut.changed_at is not None
        if cut.dense_version > since_version:
            return None
        touched = cut.changed_at.numpy() > since_version
        if np.count_nonzero(touched) > NEARLY_ALL * cut.part.size:
            return None
        found = np.flatnonzero(touched)
        where = cut.part.flat_indices(Entries(cut.part.size, found, found))
        return Entries(cut.part.size, found, self.weights[where].numpy())

    def _sparse_step(self, cut: _Slice, gradients: Sequence[Entries], learning_rate: float) -> None:
        for entries in gradients:
            cut.part.add(self.weights, entries, -learning_rate / len(gradients))
            if cut.changed_at is not None and entries.indices is not None:
                cut.changed_at[torch.from_numpy(entries.indices).long()] = cut.version

    def _dense_step(self, cut: _Slice, gradients: Sequence[Gradient], learning_rate: float) -> None:
        if cut.optimizer is None and len(gradients) == 1 and _whole(gradients[0]):
            offset = 0
            for parameter, s in zip(cut.parameters, cut.part.slices, strict=True):
                parameter.add_(_piece(gradients[0], offset, s), alpha=-learning_rate)
                offset += parameter.numel()
            return
        if cut.optimizer is None:
            for offset, piece in cut.part.pieces(CHUNK):
                total = self._sum[: piece.stop - piece.start]
                _sum(total, offset, piece, gradients)
                self.weights[piece].add_(total, alpha=-learning_rate / len(gradients))
            return
        offset = 0
        for parameter, s in zip(cut.parameters, cut.part.slices, strict=True):
            parameter.grad = self._sum[offset : offset + parameter.numel()]
            _sum(parameter.grad, offset, s, gradients)
            if len(gradients) > 1:
                parameter.grad.div_(len(gradients))
            offset += parameter.numel()
        for group in cut.optimizer.param_groups:
            group["lr"] = learning_rate
        cut.optimizer.step()
        for parameter in cut.parameters:
            parameter.grad = None  # the next range's gradient takes its memory


def _whole(gradient: Gradient) -> bool:
    """Whether it says something of every element."""
    return isinstance(gradient, torch.Tensor) or gradient.indices is None


def _piece(gradient: Gradient, offset: int, s: slice) -> torch.Tensor:
    """A whole gradient over one slice, whose first element is at `offset` of its range."""
    if isinstance(gradient, torch.Tensor):
        return gradient[s]
    return torch.from_numpy(gradient.values[offset : offset + s.stop - s.start])


def _sum(out: torch.Tensor, offset: int, s: slice, gradients: Sequence[Gradient]) -> None:
    """out[:] = the sum of the gradients over one slice, whose first element is at `offset` of its range."""
    dense = [_piece(g, offset, s) for g in gradients if _whole(g)]
    if len(dense) == 1:
        out.copy_(dense[0])
    elif dense:
        torch.add(dense[0], dense[1], out=out)
        for more in dense[2:]:
            out.add_(more)
    else:
        out.zero_()
    for gradient in gradients:
        if isinstance(gradient, Entries) and gradient.indices is not None:
            low, high = np.searchsorted(gradient.indices, [offset, offset + out.numel()])
            where = torch.from_numpy(gradient.indices[low:high].astype(np.int64) - offset)
            out.index_add_(0, where, torch.from_numpy(gradient.values[low:high]))
