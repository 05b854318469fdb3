"""The version store of a rate that keeps, in the weights, the mean of the pushes of each version.

After Jiang et al. (2017), as far as it is known; see `pslab.policies.rates`. A worker that pulls opens the version
after the newest that anybody has pushed for; its next push joins that one, and moves the weights by as much as it moves
the version's mean. A mean is kept as long as somebody may still join it: there are never more of them than workers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import reduce

import torch

from pslab.protocol.server import Step
from pslab.tensors.update.store import Gradient, Part
from pslab.tensors.update.vectors import Vector, copied, inside, mean, outside, plus, scaled


class Versions:
    """The versions of every range."""

    def __init__(self, rate: object, parts: Sequence[Part], layers: Sequence[slice], dtype: torch.dtype) -> None:
        self._parts, self.ranges = parts, [_Range(part.size, dtype) for part in parts]

    def rate(self, step: Step, gradients: Sequence[Gradient], computing: Collection[int]) -> Sequence[Gradient]:
        here, part = self.ranges[step.range], self._parts[step.range]
        here.take_back()
        groups: dict[int, list[Vector]] = {}
        for push, gradient in zip(step.pushes, gradients, strict=True):
            groups.setdefault(here.joined(push.version), []).append(inside(part, gradient))
        kept = {here.joined(version) for version in computing}
        begun = len(groups) == 1 and not groups.keys() & here.means.keys()  # then their mean is the whole step
        changes = [here.join(v, group, v in kept) for v, group in groups.items() if v in kept or not begun]
        here.turn(step.version, max(groups), computing)
        return gradients if begun else [outside(reduce(plus, changes))]

    def leave(self, worker: int) -> None:
        """What it has pushed stays."""


class _Range:
    """One range: `means` of the versions that somebody may still join, and how many `members` each has."""

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        self._size, self._dtype, self._newest = size, dtype, -1
        self._opens = {0: 0}  # version of the weights -> what the next push of whoever pulled them joins
        self.means: dict[int, Vector] = {}
        self.members: dict[int, int] = {}
        self._spare: list[torch.Tensor] = []  # memory of changes and of means that are gone
        self._lent: list[torch.Tensor] = []  # ... of changes that are being applied

    def joined(self, version: int) -> int:
        """What a push joins that was taken on this version of the weights.

        The oldest there is for one that outlived its own, because its worker left before it was applied.
        """
        return self._opens.get(version, min(self._opens.values()))

    def join(self, version: int, vectors: Sequence[Vector], keep: bool) -> Vector:
        """By how much the version's mean changes. Whether to `keep` it: somebody may still join."""
        new, old = mean(vectors), self.means.get(version)
        self.members[version] = self.members.get(version, 0) + len(vectors)
        share = len(vectors) / self.members[version]
        if old is None:
            if keep:
                self.means[version] = self._room().copy_(new) if isinstance(new, torch.Tensor) else copied(new)
            return new
        if not isinstance(new, torch.Tensor) or not isinstance(old, torch.Tensor):
            change = scaled(plus(new, old, -1.0), share)
            self.means[version] = plus(old, change)
            return change
        out = self._room()
        self._lent.append(out)
        torch.sub(new, old, out=out).mul_(share)
        if keep:
            old.add_(out)
        return out

    def turn(self, made: int, joined: int, computing: Collection[int]) -> None:
        """A step has made a version of the weights; what nobody can join any more is dropped."""
        self._newest = max(self._newest, joined)
        self._opens = {version: self.joined(version) for version in computing} | {made: self._newest + 1}
        for version in self.means.keys() - set(self._opens.values()):
            gone = self.means.pop(version)
            self._spare += [gone] if isinstance(gone, torch.Tensor) else []
        self.members = {version: self.members[version] for version in self.means}

    def take_back(self) -> None:
        """The last step's changes have been applied."""
        self._spare, self._lent = self._spare + self._lent, []

    def _room(self) -> torch.Tensor:
        return self._spare.pop() if self._spare else torch.empty(self._size, dtype=self._dtype)
