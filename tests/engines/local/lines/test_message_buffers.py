"""Where the numbers of a message lie, and which messages are none of a run."""

from __future__ import annotations

from typing import Any

import pytest
from buffers import SIZE, Buffers, pull, push, weights

from pslab.engines.experiment.wire import WHOLE, Blocked, Diverged, Go, Stop, Taken
from pslab.engines.local.lines.message_buffers import TO_SERVER, TO_WORKER
from pslab.errors import FrameError
from pslab.protocol.messages import Ack
from pslab.tensors.update.methods import STATED

KEYED = {"data": "planted:rows=200,keys=240,per_row=6,communities=4", "model": "linear", "pull": "keys"}
LINKS = {"latency_s": 1e-3}


def test_a_dense_push_brings_its_range_of_the_gradient_in_turn():
    buffers = Buffers(ranges="layers")
    flat, first, second = buffers.layout.gradients[1][1], 49 * 32 + 32, 32 * 10 + 10
    assert buffers.offsets(push(WHOLE, 0)) == [(flat, 4 * first)]
    assert buffers.offsets(push(WHOLE, 1)) == [(flat + 4 * first, 4 * second)]
    assert buffers.offsets(push(WHOLE, 1, 4)) == [(buffers.layout.gradients[1][0] + 4 * first, 4 * second)]


def test_a_sparse_push_brings_its_frame():
    buffers = Buffers(ranges="layers", prune="static:5%")
    offset = buffers.layout.up[1][1] + buffers.layout.frames[1][0]
    assert buffers.offsets(push(100, 1)) == [(offset, 100)]


def test_whole_weights_are_those_of_the_server_where_workers_compute_on_them():
    assert Buffers().offsets(weights(WHOLE)) == [(0, 4 * SIZE)]
    buffers = Buffers(cluster=LINKS)
    assert buffers.offsets(weights(WHOLE)) == [(buffers.layout.arrivals[1][0], 4 * SIZE)]
    eager = Buffers(sync="eager")
    assert eager.offsets(weights(WHOLE)) == [(eager.layout.arrivals[1][1], 4 * SIZE)]


def test_a_server_sends_whole_weights_from_where_it_has_them_unless_something_may_come_between():
    at_once, delayed = (Buffers(serves=True, sync="asp", cluster=cluster) for cluster in ({}, LINKS))
    assert at_once.offsets(weights(WHOLE)) == [(at_once.layout.server, 4 * SIZE)]
    assert delayed.offsets(weights(WHOLE)) == [(delayed.layout.arrivals[1][0], 4 * SIZE)]


def test_requests_bring_the_keys_that_they_name():
    buffers = Buffers(**KEYED)
    assert buffers.offsets(pull(40)) == [(buffers.layout.asked[1][1], 40)]
    assert buffers.offsets(weights(40)) == [(buffers.layout.down[1][0], 40)]
    assert Buffers().offsets(pull(87)) == []


def test_what_a_method_says_travels_with_pushes_and_weights():
    buffers = Buffers(sync="admm:2", loss="cross_entropy")
    stated = buffers.layout.kept[1][STATED], 32
    assert buffers.offsets(push(WHOLE))[-1] == stated
    assert buffers.offsets(weights(WHOLE))[-1] == (buffers.layout.told, 8)
    assert buffers.offsets(Go(0.0)) == [(buffers.layout.told, 8)]


@pytest.mark.parametrize("message", [push(0), weights(0), Stop(1), Diverged(1, 3), Blocked(1, 0), Go(0.0),
                                     Ack(1, 0, 3, Taken(0.0, 0.0))], ids=str)  # fmt: skip
def test_other_messages_bring_nothing(message: Any):
    assert Buffers().offsets(message) == []


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
        Buffers(prune="static:5%").messages.checked(message, TO_SERVER)


def test_a_worker_refuses_too_much_of_its_server():
    with pytest.raises(FrameError, match="a Weights of range 0 brings"):
        Buffers().messages.checked(weights(10**9), TO_WORKER)
    with pytest.raises(FrameError, match="names -1 gradients that the server has"):
        Buffers().messages.checked(weights(WHOLE)._replace(gradients=-1), TO_WORKER)
    with pytest.raises(FrameError, match="a Pull of range 0 brings"):
        Buffers(**KEYED).messages.checked(pull(10**9), TO_SERVER)


def test_a_worker_computes_no_more_gradients_than_its_policy_has_before_and_in_an_iteration():
    assigned = Buffers(sync="adiloco:3,dylu=on").messages  # of iteration 3
    assert assigned.checked(weights(WHOLE)._replace(begin=9, steps=3), TO_WORKER)
    for impossible in ({"begin": -1}, {"steps": -1}, {"steps": 4}, {"begin": 10}, {"begin": 2**62, "steps": 1}):
        with pytest.raises(FrameError, match="in iteration 3 these are 3 after 9 at most"):
            assigned.checked(weights(WHOLE)._replace(**impossible), TO_WORKER)
    for impossible in ({"begin": 1}, {"steps": 1}):  # of a policy that assigns none
        with pytest.raises(FrameError, match="in iteration 3 these are 0 after 0 at most"):
            Buffers(sync="adiloco:3").messages.checked(weights(WHOLE)._replace(**impossible), TO_WORKER)


def test_weights_of_another_servers_range_are_refused():
    with pytest.raises(FrameError, match="names range 0 of server 0 to server 1"):
        Buffers(1, servers=2).messages.checked(weights(WHOLE, 0), TO_WORKER)
