"""Decoupled DiLoCo: Streaming DiLoCo in which a merge waits for a quorum of the workers, and not for all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pslab.config.parameters import Bounds, OneOf
from pslab.policies.methods.streaming import Streaming
from pslab.policies.sync.ssp import without
from pslab.protocol.messages import Aggregate, Asked, Decisions, Left, Pushed, Start, SyncEvent
from pslab.protocol.window import Window

OVERLAP = 2  # steps after a push, if there are as many before the next one


@dataclass(frozen=True)
class Decoupled(Streaming):
    """Decoupled DiLoCo: Streaming DiLoCo whose workers go on as soon as `quorum` of them have pushed a fragment.

    The server merges the pushes of a fragment that it holds once they are `quorum`, or as many as there are workers;
    the workers that they are from go on. A later push is part of the next merge, for which its worker waits after its
    `overlap`. Once a worker has left or joined, a push is merged at the latest when all have pushed its turn of the
    fragment: else workers might wait for each other on different fragments. While the first ones remain they cannot:
    merges are of equally many pushes, so all that wait would wait for the same fragment. The paper's server also waits
    a while for more than a quorum; here it has no timers. Workers may be any number of exchanges apart, so their
    learning rates follow the gradients that the server has, of all workers. Each merge is a step of the outer
    optimizer: a small quorum makes more of them, by older changes, with which the paper's momentum of 0.9 diverges. So
    a run that names no `optimizer` and no `outer_learning_rate` adds each mean as it is: no momentum, at 1.

    By `average=rda` (radial-directional average) the change of each tensor is the mean of the workers' directions, as
    long as their changes are in the mean; an embedding's change is their mean, as of all tensors by `average=mean`. A
    push counts by c_tokens**2 / c_steps of what its worker has computed since it was last sent the fragment. Steps are
    of equally many tokens here, so that is by its steps; these differ between the first push of a fragment after its
    worker began or joined, and later ones. With a quorum of all workers, average=mean and Nesterov's momentum outside
    (`sgd:momentum=0.9,nesterov=True` at 0.7) it is Streaming DiLoCo.

    Source: Douillard et al. (arXiv 2604.21428, 2026)
    """

    overlap: Annotated[
        int | None, Bounds(at_least=0), "steps after a push, fewer than between two pushes; none: 2, or as many as fit"
    ] = None  # type: ignore[assignment]  # a number once it is made
    merge: Annotated[str, OneOf("mix", "replace", "carry"), "what a worker makes of weights that come"] = "replace"
    quorum: Annotated[int, Bounds(at_least=1), "pushes of a fragment for which a merge waits, at most one a worker"] = 1
    average: Annotated[str, OneOf("rda", "mean"), "what a merge makes of the changes of each tensor"] = "rda"
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
    def window(self) -> None:  # type: ignore[override]  # no bound on how far ahead a worker is
        return None

    @property
    def whole(self) -> bool:
        """Whether all ranges of a fragment share a decision: with several fragments each of them is a range."""
        return self.fragments == 1

    def initial(self, workers: tuple[int, ...]) -> Any:
        """(pushes not merged, workers that wait for that, the number of workers, or 0 once one has left or joined)."""
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
            # in the workers' order: a sum of floats depends on it
            merge, pushes = (Aggregate(tuple(sorted(pushes))),), ()
        counted = dict(pushes)
        starts = [Start(*start) for start in waiting if start[0] not in counted]
        return (pushes, tuple(start for start in waiting if start[0] in counted), workers), (*merge, *starts)
