"""What server and workers say to each other, and what a synchronization policy hears and decides.

A payload is a reference that only the driver can read: (buffer, bytes) on one machine, a frame elsewhere.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from pslab.protocol.window import Window

NOBODY = -1


# --- messages -------------------------------------------------------------------------------------------------


class Push(NamedTuple):
    """Worker -> server: the gradient of `iteration` on `range`, taken on version `version` of its weights."""

    worker: int
    range: int
    iteration: int
    version: int
    payload: Any = None


class Pull(NamedTuple):
    """Worker -> server: the weights of `range`, wanted for starting `iteration`; `version` is what the worker holds."""

    worker: int
    range: int
    iteration: int
    version: int


class Weights(NamedTuple):
    """Server -> worker: the answer to a pull."""

    worker: int
    range: int
    iteration: int
    version: int
    payload: Any = None


class Ack(NamedTuple):
    """Server -> worker: the push was applied or dropped; its payload may be rewritten."""

    worker: int
    range: int
    iteration: int


# --- what a synchronization policy hears --------------------------------------------------------------------------


class Asked(NamedTuple):
    """A worker asks to start `iteration`."""

    worker: int
    iteration: int
    now: float


class Pushed(NamedTuple):
    """A push of `iteration` was counted in the window; `moved` says that the low bound rose."""

    worker: int
    iteration: int
    now: float
    moved: bool


class Left(NamedTuple):
    """A worker is gone; its clock has left the window. `moved`: the low bound rose by it, or nobody is left."""

    worker: int
    now: float
    moved: bool


SyncEvent = Asked | Pushed | Left


# --- what it decides ---------------------------------------------------------------------------------------------


class Start(NamedTuple):
    """Answer this worker's pull: it may start `iteration`."""

    worker: int
    iteration: int


class Apply(NamedTuple):
    """Apply one push alone, with its rate."""

    worker: int
    iteration: int


class Aggregate(NamedTuple):
    """Apply the mean of these pushes (worker, iteration) as one step."""

    pushes: tuple[tuple[int, int], ...]


class Searched(NamedTuple):
    """A plan was made by a search over so many points: virtual time charges for it what it takes."""

    points: int


Decision = Start | Apply | Aggregate | Searched
Decisions = tuple[Decision, ...]


class Sync(Protocol):
    """A synchronization policy: one pure function on the clocks of a range.

    A push stays buffered until Apply or Aggregate names it; a worker is held until Start names it. A policy under which
    weights change only while no worker computes may say so by `barrier = True`: workers then read them in place.

    One that plans by instants says by Searched when it does, and by `whole = True` that it decides once for all ranges;
    `variants(workers)` tells the checker what it may plan: the same policy with each plan that can be made.
    """

    @property
    def window(self) -> int | None:
        """Length of the window of valid iterations; None if unbounded."""

    def initial(self, workers: tuple[int, ...]) -> Any:
        """The state before the first event: a small plain value."""

    def step(self, state: Any, event: SyncEvent, clocks: Window) -> tuple[Any, Decisions]:
        """The next state and the decisions, in the order in which they are to be performed."""
