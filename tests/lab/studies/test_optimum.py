"""The exhaustive search, against all orders tried by hand."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import pytest
from chains import chains, example
from hypothesis import given, settings

from pslab.config.spec import build
from pslab.config.table import ROWS
from pslab.errors import ConfigError
from pslab.lab.studies.chain import Chain, lower_bound_s, trace
from pslab.lab.studies.optimum import optimum
from pslab.policies.orders import Front
from pslab.protocol.requests import Request, View


def by_hand(chain: Chain) -> float:
    """The shortest iteration of all orders of messages, without a thought."""
    half, ranges = chain.duplex == "half", range(len(chain.pieces))
    pushes, pulls = [("push", r) for r in ranges], [("pull", r) for r in ranges]
    if half:
        return min(ends(chain, (order,)) for order in permutations([*pushes, *pulls]))
    return min(ends(chain, (up, down)) for up in permutations(pushes) for down in permutations(pulls))


def ends(chain: Chain, channels: tuple[tuple[tuple[str, int], ...], ...]) -> float:
    """When an iteration ends whose channels send in these orders; never if a pull goes before its push."""
    arrived: dict[tuple[str, int], float] = {}
    for channel in channels:
        free = 0.0
        for what, index in channel:
            layer = chain.pieces[index][0]
            ready = chain.ready_s[layer] if what == "push" else arrived.get(("push", index), float("inf"))
            free = max(free, ready) + chain.message_s[index]
            arrived[what, index] = free + chain.latency_s
    now = chain.ready_s[0]
    for layer, seconds in enumerate(chain.forward_s):
        here = [arrived["pull", r] for r, (place, _) in enumerate(chain.pieces) if place == layer]
        now = max(now, *here) + seconds
    return now


@given(chains(most=3, pieces=3))
@settings(max_examples=60, deadline=None)
def test_it_is_the_best_of_all_orders(chain: Chain):
    assert optimum(chain).iteration_s == pytest.approx(by_hand(chain))


@given(chains(most=4, pieces=5))
@settings(max_examples=60, deadline=None)
def test_no_order_is_better_and_none_can_be(chain: Chain):
    best = optimum(chain)
    assert best.iteration_s >= lower_bound_s(chain) - 1e-9
    for order in (build("order", name) for name in ROWS["order"]):
        assert trace(chain, order).iteration_s >= best.iteration_s - 1e-9
    assert len(best.messages) == 2 * len(chain.pieces)


@pytest.mark.parametrize(
    ("name", "duplex", "piece", "best"),
    [("E1", "half", None, 12), ("E1", "full", None, 11), ("E1", "full", 1, 8), ("E2", "half", None, 20),
     ("E2", "full", 1, 14), ("E3", "half", None, 12), ("E3", "full", None, 12), ("E3", "full", 1, 8)],
)  # fmt: skip
def test_where_the_front_is_the_optimum(name: str, duplex: str, piece: int | None, best: int):
    chain = example(name, duplex, piece)
    assert optimum(chain).iteration_s == trace(chain, Front()).iteration_s == best


class Chosen:
    """An order that is told what to pick, and tells what it could have."""

    def __init__(self, choices: list[int]) -> None:
        self.choices = choices
        self.widths: list[int] = []

    def pick(self, ready: tuple[Request, ...], view: View) -> Request:
        choice = self.choices[len(self.widths)] if len(self.widths) < len(self.choices) else 0
        self.widths.append(len(ready))
        return ready[choice]


def every_busy_schedule(chain: Chain) -> Iterator[float]:
    """What an iteration takes under every order that never leaves the link idle while something is ready."""
    left: list[list[int]] = [[]]
    while left:
        choices = left.pop()
        order = Chosen(choices)
        yield trace(chain, order).iteration_s
        for place in range(len(choices), len(order.widths)):
            taken = choices + [0] * (place - len(choices))
            left += [[*taken, choice] for choice in range(1, order.widths[place])]


def test_waiting_on_purpose_can_be_better_than_all_that_never_wait():
    chain = Chain(forward_s=(12.0, 1.0), backward_s=(1.0, 1.0), sizes=(1, 8), duplex="half")
    waiting = optimum(chain)
    assert (waiting.iteration_s, min(every_busy_schedule(chain))) == (21, 24)
    assert waiting.messages[0].what == "push"
    assert waiting.messages[0].begin_s == 2.0  # the last layer's gradient is ready at 1


def test_a_search_that_is_too_long_says_so():
    chain = Chain(forward_s=(1.0,) * 9, backward_s=(1.0,) * 9, sizes=tuple(range(1, 10)))
    with pytest.raises(ConfigError, match="all orders of 18 messages"):
        optimum(chain, states=5)
