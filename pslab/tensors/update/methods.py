"""What a policy's `method` stands for: a worker's half, which has memories, and a server's half.

    method       a worker's half                        the server's half
    (none)       one gradient, or a sum of steps        the mean of what is pushed
    average      the same: local SGD                    of sparse data the mean over the workers that have a weight
    replica      the same; what is not yet pushed is    each push by itself
                 kept where fetches and pushes differ
    consensus    x and u of ADMM                        the proximal step, residuals, rho
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from pslab.protocol.server import Step
from pslab.protocol.traits import traits_of
from pslab.tensors.pruning.pruner import Memory
from pslab.tensors.update.consensus import Consensus, Solving
from pslab.tensors.update.steps import Local, Steps
from pslab.tensors.update.store import Gradient, Part
from pslab.tensors.update.vectors import inside, mean_over_users, outside

AVERAGE, REPLICA, CONSENSUS = METHODS = "average", "replica", "consensus"
SAID = "said"  # the memory of scalars that the server reads


class AtServer(Protocol):
    """The server's half of a method."""

    converged: bool  #: whether the run ends

    def adjust(self, step: Step, gradients: Sequence[Gradient]) -> Sequence[Gradient]:
        """The gradients whose mean is applied in a step; those of its pushes are not changed."""

    def tell(self) -> None:
        """Weights are about to be sent."""

    def facts(self) -> dict[str, object]:
        """For the manifest."""


class Users:
    """The server's half of an averaging of sparse data: models are averaged over the workers that have moved them."""

    converged = False

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts

    def adjust(self, step: Step, gradients: Sequence[Gradient]) -> Sequence[Gradient]:
        """Of one range, as its entries."""
        vectors = [inside(self._parts[step.range], gradient) for gradient in gradients]
        return [outside(mean_over_users(vectors)[0])]

    def tell(self) -> None:
        """Workers need to know no more than the weights."""

    def facts(self) -> dict[str, object]:
        """Nothing for the manifest."""
        return {}


def memories(sync: Any, size: int, dtype: torch.dtype) -> dict[str, Memory]:
    """What each worker keeps for a policy, from one push to the next."""
    traits = traits_of(sync)
    if traits.method == CONSENSUS:
        return {"x": Memory(size, dtype), "u": Memory(size, dtype), SAID: Memory(4, torch.float64, scalars=True)}
    if traits.method == REPLICA and sync.n_fetch != sync.n_push:
        return {"accrued": Memory(size, dtype), "moved": Memory(size, dtype)}
    return {}


def tells(sync: Any) -> bool:
    """Whether the server says a number beside its weights."""
    return traits_of(sync).method == CONSENSUS


def at_worker(sync: Any, kept: Mapping[str, torch.Tensor], scale: float, told: torch.Tensor | None) -> Local:
    """A worker's half.

    Args:
        kept: the memories.
        scale: the rate of a push that is applied alone, in learning rates.
        told: what the server says, if anything.
    """
    method = traits_of(sync).method
    if method == CONSENSUS and told is not None:
        return Solving(sync, kept["x"], kept["u"], kept[SAID], told)
    if method == REPLICA:
        return Steps(scale, kept.get("accrued"), kept.get("moved"), sync.literal)
    return Steps()


def at_server(
    sync: Any, parts: Sequence[Part], weights: torch.Tensor, said: Sequence[torch.Tensor], told: torch.Tensor | None,
    sparse: bool,
) -> AtServer | None:  # fmt: skip
    """The server's half, if it has one beside the mean of what is pushed.

    Args:
        said: of each worker the memory SAID.
        sparse: whether pushes hold the keys of their workers' examples alone.
    """
    method = traits_of(sync).method
    if method == CONSENSUS and told is not None:
        return Consensus(sync, parts[0], weights, said, told)
    return Users(parts) if method == AVERAGE and sparse else None
