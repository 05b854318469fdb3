"""The server machine: its two states, scopes of one range and of all, and everything that it refuses."""

from __future__ import annotations

import pytest

from pslab.errors import ProtocolError
from pslab.policies.methods.downpour import Downpour
from pslab.policies.methods.local_sgd import LocalSGD
from pslab.policies.sync.asp import ASP
from pslab.policies.sync.backup import Backup
from pslab.policies.sync.bsp import BSP
from pslab.policies.sync.eager import Eager
from pslab.policies.sync.ssp import SSP
from pslab.protocol.messages import NO_WORKER, Apply, Drop, Pull, Push, Pushed, Start
from pslab.protocol.server import Discard, Refuse, Reply, Server, Step


def push(worker: int, iteration: int, *, index: int = 0, version: int = 0) -> Push:
    return Push(worker, index, iteration, version)


def pull(worker: int, iteration: int, *, index: int = 0, version: int = 0) -> Pull:
    return Pull(worker, index, iteration, version)


def test_a_push_is_deferred_while_weights_are_read():
    server = Server(range(2), 1, ASP())
    assert isinstance(server.handle(push(0, 0), 1.0)[0], Step)
    assert server.handle(pull(0, 1), 1.0) == [Reply(pull(0, 1), 1, NO_WORKER)]
    assert server.handle(push(1, 0), 2.0) == []  # state PULL
    (step,) = server.answered(0)
    assert step == Step(0, (push(1, 0),), False, 2)


def test_a_reply_is_reported_as_read_once():
    server = Server(range(2), 2, Backup(0))
    with pytest.raises(ProtocolError, match="range 0 is not answering"):
        server.answered(0)
    for message in (push(0, 0), push(0, 0, index=1), pull(0, 1), pull(0, 1, index=1),
                    push(1, 0), push(1, 0, index=1)):  # fmt: skip
        server.handle(message, 1.0)
    server.answered(0)
    with pytest.raises(ProtocolError, match="range 0 is not answering"):
        server.answered(0)
    server.answered(1)


def test_a_reply_names_the_worker_that_it_waited_for():
    server = Server(range(2), 1, BSP())
    assert server.handle(push(0, 0), 1.0) == []
    assert server.handle(pull(0, 1), 1.0) == []
    assert server.waits_for(0) == (1,)
    effects = server.handle(push(1, 0), 2.0)
    assert effects == [Step(0, (push(0, 0), push(1, 0)), True, 1), Reply(pull(0, 1), 1, 1)]
    server.answered(0)
    assert server.handle(pull(1, 1), 2.0) == [Reply(pull(1, 1), 1, NO_WORKER)]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (push(0, 0), "duplicate push"),
        (push(0, 2), "push of an iteration that is not valid"),
        (push(5, 0), "unknown worker"),
        (pull(5, 0), "unknown worker"),
        (pull(0, 0), "late pull"),
    ],
)
def test_refused_messages_change_nothing(message, reason):
    server = Server(range(2), 1, SSP(3))
    server.handle(push(0, 0), 1.0)
    before = server.accepted, dict(server.ranges[0].clocks), server.ranges[0].version
    assert server.handle(message, 2.0) == [Refuse(message, reason)]
    assert (server.accepted, server.ranges[0].clocks, server.ranges[0].version) == before


def test_a_push_outside_the_window_is_refused():
    server = Server(range(2), 1, SSP(1))
    server.handle(push(0, 0), 1.0)
    server.handle(push(0, 1), 1.0)
    (refused,) = server.handle(push(0, 2), 1.0)
    assert isinstance(refused, Refuse)
    assert server.accepted == 2


def test_an_unknown_range_is_an_error():
    with pytest.raises(ProtocolError, match="range 3"):
        Server(range(2), 1, ASP()).handle(push(0, 0, index=3), 1.0)


def test_a_pull_that_overtook_its_push_waits_for_it():
    server = Server(range(1), 1, ASP())
    assert server.handle(pull(0, 1), 1.0) == []
    assert server.handle(pull(0, 1), 1.0) == [Refuse(pull(0, 1), "duplicate pull")]
    assert server.handle(push(0, 0), 2.0) == [Step(0, (push(0, 0),), False, 1), Reply(pull(0, 1), 1, NO_WORKER)]


def test_an_answered_pull_is_answered_again():
    server = Server(range(1), 1, ASP())
    server.handle(push(0, 0), 1.0)
    first = server.handle(pull(0, 1), 1.0)
    server.answered(0)
    assert server.handle(pull(0, 1), 2.0) == first  # its answer was lost


def test_an_iteration_counts_once_all_ranges_have_it():
    server = Server(range(1), 2, ASP())
    server.handle(push(0, 0, index=0), 1.0)
    assert server.accepted == 0
    server.handle(push(0, 0, index=1), 1.0)
    assert server.accepted == 1


def test_no_worker_waits_for_one_that_left():
    server = Server(range(3), 1, BSP())
    for worker in (0, 1):
        server.handle(push(worker, 0), 1.0)
        server.handle(pull(worker, 1), 1.0)
    effects = server.leave(2, 2.0)
    assert [type(e) for e in effects] == [Step, Reply, Reply]
    assert server.workers == (0, 1)
    assert server.handle(push(2, 0), 3.0) == [Refuse(push(2, 0), "unknown worker")]


def test_a_policy_must_apply_before_it_starts():
    class Backwards(ASP):
        def step(self, state, event, clocks):
            if isinstance(event, Pushed) and event.worker == 1:
                return state, (Start(0, 1), Apply(1, 0))
            return state, (Apply(0, 0),) if isinstance(event, Pushed) else ()

    server = Server(range(2), 1, Backwards())
    server.handle(push(0, 0), 1.0)
    server.handle(pull(0, 1), 1.0)
    with pytest.raises(ProtocolError, match="apply before starting"):
        server.handle(push(1, 0), 2.0)


def test_a_worker_that_rejoins_continues_after_its_last_push():
    server = Server(range(2), 1, BSP())
    server.handle(push(1, 0), 1.0)
    server.leave(1, 1.0)  # its push is held for the round
    assert server.join(1) == 1
    with pytest.raises(ProtocolError, match="present already"):
        server.join(1)
    assert server.handle(pull(1, 1), 2.0) == []  # the round is not at its end
    step, reply = server.handle(push(0, 0), 3.0)
    assert step == Step(0, (push(0, 0), push(1, 0)), True, 1)
    assert (reply.pull, reply.version) == (pull(1, 1), 1)
    server.answered(0)
    server.handle(pull(0, 1), 3.0)
    server.answered(0)
    assert server.handle(push(0, 1, version=1), 4.0) == []


def test_held_pushes_are_applied_when_the_last_worker_leaves():
    server = Server(range(2), 1, BSP())
    server.handle(push(0, 0), 1.0)
    assert server.leave(0, 2.0) == []
    assert server.leave(1, 3.0) == [Step(0, (push(0, 0),), True, 1)]
    assert (server.join(0), server.join(1)) == (1, 1)
    alone = Server(range(1), 1, BSP())
    assert alone.leave(0, 1.0) == []  # nothing is held


def test_no_worker_leaves_while_weights_are_read():
    server = Server(range(2), 1, ASP())
    server.handle(push(0, 0), 1.0)
    server.handle(pull(0, 1), 1.0)
    with pytest.raises(ProtocolError, match="being read"):
        server.leave(1, 2.0)
    server.answered(0)
    assert server.leave(1, 2.0) == []


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


# --- policies that decide for the whole model, or drop; eager workers -------------------------------------------------


def test_a_policy_for_the_whole_model_decides_once_all_ranges_have_a_message():
    server = Server(range(2), 2, Backup(1))
    assert server.handle(push(0, 0, index=0), 1.0) == []
    assert server.handle(pull(0, 1, index=0), 1.0) == []
    steps = server.handle(push(0, 0, index=1), 2.0)
    assert steps == [Step(index, (push(0, 0, index=index),), True, 1) for index in (0, 1)]
    replies = server.handle(pull(0, 1, index=1), 2.0)
    assert replies == [Reply(pull(0, 1, index=index), 1, NO_WORKER) for index in (0, 1)]
    # while one range is being read, none takes pushes
    server.answered(0)
    assert server.handle(push(1, 0, index=0), 3.0) == []
    assert server.answered(1) == []
    dropped = server.handle(push(1, 0, index=1), 3.0)
    assert dropped == [Discard(index, push(1, 0, index=index)) for index in (0, 1)]
    assert (server.accepted, server.gradients) == (1, 1)


def test_a_duplicate_pull_on_one_range_blocks_no_worker():
    server = Server(range(1), 2, Backup(0))
    for iteration in range(2):
        for index in range(2):
            server.handle(push(0, iteration, index=index), 1.0)
        found = [server.handle(pull(0, iteration + 1, index=index), 1.0) for index in range(2)]
        assert [len(effects) for effects in found] == [0, 2]
        server.answered(0)
        server.answered(1)
        assert server.handle(pull(0, iteration + 1, index=1), 1.0) == []  # again; the other range's does not come


def test_an_incomplete_push_of_a_worker_that_leaves_is_discarded():
    server = Server(range(2), 2, Backup(0))
    for index in range(2):
        server.handle(push(0, 0, index=index), 1.0)
    assert server.handle(push(1, 0, index=0), 1.0) == []
    effects = server.leave(1, 2.0)
    assert effects == [Discard(0, push(1, 0, index=0)),
                       *(Step(index, (push(0, 0, index=index),), True, 1) for index in (0, 1))]  # fmt: skip
    assert server.accepted == 1
    assert server.join(1) == 1


def test_only_a_policy_for_the_whole_model_may_drop():
    class Dropping(ASP):
        def step(self, state, event, clocks):
            return state, (Drop(event.worker, event.iteration),) if isinstance(event, Pushed) else ()

    with pytest.raises(ProtocolError, match="for all ranges may drop"):
        Server(range(1), 1, Dropping()).handle(push(0, 0), 1.0)


def test_an_eager_pull_is_answered_before_its_push_arrives():
    server = Server(range(1), 1, Eager())
    assert server.handle(pull(0, 1), 1.0) == [Reply(pull(0, 1), 0, NO_WORKER, 0)]
    server.answered(0)
    server.handle(push(0, 0), 1.0)
    assert server.handle(pull(0, 2), 2.0) == [Reply(pull(0, 2), 1, NO_WORKER, 1)]
    server.answered(0)
    assert server.handle(pull(0, 3), 2.0) == [Reply(pull(0, 3), 1, NO_WORKER, 1)]  # it overtook the push of 1


def test_a_bound_holds_an_eager_pull():
    server = Server(range(2), 1, Eager(1))
    for message in (pull(0, 1), push(0, 0)):
        server.handle(message, 1.0)
        if isinstance(message, Pull):
            server.answered(0)
    assert server.handle(pull(0, 2), 1.0) == []
    step, reply = server.handle(push(1, 0), 2.0)
    assert (step.version, reply) == (2, Reply(pull(0, 2), 2, 1, 1))


def test_weights_that_are_not_fetched_are_those_that_the_worker_has():
    server = Server(range(1), 1, Downpour(n_fetch=3, n_push=1))
    replies = []
    for iteration, version in ((0, 0), (1, 0), (2, 0), (3, 3)):
        server.handle(push(0, iteration, version=version), 1.0)
        (reply,) = server.handle(pull(0, iteration + 1, version=version), 1.0)
        server.answered(0)
        replies.append((reply.version, reply.empty))
    assert replies == [(0, True), (0, True), (3, False), (3, True)]


def test_a_worker_that_joins_is_given_weights_even_if_none_were_due():
    server = Server(range(2), 1, Downpour(n_fetch=3, n_push=1))
    server.handle(push(0, 0), 1.0)
    server.leave(0, 1.0)
    assert server.join(0) == 1
    (reply,) = server.handle(pull(0, 1, version=0), 2.0)
    server.answered(0)
    assert (reply.version, reply.empty) == (1, False)
    server.handle(push(0, 1, version=1), 3.0)
    (reply,) = server.handle(pull(0, 2, version=1), 3.0)
    assert (reply.version, reply.empty) == (1, True)


def test_a_push_counts_the_gradients_that_it_is_made_of():
    server = Server(range(1), 1, LocalSGD(4, after=1))
    for iteration, count in ((0, 1), (1, 5), (2, 9)):
        server.handle(push(0, iteration), 1.0)
        assert (server.accepted, server.gradients) == (iteration + 1, count)


def test_several_ranges_end_with_the_last_round_that_the_budget_has_whole():
    for budget, over in ((4, [False, True]), (3, [True, True])):
        server, found = Server(range(2), 2, BSP()), []
        for iteration in range(2):
            for worker in range(2):
                for index in range(2):
                    server.handle(push(worker, iteration, index=index), 1.0)
            found.append(server.spent(budget))
        assert found == over


def test_a_policy_for_the_whole_model_hears_once_of_a_request_that_comes_again():
    server = Server(range(2), 2, Backup(0))
    for index in range(2):
        server.handle(push(0, 0, index=index), 1.0)
    for index in range(2):
        assert server.handle(pull(0, 1, index=index), 1.0) == []
    assert server.handle(pull(0, 1), 1.0) == [Refuse(pull(0, 1), "duplicate pull")]
