"""Rates: by what the learning rate of one applied push is multiplied. The gradient itself is never scaled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Applied(NamedTuple):
    """What a rate is told of the pushes that are applied as one step."""

    workers: int  #: workers in the run
    pushes: int  #: pushes in this step
    aggregate: bool  #: whether the step is the mean of a superstep
    push_weight: float | None  #: Run.push_weight
    staleness: int  #: steps on this range between the oldest push's pull and now
    seen: int  #: the staleness that the worker knew of as it pushed; `staleness` if it could not


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
    Example: constant
    """

    @property
    def foreseen(self) -> bool:
        return True

    def scale(self, step: Applied) -> float:
        if step.aggregate:
            return 1.0
        return 1.0 / step.workers if step.push_weight is None else step.push_weight
