"""The state of what a server keeps beside its weights, as tensors by name: what a checkpoint has of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from pslab.tensors.entries import Entries

State = dict[str, torch.Tensor]


def named(prefix: str, state: Mapping[str, torch.Tensor]) -> State:
    """Return a state whose names begin with a prefix, so that one dict has many."""
    return {f"{prefix}/{name}": each for name, each in state.items()}


def under(prefix: str, state: Mapping[str, torch.Tensor]) -> State:
    """Return the state of a prefix, without it."""
    return {name.removeprefix(f"{prefix}/"): each for name, each in state.items() if name.startswith(f"{prefix}/")}


def table(rows: Iterable[Sequence[int]]) -> torch.Tensor:
    """Return rows of whole numbers: int64 [rows, columns]."""
    found = [list(row) for row in rows]
    return torch.tensor(found, dtype=torch.int64).reshape(len(found), -1 if found else 0)


def state_of(vector: torch.Tensor | Entries) -> State:
    """Return a vector of a range, dense or sparse, as a state."""
    if isinstance(vector, torch.Tensor):
        return {"dense": vector}
    assert vector.indices is not None
    return {"indices": torch.from_numpy(vector.indices), "values": torch.from_numpy(vector.values)}


def vector_of(state: Mapping[str, torch.Tensor], like: torch.Tensor) -> torch.Tensor | Entries:
    """Return the vector of a state: of the length and the type of another one.

    Raises:
        KeyError, ValueError: it is no such vector.
    """
    if "dense" in state:
        return torch.empty_like(like).copy_(fitting(state["dense"], like))
    indices, values = state["indices"].numpy(), state["values"].to(like.dtype).numpy()
    inside = not len(indices) or (indices[0] >= 0 and indices[-1] < len(like) and (indices[1:] > indices[:-1]).all())
    if indices.shape != values.shape or not inside:
        raise ValueError(f"there are no entries {list(state['indices'].shape)} of a vector of {len(like)}")
    return Entries(len(like), indices.copy(), values.copy())


def fitting(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return the tensor, if it has the shape of another one.

    Raises:
        ValueError: it has not: `copy_` would broadcast it.
    """
    if tensor.shape != like.shape:
        raise ValueError(f"a tensor of the shape {list(tensor.shape)} stands for one of {list(like.shape)}")
    return tensor
