"""The worker machines: one computation at a time, eager, layer by layer. The checker has the rest."""

from __future__ import annotations

import pytest

from pslab.errors import ProtocolError
from pslab.policies.sync.asp import ASP
from pslab.policies.sync.eager import Eager
from pslab.protocol.messages import Ack, Pull, Push, Weights
from pslab.protocol.worker import Compute, EagerWorker, LayeredWorker, Send, Worker, worker_of


def test_one_iteration():
    worker = Worker(0, 1)
    assert worker.start() == [Compute(0)]
    assert worker.computed(0, "g0") == [Send(Push(0, 0, 0, 0, "g0")), Send(Pull(0, 0, 1, 0))]
    assert worker.ack(Ack(0, 0, 0)) == []
    assert worker.weights(Weights(0, 0, 1, 7)) == [Compute(1)]
    assert worker.computed(0, "g1") == [Send(Push(0, 0, 1, 7, "g1")), Send(Pull(0, 0, 2, 7))]
    with pytest.raises(ProtocolError, match="not computing"):
        worker.computed(0)


def test_an_eager_worker_pulls_as_it_computes_and_its_push_waits_for_the_next_weights_and_says_how_stale_it_is():
    worker = EagerWorker(0, 1)
    assert worker.start() == [Send(Pull(0, 0, 1, 0)), Compute(0)]
    assert worker.computed(0, "g0") == []
    sent = worker.weights(Weights(0, 0, 1, 5, own_pushes=0))
    assert sent == [Send(Push(0, 0, 0, 0, "g0", 5)), Send(Pull(0, 0, 2, 5)), Compute(1)]
    assert (worker.versions, [push.iteration for push in worker.missing()]) == ([5], [0])
    assert worker.weights(Weights(0, 0, 2, 9, own_pushes=1)) == []  # it computes
    assert worker.computed(0, "g1")[0] == Send(Push(0, 0, 1, 5, "g1", 3))  # 9 - 5, of which one is its own


def test_a_layered_worker_pushes_each_range_and_starts_at_once():
    worker = LayeredWorker(0, 2)
    assert worker.start() == [Compute(0)]
    assert [worker.holds(index) for index in (0, 1)] == [True, True]
    assert worker.computed(1, "g1") == [Send(Push(0, 1, 0, 0, "g1")), Send(Pull(0, 1, 1, 0))]
    assert worker.computed(0, "g0") == [Send(Push(0, 0, 0, 0, "g0")), Send(Pull(0, 0, 1, 0)), Compute(1)]
    assert [worker.holds(index) for index in (0, 1)] == [False, False]
    assert worker.weights(Weights(0, 0, 1, 5)) == []  # it is computing
    assert [worker.holds(index) for index in (0, 1)] == [True, False]
    with pytest.raises(ProtocolError, match="weights of iteration 1 are missing"):
        worker.computed(1)


@pytest.mark.parametrize(("sync", "by_layer", "machine"), [
    (ASP(), False, Worker), (ASP(), True, LayeredWorker), (Eager(), False, EagerWorker),
])  # fmt: skip
def test_the_policy_and_the_requests_decide_the_machine(sync, by_layer, machine):
    assert type(worker_of(0, 1, sync, layered=by_layer)) is machine
