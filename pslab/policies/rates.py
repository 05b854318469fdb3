"""Rates: how far one applied push moves the weights.

A rate is a factor of the learning rate, `scale`. One that changes the gradient itself declares by `needs` what is
computed for it beside the weights (`pslab.tensors.update.rate_state`), which asks it for numbers and reads its fields:

    needs          computed where    what it is made of
    versions       at the server     the mean of the pushes of each version
    squares        at the server     the sums of the gradients' squares, elementwise; the rate has `eps`
    own squares    at each worker    ... of its own gradients, before they are pruned
    directions     at the server     each worker's latest gradient, layer by layer; the rate has `share` and `clamp`

Without tensors there is only the factor. A rate that does not read Run's `push_weight` says so by `weighted = False`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple, Protocol

from pslab.config.parameters import Bounds, OneOf, check


class Applied(NamedTuple):
    """What a rate is told of the pushes that are applied as one step."""

    workers: int  #: workers in the run
    pushes: int  #: pushes in this step
    aggregate: bool  #: whether the step is the mean of a superstep
    push_weight: float | None  #: Run.push_weight
    staleness: int  #: steps on this range between the oldest push's pull and now
    stalest: int  #: ... between the oldest weights that any worker computes on, or has just pushed for, and now
    seen: int  #: the staleness that the workers knew of as they pushed, `staleness` if they could not


class Rate(Protocol):
    """A learning-rate policy.

    One that asks of a push's staleness for what its worker has seen alone may say so by `foreseen = True`: then the
    worker itself knows by how much its push is going to move the weights.
    """

    def scale(self, step: Applied) -> float:
        """The factor of the learning rate for this step."""


@dataclass(frozen=True)
class Constant:
    """CONSGD: a push that is applied alone moves by Run's `push_weight`, 1 / workers if None.

    The mean of a superstep moves by 1, whatever the weight, as MXNet's dist_sync does: so with plain SGD one epoch
    moves the weights by the same total step under every policy, and push_weight=1 leaves single pushes undivided.

    Source: Jiang et al. (SIGMOD 2017).
    """

    foreseen: ClassVar[bool] = True

    def scale(self, step: Applied) -> float:
        return 1.0 if step.aggregate else _weight(step)


@dataclass(frozen=True)
class DynSGD:
    """DynSGD: the staler a push, the smaller its step. No 1 / workers beside it.

    `versions` is a reconstruction of the paper's version store, whose full text is not public. A push joins the version
    that its worker's pull opened, and the weights hold the mean of each version's pushes: the newest of k members
    counts 1 / k and pulls the others down to 1 / k. A round of equals is their mean, a lone worker counts 1. It works
    on gradients: with plain SGD of a constant learning rate the weights are the initial ones less the rate times the
    sum of the means; where the rate changes, what is taken back of earlier members is taken at the newer rate, and
    another optimizer takes the changes of the means for gradients.
    `inverse`: 1 / (1 + the push's own staleness), as Hermans's dist-keras does. `stalest`: 1 / (1 + the largest
    staleness of the weights that any worker computes on), for every push, as in Tsai's slides.

    Source: Jiang et al. (SIGMOD 2017); Hermans (thesis 2017); Tsai (slides 2017)
    """

    variant: Annotated[str, OneOf("versions", "inverse", "stalest"), "which of the three"] = "versions"
    weighted: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check(self)

    @property
    def needs(self) -> str:
        return "versions" if self.variant == "versions" else ""

    def scale(self, step: Applied) -> float:
        if self.variant == "versions":
            return 1.0
        return 1.0 / (1 + (step.staleness if self.variant == "inverse" else step.stalest))


@dataclass(frozen=True)
class AdaGrad:
    """AdaGrad: every entry's rate falls with the root of the sum of its squared gradients. No 1 / workers beside it.

    With the sums at each worker, as in Tsai's slides, one that has pushed a quarter as often has twice the rate: stale
    pushes are amplified. The gradient is divided before it is pruned. With the sums at the server there is one rate
    for all workers, and of a superstep it is the mean that is squared.

    Source: Duchi et al. (JMLR 2011); Tsai (slides 2017)
    """

    accumulator: Annotated[str, OneOf("worker", "server"), "whose squares are summed"] = "worker"
    eps: Annotated[float, Bounds(above=0), "added to the root"] = 1e-10
    weighted: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check(self)

    @property
    def needs(self) -> str:
        return "own squares" if self.accumulator == "worker" else "squares"

    def scale(self, step: Applied) -> float:
        return 1.0


@dataclass(frozen=True)
class Split:
    """Direction and distance: how far a push goes is set anew, layer by layer, along its own direction.

    The distances of all workers' latest gradients g become t * alpha, with the t that keeps the length of their sum:
    t * |sum of alpha * g / |g|| = |sum of g|. The direction of the sum may change. A worker's alpha is set by its push
    and stays until its next one; where directions cancel, no distance grows beyond `clamp` times itself. Sums, not
    means: no 1 / workers beside it, as push_weight=1 with the constant rate.
    alpha is 1 / (1 + staleness); or equal; or as it was (identity: nothing changes); or, by speed, 1 / the number of
    the worker's pushes, so that the slow ones count more.

    Source: Tsai (slides 2017)
    """

    alpha: Annotated[
        str, OneOf("staleness", "equal", "identity", "speed"), "by what the distances are shared out"
    ] = "staleness"
    clamp: Annotated[float, Bounds(above=0), "the most by which a gradient may be lengthened"] = 10.0
    weighted: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check(self)

    @property
    def needs(self) -> str:
        return "" if self.alpha == "identity" else "directions"

    def share(self, staleness: int, pushes: int) -> float:
        """alpha of a worker whose push of this staleness is its `pushes`-th."""
        if self.alpha == "staleness":
            return 1.0 / (1 + staleness)
        return 1.0 / pushes if self.alpha == "speed" else 1.0

    def scale(self, step: Applied) -> float:
        return 1.0


@dataclass(frozen=True)
class Modulated:
    """A worker's own step, made smaller by the staleness that it saw; alone it counts `push_weight`, 1 / workers.

    PS+ lets workers modulate the rate of stale updates; by which rule, only its full text says. `offset` is this
    project's own rule: 1 / (1 + max(0, staleness - (M - 1)) / M) for M workers, so that the staleness of equal workers,
    M - 1, is not punished. `inverse`: 1 / (1 + staleness). `reciprocal`: 1 / max(1, staleness), of staleness-aware SGD.

    Source: Jin et al. (TPDS 2022); Zhang et al. (arXiv 2015)
    """

    form: Annotated[str, OneOf("offset", "inverse", "reciprocal"), "which of the three"] = "offset"
    foreseen: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check(self)

    def scale(self, step: Applied) -> float:
        return self.modulation(step.seen, step.workers) * (1.0 if step.aggregate else _weight(step))

    def modulation(self, staleness: int, workers: int) -> float:
        """lambda(staleness)."""
        if self.form == "offset":
            return 1.0 / (1 + max(0, staleness - (workers - 1)) / workers)
        return 1.0 / (1 + staleness if self.form == "inverse" else max(1, staleness))


def _weight(step: Applied) -> float:
    return 1.0 / step.workers if step.push_weight is None else step.push_weight
