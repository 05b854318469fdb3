"""The worker's machine and its pool."""

from __future__ import annotations

import pytest

from pslab.errors import ProtocolError
from pslab.policies.orders import FIFO
from pslab.protocol.messages import Ack, Pull, Push, Weights
from pslab.protocol.pool import Pool, View
from pslab.protocol.worker import Compute, Send, Worker


def begun(ranges: int = 1) -> Worker:
    worker = Worker(0, ranges, FIFO())
    assert worker.start() == [Compute(0)]
    return worker


def test_one_iteration():
    worker = begun()
    assert worker.computed(0, "g0") == [Send(Push(0, 0, 0, 0, "g0")), Send(Pull(0, 0, 1, 0))]
    assert worker.ack(Ack(0, 0, 0)) == []
    assert worker.weights(Weights(0, 0, 1, 7)) == [Compute(1)]
    assert worker.computed(0, "g1") == [Send(Push(0, 0, 1, 7, "g1")), Send(Pull(0, 0, 2, 7))]


def test_it_waits_for_every_range():
    worker = begun(2)
    worker.computed(0)
    assert worker.iteration == 0
    worker.computed(1)
    assert worker.iteration == 1
    assert worker.weights(Weights(0, 1, 1, 1)) == []
    assert worker.weights(Weights(0, 0, 1, 1)) == [Compute(1)]


def test_late_and_duplicated_weights_change_nothing():
    worker = begun()
    worker.computed(0)
    worker.weights(Weights(0, 0, 1, 4))
    assert worker.weights(Weights(0, 0, 1, 9)) == []
    assert worker.versions == [4]


def test_a_buffer_is_not_rewritten_before_it_is_free():
    worker = begun()
    worker.computed(0)
    worker.weights(Weights(0, 0, 1, 1))
    worker.computed(0)
    assert worker.weights(Weights(0, 0, 2, 2)) == []  # iteration 2 would rewrite the buffer of iteration 0
    assert worker.ack(Ack(0, 0, 0)) == [Compute(2)]


def test_a_gradient_that_was_not_asked_for_is_an_error():
    worker = begun()
    worker.computed(0)
    with pytest.raises(ProtocolError, match="not computing"):
        worker.computed(0)


class Newest:
    def pick(self, ready, view):
        return ready[-1]


def test_the_order_picks_and_the_pool_forgets():
    pool, view = Pool(2), View(0, 0, (0, 0))
    requests = [Push(0, 0, 0, 0), Push(0, 1, 0, 0), Pull(0, 0, 1, 0)]
    for request in requests:
        pool.add(request)
    assert [pool.take(Newest(), view) for _ in range(4)] == [*reversed(requests), None]


def test_the_pool_is_bounded_and_knows_duplicates():
    pool = Pool(1)
    pool.add(Push(0, 0, 0, 0))
    with pytest.raises(ProtocolError):
        pool.add(Push(0, 0, 0, 0))
    for iteration in (1, 2, 3):
        pool.add(Push(0, 0, iteration, 0))
    with pytest.raises(ProtocolError):
        pool.add(Push(0, 0, 4, 0))


def test_an_order_that_invents_requests_is_refused():
    class Inventor:
        def pick(self, ready, view):
            return Pull(9, 9, 9, 9)

    pool = Pool(1)
    pool.add(Push(0, 0, 0, 0))
    pool.add(Pull(0, 0, 1, 0))
    with pytest.raises(ProtocolError, match="not ready"):
        pool.take(Inventor(), View(0, 0, (0,)))


def test_one_that_joins_asks_before_it_computes_and_forgets_what_it_did():
    worker = begun(2)
    worker.computed(0, "lost")
    assert worker.join(7) == [Send(Pull(0, 0, 7, 0)), Send(Pull(0, 1, 7, 0))]
    assert worker.weights(Weights(0, 0, 7, 30)) == []
    assert worker.weights(Weights(0, 1, 7, 31)) == [Compute(7)]
    assert worker.computed(0, "g") == [Send(Push(0, 0, 7, 30, "g")), Send(Pull(0, 0, 8, 30))]
