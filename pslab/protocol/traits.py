"""The required and optional attributes of a synchronization policy.

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
    """A synchronization policy: a pure function of its state, an event and the workers' clocks.

    A push stays buffered until Apply, Aggregate or Drop names it; a worker waits until Start names it. These attributes
    are optional; `Traits` has their defaults:

    barrier            True: weights change only while no worker computes, so workers may read them in place
    rounds             True: a step is a round, a push of every worker. A run with a budget ends with whole rounds
    whole              True: one decision for all ranges; the policy gets an event when all ranges have the push or pull
    eager              True: workers ask for the weights of the next iteration as they start to compute one
    rmw                False: workers of an eager policy do not add their own pushes to weights that lack them
    gradients_before   a method: the number of gradients that a worker has computed before an iteration, if a push may
                       contain several
    pushes             a method: whether the push of an iteration has content; if not, the content is part of a later
                       push
    fetches            a method: whether the weights of an iteration are fetched; if not, the worker continues with the
                       weights that it has, and the reply to its pull is empty
    method             the name of a method in pslab.tensors.update.methods: it defines how a worker combines several
                       gradients, and how the server combines the pushes
    changes            True: a push is a change of the weights; no learning rate scales it
    aggregate          the name of the rule that combines the pushes of a step, if not the mean
    averages           a method: whether the changes of an iteration are applied as their mean, without the optimizer
    counted            True: replies carry the number of all workers' gradients that the server has, and the learning
                       rates of a worker's local steps follow this number instead of its own number
    assigns            True: Start sets the number of gradients in an iteration
    steps_of           a method of a policy that assigns: the number of gradients in a worker's iteration before Start
                       sets it; by default, gradients_before gives this number
    fragments          the number of fragments of the model that iterations exchange in turn, if more than one:
                       policies, clocks and windows count the turns of a range (see pslab.protocol.rotation)
    overlap            the number of gradients of an iteration that a worker computes after its push
    repeats            True: in every pass over the data, a worker has the same examples as in its first pass
    sized              a method: given `Lengths`, return the policy with its lengths converted from passes to gradients
    variants           a method of a policy that plans by instants, and reports this by Searched: given the number of
                       workers, it returns a copy of the policy for each possible plan; the checker tries every copy
    """

    @property
    def window(self) -> int | None:
        """Length of the window of valid iterations; None if unbounded."""

    def initial(self, workers: tuple[int, ...]) -> Any:
        """Return the state before the first event: a small plain value."""

    def step(self, state: Any, event: SyncEvent, clocks: Window) -> tuple[Any, Decisions]:
        """Return the next state and the decisions, in the order in which the server performs them."""


class Lengths(NamedTuple):
    """The lengths of one worker's run, in gradients."""

    passed: int  #: the gradients in one pass over the data
    budget: int | None  #: the worker's share of the run's budget; None without a budget


def sized(policy: Any, lengths: Lengths) -> Any:
    """Return the policy or schedule with its own lengths converted from passes to gradients, for a run of this length.

    Raises:
        ConfigError: the policy needs a length that the run does not have.
    """
    rule = getattr(policy, "sized", None)
    return policy if rule is None else rule(lengths)


def one_each(iteration: int) -> int:
    """Return the number of gradients that a worker has computed before an iteration, if each push is one gradient."""
    return iteration


def never(iteration: int) -> bool:
    """Return False, the default of `averages`: the run's optimizer makes every step."""
    return False


def always(iteration: int) -> bool:
    """Return True, the default of `pushes` and `fetches`: every push has content, and all weights are fetched."""
    return True


@dataclass(frozen=True)
class Traits:
    """The traits of a policy. The defaults suit a policy that has only `window`, `initial` and `step`."""

    window: int | None = None  #: length of the window of valid iterations
    barrier: bool = False  #: weights change only while no worker computes
    rounds: bool = False  #: a step is a push of every worker
    whole: bool = False  #: one decision for all ranges
    eager: bool = False  #: workers ask for the next weights as they start to compute
    reads_own: bool = False  #: read my writes: eager workers add their own pushes that their weights lack
    plans: bool = False  #: the policy plans by instants, and has `variants` for the checker
    method: str = ""  #: the method by which workers combine gradients, and the server combines pushes
    changes: bool = False  #: a push is a change of the weights; no learning rate scales it
    aggregate: str = ""  #: how the server combines the pushes of a step, if not by their mean
    counted: bool = False  #: the rates of a worker's local steps follow the server's number of gradients
    assigns: bool = False  #: Start sets the number of gradients in an iteration
    steps_of: Callable[[int, int], int] | None = None  #: gradients of a worker's iteration before Start sets them
    repeats: bool = False  #: in every pass, a worker has the same examples as in its first pass
    gradients_before: Callable[[int], int] = one_each  #: gradients that a worker has computed before an iteration
    pushes: Callable[[int], bool] = always  #: whether the push of an iteration has content
    fetches: Callable[[int], bool] = always  #: whether the weights of an iteration are fetched
    averages: Callable[[int], bool] = never  #: whether an iteration's changes are applied as their mean
    rotation: Rotation = ALL  #: which ranges an iteration exchanges
    overlap: int = 0  #: gradients of an iteration that a worker computes after its push, while the push is under way

    @property
    def accumulates(self) -> bool:
        """Whether a push may be made of several gradients."""
        return self.gradients_before is not one_each

    @property
    def buffers(self) -> int:
        """The number of gradient buffers of a worker."""
        return EAGER_BUFFERS if self.eager else BUFFERS

    @property
    def several(self) -> bool:
        """Whether a push may differ from one gradient on the worker's next batch."""
        return self.accumulates or self.assigns or self.repeats or bool(self.method or self.overlap)

    def unassigned(self, worker: int, iteration: int) -> int:
        """Return the number of gradients in a worker's iteration before a Start has assigned it."""
        return self.gradients(iteration) if self.steps_of is None else self.steps_of(worker, iteration)

    def gradients(self, iteration: int) -> int:
        """Return the number of gradients that are computed for the push of this iteration."""
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
