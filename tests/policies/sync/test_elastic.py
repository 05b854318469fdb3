"""ElasticBSP against hand-computed traces; whatever is predicted, whoever comes or goes, nobody waits for ever."""

from __future__ import annotations

import random

import pytest
from simulate import simulate

from pslab.config.spec import build
from pslab.errors import ConfigError
from pslab.policies.planning.zipline import ZIPLINES
from pslab.policies.sync.asp import ASP
from pslab.policies.sync.bsp import BSP
from pslab.policies.sync.elastic import ElasticBSP, Row, State
from pslab.policies.sync.ssp import SSP
from pslab.protocol.messages import Apply, Asked, Left, Pushed, Searched, Start
from pslab.protocol.window import Window

SPEEDS = [1.0, 1.37, 2.11, 2.9]


def test_the_vector_by_hand():
    trace = simulate(ElasticBSP(4), [2, 3], 24)
    assert trace.pushes == {0: [2.0 * n for n in range(1, 13)], 1: [3.0 * n for n in range(1, 9)]}
    assert trace.waited == {0: 0, 1: 0}
    assert trace.searched == [(6, 8), (18, 8)]  # barriers at 12 and 24
    assert not any(step.aggregate for step in trace.steps)
    assert len(trace.steps) == 20


def test_a_barrier_holds_who_is_there_first():
    trace = simulate(ElasticBSP(1), [2, 3], 15)  # predicted: 8 and 9; 9 it is, then 11, 12, 13, 15, 15
    assert trace.pushes == {0: [2, 4, 6, 8, 11, 13, 15], 1: [3, 6, 9, 12, 15]}
    assert trace.waited == {0: 1, 1: 0}


@pytest.mark.parametrize(("sync", "pushes", "waited"), [
    (BSP(), 413, None), (SSP(3), 422, None), (ASP(), 763, [0, 0, 0, 0]), (ElasticBSP(15), 754, [1.3, 0, 5.7, 10.8]),
])  # fmt: skip
def test_throughput(sync, pushes, waited):
    trace = simulate(sync, SPEEDS, 300)
    assert sum(map(len, trace.pushes.values())) == pushes
    if waited:
        assert [trace.waited[worker] for worker in range(4)] == pytest.approx(waited, abs=0.05)


@pytest.mark.parametrize("search", ZIPLINES)
@pytest.mark.parametrize("predict", ["last", "median", "ewma"])
def test_where_intervals_are_constant_every_search_and_prediction_is_the_same(search, predict):
    usual, other = (simulate(sync, SPEEDS, 100) for sync in (ElasticBSP(15), ElasticBSP(15, search, predict)))
    assert other.searched == usual.searched
    for worker in range(4):  # averages round otherwise
        assert other.pushes[worker] == pytest.approx(usual.pushes[worker])


def test_the_last_push_as_the_first_prediction():
    """The authors' program: at 6 the pushes at 6 are the best plan. But worker 0 has gone on already, until 8."""
    trace = simulate(ElasticBSP(4, include_last=True), [2, 3], 24)
    assert trace.searched == [(6, 8), (14, 8), (22, 8)]
    assert trace.pushes == {0: [2.0 * n for n in range(1, 13)], 1: [3, 6, 11, 14, 19, 22]}
    assert trace.waited == {0: 0, 1: 6}


@pytest.mark.parametrize("compute_s", [[1, 4], [2, 3, 7], SPEEDS])
def test_duplicates_change_nothing(compute_s):
    for sync in (ElasticBSP(3), ElasticBSP(3, include_last=True)):
        once, twice = (simulate(sync, compute_s, 60, copies=n) for n in (1, 2))
        assert (twice.pushes, twice.waited, twice.searched) == (once.pushes, once.waited, once.searched)
        assert twice.refused


# -- predictions -----------------------------------------------------------------------------------------


def interval(sync: ElasticBSP, pushes_s: list[float]) -> float:
    """What the policy predicts of a worker that has pushed at these instants."""
    row = Row(0)
    for iteration, now in enumerate(pushes_s):
        row = sync._pushed(row, iteration, now)
    first, second = sync._ends(row)[:2]
    assert first == pytest.approx(pushes_s[-1] + second - first)
    return second - first


@pytest.mark.parametrize(("sync", "expected"), [
    (ElasticBSP(), 9), (ElasticBSP(predict="median"), 3), (ElasticBSP(predict="median", k=2), 5.5),
    (ElasticBSP(predict="median", k=3), 4), (ElasticBSP(predict="median", k=1), 9),
    (ElasticBSP(predict="ewma", weight=0.5), 5.8125), (ElasticBSP(predict="ewma", weight=1.0), 9),
])  # fmt: skip
def test_intervals(sync, expected):
    assert interval(sync, [0, 2, 5, 9, 11, 20]) == pytest.approx(expected)


def test_time_at_a_barrier_is_no_interval():
    """With k = 9 all intervals count; worker 0 waits at each barrier, and its median stays 2."""
    sync, seen = ElasticBSP(1, predict="median", k=9), set()

    class Watching(ElasticBSP):
        def _ends(self, row):
            seen.update((row.worker, each) for each in row.intervals_s)
            return super()._ends(row)

    assert simulate(Watching(1, "sweep", "median", 9), [2, 3.5], 200).waited[0] > 10
    assert seen == {(0, 2), (1, 3.5)}
    assert sync.k == 9


# -- one step at a time ---------------------------------------------------------------------------------


class Told:
    """A policy, its state and the clocks: events in, decisions out."""

    def __init__(self, sync, workers: int) -> None:
        self.sync, self.state = sync, sync.initial(tuple(range(workers)))
        self.clocks = Window(workers, None)

    def push(self, worker, iteration, now):
        return self.tell(Pushed(worker, iteration, now, self.clocks.push(iteration)))

    def ask(self, worker, iteration, now=0.0):
        return self.tell(Asked(worker, iteration, now))

    def leave(self, worker, clock):
        return self.tell(Left(worker, 0.0, self.clocks.leave(clock)))

    def tell(self, event):
        self.state, decisions = self.sync.step(self.state, event, self.clocks)
        return decisions


def planned(workers: int = 2) -> Told:
    """Everybody has pushed twice, at 1 and 2 s, and computes iteration 2; one more of each is planned."""
    told = Told(ElasticBSP(1), workers)
    for iteration in range(2):
        for worker in range(workers):
            decisions = told.push(worker, iteration, iteration + 1.0)
            assert decisions[0] == Apply(worker, iteration)
        for worker in range(workers):
            assert told.ask(worker, iteration + 1) == (Start(worker, iteration + 1),)
    assert decisions[1:] == (Searched(workers),)
    assert told.state.planned
    return told


def test_all_are_started_together_when_the_last_one_asks():
    told = planned()
    told.push(1, 2, 3.0)
    assert told.ask(1, 3) == ()
    assert told.push(0, 2, 9.0) == (Apply(0, 2),)
    assert told.ask(0, 3) == (Start(0, 3), Start(1, 3))
    assert told.state == State(frozenset({Row(0, 3, 3, intervals_s=(7.0,)), Row(1, 3, 3, intervals_s=(1.0,))}))


def test_who_asks_again_for_what_it_computes_does_not_wait():
    told = Told(ElasticBSP(1, include_last=True), 2)
    for worker, iteration in ((0, 0), (1, 0), (0, 1)):
        told.push(worker, iteration, iteration + 1.0)
        assert told.ask(worker, iteration + 1) == (Start(worker, iteration + 1),)
    assert told.push(1, 1, 2.0) == (Apply(1, 1), Searched(2))  # the plan: nobody goes on
    assert told.ask(0, 2) == (Start(0, 2),)  # it has
    assert told.ask(1, 2) == ()
    told.push(0, 2, 3.0)
    assert told.ask(0, 3) == (Start(0, 3), Start(1, 2))


def test_the_one_that_is_awaited_leaves():
    told = planned()
    told.push(1, 2, 3.0)
    told.ask(1, 3)
    assert told.leave(0, 2) == (Start(1, 3),)
    assert told.push(1, 3, 5.0) == (Apply(1, 3),)
    assert told.ask(1, 4) == (Start(1, 4),)


def test_one_that_waits_leaves():
    told = planned()
    told.push(1, 2, 3.0)
    told.ask(1, 3)
    assert told.leave(1, 3) == ()
    told.push(0, 2, 4.0)
    assert told.ask(0, 3) == (Start(0, 3),)


def test_one_whose_interval_was_not_known_leaves():
    told = Told(ElasticBSP(2), 2)
    for iteration in range(3):
        told.push(0, iteration, iteration + 1.0)
        told.ask(0, iteration + 1)
    assert told.leave(1, 0) == (Searched(2),)


def test_everybody_leaves_and_one_comes():
    told = planned()
    assert told.leave(0, 2) == told.leave(1, 2) == ()
    assert told.state == State(frozenset())
    told.clocks.join(2)
    assert told.ask(1, 2) == (Start(1, 2),)


def test_who_joins_before_the_plan_is_part_of_it():
    told = Told(ElasticBSP(1), 1)
    told.push(0, 0, 1.0)
    told.clocks.join(1)
    assert told.ask(1, 1) == (Start(1, 1),)
    for iteration in range(1, 4):
        assert told.ask(0, iteration) == (Start(0, iteration),)
        assert told.push(0, iteration, iteration + 1.0) == (Apply(0, iteration),)
    assert told.push(1, 1, 4.0) == (Apply(1, 1),)
    assert told.push(1, 2, 5.0) == (Apply(1, 2), Searched(2))


def test_who_joins_while_a_barrier_is_awaited_waits_for_it():
    told = planned()
    told.clocks.join(2)
    assert told.ask(2, 2) == ()
    for worker in (0, 1):
        told.push(worker, 2, 3.0)
    assert told.ask(0, 3) == ()
    assert told.ask(1, 3) == (Start(0, 3), Start(1, 3), Start(2, 2))


def test_who_joins_and_asks_after_the_barrier():
    told = planned()
    told.clocks.join(2)
    for worker in (0, 1):
        told.push(worker, 2, 3.0)
    told.ask(0, 3)
    assert told.ask(1, 3) == (Start(0, 3), Start(1, 3))
    assert told.ask(2, 2) == (Start(2, 2),)


@pytest.mark.parametrize("seed", range(40))
def test_nobody_waits_for_ever_whatever_the_instants(seed):
    """Workers at random speeds, under a policy that is told other instants than those at which things happen."""
    rng = random.Random(seed)
    workers = rng.randint(1, 4)

    class Lied(ElasticBSP):
        def step(self, state, event, clocks):
            now = self.clock[0] = self.clock[0] + rng.choice((0.0, 0.0, 1e-9, 1.0, 1e6))
            return super().step(state, event._replace(now=now), clocks)

    Lied.clock = [0.0]
    sync = Lied(rng.randint(1, 6), include_last=bool(seed % 2), predict=rng.choice(("last", "median", "ewma")))
    speeds = [rng.uniform(0.1, 3) for _ in range(workers)]
    half, whole = (simulate(sync, speeds, until_s) for until_s in (100, 200))
    assert all(len(whole.pushes[worker]) > len(half.pushes[worker]) + 3 for worker in range(workers))
    assert len(whole.searched) > 1


@pytest.mark.parametrize(("text", "words"), [
    ("elastic:0", "iterations=0: must be"), ("elastic:15,k=0", "k=0: must be"),
    ("elastic:15,weight=0", "weight=0.0: must be a number above 0"), ("elastic:15,search=optb", "did you mean 'optbs'"),
    ("elastic:15,predict=mean", "allowed: ewma, last, median"),
])  # fmt: skip
def test_what_is_refused(text, words):
    with pytest.raises(ConfigError, match=words):
        build("sync", text)


def test_strings():
    assert build("sync", "elastic") == build("sync", "elastic:15") == ElasticBSP(15)
    assert build("sync", "elastic:4,lru,predict=median,k=3,include_last=on") == (
        ElasticBSP(4, "lru", "median", 3, include_last=True)
    )
    assert ElasticBSP().window is None
