"""Decoupled DiLoCo: Streaming DiLoCo in which a merge waits for a quorum of the workers instead of for all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pslab.config.parameters import Bounds, OneOf
from pslab.policies.methods.streaming import Streaming
from pslab.policies.sync.ssp import without
from pslab.protocol.messages import Aggregate, Asked, Decisions, Left, Pushed, Start, SyncEvent
from pslab.protocol.window import Window

OVERLAP = 2  # default steps after a push, if the next push is not earlier


@dataclass(frozen=True)
class Decoupled(Streaming):
    """Decoupled DiLoCo: Streaming DiLoCo whose workers continue as soon as `quorum` of them have pushed a fragment.

    The server merges the pushes of a fragment once there are `quorum` of them, or one of each worker; then these
    workers continue. A later push is part of the next merge, and its worker waits for that merge after its `overlap`.
    Once a worker has left or joined, a push is merged at the latest when all workers have pushed the same turn of the
    fragment: otherwise workers might wait for each other on different fragments. While the initial workers remain, this
    cannot happen: all merges have equally many pushes, so all waiting workers would wait for the same fragment. The
    paper's server also waits some time for more than a quorum; here the server has no timers. Workers may be any number
    of exchanges apart, so their learning rates follow the gradients of all workers at the server. Each merge is a step
    of the outer optimizer: a small quorum leads to more steps, by older changes, and the paper's momentum of 0.9
    diverges. So a run that names no `optimizer` and no `outer_learning_rate` adds each mean unchanged, without momentum
    and at the rate 1.

    With `average=rda` (radial-directional average) the change of each tensor has the mean direction of the workers'
    changes and the mean of their lengths; the change of an embedding is the plain mean, as is the change of every
    tensor with `average=mean`. A push is weighted by c_tokens**2 / c_steps of its worker's steps since the server last
    sent the worker this fragment. All steps have equally many tokens here, so the weight is the number of steps. The
    first push of a fragment after its worker began or joined has another weight than later pushes. With a quorum of all
    workers, average=mean and Nesterov's momentum in the outer optimizer (`sgd:momentum=0.9,nesterov=True` at 0.7) this
    is Streaming DiLoCo.

    Source: Douillard et al. (arXiv 2604.21428, 2026)
    """

    overlap: Annotated[
        int | None, Bounds(at_least=0), "steps after a push, fewer than between two pushes; none: 2, or as many as fit"
    ] = None  # type: ignore[assignment]  # a number once it is made
    merge: Annotated[str, OneOf("mix", "replace", "carry"), "how a worker uses the server's weights"] = "replace"
    quorum: Annotated[int, Bounds(at_least=1), "pushes of a fragment for which a merge waits, at most one a worker"] = 1
    average: Annotated[str, OneOf("rda", "mean"), "how a merge averages the changes of each tensor"] = "rda"
    outer: ClassVar[str] = "sgd:momentum=0"
    outer_learning_rate: ClassVar[float] = 1.0
    rounds: ClassVar[bool] = False
    counted: ClassVar[bool] = True
    aggregate: ClassVar[str] = "changes"

    def __post_init__(self) -> None:
        if self.overlap is None:
            object.__setattr__(self, "overlap", max(0, min(OVERLAP, self.period // max(1, self.fragments) - 1)))
        super().__post_init__()

    @property
    def window(self) -> None:  # type: ignore[override]  # no bound on a worker's lead
        return None

    @property
    def whole(self) -> bool:
        """Whether decisions are for all ranges at once: with several fragments each fragment is a range."""
        return self.fragments == 1

    def initial(self, workers: tuple[int, ...]) -> Any:
        """Return (pushes not yet merged, workers that wait for a merge, number of workers: 0 once it has changed)."""
        return (), (), len(workers)

    def step(self, state: Any, event: SyncEvent, clocks: Window) -> tuple[Any, Decisions]:
        pushes, waiting, workers = state
        match event:
            case Asked(worker, iteration):
                waiting += ((worker, iteration),)
            case Pushed(worker, iteration):
                pushes += ((worker, iteration),)
            case Left(worker):
                waiting = without(waiting, worker)
        workers = workers if workers == clocks.members else 0
        stuck = not workers and any(turn < clocks.base for _, turn in pushes)
        merge: Decisions = ()
        if pushes and (stuck or len(pushes) >= min(self.quorum, clocks.members)):
            # ordered by worker, because a sum of floats depends on the order
            merge, pushes = (Aggregate(tuple(sorted(pushes))),), ()
        counted = dict(pushes)
        starts = [Start(*start) for start in waiting if start[0] not in counted]
        return (pushes, tuple(start for start in waiting if start[0] in counted), workers), (*merge, *starts)
