"""A synchronization policy, as servers, workers and drivers see it: its required and its optional attributes.

`traits_of` reads the optional attributes once; no other code asks a policy whether it has one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from pslab.protocol.messages import Decisions, SyncEvent
from pslab.protocol.rotation import ALL, Rotation
from pslab.protocol.window import Window

BUFFERS = 2  # gradient buffers per worker
EAGER_BUFFERS = 3  # one is written by the computation; two pushes are under way, or not yet acknowledged


class Sync(Protocol):
    """A synchronization policy: one pure function on the clocks of a range.

    A push stays buffered until Apply, Aggregate or Drop names it; a worker waits until Start names it. A policy may
    have more attributes, each of which `Traits` has with its default:

    barrier            True: weights change only while no worker computes, so workers may read them in place
    rounds             True: a step is a round, a push of every worker. A run with a budget ends with whole rounds
    whole              True: one decision for all ranges. The policy hears of a push or a pull when all ranges have it
    eager              True: workers ask for the weights of the next iteration as they start to compute one
    rmw                of an eager policy, False: workers do not add their own pushes to weights that lack them
    gradients_before   a method: the number of gradients that a worker has computed before an iteration, if a push may
                       be made of several
    pushes             a method: whether the push of an iteration holds anything; if not, what it would have held is
                       part of a later one
    fetches            a method: whether the weights of an iteration are fetched; if not, the worker goes on with what
                       it has, and the answer to its request is empty
    method             what its workers make of several gradients, and its server of their pushes: see
                       pslab.tensors.update.methods
    changes            True: a push is a change of the weights, which no learning rate scales
    aggregate          what the server makes of the pushes of a step, if not their mean: see pslab.tensors.aggregates
    averages           a method: whether the step of an iteration's changes is their plain mean, and no optimizer's
    counted            True: with weights go the gradients that the server has by then, of all workers: the rates of a
                       worker's own steps follow them, and not its own count
    assigns            True: Start says of how many gradients an iteration is made
    steps_of           a method of one that assigns: of how many a worker's iteration is made, as far as that is known
                       beforehand, if it is not what gradients_before says
    fragments          the number of parts of the model that iterations exchange in turn, if not all of it: policies,
                       clocks and windows count the turns of a range (see pslab.protocol.rotation)
    overlap            the number of gradients of an iteration that a worker computes after its push
    repeats            True: a worker has the examples of its first pass over the data in every pass
    sized              a method: for some `Lengths`, the policy with those in numbers that it was given in passes
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


class Lengths(NamedTuple):
    """How long a run is for one of its workers, in gradients."""

    passed: int  #: in one pass over the data
    budget: int | None  #: the worker's share of the run's budget, if it has one


def sized(policy: Any, lengths: Lengths) -> Any:
    """The policy, or the schedule, for a run of these lengths; a ConfigError if they lack what it needs."""
    rule = getattr(policy, "sized", None)
    return policy if rule is None else rule(lengths)


def one_each(iteration: int) -> int:
    """The gradients that a worker has computed before an iteration, if each push is one gradient."""
    return iteration


def never(iteration: int) -> bool:
    """Every step is one of the run's optimizer."""
    return False


def always(iteration: int) -> bool:
    """Every push holds something, and all weights are fetched."""
    return True


@dataclass(frozen=True)
class Traits:
    """The traits of a policy. The defaults suit a policy that has only a window and a rule."""

    window: int | None = None  #: length of the window of valid iterations
    barrier: bool = False  #: weights change only while no worker computes
    rounds: bool = False  #: a step is a push of every worker
    whole: bool = False  #: one decision for all ranges
    eager: bool = False  #: workers ask for the next weights as they start to compute
    reads_own: bool = False  #: read my writes: eager workers add their own pushes that their weights lack
    plans: bool = False  #: it plans by instants, and has `variants` for the checker
    method: str = ""  #: what workers make of several gradients, and the server of their pushes
    changes: bool = False  #: a push is a change of the weights, which no learning rate scales
    aggregate: str = ""  #: what the server makes of the pushes of a step, if not their mean
    counted: bool = False  #: the rates of a worker's own steps follow the gradients that the server has
    assigns: bool = False  #: Start says of how many gradients an iteration is made
    steps_of: Callable[[int, int], int] | None = None  #: the gradients of a worker's iteration, known beforehand
    repeats: bool = False  #: a worker has the examples of its first pass in every pass
    gradients_before: Callable[[int], int] = one_each  #: gradients that a worker has computed before an iteration
    pushes: Callable[[int], bool] = always  #: whether the push of an iteration holds anything
    fetches: Callable[[int], bool] = always  #: whether the weights of an iteration are fetched
    averages: Callable[[int], bool] = never  #: whether the step of an iteration is the plain mean of its changes
    rotation: Rotation = ALL  #: which ranges an iteration exchanges
    overlap: int = 0  #: gradients of an iteration that a worker computes after its push, while that travels

    @property
    def accumulates(self) -> bool:
        """Whether a push may be made of several gradients."""
        return self.gradients_before is not one_each

    @property
    def buffers(self) -> int:
        """How many gradient buffers a worker has."""
        return EAGER_BUFFERS if self.eager else BUFFERS

    @property
    def several(self) -> bool:
        """Whether a push is not just one gradient on the next batch."""
        return self.accumulates or self.assigns or self.repeats or bool(self.method or self.overlap)

    def unassigned(self, worker: int, iteration: int) -> int:
        """The number of gradients of a worker's iteration, as far as it is known before a Start assigns it."""
        return self.gradients(iteration) if self.steps_of is None else self.steps_of(worker, iteration)

    def gradients(self, iteration: int) -> int:
        """The number of gradients that are computed for the push of this iteration."""
        if self.gradients_before is one_each:
            return 1
        return self.gradients_before(iteration + 1) - self.gradients_before(iteration)


def traits_of(sync: Sync) -> Traits:
    """Read a policy's traits from its attributes."""
    eager = bool(getattr(sync, "eager", False))
    return Traits(
        window=sync.window,
        barrier=bool(getattr(sync, "barrier", False)),
        rounds=bool(getattr(sync, "rounds", False)),
        whole=bool(getattr(sync, "whole", False)),
        eager=eager,
        reads_own=eager and bool(getattr(sync, "rmw", True)),
        plans=hasattr(sync, "variants"),
        method=str(getattr(sync, "method", "")),
        changes=bool(getattr(sync, "changes", False)),
        aggregate=str(getattr(sync, "aggregate", "")),
        counted=bool(getattr(sync, "counted", False)),
        assigns=(assigns := bool(getattr(sync, "assigns", False))),
        steps_of=getattr(sync, "steps_of", None) if assigns else None,
        repeats=bool(getattr(sync, "repeats", False)),
        gradients_before=getattr(sync, "gradients_before", one_each),
        pushes=getattr(sync, "pushes", always),
        fetches=getattr(sync, "fetches", always),
        averages=getattr(sync, "averages", never),
        rotation=Rotation(int(getattr(sync, "fragments", 1))),
        overlap=int(getattr(sync, "overlap", 0)),
    )
