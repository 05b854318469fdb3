"""Asynchronous local SGD: DiLoCo without rounds, in which no worker waits for the mean of all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

from pslab.config.parameters import Bounds, check
from pslab.policies.methods.diloco import DiLoCo
from pslab.policies.sync.asp import ASP
from pslab.policies.sync.ssp import SSP
from pslab.protocol.messages import Decisions, Left, Pushed, Start, SyncEvent
from pslab.protocol.window import Window


class WorkerPace(NamedTuple):
    """A worker's pace: the instant of its last release, the steps that it then got, and its speed in steps a second."""

    worker: int
    released_s: float
    steps: int
    speed: float = 0.0  #: 0: unknown


@dataclass(frozen=True)
class AsyncDiLoCo:
    """Asynchronous local SGD: DiLoCo whose outer optimizer takes a step for each change as soon as it is pushed.

    No worker waits for another; with `staleness`, only workers more than `staleness` exchanges ahead of the slowest
    wait. The run's fields mean the same as with DiLoCo. A worker's learning rate follows the number of gradients, of
    all workers, that the server has when the worker's weights are read. The outer optimizer is delayed Nesterov with
    one push of each worker as its period, unless the run names another one, which weights a push by `push_weight`. With
    one worker this is DiLoCo.

    `dylu` (dynamic local updates) lets slow workers push as often as fast ones: a worker's next push has max(1,
    floor(period v / max v)) steps, where v is a worker's speed in steps per second, measured from its last release to
    its last push. A worker's first push has `period` steps.

    Source: Liu et al. (arXiv 2401.09135, 2024)
    """

    period: Annotated[int, Bounds(at_least=1), "steps between two exchanges"]
    staleness: Annotated[
        int | None, Bounds(at_least=0), "exchanges that a worker may be ahead of the slowest; none: no bound"
    ] = None
    fresh: Annotated[bool, "a worker's optimizer begins anew after each exchange"] = False
    dylu: Annotated[bool, "slower workers take as many steps as they can while the fastest takes `period`"] = False
    method: ClassVar[str] = "inner"
    changes: ClassVar[bool] = True
    counted: ClassVar[bool] = True
    inner: ClassVar[str] = DiLoCo.inner  #: the default of a run's `inner`
    outer: ClassVar[str] = "dn:momentum=0.9"
    outer_learning_rate: ClassVar[float] = DiLoCo.outer_learning_rate

    def __post_init__(self) -> None:
        check(self)

    @property
    def gate(self) -> ASP | SSP:
        """Return the synchronization policy by which workers wait for each other."""
        return ASP() if self.staleness is None else SSP(self.staleness)

    @property
    def window(self) -> int | None:
        return self.gate.window

    def gradients_before(self, iteration: int) -> int:
        """Return how many gradients a worker has computed before this iteration."""
        return iteration * self.period

    @property
    def assigns(self) -> bool:
        return self.dylu

    @property
    def whole(self) -> bool:
        return self.dylu  # all ranges of a push have the same number of steps

    def initial(self, workers: tuple[int, ...]) -> Any:
        state = self.gate.initial(workers)
        return (state, frozenset(WorkerPace(worker, 0.0, self.period) for worker in workers)) if self.dylu else state

    def step(self, state: Any, event: SyncEvent, clocks: Window) -> tuple[Any, Decisions]:
        if not self.dylu:
            return self.gate.step(state, event, clocks)
        state, paces = state[0], {pace.worker: pace for pace in state[1]}
        if isinstance(event, Left):
            paces.pop(event.worker, None)
        elif isinstance(event, Pushed) and (worker_pace := paces[event.worker]).released_s < event.now:
            paces[event.worker] = worker_pace._replace(speed=worker_pace.steps / (event.now - worker_pace.released_s))
        state, decisions = self.gate.step(state, event, clocks)
        adjusted = list[Any]()
        for decision in decisions:
            if isinstance(decision, Start):
                speed = paces[decision.worker].speed if decision.worker in paces else 0.0
                steps = self._fitted(speed, max((pace.speed for pace in paces.values()), default=0.0))
                paces[decision.worker] = WorkerPace(decision.worker, event.now, steps, speed)
                decision = decision._replace(steps=steps)
            adjusted.append(decision)
        return (state, frozenset(paces.values())), tuple(adjusted)

    def _fitted(self, speed: float, fastest: float) -> int:
        # the steps for a worker of this speed; `period` while the speed is unknown
        if not speed:
            return self.period
        return max(1, int(self.period * speed / fastest * (1 + 1e-9)))  # allows for rounding
