"""The ranges of the flat vector, each a few slices of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pslab.tensors.entries import Entries

Gradient = torch.Tensor | Entries  # flat and dense over the whole model, or the entries of one range


@dataclass(frozen=True)
class Part:
    """The slices of the flat vector that one range covers; inside a range positions count from 0."""

    slices: tuple[slice, ...]
    layer: int = 0  #: the layer of the range, if requests are layer by layer

    @cached_property
    def size(self) -> int:
        """The number of elements."""
        return sum(s.stop - s.start for s in self.slices)

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Return views of the range's slices of a flat vector."""
        return [flat[s] for s in self.slices]

    def pieces(self, length: int) -> Iterator[tuple[int, slice]]:
        """Yield pieces of at most `length` elements: (position in the range, slice of the flat vector)."""
        offset = 0
        for s in self.slices:
            for start in range(s.start, s.stop, length):
                piece = slice(start, min(start + length, s.stop))
                yield offset, piece
                offset += piece.stop - piece.start

    def inside(self, indices: NDArray[np.int64], values: NDArray[Any]) -> Entries:
        """Select this range's entries among sparse entries of the flat vector, whose indices are sorted."""
        selected, taken = [], []
        for s, shift in zip(self.slices, self._shifts[1].tolist(), strict=True):
            low, high = indices.searchsorted((s.start, s.stop))
            selected.append(indices[low:high] - shift if shift else indices[low:high])
            taken.append(values[low:high])
        if len(selected) == 1:
            return Entries(self.size, selected[0], taken[0])
        return Entries(self.size, np.concatenate(selected), np.concatenate(taken))

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
        """Add `factor` times entries of this range to a flat vector."""
        values = torch.from_numpy(entries.values)
        if entries.indices is not None:
            flat.index_add_(0, self.flat_indices(entries), values, alpha=factor)
            return
        for offset, piece in self.pieces(self.size):
            flat[piece].add_(values[offset : offset + piece.stop - piece.start], alpha=factor)

    def flat_indices(self, entries: Entries) -> torch.Tensor:
        """Convert the positions of sparse entries in this range to indices in the flat vector (int64 [k])."""
        indices, (starts, shifts) = np.asarray(entries.indices, dtype=np.int64), self._shifts
        if len(shifts) == 1:
            return torch.from_numpy(indices + shifts[0] if shifts[0] else indices)
        counts = np.diff(indices.searchsorted(starts), append=len(indices))
        return torch.from_numpy(indices + np.repeat(shifts, counts))

    @cached_property
    def _shifts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first position of each slice in the range, and its offset: index in the vector - position."""
        starts = np.cumsum([0, *(s.stop - s.start for s in self.slices)])[:-1]
        return starts, np.array([s.start for s in self.slices], np.int64) - starts


def joined(slices: Iterable[slice]) -> tuple[slice, ...]:
    """Merge adjacent slices of an increasing sequence of slices."""
    merged: list[slice] = []
    for s in slices:
        begin = merged.pop().start if merged and merged[-1].stop == s.start else s.start
        merged.append(slice(begin, s.stop))
    return tuple(merged)
