"""Fragments in turn: iterations and turns, and what a server makes of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pslab.policies.methods.streaming import Streaming
from pslab.protocol.messages import Push
from pslab.protocol.rotation import ALL, Rotation
from pslab.protocol.server import Refuse, Server, Step

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
