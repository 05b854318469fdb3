"""The methods that a policy can name. Each has a worker's part, which may store vectors, and a server's part.

method       a worker's part                        the server's part
(none)       one gradient, or a sum of steps        the mean of the pushes
average      local SGD                              the mean; with sparse data over the workers of each weight
replica      local SGD; the unpushed change is      a step for each push
             stored if n_fetch and n_push differ
consensus    x and u of ADMM                        the proximal step, residuals, rho
inner        steps of an inner optimizer, on its    a step of the outer optimizer by the mean, separate for
             own weights if they are merged         each fragment
elastic      steps of an inner optimizer, on its    a step by the mean; the weights are the center
             own weights, pulled to the server's
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
TRAINING = INNER, ELASTIC  # methods with an inner optimizer at each worker
STATED = "stated"  # the memory of scalars that the server reads
REACHED = "reached"  # the memory of the schedule's position before a push, in gradients of all workers


def memories(sync: Any, size: int, dtype: torch.dtype, inner: InnerOptimizer | None = None) -> dict[str, KeptVector]:
    """Return the vectors that each worker stores for a policy from one push to the next."""
    traits = traits_of(sync)
    if traits.method == CONSENSUS:
        vector = KeptVector(size, dtype)
        return {"x": vector, "u": vector, STATED: KeptVector(4, torch.float64, scalars=True)}
    if traits.method == REPLICA and sync.n_fetch != sync.n_push:
        return {"accrued": KeptVector(size, dtype), "moved": KeptVector(size, dtype)}
    if inner is None:
        return {}
    from pslab.tensors.update.own_weights import own_weights  # late: a run loads only the code of its method

    reached = {REACHED: KeptVector(1, torch.float64, scalars=True)} if traits.counted and traits.overlap else {}
    return inner.memories(size, dtype) | own_weights(sync, size, dtype) | reached


def has_rho(sync: Any) -> bool:
    """Whether the server writes a number, rho, beside its weights, as consensus ADMM does."""
    return traits_of(sync).method == CONSENSUS


def at_worker(
    sync: Any, memory: Mapping[str, torch.Tensor], scale: float, rho: torch.Tensor | None,
    inner: InnerOptimizer | None, dtype: torch.dtype, workers: int, parts: Sequence[Part],
) -> Local:  # fmt: skip
    """Return a worker's part of the policy's method.

    Args:
        memory: the worker's `memories`.
        scale: the factor of the learning rate for a push that is applied alone.
        rho: the memory into which the server writes rho, if the method has it.
        inner: the inner optimizer, if the method has one.
        dtype: the dtype of the weights.
        workers: the number of workers.
        parts: the ranges of the weights.
    """
    method = traits_of(sync).method
    if method == REPLICA:
        return LocalSteps(scale, memory.get("accrued"), memory.get("moved"), sync.literal)
    # imported late, so that a run loads only the code of its method
    if method == CONSENSUS and rho is not None:
        from pslab.tensors.update.consensus import Solving

        return Solving(memory["x"], memory["u"], memory[STATED], rho)
    if inner is None:
        return LocalSteps()
    if method == ELASTIC:
        from pslab.tensors.update.elastic import ElasticSteps

        return ElasticSteps(inner, memory, dtype, sync.beta, workers)
    if getattr(sync, "keeps_own", False):
        from pslab.tensors.update.fragments import FragmentSteps

        return FragmentSteps(sync, parts, inner, memory, dtype)
    from pslab.tensors.update.inner import InnerSteps

    return InnerSteps(inner, memory, dtype)
