"""Downpour SGD: replicas fetch weights and push accumulated gradients at intervals, without waiting for each other."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, ClassVar

from pslab.config.parameters import Bounds, check
from pslab.policies.sync.asp import ASP
from pslab.protocol.messages import Decisions, SyncEvent
from pslab.protocol.traits import Lengths
from pslab.protocol.window import Window

PERIOD = Bounds(at_least=1, at_most=10_000)


@lru_cache(maxsize=64)
def exchanges(n_fetch: int, n_push: int) -> tuple[int, ...]:
    """Return the steps, in order from 0, of a common period before which weights are fetched or gradients pushed."""
    period = math.lcm(n_fetch, n_push)
    return tuple(sorted({*range(0, period, n_fetch), *range(0, period, n_push)}))


@dataclass(frozen=True)
class Downpour:
    """Downpour SGD: a replica fetches weights every `n_fetch` steps, and pushes the sum of every `n_push` gradients.

    No replica waits for another, and each push is applied when it arrives. Between two fetches a replica moves by its
    own gradients, in plain steps at the learning rate of its next push. After a fetch, the replica repeats its steps
    that are not yet pushed; `literal` drops them, as the published algorithm does. The published algorithm pushes after
    steps 0, n_push, 2 n_push, ...; here each push has n_push gradients, and the gradients that remain at the end of the
    worker's share of the budget are pushed, too. If a step only fetches, or only pushes, the other message of the
    exchange is empty: it takes the link's latency and has no bytes.

    Source: Dean et al. (NIPS 2012).
    """

    n_fetch: Annotated[int, PERIOD, "steps between two fetches of the weights"] = 1
    n_push: Annotated[int, PERIOD, "steps between two pushes"] = 1
    literal: Annotated[bool, "whether a fetch overwrites steps that are not yet pushed"] = False
    end: Annotated[
        int | None, Bounds(at_least=1), "the step after which remaining gradients are pushed; none: the last one"
    ] = None
    method: ClassVar[str] = "replica"

    def __post_init__(self) -> None:
        check(self)

    @property
    def window(self) -> None:
        return None

    def sized(self, lengths: Lengths) -> Downpour:
        """Return the policy whose `end` is the last step of a run of these lengths, unless `end` is given."""
        return self if self.end is not None else replace(self, end=lengths.budget)

    def gradients_before(self, iteration: int) -> int:
        """Return how many gradients a replica has computed before this iteration, which ends with the next exchange."""
        end = self.end
        if end is None or end % self.n_fetch == 0 or end % self.n_push == 0 or iteration < (at := self._before(end)):
            return self._step(iteration)
        return end if iteration == at else self._step(iteration - 1)

    def pushes(self, iteration: int) -> bool:
        """Whether gradients are pushed after this iteration."""
        step = self.gradients_before(iteration + 1)
        return step == self.end or step % self.n_push == 0

    def fetches(self, iteration: int) -> bool:
        """Whether weights are fetched before this iteration."""
        step = self.gradients_before(iteration)
        return step == self.end or step % self.n_fetch == 0

    def initial(self, workers: tuple[int, ...]) -> None:
        return None

    def step(self, state: None, event: SyncEvent, clocks: Window) -> tuple[None, Decisions]:
        return ASP().step(state, event, clocks)

    def _step(self, exchange: int) -> int:
        """Return the step before which the exchange with this number takes place, if `end` adds no exchange."""
        steps = exchanges(self.n_fetch, self.n_push)
        rounds, index = divmod(exchange, len(steps))
        return rounds * math.lcm(self.n_fetch, self.n_push) + steps[index]

    def _before(self, step: int) -> int:
        """Return how many exchanges come before a step, if `end` adds none."""
        fetches, pushes, both = (-(-step // period) for period in (
            self.n_fetch, self.n_push, math.lcm(self.n_fetch, self.n_push)))  # fmt: skip
        return fetches + pushes - both
