"""The judge: every true run is valid; a changed record, a bug of protocol or policy, and another policy are found."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pandas as pd
import pytest
from bugs import CHECKED, Bug, server, ssp
from histories import fresh, history
from ownpolicies import AtMost, ByLoss
from tiny import tiny
from tools.chaos.draw import drawn

from pslab.config.run import Run
from pslab.engines.execute import execute
from pslab.lab.judge import Verdict, judge, tables_of
from pslab.lab.runs.resolve import resolve
from pslab.policies.sync.asp import ASP
from pslab.protocol.messages import Apply, Asked, Pushed, Start

Change = Callable[[pd.DataFrame], pd.DataFrame]


def made(wanted: Run) -> tuple[Run, dict[str, pd.DataFrame], dict[str, Any]]:
    """A run with its tables and facts, of which the verdict is one."""
    tables, _, facts = tables_of(wanted, execute(resolve(wanted), lambda news: None))
    return wanted, tables, facts


def assert_invalid(verdict: Verdict, words: str = "") -> None:
    assert (verdict.verdict, words in verdict.why) == ("invalid", True), verdict


# --- records and their changes ----------------------------------------------------------------------------------------


def another(row: int, name: str, by: float) -> Change:
    """One number of one row is another one."""
    return lambda table: table.assign(**{name: table[name] + by * (table.index == table.index[row])})


def without(row: int) -> Change:
    return lambda table: table.drop(index=table.index[row])


PUSHED = ["kind", "worker", "range", "iteration"]


def copies(table: pd.DataFrame, number: int) -> pd.Series:
    """Which arrivals are those of this push; it may have come twice."""
    return (table[PUSHED] == table[table.kind == "push"].iloc[number][PUSHED]).all(axis=1)


CHANGES: dict[str, tuple[str, Change]] = {
    "a push is missing": ("pushes", without(3)),
    "the last push is missing": ("pushes", without(-1)),
    "a push is there twice": ("pushes", lambda table: pd.concat([table, table[-1:]])),
    "a push is on older weights": ("pushes", another(3, "version_pulled", -1)),
    "a staleness is larger": ("pushes", another(3, "staleness", 1)),
    "a step is missing": ("pushes", another(3, "version_applied", 1)),
    "a push is of another worker": ("pushes", another(3, "worker", 1)),
    "a push is applied before it arrives": ("pushes", another(3, "seconds", -1e3)),
    "a push has not arrived": ("arrivals", lambda table: table[~copies(table, 3)]),
    "a push arrives twice": ("arrivals", lambda table: pd.concat([table, table[table.kind == "push"][:1]])),
    "a push arrives before earlier ones": ("arrivals", lambda table: table.assign(
        seconds=table.seconds - 1e3 * (table.index == table.index[table.kind == "push"][3]))),
    "a wait is for another worker": ("phases", lambda table: table.assign(
        waits_for=table.waits_for.where((table.phase != "wait") | (table.iteration != 1), 7))),
}  # fmt: skip


@pytest.mark.parametrize(("first", "end"), [(0, 12), pytest.param(12, 120, marks=pytest.mark.slow)])
def test_a_drawn_run_is_valid_and_with_any_change_of_its_record_it_is_not(first: int, end: int):
    """Of every policy, with layers, several servers, faults, workers that leave, join, and are replaced."""
    waits = 0
    for number in range(first, end):
        wanted, tables, facts = made(drawn(43, number, "timing"))
        assert facts["verdict"] == ("valid" if facts["pushes"] else "unknown"), (number, facts)
        for what, (name, change) in CHANGES.items():
            if len(tables["pushes"]) < 4 or name == "phases":
                continue
            verdict = judge(wanted, {**tables, name: change(tables[name])}, facts)
            assert verdict.verdict == "invalid", (number, what)
        for name in ("pushes", "accepted", "dropped"):
            assert_invalid(judge(wanted, tables, {**facts, name: facts[name] + 1}), "the manifest counts")
        changed = CHANGES["a wait is for another worker"][1](tables["phases"])
        waits += judge(wanted, {**tables, "phases": changed}, facts).verdict == "invalid"
    assert waits > (end - first) / 3  # of some runs iteration 1 has no wait


# --- bugs -------------------------------------------------------------------------------------------------------------

CLUSTER = {"cluster": {"compute_s": 0.02, "latency_s": 0.0005, "slow": {0: 4.0}}, "workers": 2}
OWN = [
    server("a push is applied twice", "tuple([waiting.pop(name) for name in names])",
           "2 * tuple([waiting[name] for name in names])", policy="asp"),
    ssp("every third push is dropped", "return state, (Apply(worker, iteration), *starts)",
        "return state, (*(() if iteration % 3 == 1 else (Apply(worker, iteration),)), *starts)"),
    server("pushes are counted twice", "self.gradients += push.steps", "self.gradients += 2 * push.steps",
           policy="asp"),
    ssp("workers are held too long", "iteration <= clocks.base + self.staleness:",
        "iteration < clocks.base + self.staleness:", policy="ssp:2"),
]  # fmt: skip
#: Of the checker's list, with the budget that a run with the bug reaches.
LISTED = {"the low bound rises before the last worker has pushed": 24, "staleness has no bound": 5,
          "a reply reports the version before": 24, "a step makes no version": 24,
          "a push is never applied": 4}  # fmt: skip
SEEDED = [(bug, 24) for bug in OWN] + [(bug, LISTED[bug.name]) for bug in CHECKED if bug.name in LISTED]


@pytest.mark.parametrize(("bug", "pushes"), SEEDED, ids=lambda given: getattr(given, "name", given))
def test_a_run_by_code_with_a_bug_is_invalid_for_code_without_it(bug: Bug, pushes: int):
    sync = "asp" if bug.name in ("a step makes no version", "a push is never applied") else bug.policy
    with pytest.MonkeyPatch.context() as patch:
        bug.seed(patch)
        wanted, tables, facts = history(sync, pushes=pushes, **CLUSTER)
    assert_invalid(judge(wanted, tables, facts))
    assert judge(*history(sync, pushes=pushes, **CLUSTER)) == Verdict("valid")


@pytest.mark.parametrize(("policy", "others"), [
    ("bsp", "ssp:0 backup:1 local:3"), ("ssp:1", "ssp:2 asp"), ("ssp:2", "ssp:1"), ("asp", "ssp:2 bsp"),
    ("eager", "asp eager:1"), ("eager:1", "eager:3"), ("backup:1", "bsp backup:0"), ("backup:2", "backup:1"),
    ("local:3", "bsp local:2")])  # fmt: skip
def test_a_history_of_another_policy_is_found(policy: str, others: str):
    wanted, tables, facts = fresh(policy)
    assert judge(wanted, tables, facts) == Verdict("valid")
    for other in others.split():
        assert_invalid(judge(wanted.but(sync=other), tables, facts))


# --- policies of a user -----------------------------------------------------------------------------------------------


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


def test_a_policy_of_a_user_is_judged_by_its_own_decisions():
    cluster = {"compute_s": 1.0, "slow": {0: 3.0}, "latency_s": 0.01, "compute_sigma": 0.1, "apply_s": 0.071}
    for policy in (AtMost(2, 4), Clocked()):
        wanted, tables, facts = history(policy, cluster, workers=4)
        assert judge(wanted, tables, facts) == Verdict("valid")
        assert_invalid(judge(wanted.but(sync="asp"), tables, facts))
    later = tables["arrivals"].assign(seconds=tables["arrivals"].seconds + 0.001)
    assert_invalid(judge(wanted, {**tables, "arrivals": later}, facts))


@pytest.mark.parametrize(("ranges", "drops"), [*product(["whole", "layers"], [False, True])])
def test_a_policy_that_reads_losses_is_replayed_with_those_of_the_record(ranges, drops):
    """Pushes that were dropped have none there: then nothing is shown."""
    cluster = {"preset": "lab", "slow": {0: 3.0}}
    wanted, tables, facts = made(tiny(engine="virtual", cluster=cluster, sync=ByLoss(2.25, drops=drops), ranges=ranges,
                                      workers=3))  # fmt: skip
    losses = tables["pushes"].loss
    assert losses.min() < 2.25
    if drops:
        assert (losses.max() < 2.25, facts["dropped"] > 0, facts["verdict"]) == (True, True, "unknown")
        assert "the record lacks the losses of pushes that were not applied" in facts["unjudged"][0]
    else:
        assert (losses.max() > 2.25, facts["verdict"]) == (True, "valid")
        assert_invalid(judge(wanted, {**tables, "pushes": tables["pushes"].assign(loss=2.0)}, facts))


# --- ends -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("held", [False, True])
def test_a_stop_at_a_target_needs_the_accuracy(held: bool):
    wanted, tables, facts = made(tiny(engine="virtual", cluster={"compute_s": 1.0}, pushes=None, target_accuracy=0.2,
                                      target_held=held, eval_every=12))  # fmt: skip
    assert (facts["outcome"], facts["verdict"]) == ("target", "valid")
    less = tables["accuracy"].assign(accuracy=[0.1] * (len(tables["accuracy"]) - 1) + [0.9 if held else 0.19])
    assert_invalid(judge(wanted, {**tables, "accuracy": less}, facts), "which the replay does not reach")


@pytest.mark.parametrize(("outcome", "fields", "words"), [
    ("budget", {"pushes": 31}, "which the replay does not reach"), ("seconds", {}, "which the replay does not reach"),
    ("budget", {"pushes": 29}, "was accepted after the budget of 29 pushes was used up"),
    ("target", {}, "which the replay does not reach"), ("converged", {}, "which the replay does not reach"),
    ("stalled", {}, "the run stalled")])  # fmt: skip
def test_a_run_ends_by_the_rule_that_its_manifest_names(outcome, fields, words):
    wanted, tables, facts = fresh("ssp:1")
    assert_invalid(judge(wanted.but(**fields), tables, {**facts, "outcome": outcome}), words)


def killed(tables, facts):
    """A server was killed between the rows of an arrival and of its push."""
    last = tables["arrivals"].index[tables["arrivals"].kind == "push"][-1]
    tables["arrivals"], tables["pushes"] = tables["arrivals"].loc[:last], tables["pushes"].iloc[:-1]
    facts.update(outcome="interrupted")
    facts.pop("accepted")


def test_an_incomplete_history_and_a_run_of_an_unknown_policy_are_unknown():
    for change, why in (
        (lambda tables, facts: tables.pop("arrivals"), "the record has no table of arrivals"),
        (lambda tables, facts: facts.update(outcome="interrupted"), "the run was interrupted"),
        (killed, "the run was interrupted"),
    ):  # fmt: skip
        wanted, tables, facts = fresh("ssp:1")
        change(tables, facts)
        verdict = judge(wanted, tables, facts)
        assert (verdict.verdict, why in verdict.why) == ("unknown", True)
        assert verdict.facts() == {"verdict": "unknown", "unjudged": [verdict.why]}
    for sync in ("class Mine(ASP):\n    pass\n{}", "bps"):
        verdict = judge(wanted.but(sync=sync), *fresh("asp")[1:])
        assert (verdict.verdict, verdict.why[:39]) == ("unknown", "the policy cannot be built from the rec")
