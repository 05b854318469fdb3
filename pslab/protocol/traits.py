"""A synchronization policy, as servers, workers and drivers see it: what it must have, and what it may have.

`traits_of` reads what a policy may have, once; nothing else asks a policy whether it has an attribute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from pslab.protocol.messages import Decisions, SyncEvent
from pslab.protocol.window import Window


class Sync(Protocol):
    """A synchronization policy: one pure function on the clocks of a range.

    A push stays buffered until Apply, Aggregate or Drop names it; a worker waits until Start names it. A policy may
    have more attributes, each of which `Traits` has with its default:

    barrier            True: weights change only while no worker computes, so workers may read them in place
    whole              True: one decision for all ranges. The policy hears of a push or a pull when all ranges have it
    eager              True: workers ask for the weights of the next iteration as they start to compute one
    rmw                of an eager policy, False: workers do not add their own pushes to weights that lack them
    gradients_before   a method: the number of gradients that a worker has computed before an iteration, if a push may
                       be made of several
    variants           a method of a policy that plans by instants (it says so by Searched): for so many workers, the
                       same policy with each plan that can be made, among which the checker chooses freely
    """

    @property
    def window(self) -> int | None:
        """Length of the window of valid iterations; None if unbounded."""

    def initial(self, workers: tuple[int, ...]) -> Any:
        """The state before the first event: a small plain value."""

    def step(self, state: Any, event: SyncEvent, clocks: Window) -> tuple[Any, Decisions]:
        """The next state and the decisions, in the order in which they are to be performed."""


def one_each(iteration: int) -> int:
    """The gradients that a worker has computed before an iteration, if each push is one gradient."""
    return iteration


@dataclass(frozen=True)
class Traits:
    """What a policy can do. The defaults are those of a policy that is a window and a rule, and nothing else."""

    window: int | None = None  #: length of the window of valid iterations
    barrier: bool = False  #: weights change only while no worker computes
    whole: bool = False  #: one decision for all ranges
    eager: bool = False  #: workers ask for the next weights as they start to compute
    reads_own: bool = False  #: read my writes: eager workers add their own pushes that their weights lack
    plans: bool = False  #: it plans by instants, and has `variants` for the checker
    gradients_before: Callable[[int], int] = one_each  #: gradients that a worker has computed before an iteration

    @property
    def accumulates(self) -> bool:
        """Whether a push may be made of several gradients."""
        return self.gradients_before is not one_each

    def gradients(self, iteration: int) -> int:
        """The number of gradients that a push of this iteration is made of."""
        return self.gradients_before(iteration + 1) - self.gradients_before(iteration)


def traits_of(sync: Sync) -> Traits:
    """Read a policy's traits from its attributes."""
    eager = bool(getattr(sync, "eager", False))
    return Traits(
        window=sync.window,
        barrier=bool(getattr(sync, "barrier", False)),
        whole=bool(getattr(sync, "whole", False)),
        eager=eager,
        reads_own=eager and bool(getattr(sync, "rmw", True)),
        plans=hasattr(sync, "variants"),
        gradients_before=getattr(sync, "gradients_before", one_each),
    )


class OfPolicy:
    """A machine whose `traits` follow from its policy: a checkpoint has all else."""

    sync: Sync
    traits: Traits

    def saved(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {name: value for name, value in vars(self).items() if name != "traits"}

    def restore(self, state: dict[str, Any]) -> None:
        """To what was saved."""
        vars(self).update(state)
        self.traits = traits_of(self.sync)
