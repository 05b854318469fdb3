"""The best that any request order could do on a small chain of layers: an exhaustive search.

A schedule is the order of the messages on each direction of the link; each begins as soon as the link is free and it is
ready, so that a link also waits on purpose, for the message that its order names next. All orders are tried, except

- pieces of one layer and size in another order than their numbers': they differ in nothing;
- what has sent the same messages as another schedule, and nothing of it is earlier;
- what cannot end before the best one that is known, even if nothing is waited for any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from pslab.errors import ConfigError
from pslab.lab.studies.chain import Chain, Span, lower_bound_s

STATES = 300_000  # a second or so
TINY_S = 1e-12  # of a second of an iteration: what sums of floats may differ by


class Optimum(NamedTuple):
    """The shortest iteration, an order of messages that takes it, and how many states were looked at."""

    iteration_s: float
    messages: tuple[Span, ...]
    states: int


class _State(NamedTuple):
    """What was sent, and when what comes next can begin. Pushes and pulls are sets of ranges, as bits."""

    pushed: int
    pulled: int
    free_s: tuple[float, float]  #: up, down; the same with half duplex
    arrived_s: tuple[tuple[int, float], ...]  #: ranges that can be pulled, and from when on
    computed: int  #: layers whose forward pass has its time
    computed_s: float


def optimum(chain: Chain, states: int = STATES) -> Optimum:
    """The shortest iteration that any order of messages gives.

    Raises:
        ConfigError: more states than the limit would have to be looked at.
    """
    return _Search(chain, states).run()


@dataclass
class _Search:
    chain: Chain
    limit: int
    best: tuple[float, tuple[Span, ...]] = (float("inf"), ())
    seen: dict[tuple[int, int], list[tuple[float, ...]]] = field(default_factory=dict)
    states: int = 0

    def run(self) -> Optimum:
        chain = self.chain
        self.ranges = range(len(chain.pieces))
        self.layers = [layer for layer, _ in chain.pieces]
        layers = range(len(chain.sizes))
        self.of_layer = [sum(1 << r for r in self.ranges if self.layers[r] == layer) for layer in layers]
        self.until = [sum(self.of_layer[: layer + 1]) for layer in layers]  # ranges of the layers up to this one
        self.previous = [r - 1 if r and chain.pieces[r - 1] == chain.pieces[r] else None for r in self.ranges]
        self.least_s = lower_bound_s(chain)
        self._visit(_State(0, 0, (0.0, 0.0), (), 0, chain.ready_s[0]), ())
        iteration_s, messages = self.best
        return Optimum(iteration_s, messages, self.states)

    def _visit(self, state: _State, messages: tuple[Span, ...]) -> None:
        self.states += 1
        if self.states > self.limit:
            told = f"not enough for all orders of {2 * len(self.ranges)} messages"
            raise ConfigError("states", self.limit, f"{told}: take fewer layers, larger pieces, or a higher limit")
        if state.computed == len(self.of_layer):
            self.best = min(self.best, (state.computed_s, messages), key=lambda found: found[0])
            return
        following = [(self._bound_s(after), after, span) for after, span in self._next(state)]
        for bound_s, after, span in sorted(following, key=lambda entry: entry[0]):
            if self.best[0] <= self.least_s * (1 + TINY_S):
                return
            if bound_s < self.best[0] * (1 - TINY_S) and not self._known(after):
                self._visit(after, (*messages, span))

    def _next(self, state: _State) -> Iterator[tuple[_State, Span]]:
        chain, half = self.chain, self.chain.duplex == "half"
        (up_s, down_s), arrived = state.free_s, dict(state.arrived_s)
        for index in self.ranges:
            bit, seconds, layer = 1 << index, chain.message_s[index], self.layers[index]
            before = self.previous[index]
            if not state.pushed & bit and (before is None or state.pushed & 1 << before):
                begin_s = max(up_s, chain.ready_s[layer])
                end_s = begin_s + seconds
                waiting = (*state.arrived_s, (index, end_s + chain.latency_s))
                yield (state._replace(pushed=state.pushed | bit, free_s=(end_s, end_s if half else down_s),
                                      arrived_s=waiting), Span("push", layer, index, begin_s, end_s))  # fmt: skip
            elif index in arrived and (before is None or state.pulled & 1 << before):
                begin_s = max(down_s, arrived.pop(index))
                end_s = begin_s + seconds
                left = tuple(entry for entry in state.arrived_s if entry[0] != index)
                after = state._replace(pulled=state.pulled | bit, free_s=(end_s if half else up_s, end_s),
                                       arrived_s=left)  # fmt: skip
                yield self._computed(after, end_s + chain.latency_s), Span("pull", layer, index, begin_s, end_s)

    def _computed(self, state: _State, here_s: float) -> _State:
        """With a pull that arrives now: the forward passes that have all they need are given their times."""
        computed, at = state.computed, state.computed_s
        while computed < len(self.of_layer) and not self.of_layer[computed] & ~state.pulled:
            at = max(at, here_s) + self.chain.forward_s[computed]
            computed += 1
        return state._replace(computed=computed, computed_s=at)

    def _bound_s(self, state: _State) -> float:
        """When the iteration ends at the earliest from here."""
        chain, (up_s, down_s) = self.chain, state.free_s
        if state.computed == len(self.of_layer):
            return state.computed_s
        found = state.computed_s + chain.tail_s[state.computed]
        for layer in range(state.computed, len(self.of_layer)):
            unpushed, unpulled = self.until[layer] & ~state.pushed, self.until[layer] & ~state.pulled
            push_s, pull_s, tail_s = self._load_s(unpushed), self._load_s(unpulled), chain.tail_s[layer]
            begin_s = max(up_s, chain.ready_s[layer]) if unpushed else up_s
            if not unpulled:
                continue
            if chain.duplex == "half":
                found = max(found, begin_s + push_s + pull_s + chain.latency_s + tail_s)
            else:
                found = max(found, down_s + pull_s + chain.latency_s + tail_s)
                if unpushed:
                    last_s = min(chain.message_s[r] for r in self.ranges if unpushed >> r & 1)
                    found = max(found, begin_s + push_s + last_s + 2 * chain.latency_s + tail_s)
        return found

    def _load_s(self, ranges: int) -> float:
        return sum(self.chain.message_s[r] for r in self.ranges if ranges >> r & 1)

    def _known(self, state: _State) -> bool:
        """Whether a state with the same messages behind it, and nothing of it later, has been looked at."""
        down_s = state.free_s[1]
        times = (*state.free_s, state.computed_s, *(max(at, down_s) for _, at in sorted(state.arrived_s)))
        front = self.seen.setdefault((state.pushed, state.pulled), [])
        if any(all(a <= b for a, b in zip(known, times, strict=True)) for known in front):
            return True
        front[:] = [known for known in front if not all(b <= a for a, b in zip(known, times, strict=True))]
        front.append(times)
        return False
