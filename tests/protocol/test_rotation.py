"""Fragments in turn: iterations and turns, and what server and worker make of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslab.policies.methods.streaming import Streaming
from pslab.protocol.messages import Ack, Pull, Push, Weights
from pslab.protocol.rotation import ALL, Rotation
from pslab.protocol.server import Refuse, Reply, Server, Step
from pslab.protocol.worker import Compute, Send, worker_of

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


def test_a_worker_awaits_and_pushes_the_fragment_in_turn_alone():
    worker = worker_of(0, 3, Streaming(3, 3))
    assert worker.start() == [Compute(0)]
    for iteration in range(5):
        turn, index = divmod(iteration, 3)
        sent = [Send(Push(0, index, iteration, turn, "d")), Send(Pull(0, index, iteration + 1, turn))]
        assert worker.computed(index, "d") == sent
        assert worker.ack(Ack(0, index, iteration)) == []
        assert worker.weights(Weights(0, index, iteration + 1, turn + 1)) == [Compute(iteration + 1)]


def test_a_worker_that_joins_awaits_every_fragment():
    worker = worker_of(0, 3, Streaming(3, 3))
    assert worker.join(4) == [Send(Pull(0, index, 4, 0)) for index in range(3)]
    assert worker.weights(Weights(0, 0, 4, 2)) == worker.weights(Weights(0, 2, 4, 1)) == []
    assert worker.weights(Weights(0, 1, 4, 1)) == [Compute(4)]


@pytest.mark.parametrize(("index", "iteration"), [(0, 1), (1, 0), (1, 2), (0, 3)])
def test_a_push_of_a_fragment_that_is_not_in_turn_is_refused(index, iteration):
    server = Server([0, 1], 2, Streaming(2, 2))
    assert server.handle(Push(1, 0, 0, 0), 0.0) == []
    assert [type(effect) for effect in server.handle(Push(0, 0, 0, 0), 0.0)] == [Step]
    (effect,) = server.handle(Push(0, index, iteration, 0), 0.0)
    assert isinstance(effect, Refuse)
    assert (server.accepted, server.gradients) == (2, 2)


def test_nobody_waits_for_a_fragment_that_is_not_in_turn():
    """Worker 0 has pushed fragment 1, too, and gets fragment 0 as soon as all have pushed that."""
    server = Server([0, 1], 2, Streaming(2, 2))
    for push in (Push(0, 0, 0, 0), Push(1, 0, 0, 0)):
        server.handle(push, 0.0)
    assert [type(effect) for effect in server.handle(Pull(0, 0, 1, 0), 0.0)] == [Reply]
    server.answered(0)
    assert server.handle(Push(0, 1, 1, 0), 0.0) == []
    assert server.handle(Pull(0, 1, 2, 0), 0.0) == []  # that one waits for worker 1
    assert [type(effect) for effect in server.handle(Pull(1, 0, 1, 0), 0.0)] == [Reply]
    assert (server.clock(0), server.clock(1)) == (2, 1)


def test_a_worker_joins_with_the_first_iteration_that_every_fragment_takes():
    server = Server([0], 3, Streaming(3, 3))
    for iteration in range(4):
        server.handle(Push(0, iteration % 3, iteration, iteration // 3), 0.0)
    assert server.join(1) == 4
    assert [part.clocks[1] for part in server.ranges] == [2, 1, 1]
    assert server.clock(1) == 4
