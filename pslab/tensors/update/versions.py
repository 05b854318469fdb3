"""DynSGD's version store: the weights contain the mean of the pushes of each version.

After Jiang et al., "Heterogeneity-aware Distributed Parameter Servers" (SIGMOD 2017), as far as it is public; see
`pslab.policies.rates`. A worker that pulls opens the version after the newest version with a push. Its next push joins
that version, and moves the weights as far as it moves the version's mean. A mean is stored while a worker may still
join it, so there are never more means than workers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import reduce

import torch

from pslab.protocol.server import Step
from pslab.tensors.update.part import Gradient, Part
from pslab.tensors.update.states import State, named, state_of, table, under, vector_of
from pslab.tensors.update.vectors import Vector, copied, inside, mean, outside, plus, scaled


class Versions:
    """The state of a range: for each version that a push may still join, the mean and the number of its pushes."""

    def __init__(self, rate: object, part: Part, layers: Sequence[slice], dtype: torch.dtype) -> None:
        self._part, self._dtype, self._newest = part, dtype, -1
        self._opened = {0: 0}  # version of the weights: the version that a push computed on them joins
        self.means: dict[int, Vector] = {}
        self.members: dict[int, int] = {}
        self._spare: list[torch.Tensor] = []  # free memory, of dropped means and applied changes
        self._lent: list[torch.Tensor] = []  # memory of the changes that are being applied

    def adjust(self, step: Step, gradients: Sequence[Gradient], computing: Collection[int]) -> Sequence[Gradient]:
        self._spare, self._lent = self._spare + self._lent, []  # the changes of the last step have been applied
        groups: dict[int, list[Vector]] = {}
        for push, gradient in zip(step.pushes, gradients, strict=True):
            groups.setdefault(self._joined(push.version), []).append(inside(self._part, gradient))
        joinable = {self._joined(version) for version in computing}
        # the first pushes of a version move the weights by their mean, which the step computes anyway
        first = len(groups) == 1 and not groups.keys() & self.means.keys()
        changes = [self._join(version, group, keep=version in joinable)
                   for version, group in groups.items() if version in joinable or not first]  # fmt: skip
        self._advance(step.version, max(groups), computing)
        return gradients if first else [outside(reduce(plus, changes))]

    def leave(self, worker: int) -> None:
        """Do nothing: the pushes of a worker that has left stay in the means."""

    def state(self) -> State:
        """Return the means, the open versions, and the number of pushes in each mean."""
        means = [named(f"mean {version}", state_of(mean)) for version, mean in self.means.items()]
        whole = {name: tensor for state in means for name, tensor in state.items()}
        return {"newest": torch.tensor(self._newest), "opened": table(self._opened.items()),
                "members": table(self.members.items()), **whole}  # fmt: skip

    def restore(self, state: State) -> None:
        """Restore a saved state."""
        like = torch.empty(self._part.size, dtype=self._dtype)
        self._newest, self._opened = int(state["newest"]), dict(state["opened"].tolist())
        self.members = dict(state["members"].tolist())
        self.means = {version: vector_of(under(f"mean {version}", state), like) for version in self.members}

    def _joined(self, version: int) -> int:
        """Return the version that a push joins if it was computed on this version of the weights.

        If that version is no longer open, because the worker left before its push was applied, return the oldest.
        """
        return self._opened.get(version, min(self._opened.values()))

    def _join(self, version: int, vectors: Sequence[Vector], keep: bool) -> Vector:
        """Add pushes to a version and return the change of its mean; `keep`: whether to store the mean for later."""
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

    def _advance(self, made: int, joined: int, computing: Collection[int]) -> None:
        """Drop the means that no worker can join after the step that made version `made` of the weights."""
        self._newest = max(self._newest, joined)
        self._opened = {version: self._joined(version) for version in computing} | {made: self._newest + 1}
        for version in self.means.keys() - set(self._opened.values()):
            dropped = self.means.pop(version)
            self._spare += [dropped] if isinstance(dropped, torch.Tensor) else []
        self.members = {version: self.members[version] for version in self.means}

    def _room(self) -> torch.Tensor:
        return self._spare.pop() if self._spare else torch.empty(self._part.size, dtype=self._dtype)
