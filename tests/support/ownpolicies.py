"""Policies of a user's: some whose workers never wait, or always, and a rule that new processes have at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pslab.policies.sync.bsp import BSP
from pslab.policies.sync.ssp import SSP
from pslab.protocol.messages import Apply, Asked, Drop, Pushed, Start

if TYPE_CHECKING:
    import torch  # which the checker does without

NUMBER = 3


class NeverWaits:
    """Claims a bound of `window` - 1 and keeps none."""

    def __init__(self, window: int | None = 2) -> None:
        self.window = window

    def initial(self, workers: tuple[int, ...]) -> Any:
        return ()

    def step(self, state: Any, event: Any, clocks: Any) -> Any:
        match event:
            case Asked(worker, iteration):
                return state, (Start(worker, iteration),)
            case Pushed(worker, iteration):
                return state, (Apply(worker, iteration),)
        return state, ()


class Silent(NeverWaits):
    """It answers nothing."""

    def step(self, state: Any, event: Any, clocks: Any) -> Any:
        return state, ()


class AtMost:
    """Of all workers at most `most` compute. It counts those that it starts: the first iteration of each is its own."""

    window = None

    def __init__(self, most: int, computing: int) -> None:
        self.most, self.computing = most, computing  # at first

    def initial(self, workers: tuple[int, ...]) -> Any:
        return (), self.computing

    def step(self, state: Any, event: Any, clocks: Any) -> Any:
        waiting, computing = state
        done: tuple[Any, ...] = ()
        match event:
            case Asked(worker, iteration):
                waiting += ((worker, iteration),)
            case Pushed(worker, iteration):
                done, computing = (Apply(worker, iteration),), max(0, computing - 1)
        starts = tuple(Start(*each) for each in waiting[: max(0, self.most - computing)])
        return (waiting[len(starts) :], computing + len(starts)), (*done, *starts)


class ByLoss:
    """A worker whose loss is above `most` waits for all others; with `drops`, its push is dropped as well."""

    window, whole = None, True

    def __init__(self, most: float, *, drops: bool = False) -> None:
        self.most, self.drops = most, drops

    def initial(self, workers: tuple[int, ...]) -> Any:
        return frozenset(), ()

    def step(self, state: Any, event: Any, clocks: Any) -> Any:
        high, waiting = state
        done: tuple[Any, ...] = ()
        match event:
            case Asked(worker, iteration):
                waiting += ((worker, iteration),)
            case Pushed(worker, iteration):
                above = event.loss > self.most
                high = high | {worker} if above else high - {worker}
                done = ((Drop if above and self.drops else Apply)(worker, iteration),)
        free = tuple(each for each in waiting if each[0] not in high or each[1] <= clocks.base)
        return (high, tuple(each for each in waiting if each not in free)), (*done, *(Start(*each) for each in free))


class ByInstant(NeverWaits):
    """It starts nobody before the instant 0, which never is."""

    def step(self, state: Any, event: Any, clocks: Any) -> Any:
        state, decisions = super().step(state, event, clocks)
        return state, decisions if event.now >= 0 else ()


class Largest:
    """A pruning rule: the largest twentieth of every layer. A new process needs no compiled loops for it, whose loading
    takes longer than a short run."""

    residual = True

    def select(self, v: torch.Tensor) -> torch.Tensor:
        return v.abs().topk(max(1, len(v) // 20)).indices.sort().values


class AlwaysHold(SSP):
    """It starts no worker again."""

    def step(self, state, event, clocks):
        return state, tuple(d for d in super().step(state, event, clocks)[1] if not isinstance(d, Start))


def _talk(like: Any, workers: tuple[int, ...]) -> Any:
    state, decisions = like.initial(workers), ()
    while True:
        event, clocks = yield decisions
        state, decisions = like.step(state, event, clocks)


class Talking(BSP):
    """BSP, whose state is a generator: no file can hold it."""

    def initial(self, workers: tuple[int, ...]) -> Any:
        state = _talk(BSP(), workers)
        next(state)
        return state

    def step(self, state: Any, event: Any, clocks: Any) -> Any:
        return state, state.send((event, clocks))


class Doubled:
    """A rate: a factor and no more."""

    def scale(self, applied: Any) -> float:
        return 2.0 / applied.workers


class Alternating:
    """A rate that counts the steps: it is not what it was."""

    weighted = True
    calls = 0

    def scale(self, applied: Any) -> float:
        self.calls += 1
        return 0.25 + 0.1 * (self.calls % 2)
