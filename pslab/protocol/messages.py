"""The messages between server and workers, and the events and decisions of a synchronization policy.

A payload is a reference that only the driver can read: (buffer, bytes) on one machine, a frame elsewhere. The server
reads only the `loss` of a push's payload, if it has one, and passes it to the policy.
"""

from __future__ import annotations

from typing import Any, NamedTuple

NO_WORKER = -1


# --- messages -------------------------------------------------------------------------------------------------


class Push(NamedTuple):
    """Worker -> server: the gradient of `iteration` on `range`, computed on weights of version `version`.

    `seen` is the staleness that an eager worker has observed: the steps of other workers between these weights and the
    next weights that it received. `steps` is the number of gradients in the push, which the server fills in.
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
    """Server -> worker: the reply to a pull.

    `own_pushes`: under an eager policy, the number of the worker's own pushes that these weights contain. `gradients`:
    under a `counted` policy, the number of gradients of all workers that the server has counted. Under a policy that
    assigns gradients, the worker computes `steps` gradients in this iteration, after `begin` in earlier iterations.
    """

    worker: int
    range: int
    iteration: int
    version: int
    payload: Any = None
    own_pushes: int = 0
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


# A push's facts for a policy have five readers. Add a new field to all of them:
#   here, and the page on policies (docs/how-to/policy.md)
#   protocol/server.py          `Server._push` fills it
#   lab/judge.py                rebuilds it from the record; without it, no run of a policy that reads it is valid
#   engines/check               varies it, or says that it does not (protocol/noting.py, NOTED)
#   engines/virtual/timing.py   computes no gradients: set a field that follows from gradients to NaN
class Pushed(NamedTuple):
    """A push of `iteration` was counted. `moved`: whether the low bound rose. `loss`: the loss on the push's batch."""

    worker: int
    iteration: int
    now: float
    moved: bool
    loss: float = 0.0


class Left(NamedTuple):
    """A worker left. `moved`: whether this raised the low bound, or no worker remains."""

    worker: int
    now: float
    moved: bool


SyncEvent = Asked | Pushed | Left


# --- the decisions of a synchronization policy --------------------------------------------------------------------


class Start(NamedTuple):
    """Answer this worker's pull, so that it starts `iteration`; with `steps` gradients, if the policy assigns them."""

    worker: int
    iteration: int
    steps: int = 0


class Apply(NamedTuple):
    """Apply one push as a step of its own, at the learning rate for this push."""

    worker: int
    iteration: int


class Aggregate(NamedTuple):
    """Apply the mean of these pushes (worker, iteration) as one step."""

    pushes: tuple[tuple[int, int], ...]


class Drop(NamedTuple):
    """Discard this push because it came too late; the budget of pushes does not count it."""

    worker: int
    iteration: int


class Searched(NamedTuple):
    """Report that the policy searched `points` points for a plan; virtual time adds `search_s` for each point."""

    points: int


Decision = Start | Apply | Aggregate | Drop | Searched
Decisions = tuple[Decision, ...]
