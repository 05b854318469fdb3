"""The server's weights: one flat vector in ranges, each with its own optimizer and versions."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pslab.tensors.entries import Entries
from pslab.tensors.update.optimizers import OptimizerSpec
from pslab.tensors.update.part import Gradient, Part
from pslab.tensors.update.states import State, fitting, named, under

INTEGER = {torch.float32: torch.int32, torch.float64: torch.int64}
NEARLY_ALL = 0.875
FEW = 0.125  # share of a range: up to so many changed indices are logged, to find changes without a full scan
CHUNK = 1 << 18  # elements that are summed at once: the sum fits in a cache; smaller chunks need more calls


class _Range:
    """A range: its optimizer over views of the weights, and the version at which each element last changed."""

    def __init__(self, part: Part, weights: torch.Tensor, optimizer: OptimizerSpec, track: bool) -> None:
        self.part = part
        self.parameters = [view.requires_grad_(False) for view in part.views(weights)]
        # plain SGD is one addition, and the first step of torch.optim imports its compiler, which takes a second
        self.optimizer = None if optimizer.plain_sgd else optimizer.make(self.parameters, 1.0)
        self.changed_at = np.zeros(part.size, np.int32) if track else None
        self._steps: deque[tuple[int, NDArray[Any]]] = deque()  # the last sparse steps: version, indices
        self._logged, self._since = 0, 0  # the number of indices in the log; it has all steps after this version
        self.version = self.dense_version = 0  # versions of the last step and of the last dense step
        self.found: tuple[int, int, Entries | None] | None = None  # the last call of `changed`: since, version, answer

    def state(self) -> State:
        """Return the versions, the version at which each element last changed, and the optimizer's state of each slice.
        The log of the last steps is not included: `changed` finds the same entries without it."""
        state = {"versions": torch.tensor([self.version, self.dense_version])}
        if self.changed_at is not None:
            state["changed at"] = torch.from_numpy(self.changed_at)
        for number, parameter in enumerate(self.parameters if self.optimizer is not None else ()):
            assert self.optimizer is not None
            moments = {name: tensor for name, tensor in self.optimizer.state[parameter].items() if tensor is not None}
            state |= named(f"optimizer {number}", moments)
        return state

    def restore(self, state: State) -> None:
        """Restore a saved state of the range."""
        self.version, self.dense_version = state["versions"].tolist()
        self._since = self.version
        if self.changed_at is not None:
            self.changed_at[:] = fitting(state["changed at"], torch.from_numpy(self.changed_at)).numpy()
        for number, parameter in enumerate(self.parameters if self.optimizer is not None else ()):
            assert self.optimizer is not None
            moments = under(f"optimizer {number}", state)
            for tensor in moments.values():
                if tensor.dim():  # scalars need no check
                    fitting(tensor, parameter)
            self.optimizer.state[parameter].update({name: tensor.clone() for name, tensor in moments.items()})

    def mark(self, before: list[torch.Tensor] | None) -> None:
        """Record the elements that the last step changed: all that differ from `before`; None: all elements."""
        assert self.changed_at is not None
        self._steps.clear()
        self._logged, self._since = 0, self.version
        if before is None:
            self.dense_version = self.version
            return
        kind = INTEGER[self.parameters[0].dtype]  # compare bits, because 0.0 and -0.0 are different weights
        changed = [b.view(kind) != p.view(kind) for b, p in zip(before, self.parameters, strict=True)]
        self.changed_at[torch.cat(changed).numpy()] = self.version

    def mark_entries(self, indices: NDArray[Any]) -> None:
        """Record that the last step changed these elements of the range."""
        assert self.changed_at is not None
        self.changed_at[indices] = self.version
        self._steps.append((self.version, indices))
        self._logged += len(indices)
        while self._logged > FEW * self.part.size:
            self._since, dropped = self._steps.popleft()
            self._logged -= len(dropped)

    def changed(self, since: int) -> NDArray[Any]:
        """Return the increasing positions of the elements that steps after version `since` changed."""
        assert self.changed_at is not None
        if since < self._since:
            return np.flatnonzero(self.changed_at > since)
        logged = [indices for version, indices in self._steps if version > since]
        if len(logged) < 2:
            return logged[0] if logged else np.empty(0, np.int64)
        merged = np.sort(np.concatenate(logged), kind="stable")  # a stable sort merges sorted arrays
        distinct: NDArray[Any] = merged[np.diff(merged, prepend=-1) != 0]
        return distinct


class WeightStore:
    """The weights of a server, with an optimizer for each range.

    Args:
        weights: [size], the flat vector; changed in place.
        parts: the ranges that partition it.
        track_changes: whether `changed` will be called.
    """

    def __init__(
        self, weights: torch.Tensor, parts: Sequence[Part], optimizer: OptimizerSpec, *, track_changes: bool = False
    ) -> None:
        self.weights = weights
        self._plain = optimizer.plain_sgd
        self._ranges = [_Range(part, weights, optimizer, track_changes) for part in parts]
        # plain SGD adds chunk by chunk, but torch.optim needs the gradient of a complete range
        room = CHUNK if self._plain else max(part.size for part in parts)
        self._sum = torch.empty(min(room, len(weights)), dtype=weights.dtype)

    def state(self, index: int) -> State:
        """Return what a checkpoint stores of a range beside its weights: its version and its optimizer's state."""
        return self._ranges[index].state()

    def restore(self, index: int, state: State) -> None:
        """Restore a saved state of a range."""
        self._ranges[index].restore(state)

    def step(self, index: int, gradients: Sequence[Gradient], learning_rate: float, *, plain: bool = False) -> None:
        """Apply the mean of gradients to range `index` as one step of its optimizer, or of plain SGD if `plain`. An
        empty list only raises the version."""
        state, plain = self._ranges[index], plain or self._plain
        state.version += 1
        if not gradients:
            return
        if plain and all(isinstance(g, Entries) and g.indices is not None for g in gradients):
            self._sparse_step(state, [g for g in gradients if isinstance(g, Entries)], learning_rate)
            return
        dense = any(map(_is_dense, gradients))
        before = [p.clone() for p in state.parameters] if state.changed_at is not None and not dense else None
        self._dense_step(state, gradients, learning_rate, None if plain else state.optimizer)
        if state.changed_at is not None:
            state.mark(before)

    def changed(self, index: int, since_version: int) -> Entries | None:
        """Return the weights of a range that changed in steps after `since_version`; None if nearly all changed.

        If nearly all changed, sending all weights takes at most a seventh more bytes, and needs no encoding.

        Raises:
            ValueError: the store does not track changes.
        """
        state = self._ranges[index]
        if state.changed_at is None:
            raise ValueError("this store does not track changes: create it with track_changes=True")
        # cached, because the workers of one round ask for the same changes
        if state.found is None or state.found[:2] != (since_version, state.version):
            state.found = since_version, state.version, self._find(state, since_version)
        return state.found[2]

    def _find(self, state: _Range, since_version: int) -> Entries | None:
        assert state.changed_at is not None
        if state.dense_version > since_version:
            return None
        indices = state.changed(since_version)
        if len(indices) > NEARLY_ALL * state.part.size:
            return None
        where = state.part.flat_indices(Entries(state.part.size, indices, indices))
        return Entries(state.part.size, indices, self.weights.numpy()[where.numpy()])

    def _sparse_step(self, state: _Range, gradients: Sequence[Entries], learning_rate: float) -> None:
        for entries in gradients:
            state.part.add(self.weights, entries, -learning_rate / len(gradients))
            if state.changed_at is not None and entries.indices is not None:
                state.mark_entries(entries.indices)

    def _dense_step(self, state: _Range, gradients: Sequence[Gradient], learning_rate: float, optimizer: Any) -> None:
        if optimizer is None and len(gradients) == 1 and _is_dense(gradients[0]):
            offset = 0
            for parameter, s in zip(state.parameters, state.part.slices, strict=True):
                parameter.add_(_piece(gradients[0], offset, s), alpha=-learning_rate)
                offset += parameter.numel()
            return
        if optimizer is None:
            for offset, piece in state.part.pieces(CHUNK):
                total = self._sum[: piece.stop - piece.start]
                _sum(total, offset, piece, gradients)
                self.weights[piece].add_(total, alpha=-learning_rate / len(gradients))
            return
        offset = 0
        for parameter, s in zip(state.parameters, state.part.slices, strict=True):
            parameter.grad = self._sum[offset : offset + parameter.numel()]
            _sum(parameter.grad, offset, s, gradients)
            if len(gradients) > 1:
                parameter.grad.div_(len(gradients))
            offset += parameter.numel()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        optimizer.step()
        for parameter in state.parameters:
            parameter.grad = None  # the next range's gradient reuses this memory


def _is_dense(gradient: Gradient) -> bool:
    return isinstance(gradient, torch.Tensor) or gradient.indices is None


def _piece(gradient: Gradient, offset: int, s: slice) -> torch.Tensor:
    """Return a dense gradient's values for slice `s`, whose first element has position `offset` in the range."""
    if isinstance(gradient, torch.Tensor):
        return gradient[s]
    return torch.from_numpy(gradient.values[offset : offset + s.stop - s.start])


def _sum(out: torch.Tensor, offset: int, s: slice, gradients: Sequence[Gradient]) -> None:
    """Write the gradients' sum for slice `s` to `out`; its first element has position `offset` in the range."""
    dense = [_piece(g, offset, s) for g in gradients if _is_dense(g)]
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
