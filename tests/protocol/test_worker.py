"""The worker machines: one computation at a time, eager, layer by layer."""

from __future__ import annotations

import pytest

from pslab.errors import ProtocolError
from pslab.policies.sync.asp import ASP
from pslab.policies.sync.eager import Eager
from pslab.protocol.messages import Ack, Pull, Push, Weights
from pslab.protocol.worker import Compute, EagerWorker, LayeredWorker, Send, Worker, worker_of


def started(ranges: int = 1) -> Worker:
    worker = Worker(0, ranges)
    assert worker.start() == [Compute(0)]
    return worker


def test_one_iteration():
    worker = started()
    assert worker.computed(0, "g0") == [Send(Push(0, 0, 0, 0, "g0")), Send(Pull(0, 0, 1, 0))]
    assert worker.ack(Ack(0, 0, 0)) == []
    assert worker.weights(Weights(0, 0, 1, 7)) == [Compute(1)]
    assert worker.computed(0, "g1") == [Send(Push(0, 0, 1, 7, "g1")), Send(Pull(0, 0, 2, 7))]


def test_a_worker_waits_for_the_weights_of_every_range():
    worker = started(2)
    worker.computed(0)
    assert worker.iteration == 0
    worker.computed(1)
    assert worker.iteration == 1
    assert worker.weights(Weights(0, 1, 1, 1)) == []
    assert worker.weights(Weights(0, 0, 1, 1)) == [Compute(1)]


def test_late_and_duplicated_weights_change_nothing():
    worker = started()
    worker.computed(0)
    worker.weights(Weights(0, 0, 1, 4))
    assert worker.weights(Weights(0, 0, 1, 9)) == []
    assert worker.versions == [4]


def test_a_worker_waits_for_a_free_buffer():
    worker = started()
    worker.computed(0)
    worker.weights(Weights(0, 0, 1, 1))
    worker.computed(0)
    assert worker.weights(Weights(0, 0, 2, 2)) == []  # iteration 2 would rewrite the buffer of iteration 0
    assert worker.ack(Ack(0, 0, 0)) == [Compute(2)]


def test_a_gradient_that_is_not_being_computed_is_an_error():
    worker = started()
    worker.computed(0)
    with pytest.raises(ProtocolError, match="not computing"):
        worker.computed(0)


def test_a_worker_that_joins_pulls_first_and_forgets_its_former_state():
    worker = started(2)
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


def test_an_eager_worker_pulls_as_it_starts_to_compute():
    worker = eager()
    assert worker.weights(Weights(0, 0, 1, 3)) == []  # it computes
    effects = worker.computed(0, "g0")
    assert effects == [Send(Push(0, 0, 0, 0, "g0", 3)), Send(Pull(0, 0, 2, 3)), Compute(1)]
    assert worker.versions == [3]
    assert [push.iteration for push in worker.missing()] == [0]


def test_an_eager_push_waits_for_the_next_weights_and_reports_its_staleness():
    worker = eager()
    assert worker.computed(0, "g0") == []
    effects = worker.weights(Weights(0, 0, 1, 5, own=0))
    assert effects[0] == Send(Push(0, 0, 0, 0, "g0", 5))
    assert worker.weights(Weights(0, 0, 2, 9, own=1)) == []
    assert worker.computed(0, "g1")[0] == Send(Push(0, 0, 1, 5, "g1", 3))  # 9 - 5, of which one is its own


def test_own_pushes_are_missing_until_the_weights_contain_them():
    worker = eager()
    for iteration, own in ((0, 0), (1, 0), (2, 1)):  # its last two pushes are under way
        worker.weights(Weights(0, 0, iteration + 1, 10 * iteration, own=own))
        worker.computed(0, f"g{iteration}")
        worker.ack(Ack(0, 0, iteration - 1))
    assert worker.iteration == 3
    assert worker.own == [1]
    assert [push.payload for push in worker.missing()] == ["g1", "g2"]


def test_an_eager_worker_waits_for_a_free_buffer():
    worker = eager()
    for iteration in range(3):
        worker.weights(Weights(0, 0, iteration + 1, iteration))
        effects = worker.computed(0)
    assert Compute(3) not in effects  # it would rewrite the buffer of iteration 0
    assert worker.ack(Ack(0, 0, 0)) == [Send(Pull(0, 0, 4, 2)), Compute(3)]


def test_an_eager_worker_waits_for_the_weights_of_every_range():
    worker = eager(2)
    worker.weights(Weights(0, 0, 1, 4))
    assert worker.computed(0, "a") == [Send(Push(0, 0, 0, 0, "a", 4))]
    assert worker.computed(1, "b") == []
    assert worker.weights(Weights(0, 1, 1, 6)) == [
        Send(Push(0, 1, 0, 0, "b", 6)), Send(Pull(0, 0, 2, 4)), Send(Pull(0, 1, 2, 6)), Compute(1)]  # fmt: skip
    assert worker.weights(Weights(0, 1, 1, 9)) == []


def test_an_eager_worker_that_rejoins_forgets_its_pushes():
    worker = eager()
    worker.weights(Weights(0, 0, 1, 3))
    worker.computed(0, "lost")
    assert worker.join(5) == [Send(Pull(0, 0, 5, 0))]
    assert worker.missing() == ()
    assert worker.weights(Weights(0, 0, 5, 20, own=2)) == [Send(Pull(0, 0, 6, 20)), Compute(5)]


# --- layer by layer ---------------------------------------------------------------------------------------------------


def layered(ranges: int = 2) -> LayeredWorker:
    worker = LayeredWorker(0, ranges)
    assert worker.start() == [Compute(0)]
    return worker


def test_a_layered_worker_pushes_each_range_and_starts_at_once():
    worker = layered()
    assert [worker.holds(index) for index in (0, 1)] == [True, True]
    assert worker.computed(1, "g1") == [Send(Push(0, 1, 0, 0, "g1")), Send(Pull(0, 1, 1, 0))]
    assert worker.computed(0, "g0") == [Send(Push(0, 0, 0, 0, "g0")), Send(Pull(0, 0, 1, 0)), Compute(1)]
    assert [worker.holds(index) for index in (0, 1)] == [False, False]


def test_a_layered_worker_waits_for_the_weights_of_each_range():
    worker = layered()
    worker.computed(1), worker.computed(0)
    assert worker.weights(Weights(0, 0, 1, 5)) == []  # it is computing
    assert [worker.holds(index) for index in (0, 1)] == [True, False]
    with pytest.raises(ProtocolError, match="weights of iteration 1 are missing"):
        worker.computed(1)
    worker.weights(Weights(0, 1, 1, 6))
    assert worker.computed(1) == [Send(Push(0, 1, 1, 6)), Send(Pull(0, 1, 2, 6))]


def test_weights_of_the_next_iteration_may_arrive_during_the_backward_pass():
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


def test_a_layered_worker_that_joins_starts_with_the_first_weights():
    worker = layered()
    assert worker.join(4) == [Send(Pull(0, 0, 4, 0)), Send(Pull(0, 1, 4, 0))]
    assert worker.weights(Weights(0, 1, 4, 9)) == [Compute(4)]
    assert [worker.holds(index) for index in (0, 1)] == [False, True]


@pytest.mark.parametrize(("sync", "by_layer", "machine"), [
    (ASP(), False, Worker), (ASP(), True, LayeredWorker), (Eager(), False, EagerWorker),
])  # fmt: skip
def test_the_policy_and_the_requests_decide_the_machine(sync, by_layer, machine):
    assert type(worker_of(0, 1, sync, layered=by_layer)) is machine
