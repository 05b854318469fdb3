"""The worker's machines."""

from __future__ import annotations

import pytest

from pslab.errors import ProtocolError
from pslab.policies.sync.asp import ASP
from pslab.policies.sync.eager import Eager
from pslab.protocol.messages import Ack, Pull, Push, Weights
from pslab.protocol.worker import Compute, EagerWorker, LayeredWorker, Send, Worker, worker_of


def begun(ranges: int = 1) -> Worker:
    worker = Worker(0, ranges)
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


def test_one_that_joins_asks_before_it_computes_and_forgets_what_it_did():
    worker = begun(2)
    worker.computed(0, "lost")
    assert worker.join(7) == [Send(Pull(0, 0, 7, 0)), Send(Pull(0, 1, 7, 0))]
    assert worker.weights(Weights(0, 0, 7, 30)) == []
    assert worker.weights(Weights(0, 1, 7, 31)) == [Compute(7)]
    assert worker.computed(0, "g") == [Send(Push(0, 0, 7, 30, "g")), Send(Pull(0, 0, 8, 30))]


# --- eager ------------------------------------------------------------------------------------------------------------


def eager(ranges: int = 1) -> EagerWorker:
    worker = EagerWorker(0, ranges)
    assert worker.start() == [*(Send(Pull(0, index, 1, 0)) for index in range(ranges)), Compute(0)]
    return worker


def test_an_eager_worker_asks_as_it_begins():
    worker = eager()
    assert worker.weights(Weights(0, 0, 1, 3)) == []  # it computes
    effects = worker.computed(0, "g0")
    assert effects == [Send(Push(0, 0, 0, 0, "g0", 3)), Send(Pull(0, 0, 2, 3)), Compute(1)]
    assert worker.versions == [3]
    assert [push.iteration for push in worker.missing()] == [0]


def test_a_push_waits_for_the_weights_behind_it_and_tells_what_others_did_meanwhile():
    worker = eager()
    assert worker.computed(0, "g0") == []
    effects = worker.weights(Weights(0, 0, 1, 5, own=0))
    assert effects[0] == Send(Push(0, 0, 0, 0, "g0", 5))
    assert worker.weights(Weights(0, 0, 2, 9, own=1)) == []
    assert worker.computed(0, "g1")[0] == Send(Push(0, 0, 1, 5, "g1", 3))  # 9 - 5, of which one is its own


def test_what_is_in_the_weights_is_not_missing_from_them():
    worker = eager()
    for iteration, own in ((0, 0), (1, 0), (2, 1)):  # its pushes of the last two are on their way
        worker.weights(Weights(0, 0, iteration + 1, 10 * iteration, own=own))
        worker.computed(0, f"g{iteration}")
        worker.ack(Ack(0, 0, iteration - 1))
    assert worker.iteration == 3
    assert worker.own == [1]
    assert [push.payload for push in worker.missing()] == ["g1", "g2"]


def test_a_third_buffer_is_not_rewritten_before_it_is_free():
    worker = eager()
    for iteration in range(3):
        worker.weights(Weights(0, 0, iteration + 1, iteration))
        effects = worker.computed(0)
    assert Compute(3) not in effects  # it would rewrite the buffer of iteration 0
    assert worker.ack(Ack(0, 0, 0)) == [Send(Pull(0, 0, 4, 2)), Compute(3)]


def test_an_eager_worker_waits_for_every_range():
    worker = eager(2)
    worker.weights(Weights(0, 0, 1, 4))
    assert worker.computed(0, "a") == [Send(Push(0, 0, 0, 0, "a", 4))]
    assert worker.computed(1, "b") == []
    assert worker.weights(Weights(0, 1, 1, 6)) == [
        Send(Push(0, 1, 0, 0, "b", 6)), Send(Pull(0, 0, 2, 4)), Send(Pull(0, 1, 2, 6)), Compute(1)]  # fmt: skip
    assert worker.weights(Weights(0, 1, 1, 9)) == []


def test_an_eager_worker_that_is_back_forgets_its_writes():
    worker = eager()
    worker.weights(Weights(0, 0, 1, 3))
    worker.computed(0, "lost")
    assert worker.join(5) == [Send(Pull(0, 0, 5, 0))]
    assert worker.missing() == ()
    assert worker.weights(Weights(0, 0, 5, 20, own=2)) == [Send(Pull(0, 0, 6, 20)), Compute(5)]


@pytest.mark.parametrize(("sync", "machine"), [(Eager(), EagerWorker), (ASP(), Worker)])
def test_the_policy_says_which_machine(sync, machine):
    assert type(worker_of(0, 1, sync)) is machine


# --- layer by layer ---------------------------------------------------------------------------------------------------


def layered(ranges: int = 2) -> LayeredWorker:
    worker = LayeredWorker(0, ranges)
    assert worker.start() == [Compute(0)]
    return worker


def test_a_layered_worker_pushes_each_range_and_begins_at_once():
    worker = layered()
    assert [worker.holds(index) for index in (0, 1)] == [True, True]
    assert worker.computed(1, "g1") == [Send(Push(0, 1, 0, 0, "g1")), Send(Pull(0, 1, 1, 0))]
    assert worker.computed(0, "g0") == [Send(Push(0, 0, 0, 0, "g0")), Send(Pull(0, 0, 1, 0)), Compute(1)]
    assert [worker.holds(index) for index in (0, 1)] == [False, False]


def test_its_passes_wait_for_each_ranges_own_weights():
    worker = layered()
    worker.computed(1), worker.computed(0)
    assert worker.weights(Weights(0, 0, 1, 5)) == []  # it is computing
    assert [worker.holds(index) for index in (0, 1)] == [True, False]
    with pytest.raises(ProtocolError, match="weights of iteration 1 are missing"):
        worker.computed(1)
    worker.weights(Weights(0, 1, 1, 6))
    assert worker.computed(1) == [Send(Push(0, 1, 1, 6)), Send(Pull(0, 1, 2, 6))]


def test_weights_of_the_next_iteration_come_while_other_ranges_go_backward():
    worker = layered()
    worker.computed(1)
    assert worker.weights(Weights(0, 1, 1, 1)) == []
    assert worker.computed(0)[-1] == Compute(1)
    assert [worker.holds(index) for index in (0, 1)] == [False, True]


def test_a_layered_worker_waits_for_a_free_buffer():
    worker = layered(1)
    worker.computed(0)
    worker.weights(Weights(0, 0, 1, 1))
    assert worker.computed(0) == [Send(Push(0, 0, 1, 1)), Send(Pull(0, 0, 2, 1))]  # iteration 0 is not acknowledged
    assert worker.ack(Ack(0, 0, 0)) == [Compute(2)]


def test_a_layered_worker_that_joins_begins_with_the_first_weights():
    worker = layered()
    assert worker.join(4) == [Send(Pull(0, 0, 4, 0)), Send(Pull(0, 1, 4, 0))]
    assert worker.weights(Weights(0, 1, 4, 9)) == [Compute(4)]
    assert [worker.holds(index) for index in (0, 1)] == [False, True]


def test_requests_by_layer_ask_for_a_layered_worker():
    assert type(worker_of(0, 1, ASP(), layered=True)) is LayeredWorker
