"""A history of another policy is found, and a policy is judged by its own decisions as far as the record allows."""

from __future__ import annotations

import numpy as np
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
     ("backup:1", "bsp", "the policy cannot drop any"), ("backup:2", "backup:1", "the policy makes it of"),
     ("bsp", "backup:1", "the policy makes it of"), ("local:3", "bsp", "the server applied 27 pushes, the table has 9"),
     ("local:3", "local:2", "the server applied 27 pushes, the table has 18"),
     ("bsp", "local:3", "pushes were applied; the budget is 30"),
     ("local:3", "ssp:0", "the server applied 27 pushes, the table has 9")],
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
    assert verdict.checked[-1].startswith("the policy's decisions, replayed")
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


def test_a_policy_that_reads_the_clock_is_not_judged_by_times_that_are_not_recorded():
    verdict = judge(*history(Clocked(), {**UNEVEN, "apply_s": 0.071}, workers=4))
    assert_valid(verdict)
    assert "they depend on what the record does not contain" in verdict.unjudged[0]


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


def test_what_cannot_be_replayed_is_not_judged():
    wanted, tables, facts = history(Holding(), UNEVEN, workers=4)
    assert judge(wanted, tables, facts).verdict in ("valid", "invalid")
    # two pushes in one version: the order of application does not tell when their workers sent the next requests
    pairs = tables["pushes"].assign(version_applied=np.repeat(np.arange(1, 16), 2)[: len(tables["pushes"])])
    pairs["staleness"] = pairs.version_applied - 1 - np.minimum(pairs.version_pulled, pairs.version_applied - 1)
    pairs["version_pulled"] = pairs.version_applied - 1 - pairs.staleness
    verdict = judge(wanted, {"pushes": pairs}, facts)
    assert not any("replayed" in name for name in verdict.checked)
