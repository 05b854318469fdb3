"""The methods that a policy can name: each consists of a worker's part, which may keep vectors, and a server's part.

    method       a worker's half                        the server's half
    (none)       one gradient, or a sum of steps        the mean of the pushes
    average      the same: local SGD                    of sparse data the mean over the workers that have a weight
    replica      the same; the unpushed change is       each push by itself
                 kept where fetches and pushes differ
    consensus    x and u of ADMM                        the proximal step, residuals, rho
    inner        steps of an optimizer of its own, on   a step of the outer optimizer by the mean, of each
                 weights of its own if they are merged  fragment by itself
    elastic      the same, on weights of its own,       the same: they are the center
                 which are drawn to the server's
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from pslab.protocol.traits import traits_of
from pslab.tensors.entries import KeptVector
from pslab.tensors.update.steps import Local, LocalSteps

if TYPE_CHECKING:
    from pslab.tensors.update.inner import InnerOptimizer
    from pslab.tensors.update.part import Part

AVERAGE, REPLICA, CONSENSUS, INNER, ELASTIC = METHODS = "average", "replica", "consensus", "inner", "elastic"
TRAINING = INNER, ELASTIC  # whose workers train by an optimizer of their own
STATED = "stated"  # the memory of scalars that the server reads
REACHED = "reached"  # the memory of how many gradients of all workers a schedule had come to, before a push


def memories(
    sync: Any, size: int, dtype: torch.dtype, inner: InnerOptimizer | None = None
) -> dict[str, KeptVector]:
    """The vectors that each worker keeps for a policy from one push to the next."""
    traits = traits_of(sync)
    if traits.method == CONSENSUS:
        own = KeptVector(size, dtype)
        return {"x": own, "u": own, STATED: KeptVector(4, torch.float64, scalars=True)}
    if traits.method == REPLICA and sync.n_fetch != sync.n_push:
        return {"accrued": KeptVector(size, dtype), "moved": KeptVector(size, dtype)}
    if inner is None:
        return {}
    from pslab.tensors.update.own_weights import own_weights  # a run loads what its own method needs, and no other

    reached = {REACHED: KeptVector(1, torch.float64, scalars=True)} if traits.counted and traits.overlap else {}
    return inner.memories(size, dtype) | own_weights(sync, size, dtype) | reached


def has_rho(sync: Any) -> bool:
    """Whether the server states a number, rho, beside its weights."""
    return traits_of(sync).method == CONSENSUS


def at_worker(
    sync: Any, kept: Mapping[str, torch.Tensor], scale: float, rho: torch.Tensor | None,
    inner: InnerOptimizer | None, dtype: torch.dtype, workers: int, parts: Sequence[Part],
) -> Local:  # fmt: skip
    """A worker's half.

    Args:
        kept: the memories.
        scale: the rate of a push that is applied alone, in learning rates.
        rho: where the server states it, if the method has one.
        inner: the optimizer of a method that has one.
        dtype: of the weights.
        workers: their number.
        parts: their ranges.
    """
    method = traits_of(sync).method
    if method == REPLICA:
        return LocalSteps(scale, kept.get("accrued"), kept.get("moved"), sync.literal)
    # below, too, a run loads what its own method needs, and no other
    if method == CONSENSUS and rho is not None:
        from pslab.tensors.update.consensus import Solving

        return Solving(kept["x"], kept["u"], kept[STATED], rho)
    if inner is None:
        return LocalSteps()
    if method == ELASTIC:
        from pslab.tensors.update.elastic import ElasticSteps

        return ElasticSteps(inner, kept, dtype, sync.beta, workers)
    if getattr(sync, "keeps_own", False):
        from pslab.tensors.update.fragments import FragmentSteps

        return FragmentSteps(sync, parts, inner, kept, dtype)
    from pslab.tensors.update.inner import InnerSteps

    return InnerSteps(inner, kept, dtype)
