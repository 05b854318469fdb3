"""Request orders: each decision by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslab.config.spec import build
from pslab.config.table import ROWS
from pslab.policies.orders import FIFO, FILO, TAC, TIC, Advancing, Front, Needed, Stalest, admits
from pslab.protocol.messages import Pull, Push
from pslab.protocol.requests import Order, Request, View


def push(index: int, iteration: int = 0) -> Push:
    return Push(0, index, iteration, 0)


def pull(index: int, iteration: int = 1) -> Pull:
    return Pull(0, index, iteration, 0)


def view(counts: Sequence[Sequence[int]] = (), worker: int = 0, **known: Any) -> View:
    """What is known of the ranges from all workers' counts, a row for each worker."""
    low = tuple(map(min, zip(*counts, strict=True)))
    alone = tuple(all(row[r] > low[r] for w, row in enumerate(counts) if w != worker) for r in range(len(low)))
    own = tuple(counts[worker]) if counts else ()
    return View(worker, counts=own, low=low, alone=alone, **known)


def all_of(order: Order, ready: Sequence[Request], seen: View) -> list[Request]:
    """The order in which the requests are sent if none is added."""
    left, sent = tuple(ready), []
    while left:
        sent.append(order.pick(left, seen))
        left = tuple(r for r in left if r is not sent[-1])
    return sent


BACKWARD = (push(2), push(1), push(0))  # as a backward pass makes them ready
LAYERED = (push(3), push(2), push(1), pull(3), pull(2), push(0), pull(1))
AHEAD = View(0, counts=(3, 2), low=(2, 2), alone=(True, True))  # range 0 is above the low bound
BLOCKED = view([[0, 0, 0], [1, 1, 1]], fetched=(0, 0, 9), blocked=2)
HALF_DUPLEX = view([[0, 0], [1, 1]], fetched=(5, 1))

#: The rule: orders, the requests that are ready, what is known, the first that are sent. Ranges count from 0.
DECISIONS: dict[str, tuple[list[Order], Sequence[Request], View, list[Request]]] = {
    "a push that raises a low bound goes first": (
        [Advancing(), Needed()], (push(0), push(1)), view([[3, 2], [2, 3]]), [push(1)]),
    "without such a push the oldest goes": (
        [FIFO(), Advancing(), Needed()], (push(1), push(0)), view([[0, 1], [0, 0]], worker=1), [push(1)]),
    "a push of the front goes first": ([Front()], (push(1), push(0)), view([[0, 1], [0, 0]], worker=1), [push(0)]),
    "of two that raise a low bound the smaller range goes": (
        [Advancing(), Needed()], (push(1), push(0)), view([[1, 1], [0, 0]], worker=1), [push(0)]),
    "a push of a worker ahead raises no low bound": (
        [Advancing()], (push(0, 3), push(1, 2)), AHEAD, [push(1, 2)]),
    "of other pushes the oldest goes": ([Needed()], (push(2), push(1)), view([[0, 0, 0], [0, 0, 0]]), [push(2)]),
    "the stalest pull goes first": (
        [Stalest(), Needed()], (pull(0), pull(1), pull(2)), view([[4, 4, 4], [4, 4, 4]], fetched=(4, 2, 3)),
        [pull(1), pull(2), pull(0)]),
    "of equally stale pulls the smallest range goes": (
        [Stalest(), Needed()], (pull(2), pull(1), pull(0)), view(fetched=(3, 2, 2)), [pull(1)]),
    "the pull that computing waits for goes before all others": (
        [Needed()], (push(0), pull(0), pull(1), pull(2)), BLOCKED, [pull(2), push(0), pull(0), pull(1)]),
    "a blocked range without a ready pull changes nothing": (
        [Needed()], (push(1), pull(0)), view([[0, 0, 0], [0, 0, 0]], fetched=(0, 0, 0), blocked=2), [pull(0)]),
    "an order of pulls delays no older push": (
        [Stalest(), TIC(), TAC()], (push(1), pull(0), pull(1)), HALF_DUPLEX, [push(1)]),
    "an order of pulls decides among those before a push": (
        [Stalest()], (pull(0), push(1), pull(1)), HALF_DUPLEX, [pull(1)]),
    "an order of pushes delays no older pull": ([Advancing()], (pull(1), push(0), pull(0)), HALF_DUPLEX, [pull(1)]),
    "an order of pushes decides among all of them": (
        [Advancing()], (push(1), pull(1), push(0)), HALF_DUPLEX, [push(0)]),
    "first in, first out": ([FIFO()], BACKWARD, view(), [*BACKWARD]),
    "first in, last out": ([FILO()], BACKWARD, view(), [*reversed(BACKWARD)]),
    "the first layers go first, and pulls before pushes": (
        [Front()], LAYERED, view(layers=(0, 1, 1, 2)),
        [push(0), pull(1), pull(2), push(1), push(2), pull(3), push(3)]),
    "the older push of a range goes first": (
        [Front()], (push(1, 4), push(0, 4), push(0, 5)), view(), [push(0, 4)]),
    "times decide, not numbers of ranges": (
        [TAC()], (pull(0), pull(1)), view(layers=(1, 0), sizes=(1, 1), forward_s=(1.0, 1.0), byte_s=1.0), [pull(1)]),
}  # fmt: skip


@pytest.mark.parametrize("rule", DECISIONS)
def test_requests_are_sent_by_the_rule(rule: str):
    orders, ready, seen, sent = DECISIONS[rule]
    for order in orders:
        assert order.pick(ready, seen) == sent[0], order
        assert len(sent) == 1 or all_of(order, ready, seen) == sent, order


@pytest.mark.parametrize("name", ROWS["order"])
def test_orders_work_without_any_knowledge(name: str):
    """A driver may know neither counts nor layers."""
    ready = (push(1), pull(0), push(0), pull(1))
    assert sorted(all_of(build("order", name), ready, View(0))) == sorted(ready)


def under_way(credit: float, sizes: Sequence[float], greedy: bool) -> list[int]:
    """Which of these, by priority, are under way before any has arrived."""
    gone: list[int] = []
    while fits := [i for i in range(len(sizes)) if i not in gone
                   and admits(credit, sum(sizes[j] for j in gone), sizes[i], greedy)]:  # fmt: skip
        gone.append(fits[0])
    return gone


def test_greedy_and_strict_credit():
    assert under_way(2, (3, 1, 1), greedy=True) == [0]  # the credit is overdrawn: all others wait
    assert under_way(2, (3, 1, 1), greedy=False) == [1, 2]
    assert under_way(2, (2, 1), greedy=True) == [0]  # no credit is left
    assert not admits(2, 0, 3, greedy=False)  # what is larger than the credit never goes
    assert under_way(2, (1, 1, 1, 1, 1), greedy=False) == [0, 1]  # unless it is cut
    assert build("order", "front:16000000,greedy=on") == Front(16_000_000, greedy=True)


layer_times = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5), st.integers(1, 3)), min_size=1, max_size=5)


@given(layer_times, st.randoms())
def test_tic_and_tac_start_at_the_input_of_a_chain(chain: list[tuple[int, int, int]], random: Any):
    """A chain of (seconds of the forward pass, bytes of a piece, pieces)."""
    layers = tuple(place for place, (_, _, pieces) in enumerate(chain) for _ in range(pieces))
    sizes = tuple(size for _, size, pieces in chain for _ in range(pieces))
    seen = view(layers=layers, sizes=sizes, forward_s=tuple(float(f) for f, _, _ in chain), byte_s=1.0)
    ready = [pull(index) for index in range(len(layers))]
    random.shuffle(ready)
    for order in (TIC(), TAC()):
        assert [layers[r.range] for r in all_of(order, ready, seen)] == sorted(layers)
        assert [r.range for r in all_of(order, ready, seen)] == sorted(range(len(layers)))
