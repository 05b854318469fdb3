"""The machines of the protocol by hand: server, store, worker, window, fragments in turn, and traits of policies.

The checker has every order of events.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ownpolicies import NeverWaits

from pslab.config.spec import build
from pslab.errors import ProtocolError
from pslab.policies.methods.downpour import Downpour
from pslab.policies.methods.streaming import Streaming
from pslab.policies.sync.asp import ASP
from pslab.policies.sync.bsp import BSP
from pslab.policies.sync.eager import Eager
from pslab.policies.sync.ssp import SSP
from pslab.protocol.messages import NO_WORKER, Apply, Drop, Pull, Push, Pushed, Start, Weights
from pslab.protocol.rotation import ALL, Rotation
from pslab.protocol.server import Discard, Refuse, Reply, Server, Step, least_budget
from pslab.protocol.store import Done, Forget, Snapshot, StoreMachine
from pslab.protocol.traits import Traits, one_each, traits_of
from pslab.protocol.window import Window
from pslab.protocol.worker import Compute, EagerWorker, LayeredWorker, Send, Worker, worker_of


def push(worker: int, iteration: int, *, index: int = 0, version: int = 0) -> Push:
    return Push(worker, index, iteration, version)


def pull(worker: int, iteration: int, *, index: int = 0, version: int = 0) -> Pull:
    return Pull(worker, index, iteration, version)


def test_a_reply_names_the_worker_that_it_waited_for():
    server = Server(range(2), 1, BSP())
    assert server.handle(push(0, 0), 1.0) == []
    assert server.handle(pull(0, 1), 1.0) == []
    assert server.waits_for(0) == (1,)
    effects = server.handle(push(1, 0), 2.0)
    assert effects == [Step(0, (push(0, 0), push(1, 0)), True, 1), Reply(pull(0, 1), 1, 1)]
    server.answered(0)
    assert server.handle(pull(1, 1), 2.0) == [Reply(pull(1, 1), 1, NO_WORKER)]


@pytest.mark.parametrize(("message", "reason"), [
    (push(0, 0), "duplicate push"), (push(0, 2), "push of an iteration that is not valid"),
    (push(1, 2), "push of an iteration that is not valid"), (push(5, 0), "unknown worker"),
    (pull(5, 0), "unknown worker"), (pull(0, 0), "late pull"),
])  # fmt: skip
def test_refused_messages_change_nothing(message, reason):
    server = Server(range(2), 1, SSP(3))
    server.handle(push(0, 0), 1.0)
    before = server.accepted, dict(server.ranges[0].clocks), server.ranges[0].version
    assert server.handle(message, 2.0) == [Refuse(message, reason)]
    assert (server.accepted, server.ranges[0].clocks, server.ranges[0].version) == before


class Backwards(ASP):
    """It starts worker 0 before it applies the push of worker 1."""

    def step(self, state, event, clocks):
        if isinstance(event, Pushed) and event.worker == 1:
            return state, (Start(0, 1), Apply(1, 0))
        return state, (Apply(0, 0),) if isinstance(event, Pushed) else ()


class Dropping(ASP):
    def step(self, state, event, clocks):
        return state, (Drop(event.worker, event.iteration),) if isinstance(event, Pushed) else ()


@pytest.mark.parametrize(("sync", "before", "call", "words"), [
    (ASP(), [], lambda server: server.handle(push(0, 0, index=3), 1.0), "range 3"),
    (ASP(), [], lambda server: server.answered(0), "range 0 has no reply under way"),
    (ASP(), [], lambda server: server.join(1), "present already"),
    (ASP(), [push(0, 0), pull(0, 1)], lambda server: server.leave(1, 2.0), "being read"),
    (Backwards(), [push(0, 0), pull(0, 1)], lambda server: server.handle(push(1, 0), 2.0), "before every Start"),
    (Dropping(), [], lambda server: server.handle(push(0, 0), 1.0), "only a policy with `whole = True` may drop"),
])  # fmt: skip
def test_what_a_driver_or_a_policy_must_not_do_is_an_error(sync, before, call, words):
    server = Server(range(2), 1, sync)
    for message in before:
        server.handle(message, 1.0)
    with pytest.raises(ProtocolError, match=words):
        call(server)


def test_held_pushes_are_applied_when_the_last_worker_leaves():
    server = Server(range(2), 1, BSP())
    server.handle(push(0, 0), 1.0)
    assert server.leave(0, 2.0) == []
    assert server.leave(1, 3.0) == [Step(0, (push(0, 0),), True, 1)]
    assert (server.join(0), server.join(1)) == (1, 1)
    alone = Server(range(1), 1, BSP())
    assert alone.leave(0, 1.0) == []  # nothing is held


def test_a_worker_that_joins_starts_at_the_low_bound():
    server = Server((0,), 2, SSP(1))
    for index, iteration in ((0, 0), (1, 0), (0, 1)):
        server.handle(push(0, iteration, index=index), 1.0)
    assert server.join(2) == 2  # as far as the range that is ahead
    assert server.workers == (0, 2)
    assert [part.clocks for part in server.ranges] == [{0: 2, 2: 2}, {0: 1, 2: 2}]
    assert [part.window.base for part in server.ranges] == [2, 1]
    assert [type(e) for e in server.handle(pull(2, 2, index=1), 2.0)] == [Reply]


def test_an_incomplete_push_of_a_worker_that_left_is_never_counted():
    server = Server(range(2), 2, ASP())
    server.handle(push(1, 0, index=0), 1.0)
    server.leave(1, 1.0)
    assert server.join(1) == 1
    server.handle(push(1, 1, index=0), 2.0)
    assert server.accepted == 0
    server.handle(push(1, 1, index=1), 2.0)
    assert server.accepted == 1


def test_weights_are_fetched_when_they_are_due_and_by_a_worker_that_joins():
    server, replies = Server(range(2), 1, Downpour(n_fetch=3, n_push=1)), []
    for iteration, version in ((0, 0), (1, 0), (2, 0), (3, 3)):
        server.handle(push(0, iteration, version=version), 1.0)
        replies += server.handle(pull(0, iteration + 1, version=version), 1.0)
        server.answered(0)
    server.leave(0, 1.0)
    assert server.join(0) == 4
    replies += server.handle(pull(0, 4, version=0), 2.0)
    assert [(reply.version, reply.empty) for reply in replies] == [
        (0, True), (0, True), (3, False), (3, True), (4, False)]  # fmt: skip


def test_several_ranges_end_with_the_last_round_that_the_budget_has_whole():
    for budget, over in ((4, [False, True]), (3, [True, True])):
        server, found = Server(range(2), 2, BSP()), []
        for iteration in range(2):
            for worker in range(2):
                for index in range(2):
                    server.handle(push(worker, iteration, index=index), 1.0)
            found.append(server.spent(budget))
        assert found == over


@pytest.mark.parametrize(("sync", "gradients"), [
    ("bsp", 3), ("asp", 1), ("backup:1", 2), ("local:5", 15), ("diloco:20", 60), ("adiloco:4", 4), ("admm:2", 6),
    ("easgd:10", 30), ("decoupled:20,2,quorum=2", 20), ("streaming:6,2", 9),
])  # fmt: skip
def test_the_gradients_before_the_first_step_of_three_workers_are_counted(sync: str, gradients: int):
    assert least_budget(build("sync", sync), 3) == gradients


FIRST, SECOND = Push(0, 1, 0, 0), Push(1, 1, 0, 0)
STEPS = Step(1, (FIRST,), False, 1), Step(1, (SECOND,), False, 2)


def reply(worker: int, version: int) -> Reply:
    return Reply(Pull(worker, 1, 1, 0), version, NO_WORKER)


def test_orders_are_done_one_after_another_and_free_what_they_have_read():
    store = StoreMachine()
    for about, order in enumerate((STEPS[0], reply(0, 1), Snapshot(3), STEPS[1], Discard(1, FIRST))):
        store.order(order, about)
    assert [store.done() for _ in range(5)] == [
        Done(STEPS[0], 0, free=(FIRST,)), Done(reply(0, 1), 1, sends=True), Done(Snapshot(3), 2),
        Done(STEPS[1], 3, free=(SECOND,)), Done(Discard(1, FIRST), 4, free=(FIRST,)),
    ]  # fmt: skip
    assert store.orders == []


def test_weights_are_not_sent_to_a_worker_that_has_left_since():
    store = StoreMachine()
    for order in (reply(0, 0), reply(1, 0), Forget(0), reply(0, 0)):
        store.order(order)
    assert [store.done().sends for _ in range(4)] == [False, True, False, True]


def test_an_order_about_another_version_than_is_here_is_an_error():
    for order, words in ((STEPS[1], "a step needs version 1"), (reply(0, 1), "a reply needs version 1")):
        store = StoreMachine()
        store.order(order)
        with pytest.raises(ProtocolError, match=f"{words} of range 1; this store has version 0"):
            store.done()


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


def test_an_empty_window_starts_where_the_first_member_joins():
    window = Window(2, 3)
    window.push(0)
    assert not window.leave(1)
    assert window.leave(0)  # no member remains
    window.join(1)
    assert (window.base, window.members, window.counts) == (1, 1, {})


def test_invalid_windows_are_refused():
    for members, length in ((0, 1), (1, 0)):
        with pytest.raises(ProtocolError):
            Window(members, length)
    window = Window(1, 1)
    assert window.push(0)
    assert not window.valid(0)
    assert window.valid(1)
    for change in (window.leave, window.join):
        with pytest.raises(ProtocolError, match="below the low bound"):
            change(0)


fragments, ranges, turns = st.integers(1, 7), st.integers(0, 20), st.integers(0, 50)


@given(fragments, ranges, turns)
def test_a_turn_is_the_number_of_those_before_its_iteration(count, index, turn):
    rotation = Rotation(count)
    iteration = rotation.iteration(index, turn)
    assert rotation.turn(index, iteration) == turn
    assert rotation.turn(index, iteration + 1) == turn + 1
    assert rotation.turn(index, iteration) == sum(index in rotation.ranges(t, index + 1) for t in range(iteration))
    first = rotation.joined(index, turn)
    assert rotation.turn(index, first) == turn
    assert first == 0 or rotation.turn(index, first - 1) == turn - 1
    assert ALL.turn(index, turn) == ALL.iteration(index, turn) == ALL.joined(index, turn) == turn
    assert ALL.ranges(turn, 5) == range(5)


@given(fragments, st.integers(0, 60), st.integers(1, 3))
def test_iterations_are_complete_as_their_ranges_have_had_their_turns(count, iteration, each):
    rotation, size = Rotation(count), count * each
    done = [rotation.turn(index, iteration) for index in range(size)]
    assert rotation.complete(done) == iteration
    assert sorted(index for t in range(count) for index in rotation.ranges(t, size)) == [*range(size)]


def test_a_push_of_a_fragment_that_is_not_in_turn_is_refused():
    for index, iteration in ((0, 1), (1, 0), (1, 2), (0, 3)):
        server = Server([0, 1], 2, Streaming(2, 2))
        assert server.handle(Push(1, 0, 0, 0), 0.0) == []
        assert [type(effect) for effect in server.handle(Push(0, 0, 0, 0), 0.0)] == [Step]
        (effect,) = server.handle(Push(0, index, iteration, 0), 0.0)
        assert isinstance(effect, Refuse)
        assert (server.accepted, server.gradients) == (2, 2)


def test_a_worker_joins_with_the_first_iteration_that_every_fragment_takes():
    server = Server([0], 3, Streaming(3, 3))
    for iteration in range(4):
        server.handle(Push(0, iteration % 3, iteration, iteration // 3), 0.0)
    assert server.join(1) == 4
    assert [part.clocks[1] for part in server.ranges] == [2, 1, 1]
    assert server.clock(1) == 4


def test_defaults_and_options():
    assert traits_of(NeverWaits(3)) == Traits(3, gradients_before=one_each)
    assert not traits_of(build("sync", "eager:rmw=off")).reads_own
    assert [Traits().gradients(t) for t in range(3)] == [1, 1, 1]
