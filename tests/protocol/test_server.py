"""The server machine by hand: what it answers, refuses and counts. The checker has every order of events."""

from __future__ import annotations

import pytest

from pslab.config.spec import build
from pslab.errors import ProtocolError
from pslab.policies.methods.downpour import Downpour
from pslab.policies.sync.asp import ASP
from pslab.policies.sync.bsp import BSP
from pslab.policies.sync.ssp import SSP
from pslab.protocol.messages import NO_WORKER, Apply, Drop, Pull, Push, Pushed, Start
from pslab.protocol.server import Refuse, Reply, Server, Step, least_budget


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
