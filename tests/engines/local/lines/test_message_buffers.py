"""Where the numbers of a message lie, and which messages are none of a run."""

from __future__ import annotations

from typing import Any

import pytest
from mirrored import SIZE, Setup, pull, push, weights

from pslab.engines.experiment.wire import WHOLE, Blocked, Diverged, Go, Stop, Taken
from pslab.engines.local.lines.message_buffers import TO_SERVER, TO_WORKER, MessageBuffers
from pslab.errors import FrameError
from pslab.protocol.messages import Ack

KEYED = {"data": "planted:rows=200,keys=240,per_row=6,communities=4", "model": "linear", "pull": "keys"}
LINKS = {"latency_s": 1e-3}


def test_a_dense_push_brings_its_range_of_the_gradient_in_turn():
    setup = Setup(ranges="layers")
    flat, first, second = setup.layout.gradients[1][1], 49 * 32 + 32, 32 * 10 + 10
    assert setup.offsets(push(WHOLE, 0)) == [(flat, 4 * first)]
    assert setup.offsets(push(WHOLE, 1)) == [(flat + 4 * first, 4 * second)]
    assert setup.offsets(push(WHOLE, 1, 4)) == [(setup.layout.gradients[1][0] + 4 * first, 4 * second)]


def test_a_sparse_push_brings_its_frame():
    setup = Setup(ranges="layers", prune="static:5%")
    offset = setup.layout.up[1][1] + setup.layout.frames[1][0]
    assert setup.offsets(push(100, 1)) == [(offset, 100)]


def test_whole_weights_are_those_of_the_server_where_workers_compute_on_them():
    assert Setup().offsets(weights(WHOLE)) == [(0, 4 * SIZE)]
    setup = Setup(cluster=LINKS)
    assert setup.offsets(weights(WHOLE)) == [(setup.layout.arrivals[1][0], 4 * SIZE)]
    eager = Setup(sync="eager")
    assert eager.offsets(weights(WHOLE)) == [(eager.layout.arrivals[1][1], 4 * SIZE)]


def test_a_server_sends_whole_weights_from_where_it_has_them_unless_something_may_come_between():
    at_once, delayed = Setup(sync="asp"), Setup(sync="asp", cluster={"latency_s": 0.001})
    for setup, own in ((at_once, True), (delayed, False)):
        setup.mirror = MessageBuffers(setup.job, setup.arena, 1, serves=True)
        there = setup.layout.server if own else setup.layout.arrivals[1][0]
        assert setup.offsets(weights(WHOLE)) == [(there, 4 * SIZE)]


def test_requests_bring_the_keys_that_they_name():
    setup = Setup(**KEYED)
    assert setup.offsets(pull(40)) == [(setup.layout.asked[1][1], 40)]
    assert setup.offsets(weights(40)) == [(setup.layout.down[1][0], 40)]
    assert Setup().offsets(pull(87)) == []


def test_what_a_method_says_travels_with_pushes_and_weights():
    setup = Setup(sync="admm:2", loss="cross_entropy")
    said = setup.layout.kept[1]["said"], 32
    assert setup.offsets(push(WHOLE))[-1] == said
    assert setup.offsets(weights(WHOLE))[-1] == (setup.layout.told, 8)
    assert setup.offsets(Go(0.0)) == [(setup.layout.told, 8)]


@pytest.mark.parametrize("message", [push(0), weights(0), Stop(1), Diverged(1, 3), Blocked(1, 0), Go(0.0),
                                     Ack(1, 0, 3, Taken(0.0, 0.0))], ids=str)  # fmt: skip
def test_other_messages_bring_nothing(message: Any):
    assert Setup().offsets(message) == []


@pytest.mark.parametrize(
    ("message", "words"),
    [(weights(WHOLE), "a Weights came where only Push, Pull, Stop, Diverged, Blocked may"),
     (push(WHOLE)._replace(worker=0), "a Push names worker 0 on the line of worker 1"),
     (Stop(0), "a Stop names worker 0"),
     (push(10, 1), "a Push names range 1; there are 1"), (Blocked(1, 1), "a Blocked names range 1"),
     (push(WHOLE, 0, -3), "a Push names iteration -3"),
     (push(10**9), r"a Push of range 0 brings 1000000000 bytes; there is room for \d+"),
     (push(-2), "a Push of range 0 brings -2 bytes"), (pull(87, 10**6), "a Pull asks for keys 0 to 1000000; there are"),
     (push(WHOLE), "brings a dense gradient; this run's are frames")],
)  # fmt: skip
def test_what_is_no_message_of_the_run_is_refused(message: Any, words: str):
    with pytest.raises(FrameError, match=words):
        Setup(prune="static:5%").mirror.checked(message, TO_SERVER)


def test_a_worker_refuses_too_much_of_its_server():
    with pytest.raises(FrameError, match="a Weights of range 0 brings"):
        Setup().mirror.checked(weights(10**9), TO_WORKER)
    with pytest.raises(FrameError, match="a Pull of range 0 brings"):
        Setup(**KEYED).mirror.checked(pull(10**9), TO_SERVER)
