"""Learning-rate policies: the rules for how far one applied push moves the weights.

The method `scale` of a rate returns a factor of the learning rate. A rate that changes the gradient itself names in
`needs` the state that is stored for it beside the weights. `pslab.tensors.update.rate_state` updates that state:

    needs          stored            contents
    versions       at the server     the mean of the pushes of each version
    squares        at the server     the elementwise sums of the gradients' squares; the rate has `eps`
    own squares    at each worker    the same sums over its own gradients, before they are pruned
    directions     at the server     each worker's latest gradient, layer by layer; the rate has `share` and `clamp`

Runs without tensors use only the factor. A rate that ignores Run's `push_weight` declares `weighted = False`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple, Protocol

from pslab.config.parameters import Bounds, OneOf, check


class Applied(NamedTuple):
    """The facts about one step and its pushes that a rate may use."""

    workers: int  #: workers in the run
    pushes: int  #: pushes in this step
    aggregate: bool  #: whether the step is the mean of a superstep
    push_weight: float | None  #: Run.push_weight
    staleness: int  #: steps on this range since the pull of the oldest push
    stalest: int  #: steps since the oldest weights that any worker computes on, or has just computed on
    seen: int  #: staleness that the workers observed when they pushed; `staleness` if they could not observe it


class Rate(Protocol):
    """A learning-rate policy.

    A rate that uses no staleness but `seen` may declare `predictable = True`: the worker can then predict how far its
    push will move the weights.
    """

    def scale(self, step: Applied) -> float:
        """Return the factor of the learning rate for this step."""


@dataclass(frozen=True)
class Constant:
    """CONSGD: a push that is applied alone has the factor `push_weight` of Run, by default 1 / workers.

    The mean of a superstep has the factor 1 for any push_weight, as in MXNet's dist_sync. So with plain SGD one epoch
    moves the weights by the same total step under every policy, unless push_weight changes the factor of single pushes.

    Source: Jiang et al. (SIGMOD 2017).
    """

    predictable: ClassVar[bool] = True

    def scale(self, step: Applied) -> float:
        return 1.0 if step.aggregate else _weight(step)


@dataclass(frozen=True)
class DynSGD:
    """DynSGD: the staler a push, the smaller its step. There is no factor 1 / workers.

    `versions` reconstructs the paper's version store; the paper's full text is not public. A push joins the version
    that its worker's pull opened, and the weights contain the mean of each version's pushes: the newest of k pushes has
    the factor 1 / k and reduces the factors of the other pushes to 1 / k. So a round of equally fast workers adds its
    mean, and the pushes of a single worker have the factor 1. With plain SGD at a constant learning rate the weights
    are the initial weights minus the rate times the sum of the means. If the learning rate changes, earlier pushes are
    corrected at the newer rate. Other optimizers use the changes of the means as gradients.
    `inverse` is 1 / (1 + the push's own staleness), as in Hermans's dist-keras. `stalest` is 1 / (1 + the largest
    staleness of the weights that any worker computes on), for every push, as in Tsai's slides.

    Source: Jiang et al. (SIGMOD 2017); Hermans (thesis 2017); Tsai (slides 2017)
    """

    variant: Annotated[str, OneOf("versions", "inverse", "stalest"), "the rule"] = "versions"
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
    """AdaGrad: every entry's rate is divided by the root of the sum of its squared gradients. No factor 1 / workers.

    With sums at each worker, as in Tsai's slides, a worker that has pushed a quarter as often as another has twice its
    rate: stale pushes are amplified. The gradient is divided before it is pruned. With sums at the server all workers
    have the same rate, and in a superstep the mean is squared.

    Source: Duchi et al. (JMLR 2011); Tsai (slides 2017)
    """

    accumulator: Annotated[str, OneOf("worker", "server"), "where squares are summed"] = "worker"
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
    """Direction and distance: a push keeps its direction, but its length is changed, layer by layer.

    The latest gradients g of all workers get the lengths t * alpha, with t chosen so that the length of their sum is
    unchanged: t * |sum of alpha * g / |g|| = |sum of g|. The direction of the sum may change. A worker's alpha is set
    by its push and remains until its next push; if directions cancel, no gradient grows beyond `clamp` times its
    length. Pushes are summed: there is no factor 1 / workers, as under the constant rate with push_weight=1. With
    `staleness` alpha is 1 / (1 + staleness), with `equal` 1, and with `speed` 1 / the number of the worker's pushes, so
    that slow workers count more. `identity` leaves the gradient unchanged.

    Source: Tsai (slides 2017)
    """

    alpha: Annotated[
        str, OneOf("staleness", "equal", "identity", "speed"), "what sets the length of a worker's push"
    ] = "staleness"
    clamp: Annotated[float, Bounds(above=0), "the most by which a gradient may be lengthened"] = 10.0
    weighted: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check(self)

    @property
    def needs(self) -> str:
        return "" if self.alpha == "identity" else "directions"

    def share(self, staleness: int, pushes: int) -> float:
        """Return alpha for the `pushes`-th push of a worker, given its staleness."""
        if self.alpha == "staleness":
            return 1.0 / (1 + staleness)
        return 1.0 / pushes if self.alpha == "speed" else 1.0

    def scale(self, step: Applied) -> float:
        return 1.0


@dataclass(frozen=True)
class Modulated:
    """The factor falls with the staleness that a worker observed; a single push also has the factor `push_weight`.

    In PS+ workers modulate the rate of stale updates, by a rule in the full text, which is not public. `offset` is a
    rule of pslab: 1 / (1 + max(0, staleness - (M - 1)) / M) for M workers, so that the staleness of equally fast
    workers, M - 1, is not damped. `inverse` is 1 / (1 + staleness). `reciprocal` is 1 / max(1, staleness), as in
    staleness-aware SGD.

    Source: Jin et al. (TPDS 2022); Zhang et al. (arXiv 2015)
    """

    form: Annotated[str, OneOf("offset", "inverse", "reciprocal"), "the rule"] = "offset"
    predictable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check(self)

    def scale(self, step: Applied) -> float:
        return self.modulation(step.seen, step.workers) * (1.0 if step.aggregate else _weight(step))

    def modulation(self, staleness: int, workers: int) -> float:
        """Return the damping factor of a staleness, by `form`."""
        if self.form == "offset":
            return 1.0 / (1 + max(0, staleness - (workers - 1)) / workers)
        return 1.0 / (1 + staleness if self.form == "inverse" else max(1, staleness))


def _weight(step: Applied) -> float:
    return 1.0 / step.workers if step.push_weight is None else step.push_weight
