"""The server's driver with a clock and a transport by hand: what is sent when, and when the run ends."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from tiny import tiny

from pslab.engines.experiment.job import Job
from pslab.engines.experiment.wire import WHOLE, Diverged, Frame, Gone, PushInfo, Taken, Wanted
from pslab.engines.server.clock import VirtualClock
from pslab.engines.server.driver import ServerDriver
from pslab.engines.server.ledger import ARRIVALS, Ledger
from pslab.engines.server.push_accounts import PushAccounts
from pslab.engines.virtual.timing import job_without_tensors
from pslab.lab.runs.resolve import resolve
from pslab.protocol.messages import Ack, Pull, Push, Weights
from pslab.protocol.server import Reply, Server, Step

COSTS = {"compute_s": 1.0, "apply_s": 0.5, "serve_s": 0.25}


class Recording:
    """A transport that keeps what is sent, and a shard that keeps the rates."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, Frame]] = []
        self.rates: list[float] = []
        self.computing: list[list[int]] = []
        self.left: list[int] = []

    def send(self, worker: int, frame: Frame, now: float) -> None:
        self.sent.append((worker, frame))

    def attend(self) -> None: ...

    def apply(self, step: Step, rate: float, computing: Collection[int]) -> None:
        self.rates.append(rate)
        self.computing.append(list(computing))

    def lay(self, reply: Reply) -> int:
        return WHOLE

    def leave(self, worker: int) -> None:
        self.left.append(worker)

    converged = False

    def facts(self) -> dict[str, Any]:
        return {"said": True}


class Setup:
    def __init__(self, **fields: Any) -> None:
        run = {"engine": "timing", "workers": 2, "cluster": COSTS, "learning_rate": 1.0, "sync": "bsp", **fields}
        self.job: Job = job_without_tensors(resolve(tiny(**run)))
        self.record, self.clock = Recording(), VirtualClock(self.job)
        self.accounts = PushAccounts(self.job, Ledger(self.job, None, None, lambda body: None))
        machine = Server(range(run["workers"]), len(self.job.parts), self.job.sync)
        self.driver = ServerDriver(self.job, machine, self.accounts, self.record, self.clock, self.record)
        self.driver.start()

    def iteration(self, worker: int, at: float, iteration: int = 0, version: int = 0) -> None:
        """A worker's pushes of all ranges arrive, and its pulls."""
        self.clock.at = at
        for index in range(len(self.job.parts)):
            gradient, wanted = PushInfo(WHOLE, self.job.parts[index].size, 0.5), Wanted(0, 0)
            self.driver.receive([Push(worker, index, iteration, version, gradient),
                                 Pull(worker, index, iteration + 1, version, wanted)])  # fmt: skip


def test_weights_carry_when_their_push_was_taken_done_and_released():
    setup = Setup()
    setup.iteration(0, 1.0)
    setup.iteration(1, 3.0)
    (first, (ack, weights)), (second, (_, other)) = setup.record.sent
    assert (first, second) == (0, 1)
    # two pushes take a second; worker 0's was dealt with at once, since it led to no step
    assert weights.payload == (WHOLE, 1, 1.0, 1.0, 1.0, 4.0, 4.25)
    assert ack == Ack(0, 0, 0, Taken(1.0, 1.0))
    assert other.payload[2:4] == (3.0, 4.0)
    assert other.payload.sent_s == 4.5  # after the other answer
    assert setup.record.rates == [1.0]


def test_a_push_is_done_when_the_last_step_that_it_led_to_is():
    """A policy that decides for all ranges steps on both of them with the last push of either."""
    setup = Setup(sync="backup:0", ranges="layers")
    setup.iteration(0, 1.0)
    setup.iteration(1, 3.0)
    of_last = [frame[-1].payload for worker, frame in setup.record.sent if worker == 1]
    assert [(answer.taken_s, answer.done_s) for answer in of_last] == [(3.0, 3.0), (3.0, pytest.approx(4.0))]
    assert all(answer.released_s >= answer.done_s for answer in of_last)


def test_the_run_ends_with_its_budget_and_what_comes_later_is_not_heard():
    setup = Setup(sync="asp", pushes=2)
    setup.iteration(0, 1.0)
    setup.iteration(1, 3.0)
    assert (setup.driver.outcome, setup.driver.ended_s, setup.accounts.applied) == ("budget", 3.5, 2)
    setup.iteration(0, 5.0, 1, 1)
    assert (setup.accounts.applied, setup.driver.refused) == (2, 0)


def test_a_method_ends_the_run_and_says_what_it_found():
    setup = Setup()
    setup.iteration(0, 1.0)
    setup.record.converged = True
    setup.iteration(1, 3.0)
    assert (setup.driver.outcome, setup.driver.ended_s) == ("converged", 4.25)
    assert setup.driver.facts() == {"pass_iterations": 1024 // (2 * 16), "ranges": 1, "said": True}


def test_what_holds_nothing_takes_no_time():
    setup = Setup(sync="downpour:2,4", workers=2)
    for iteration, size_bytes in ((0, 0), (1, WHOLE)):
        begun_s = setup.clock.at = 10.0 * iteration
        setup.driver.receive([Push(0, 0, iteration, iteration, PushInfo(size_bytes, 0, 0.5)),
                              Pull(0, 0, iteration + 1, iteration, Wanted(0, 0))])  # fmt: skip
        assert setup.clock.at == begun_s + 0.25 + 0.5 * bool(size_bytes)


def test_a_worker_that_left_lets_the_others_go_on_and_is_forgotten():
    setup = Setup()
    setup.iteration(0, 1.0)
    setup.driver.receive([Gone(1), Gone(1)])
    assert setup.record.left == [1]
    assert [(worker, type(frame[-1])) for worker, frame in setup.record.sent] == [(0, Weights)]
    assert setup.driver.machine.workers == (0,)


@pytest.mark.parametrize(("rate", "computing"), [("constant", [[], []]), ("dynsgd", [[0, 0], [0]])])
def test_a_store_is_told_the_versions_in_use_if_the_rate_joins_them(rate: str, computing: list[list[int]]):
    setup = Setup(sync="asp", rate=rate, workers=3)
    for worker in (0, 1):
        setup.driver.receive([Push(worker, 0, 0, 0, PushInfo(WHOLE, setup.job.parts[0].size, 0.5))])
    assert setup.record.computing == computing


def test_a_push_counts_even_if_its_worker_left_before_the_last_range_was_applied():
    setup = Setup(ranges="layers")
    gradients = [PushInfo(WHOLE, part.size, 0.5) for part in setup.job.parts]
    for worker, index in ((0, 0), (0, 1), (1, 0)):
        setup.driver.receive([Push(worker, index, 0, 0, gradients[index])])
    setup.driver.receive([Gone(0), Push(1, 1, 0, 0, gradients[1])])
    assert setup.accounts.applied == 2


def test_a_gradient_that_is_not_finite_ends_the_run():
    setup = Setup()
    setup.clock.at = 2.0
    setup.driver.receive([Diverged(1, 7)])
    assert (setup.driver.outcome, setup.driver.ended_s, setup.driver.refused) == ("diverged", 2.0, 1)
    assert setup.driver.diverged == {"worker": 1, "iteration": 7}


def test_what_arrived_is_noted_in_the_order_in_which_it_was_dealt_with():
    setup = Setup(sync="asp")
    setup.iteration(0, 1.0)
    setup.clock.at = 2.0
    setup.driver.leave(0)
    setup.driver.leave(0)  # it is gone already
    assert setup.driver.join(0, 3.0) == 1
    rows = [(ARRIVALS[int(kind)], *map(int, rest), at) for kind, *rest, at in setup.accounts.ledger.arrivals]
    assert rows == [("push", 0, 0, 0, 0, 1.0), ("pull", 0, 0, 1, 0, 1.5), ("leave", 0, -1, -1, -1, 2.0),
                    ("join", 0, -1, 1, -1, 3.0)]  # fmt: skip


def test_a_successor_is_given_what_is_asked_for_in_its_name_once():
    setup = Setup(sync="bsp")
    setup.iteration(1, 1.0)  # worker 1 has pushed, asked, and died
    iteration, frame = setup.driver.succeed(1)
    assert (iteration, frame) == (1, [])  # what it has asked for is still to be answered
    assert setup.driver.succeed(0) == (0, [Pull(0, 0, 0, 0, Wanted(0, setup.job.keyspace.keys, setup.clock.at))])
    setup.driver.receive(setup.driver.succeed(0)[1])
    assert [(worker, frame[-1].iteration) for worker, frame in setup.record.sent] == [(0, 0)]
    setup.iteration(0, 4.0)
    assert [(worker, frame[-1].iteration) for worker, frame in setup.record.sent[1:]] == [(1, 1), (0, 1)]
    assert setup.record.left == []
    assert setup.driver.refused == 0


def test_a_successor_of_a_worker_that_has_pushed_a_part_of_an_iteration_leaves_and_joins():
    setup = Setup(sync="asp", ranges="layers")
    setup.driver.receive([Push(1, 0, 0, 0, PushInfo(WHOLE, setup.job.parts[0].size, 0.5))])
    iteration, frame = setup.driver.succeed(1)
    assert (iteration, [pull.range for pull in frame]) == (1, [0, 1])
    kinds = [ARRIVALS[int(row[0])] for row in setup.accounts.ledger.arrivals]
    assert kinds == ["push", "leave", "join"]
    assert setup.record.left == [1]


def test_a_successor_of_a_worker_whose_request_has_overtaken_its_push_leaves_and_joins():
    """That push never comes, and what is asked for again is of the iteration before."""
    setup = Setup(sync="ssp:1", ranges="layers")
    setup.driver.receive([Pull(1, 1, 1, 0, Wanted(0, 0))])
    iteration, frame = setup.driver.succeed(1)
    assert (iteration, [pull.range for pull in frame]) == (0, [0, 1])
    setup.driver.receive(frame)
    assert sorted((worker, sent[-1].range, sent[-1].iteration) for worker, sent in setup.record.sent) == [
        (1, 0, 0), (1, 1, 0)]  # fmt: skip


def test_what_comes_after_its_workers_lease_or_before_its_turn_is_refused_and_counted():
    setup = Setup(sync="asp")
    setup.driver.receive([Push(0, 0, 1, 0, PushInfo(WHOLE, 1, 0.5))])  # before iteration 0
    assert (setup.record.rates, setup.driver.refused) == ([], 1)
    setup.iteration(0, 2.0)
    setup.iteration(0, 3.0)  # once more
    assert (len(setup.record.rates), setup.driver.refused) == (1, 3)
    setup.driver.leave(1)
    setup.iteration(1, 4.0)
    assert (len(setup.record.rates), setup.driver.refused) == (1, 5)


def test_a_worker_that_is_back_hears_nothing_of_what_it_pushed_before_it_left():
    setup = Setup(sync="asp")
    setup.clock.at = 1.0
    setup.driver.receive([Push(0, 0, 0, 0, PushInfo(WHOLE, 1930, 0.5))])  # its acknowledgement waits for weights
    setup.driver.leave(0)
    assert setup.driver.join(0, 5.0) == 1
    setup.clock.at = 6.0
    setup.driver.receive([Pull(0, 0, 1, 0, Wanted(0, 0, 6.0))])
    ((worker, (weights,)),) = setup.record.sent
    assert (worker, type(weights)) == (0, Weights)
    assert (weights.payload.taken_s, weights.payload.done_s) == (6.0, 6.0)  # of its push there is none any more


def test_a_rate_is_given_the_staleness_that_an_eager_worker_has_seen():
    """Its own push, which it added to its weights, is no staleness to it."""
    setup = Setup(sync="eager:2", rate="modulated:inverse", push_weight=1.0)
    for worker, iteration, seen in ((0, 0, 0), (0, 1, 0), (1, 0, 2)):
        gradient = PushInfo(WHOLE, 1930, 0.5)
        setup.driver.receive([Pull(worker, 0, iteration + 1, 0, Wanted(0, 0)),
                              Push(worker, 0, iteration, 0, gradient, seen)])  # fmt: skip
    assert setup.record.rates == [1.0, 1.0, pytest.approx(1 / 3)]


def test_a_push_is_as_stale_as_what_it_was_computed_on_whatever_others_have():
    setup = Setup(sync="downpour:3,1", rate="dynsgd:stalest")
    for iteration in range(3):
        setup.iteration(1, 1.0, iteration)  # it fetches with the last one
    for iteration in range(2):
        setup.iteration(0, 2.0, iteration)  # still on the initial weights
    assert setup.record.rates[-1] == pytest.approx(1 / (1 + 4))
    setup.iteration(1, 3.0, 3, version=3)  # but worker 0 still computes on the initial weights
    assert setup.record.rates[-1] == pytest.approx(1 / (1 + 5))
