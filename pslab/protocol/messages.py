"""The messages between server and workers, and the events and decisions of a synchronization policy.

A payload is a reference that only the driver can read: (buffer, bytes) on one machine, a frame elsewhere. Of a
push's payload the server reads the `loss`, if it has one, for the policy.
"""

from __future__ import annotations

from typing import Any, NamedTuple

NO_WORKER = -1


# --- messages -------------------------------------------------------------------------------------------------


class Push(NamedTuple):
    """Worker -> server: the gradient of `iteration` on `range`, computed on version `version` of its weights.

    `seen` is the staleness that the worker itself has observed: steps by others between these weights and its next.
    `steps` are the gradients that it is made of, as the server knows it; what a worker says of that is not read.
    """

    worker: int
    range: int
    iteration: int
    version: int
    payload: Any = None
    seen: int = 0
    steps: int = 1


class Pull(NamedTuple):
    """Worker -> server: a request for the weights of `range`, to start `iteration`; the worker holds `version`."""

    worker: int
    range: int
    iteration: int
    version: int
    payload: Any = None


class Weights(NamedTuple):
    """Server -> worker: the reply to a pull. These weights contain `own` of the worker's own pushes.

    The server had `gradients` of all workers when it was made, if the policy's workers are to know. If the policy says
    of how many gradients an iteration is made, these are `steps`, after the `begin` that the worker has computed.
    """

    worker: int
    range: int
    iteration: int
    version: int
    payload: Any = None
    own: int = 0
    gradients: int = 0
    begin: int = 0
    steps: int = 0


class Ack(NamedTuple):
    """Server -> worker: the push was applied, dropped or refused; its payload is free."""

    worker: int
    range: int
    iteration: int
    payload: Any = None


# --- the events of a synchronization policy -----------------------------------------------------------------------


class Asked(NamedTuple):
    """A worker asks to start `iteration`."""

    worker: int
    iteration: int
    now: float


# What a policy may know of a push has five readers. A new field is told to all of them:
#   here, and the page on policies (docs/how-to/policy.md)
#   protocol/server.py          `Server._push` fills it
#   lab/judge.py                rebuilds it from the record, or the run of a policy that reads it is not valid
#   engines/check               varies it, or says that it does not (protocol/noting.py, NOTED)
#   engines/virtual/timing.py   has no gradients, and what follows from them is NaN there
class Pushed(NamedTuple):
    """A push of `iteration` was counted in the window; `moved`: the low bound rose; `loss`: on the push's batch."""

    worker: int
    iteration: int
    now: float
    moved: bool
    loss: float = 0.0


class Left(NamedTuple):
    """A worker left, and its clock the window. `moved`: this raised the low bound, or no worker remains."""

    worker: int
    now: float
    moved: bool


SyncEvent = Asked | Pushed | Left


# --- its decisions -----------------------------------------------------------------------------------------------


class Start(NamedTuple):
    """Answer this worker's pull: it may start `iteration`, made of so many `steps` if the policy assigns them."""

    worker: int
    iteration: int
    steps: int = 0


class Apply(NamedTuple):
    """Apply one push by itself, at its own rate."""

    worker: int
    iteration: int


class Aggregate(NamedTuple):
    """Apply the mean of these pushes (worker, iteration) as one step."""

    pushes: tuple[tuple[int, int], ...]


class Drop(NamedTuple):
    """Discard this push: it came too late. It does not count."""

    worker: int
    iteration: int


class Searched(NamedTuple):
    """A plan was made by a search over so many points: virtual time charges its cost."""

    points: int


Decision = Start | Apply | Aggregate | Drop | Searched
Decisions = tuple[Decision, ...]
