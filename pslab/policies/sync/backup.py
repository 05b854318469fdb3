"""Backup workers: synchronous training in which a round does not wait for its slowest workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pslab.config.parameters import Bounds, check
from pslab.policies.sync.ssp import Waiting, without
from pslab.protocol.messages import Aggregate, Asked, Decisions, Drop, Left, Pushed, Start, SyncEvent
from pslab.protocol.window import Window

#: (workers that compute in this round, pushes of this round, workers that wait for its end)
Round = tuple[frozenset[int], Waiting, Waiting]


@dataclass(frozen=True)
class Backup:
    """BSP that waits for all but `spare` workers: a push that arrives after the end of its round is dropped.

    A round's step is the mean of the pushes that arrived in time. A late worker continues with the current round.

    Source: Chen et al. (ICLR workshop 2016).
    """

    spare: Annotated[
        int,
        Bounds(at_least=0),
        "workers for which a round does not wait; it always waits for one push, so backup:4 of 4 workers is backup:3",
    ]

    whole: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check(self)

    @property
    def window(self) -> None:
        return None

    def initial(self, workers: tuple[int, ...]) -> Round:
        return frozenset(workers), (), ()

    def step(self, state: Round, event: SyncEvent, clocks: Window) -> tuple[Round, Decisions]:
        computing, pushes, waiting = state
        match event:
            case Asked(worker, iteration) if (worker, iteration - 1) in pushes:
                return (computing, pushes, (*waiting, (worker, iteration))), ()
            case Asked(worker, iteration):  # a late or new worker, or the last worker of its round
                return (computing | {worker}, pushes, waiting), (Start(worker, iteration),)
            case Pushed(worker, iteration) if worker not in computing:
                return state, (Drop(worker, iteration),)
            case Pushed(worker, iteration):
                computing, pushes = computing - {worker}, (*pushes, (worker, iteration))
            case Left(worker):
                computing, waiting = computing - {worker}, without(waiting, worker)
        if not pushes or len(pushes) < clocks.members - self.spare:
            return (computing, pushes, waiting), ()
        starts = tuple(Start(worker, iteration) for worker, iteration in waiting)
        # ordered by worker, because a sum of floats depends on the order
        return (frozenset(worker for worker, _ in waiting), (), ()), (Aggregate(tuple(sorted(pushes))), *starts)
