"""A history of another policy is found, and a policy is judged by its own decisions as far as the record allows."""

from __future__ import annotations

from math import isqrt

import pytest
from histories import UNEVEN, assert_invalid, assert_valid, fresh, history

from pslab.config.spec import build
from pslab.lab.judge.verdict import judge
from pslab.policies.sync.asp import ASP
from pslab.policies.sync.eager import Eager
from pslab.protocol.messages import Aggregate, Apply, Asked, Pushed, Start


@pytest.mark.parametrize(
    ("made", "policy", "words"),
    [("ssp:2", "ssp:1", "worker 0 had pushed 0 iterations: 2 ahead, and a window of 2 allows 1"),
     ("asp", "ssp:2", "and a window of 3 allows 2"), ("asp", "bsp", "the policy claims a barrier"),
     ("ssp:0", "bsp", "the policy claims a barrier"), ("bsp", "ssp:0", "the policy makes it of worker"),
     ("ssp:1", "ssp:2", "the policy starts it on version"),  # it waited without need
     ("ssp:1", "asp", "the policy starts it on version"), ("asp", "eager", "were requested before that push"),
     ("eager", "asp", "lacks the worker's own push"), ("eager", "eager:1", "and a window of 2 allows 1"),
     ("eager:1", "eager:3", "the policy starts it on version"),  # it waited without need
     ("backup:1", "bsp", "and a window of 1 allows 0"), ("backup:2", "backup:1", "the policy makes it of"),
     ("bsp", "backup:1", "the policy makes it of"), ("backup:0", "backup:1", "the policy makes it of"),
     ("backup:1", "backup:0", "the policy does not start it"),
     ("local:3", "bsp", "computed iteration 0 for 9.06983883 s; the cluster's is 3.1580"),
     ("local:3", "local:2", "computed iteration 0 for 9.06983883 s; the cluster's is 6.0162"),
     ("bsp", "local:3", "the cluster's is 9.06983883 s"),
     ("local:3", "ssp:0", "the cluster's is 3.1580")],
)  # fmt: skip
def test_a_history_of_another_policy_is_found(made, policy, words):
    wanted, tables, facts = fresh(made)
    assert_invalid(judge(wanted.but(sync=build("sync", policy)), tables, facts), words)


class Pairs:
    """A user's policy: any two pushes make a step; then both workers continue."""

    window = None

    def initial(self, workers):
        return ()

    def step(self, state, event, clocks):
        match event:
            case Pushed(worker, iteration):
                held = (*state, (worker, iteration))
                if len(held) < 2:
                    return held, ()
                starts = tuple(Start(w, i + 1) for w, i in held if w != worker)
                return (), (Aggregate(held), *starts)
            case Asked(worker, iteration) if (worker, iteration - 1) not in state:
                return state, (Start(worker, iteration),)
        return state, ()


def test_a_policy_that_holds_pushes_is_judged_by_its_own_decisions():
    verdict = judge(*history(Pairs(), workers=4))
    assert_valid(verdict)
    assert verdict.checked[-1] == "the policy's decisions, replayed"
    wanted, tables, facts = history("asp", workers=4)
    assert "the policy makes it of" in judge(wanted.but(sync=Pairs()), tables, facts).violations[0]


class Clocked(ASP):
    """A policy that reads the clock: a worker that pushes in an odd millisecond is held until the next push."""

    def initial(self, workers):
        return False, ()

    def step(self, state, event, clocks):
        odd, held = state
        match event:
            case Asked(worker, iteration) if odd:
                return (odd, (*held, (worker, iteration))), ()
            case Asked(worker, iteration):
                return state, (Start(worker, iteration),)
            case Pushed(worker, iteration, now):
                starts = tuple(Start(*waiting) for waiting in held)
                return (int(1000 * now) % 2 == 1, ()), (Apply(worker, iteration), *starts)
        return state, ()


def test_a_policy_that_reads_the_clock_is_judged_by_the_instants_that_it_read():
    wanted, tables, facts = history(Clocked(), {**UNEVEN, "apply_s": 0.071}, workers=4)
    assert_valid(judge(wanted, tables, facts))
    later = tables["arrivals"].assign(seconds=tables["arrivals"].seconds + 0.001)
    assert_invalid(judge(wanted, {**tables, "arrivals": later}, facts))


class Moody(ASP):
    """A policy that breaks its contract: it counts its own calls, and holds pushes more and more rarely."""

    def __init__(self):
        self.calls = 0

    def step(self, state, event, clocks):
        self.calls += 1
        state, decisions = super().step(state, event, clocks)
        return state, decisions if isqrt(self.calls) ** 2 < self.calls or isinstance(event, Asked) else ()


def test_a_policy_that_decides_differently_each_time_is_found():
    assert_invalid(judge(*history(Moody(), workers=4)), "was never applied")


class Holding(Eager):
    """An eager policy that holds every other push until the next one arrives."""

    def initial(self, workers):
        return ()

    def step(self, state, event, clocks):
        _, decisions = super().step(None, event, clocks)
        applied = tuple(each for each in decisions if isinstance(each, Apply))
        starts = tuple(each for each in decisions if isinstance(each, Start))
        if not applied:
            return state, starts
        held = (*state, *applied)
        return (held, starts) if len(held) < 2 else ((), (*held, *starts))


def test_an_eager_policy_that_holds_pushes_is_judged_by_its_own_decisions():
    wanted, tables, facts = history(Holding(), UNEVEN, workers=4)
    verdict = judge(wanted, tables, facts)
    assert_valid(verdict)
    assert verdict.checked[-1] == "the policy's decisions, replayed"
    assert_invalid(judge(wanted.but(sync="eager"), tables, facts), "the policy starts it on version 1")
