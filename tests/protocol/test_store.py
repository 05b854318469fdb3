"""A store: what it is ordered, one thing after another, and what follows only when that is done."""

from __future__ import annotations

import pytest

from pslab.errors import ProtocolError
from pslab.protocol.messages import NO_WORKER, Pull, Push
from pslab.protocol.server import Discard, Reply, Step
from pslab.protocol.store import Done, Forget, Snapshot, StoreMachine

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
