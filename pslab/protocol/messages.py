"""What server and workers say to each other, and what a synchronization policy hears and decides.

A payload is a reference that only the driver can read: (buffer, bytes) on one machine, a frame elsewhere.
"""

from __future__ import annotations

from typing import Any, NamedTuple

NO_WORKER = -1


# --- messages -------------------------------------------------------------------------------------------------


class Push(NamedTuple):
    """Worker -> server: the gradient of `iteration` on `range`, taken on version `version` of its weights.

    `seen` is the staleness that the worker itself knows of: steps by others between those weights and the next ones.
    """

    worker: int
    range: int
    iteration: int
    version: int
    payload: Any = None
    seen: int = 0


class Pull(NamedTuple):
    """Worker -> server: the weights of `range`, wanted for starting `iteration`; `version` is what the worker holds."""

    worker: int
    range: int
    iteration: int
    version: int
    payload: Any = None


class Weights(NamedTuple):
    """Server -> worker: the answer to a pull. `own` of the worker's own pushes are in these weights."""

    worker: int
    range: int
    iteration: int
    version: int
    payload: Any = None
    own: int = 0


class Ack(NamedTuple):
    """Server -> worker: the push was applied, dropped or refused; its payload may be rewritten."""

    worker: int
    range: int
    iteration: int
    payload: Any = None


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


class Drop(NamedTuple):
    """Do not apply this push: it came too late. It does not count."""

    worker: int
    iteration: int


class Searched(NamedTuple):
    """A plan was made by a search over so many points: virtual time charges for it what it takes."""

    points: int


Decision = Start | Apply | Aggregate | Drop | Searched
Decisions = tuple[Decision, ...]


def begins(sync: Any, iteration: int) -> int:
    """`Traits.gradients_before`, for those who have no traits yet."""
    counted = getattr(sync, "gradients_before", None)
    return iteration if counted is None else counted(iteration)


def gradients(sync: Any, iteration: int) -> int:
    """`Traits.gradients`, for those who have no traits yet."""
    return begins(sync, iteration + 1) - begins(sync, iteration)
