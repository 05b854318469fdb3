"""Saved states of a server's vectors beside its weights, as tensors by name, for checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from pslab.tensors.entries import Entries

State = dict[str, torch.Tensor]


def named(prefix: str, state: Mapping[str, torch.Tensor]) -> State:
    """Return a state whose names begin with a prefix, so that one dict can contain several states."""
    return {f"{prefix}/{name}": tensor for name, tensor in state.items()}


def under(prefix: str, state: Mapping[str, torch.Tensor]) -> State:
    """Return the tensors whose names begin with a prefix, by their names without the prefix."""
    return {name.removeprefix(f"{prefix}/"): tensor for name, tensor in state.items() if name.startswith(f"{prefix}/")}


def table(rows: Iterable[Sequence[int]]) -> torch.Tensor:
    """Convert rows of whole numbers to a tensor: int64 [rows, columns]."""
    filled = [list(row) for row in rows]
    return torch.tensor(filled, dtype=torch.int64).reshape(len(filled), -1 if filled else 0)


def state_of(vector: torch.Tensor | Entries) -> State:
    """Return a vector of a range, dense or sparse, as a state."""
    if isinstance(vector, torch.Tensor):
        return {"dense": vector}
    assert vector.indices is not None
    return {"indices": torch.from_numpy(vector.indices), "values": torch.from_numpy(vector.values)}


def vector_of(state: Mapping[str, torch.Tensor], like: torch.Tensor) -> torch.Tensor | Entries:
    """Return the vector of a state, with the length and the dtype of `like`.

    Raises:
        KeyError, ValueError: the state is not a vector of this length.
    """
    if "dense" in state:
        return torch.empty_like(like).copy_(fitting(state["dense"], like))
    indices, values = state["indices"].numpy(), state["values"].to(like.dtype).numpy()
    inside = not len(indices) or (indices[0] >= 0 and indices[-1] < len(like) and (indices[1:] > indices[:-1]).all())
    if indices.shape != values.shape or not inside:
        raise ValueError(f"a saved vector must have a value for each index, and increasing indices below {len(like)}")
    return Entries(len(like), indices.copy(), values.copy())


def fitting(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return the tensor if it has the shape of `like`.

    Raises:
        ValueError: the tensor has another shape, which `copy_` would broadcast.
    """
    if tensor.shape != like.shape:
        raise ValueError(f"a saved tensor has the shape {list(tensor.shape)}, but must have {list(like.shape)}")
    return tensor
