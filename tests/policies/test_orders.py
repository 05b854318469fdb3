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
from pslab.policies.planning.tictac import Operation, tac
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


# --- decision vectors; ranges are numbered from 0 ---------------------------------------------------------------------


@pytest.mark.parametrize("order", [Advancing(), Needed()])
def test_a_push_that_raises_a_low_bound_goes_first(order: Order):
    assert order.pick((push(0), push(1)), view([[3, 2], [2, 3]])) == push(1)


@pytest.mark.parametrize(("order", "expected"), [(FIFO(), 1), (Advancing(), 1), (Needed(), 1), (Front(), 0)])
def test_without_such_a_push_the_oldest_goes(order: Order, expected: int):
    assert order.pick((push(1), push(0)), view([[0, 1], [0, 0]], worker=1)) == push(expected)


@pytest.mark.parametrize("order", [Advancing(), Needed()])
def test_of_two_such_pushes_the_smaller_range_goes(order: Order):
    assert order.pick((push(1), push(0)), view([[1, 1], [0, 0]], worker=1)) == push(0)


@pytest.mark.parametrize("order", [Stalest(), Needed()])
def test_the_stalest_pull_goes_first(order: Order):
    seen = view([[4, 4, 4], [4, 4, 4]], held=(4, 2, 3))
    assert all_of(order, (pull(0), pull(1), pull(2)), seen) == [pull(1), pull(2), pull(0)]


@pytest.mark.parametrize("order", [Stalest(), Needed()])
def test_of_equally_stale_pulls_the_smallest_range_goes(order: Order):
    assert order.pick((pull(2), pull(1), pull(0)), view(held=(3, 2, 2))) == pull(1)


# --- the rules of Needed ----------------------------------------------------------------------------------------------


def test_the_pull_that_computing_waits_for_goes_before_all_others():
    seen = view([[0, 0, 0], [1, 1, 1]], held=(0, 0, 9), blocked=2)
    ready = (push(0), pull(0), pull(1), pull(2))
    assert all_of(Needed(), ready, seen) == [pull(2), push(0), pull(0), pull(1)]


def test_a_blocked_range_without_a_ready_pull_changes_nothing():
    assert Needed().pick((push(1), pull(0)), view([[0, 0, 0], [0, 0, 0]], held=(0, 0, 0), blocked=2)) == pull(0)


def test_of_other_pushes_the_oldest_goes():
    assert Needed().pick((push(2), push(1)), view([[0, 0, 0], [0, 0, 0]])) == push(2)


def test_a_push_of_a_worker_ahead_raises_no_low_bound():
    """Its count of range 0 is above the low bound, although the other workers are above it, too."""
    seen = View(0, counts=(3, 2), low=(2, 2), alone=(True, True))
    assert Advancing().pick((push(0, 3), push(1, 2)), seen) == push(1, 2)


def test_orders_of_one_kind_do_not_delay_older_requests_of_the_other():
    """Over half duplex an order of pulls does not delay an older push, nor an order of pushes an older pull."""
    seen = view([[0, 0], [1, 1]], held=(5, 1))
    for order in (Stalest(), TIC(), TAC()):
        assert order.pick((push(1), pull(0), pull(1)), seen) == push(1)
    assert Stalest().pick((pull(0), push(1), pull(1)), seen) == pull(1)
    assert Advancing().pick((pull(1), push(0), pull(0)), seen) == pull(1)
    assert Advancing().pick((push(1), pull(1), push(0)), seen) == push(0)


@pytest.mark.parametrize("name", ROWS["order"])
def test_orders_work_without_any_knowledge(name: str):
    """A driver may know neither counts nor layers."""
    ready = (push(1), pull(0), push(0), pull(1))
    assert sorted(all_of(build("order", name), ready, View(0))) == sorted(ready)


# --- FIFO, FILO, Front ------------------------------------------------------------------------------------------------


def test_fifo_and_filo():
    assert all_of(FIFO(), BACKWARD, view()) == list(BACKWARD)
    assert all_of(FILO(), BACKWARD, view()) == list(reversed(BACKWARD))


def test_front_sends_the_first_layers_first_and_pulls_before_pushes():
    seen = view(layers=(0, 1, 1, 2))
    ready = (push(3), push(2), push(1), pull(3), pull(2), push(0), pull(1))
    assert all_of(Front(), ready, seen) == [push(0), pull(1), pull(2), push(1), push(2), pull(3), push(3)]


def test_front_sends_the_older_push_of_a_range():
    assert Front().pick((push(1, 4), push(0, 4), push(0, 5)), view()) == push(0, 4)


def served(order: Order, arrivals: int, service: int) -> list[int]:
    """The order in which a link that takes `service` seconds each serves one request a second."""
    waiting: tuple[Request, ...] = ()
    gone: list[int] = []
    now, free = 0, 0
    while len(gone) < arrivals:
        if now < arrivals:
            waiting += (pull(now),)
        if free <= now and waiting:
            picked = order.pick(waiting, view())
            waiting = tuple(r for r in waiting if r is not picked)
            gone.append(picked.range)
            free = now + service
        now += 1
    return gone


def test_filo_starves_the_oldest_request():
    gone = served(FILO(), 20, 2)
    assert gone[0] == 0  # no other request was ready
    assert gone[-1] == 1  # the first that had to wait waits for all of the others
    assert served(FIFO(), 20, 2) == list(range(20))


# --- credit -----------------------------------------------------------------------------------------------------------


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


def test_a_credit_by_name():
    assert build("order", "front:16000000,greedy=on") == Front(16_000_000, greedy=True)


# --- TIC and TAC on a chain of layers ---------------------------------------------------------------------------------


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
    graph = {("f", place): Operation(f, frozenset({("f", place - 1)} if place else ())
                                     | {r for r, at in enumerate(layers) if at == place})
             for place, (f, _, _) in enumerate(chain)}  # fmt: skip
    assert tac(graph, dict(enumerate(map(float, sizes)))) == sorted(range(len(layers)))


def test_tac_decides_by_times_not_by_numbers_of_ranges():
    seen = view(layers=(1, 0), sizes=(1, 1), forward_s=(1.0, 1.0), byte_s=1.0)
    assert TAC().pick((pull(0), pull(1)), seen) == pull(1)
