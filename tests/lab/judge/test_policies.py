"""The judge on policies that bend a plain rule: eager workers, local SGD, dropped pushes; and what is still broken."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lab.judge.test_verdict import (
    CLUSTERS,
    UNEVEN,
    WHOLE_NUMBERS,
    forgotten,
    fresh,
    history,
    own,
    plus,
    pulled,
    renumbered,
    span,
)  # fmt: skip
from tiny import tiny

from pslab.lab.judge.verdict import judge
from pslab.lab.runs.run import InvalidRun, run
from pslab.policies.sync.asp import ASP
from pslab.policies.sync.backup import Backup
from pslab.policies.sync.bsp import BSP
from pslab.policies.sync.eager import Eager
from pslab.policies.sync.local_sgd import LocalSGD
from pslab.policies.sync.ssp import SSP

POLICIES = ("eager", "eager:1", "eager:2", "local:1", "local:3", "local:2,after=3", "backup:0", "backup:1", "backup:2")
Change = Callable[[pd.DataFrame], pd.DataFrame]


# --- valid ------------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(POLICIES), CLUSTERS, st.integers(1, 5), st.integers(1, 60), st.integers(0, 9), st.booleans())
def test_every_history_of_the_virtual_engine_is_valid(sync, cluster, workers, pushes, seed, timed):
    stop = {"pushes": None, "seconds": pushes / 3} if timed else {"pushes": pushes}
    cluster = {**cluster, "slow": {w: f for w, f in cluster["slow"].items() if w < workers}}
    wanted, tables, facts = history(sync, cluster, workers=workers, seed=seed, **stop)
    verdict = judge(wanted, tables, facts)
    if facts["pushes"]:
        assert (verdict.verdict, verdict.violations) == ("valid", ())
        # where pushes are dropped, a history may leave open which of two instants came first
        assert not verdict.unjudged or (facts["dropped"] and "they hang on" in verdict.unjudged[0])
        # what comes beside a push whose end is not recorded is not replayed
        if not verdict.unjudged and len(tables["pushes"]) > 2 * workers:
            assert "the policy's decisions, replayed" in verdict.checked[-1]
    else:
        assert verdict.verdict == "unknown"


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(POLICIES), st.sampled_from([0.0, 0.2]), st.floats(0.5, 8), st.floats(0.5, 8), st.integers(0, 2))
def test_workers_that_come_and_go_break_no_rule(sync, latency_s, leave_s, join_s, who):
    moves = {"leave": {who: leave_s}, "join": {who: join_s, (who + 1) % 3: join_s / 2}}
    if leave_s == join_s:
        return
    wanted, tables, facts = history(sync, {"compute_s": 1.0, "compute_sigma": 0.3, "latency_s": latency_s, **moves},
                                    pushes=None, seconds=12.0)  # fmt: skip
    verdict = judge(wanted, tables, facts)
    assert (verdict.verdict, verdict.violations) == ("valid" if facts["pushes"] else "unknown", ())


@pytest.mark.parametrize("engine", ["virtual", "local"])
@pytest.mark.parametrize("sync", ["eager", "eager:1", "local:3", "backup:1"])
def test_real_runs_are_valid(tmp_path, recwarn, engine, sync):
    cluster = {"compute_s": 0.002, "slow": {0: 3.0}}
    fields = {"prune": "static:5%", "pull": "changed"} if sync == "eager" else {}
    result = run(tiny(engine=engine, sync=sync, cluster=cluster, **fields), results=tmp_path, progress=False)
    assert (result.manifest["verdict"], result.manifest["outcome"]) == ("valid", "budget")
    assert (result.manifest["dropped"] > 0) == (sync == "backup:1")
    assert not [w for w in recwarn if issubclass(w.category, InvalidRun)]
    tables = {name: getattr(result, name) for name in ("accuracy", "phases", "pushes")}
    again = judge(result.run, tables, result.manifest)
    assert (again.verdict, again.unjudged) == ("valid", ())
    assert again.checked[-1].startswith("the policy's decisions, replayed")


def test_a_round_of_local_steps_may_end_over_the_budget():
    wanted, tables, facts = history("local:4", pushes=30)
    assert (facts["accepted"], facts["pushes"], len(tables["pushes"])) == (32, 24, 6)  # the third round is not whole
    assert judge(wanted, tables, facts).verdict == "valid"


# --- invalid ----------------------------------------------------------------------------------------------------------


def linked(sync: str):
    """A history over links that take time; without, a request and the push behind it are there at one instant."""
    if not sync.startswith("eager"):
        return fresh(sync)
    wanted, tables, facts = history(sync, {**UNEVEN, "bandwidth_bit_s": 8e5})
    return wanted, {name: table.reset_index(drop=True) for name, table in tables.items()}, facts


def dropped(phases: pd.DataFrame, pushes: pd.DataFrame) -> tuple[int, int]:
    """A push in the middle of the run that was taken and never applied: worker, iteration."""
    taken = phases[phases.phase == "apply"]
    there = set(zip(pushes.worker, pushes.iteration, strict=True))
    lost = [name for name in zip(taken.worker, taken.iteration, strict=True) if name not in there]
    return lost[len(lost) // 2]


def shifted(table: pd.DataFrame, rows: list[int], by: float) -> pd.DataFrame:
    for row in rows:
        table = plus(plus(table, row, "begin_s", by), row, "end_s", by)
    return table


def own_read(pushes: pd.DataFrame) -> pd.DataFrame:
    """As if a worker had asked for its weights after its push, as others do."""
    row = pushes.index[-1]
    return pulled(pushes, row, int(pushes.version_applied[own(pushes, row)] - pushes.version_pulled[row]))


def more_missing(pushes: pd.DataFrame) -> pd.DataFrame:
    """As if a worker computed on weights without its last four pushes; also those before, so that none is older."""
    mine = pushes.index[pushes.worker == 1]
    old = int(pushes.version_applied[mine[2]]) - 1
    for each in mine[3:7]:
        pushes = pulled(pushes, each, min(0, old - int(pushes.version_pulled[each])))
    return pushes


def late_weights(phases: pd.DataFrame) -> pd.DataFrame:
    """As if the weights had come after the push, which ought to wait for them, and the computation had waited."""
    pull, following = span(phases, "pull"), span(phases, "compute", iteration=4)
    phases = plus(phases, following, "begin_s", 0.4)
    return plus(phases, pull, "end_s", float(phases.begin_s[following] - 0.1 - phases.end_s[pull]))


EAGER: dict[str, tuple[str, Change, str]] = {
    "its own push is read": ("pushes", own_read, "the policy is eager: it had asked for them before"),
    "more is missing than it can add": ("pushes", more_missing, "lacks the worker's own push"),
    "other weights": ("pushes", lambda p: pulled(p, 20, 1), "which was made at"),
    "never heard of": ("pushes", lambda p: forgotten(p, p.index[(p.worker == 1) & (p.iteration == 7)][0]),
                       "was never applied: its next push"),
    "asked for before the computation": (
        "phases", lambda p: plus(p, span(p, "wait"), "begin_s", -1.5), "asked for the weights of iteration 4"),
    "pushed before the weights came": (
        "phases", lambda p: late_weights(p), "before the weights behind it were there"),
    "begun before the weights came": (
        "phases", lambda p: plus(p, span(p, "decode"), "end_s", 2.5), "before the weights for it were there"),
    "an answer two iterations ahead": ("phases", lambda p: plus(p, span(p, "pull"), "iteration", 40),
                                       "which it never computed"),
}  # fmt: skip


@pytest.mark.parametrize("name", EAGER)
def test_what_an_eager_worker_must_not_do_is_found(name):
    table, change, words = EAGER[name]
    wanted, tables, facts = linked("eager")
    changed = change(tables[table])
    verdict = judge(wanted, {**tables, table: changed}, {**facts, "pushes": len(tables["pushes"])})
    assert verdict.verdict == "invalid"
    assert any(words in violation for violation in verdict.violations), verdict.violations


def test_an_eager_workers_push_that_is_forgotten_at_its_end_is_found():
    wanted, tables, facts = fresh("eager")
    last = tables["pushes"].index[tables["pushes"].worker == 2]
    changed = tables["pushes"]
    for row in last[-1:-4:-1]:  # two may be in hand
        changed = forgotten(changed, row)
    verdict = judge(wanted, {**tables, "pushes": changed}, {**facts, "pushes": len(changed), "accepted": len(changed)})
    assert "but the worker went on at" in verdict.violations[0] or "stopped at its budget" in verdict.violations[0]
    assert any("but the worker went on at" in violation for violation in verdict.violations)


def test_a_push_that_was_not_dropped_is_missed():
    wanted, tables, facts = late()
    changed = forgotten(tables["pushes"], 12)
    verdict = judge(wanted, {**tables, "pushes": changed}, {**facts, "pushes": len(changed)})
    assert verdict.verdict == "invalid"


def late():
    """Workers that are late by turns."""
    wanted, tables, facts = history("backup:1", {"compute_s": 1.0, "compute_sigma": 0.5, "latency_s": 0.01})
    assert facts["dropped"] > 5
    return wanted, {name: table.reset_index(drop=True) for name, table in tables.items()}, facts


@pytest.mark.parametrize(
    ("told", "words"),
    [(0, "are missing among those of their workers; 0 were dropped"), (99, "99 pushes were dropped"),
     (None, "how many pushes were dropped")],
)  # fmt: skip
def test_the_manifest_agrees_with_the_gaps(told, words):
    wanted, tables, facts = late()
    assert judge(wanted, tables, facts).verdict == "valid"
    if told is not None:
        verdict = judge(wanted, tables, {**facts, "dropped": told})
        assert verdict.verdict == "invalid"
        assert any(words in violation for violation in verdict.violations), verdict.violations
        return
    without = {name: value for name, value in facts.items() if name != "dropped"}
    verdict = judge(wanted, tables, without)
    assert verdict.verdict == "unknown"
    assert words in verdict.unjudged[0]


def test_a_push_that_came_in_time_must_not_be_dropped():
    wanted, tables, facts = fresh("backup:1")
    who, iteration = dropped(tables["phases"], tables["pushes"])
    phases = tables["phases"]
    rows = [span(phases, "apply", who, iteration)]
    early_s = float(phases.begin_s[rows[0]] - phases.end_s[span(phases, "compute", who, iteration)])
    # taken as early as it can have been: then it was in time
    changed = shifted(phases, rows, -0.99 * early_s)
    begun_s = phases.begin_s[span(phases, "compute", who, iteration)]
    earlier = shifted(changed, rows, -0.9 * float(changed.begin_s[rows[0]] - begun_s))
    verdict = judge(wanted, {**tables, "phases": earlier}, facts)
    assert verdict.verdict == "invalid"


def test_only_a_policy_for_the_whole_model_drops():
    wanted, tables, facts = fresh("asp")
    verdict = judge(wanted, tables, {**facts, "dropped": 2})
    assert verdict.violations == ("2 pushes were dropped; the policy cannot drop any",)


def test_one_decision_is_for_all_ranges():
    wanted, tables, facts = fresh("backup:1")
    second = tables["pushes"].assign(range=1)
    both = renumbered(pd.concat([tables["pushes"], second]).sort_values(["seconds", "version_applied"], kind="stable"))
    told = {**facts, "dropped": 2 * facts["dropped"]}
    assert judge(wanted, {**tables, "pushes": both}, told).verdict == "valid"
    verdict = judge(wanted, {**tables, "pushes": both[:-1]}, told)
    assert any("the policy decides for all of them" in violation for violation in verdict.violations)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"accepted": 33}, "stopped at its budget of 30 pushes after 33"),
        ({"accepted": 29}, "stopped at its budget of 30 pushes after 29"),
        ({"pushes": 9}, "the server applied 9 pushes, the table has 27"),
        ({"accepted": 37}, "each of 3 gradients at most"),
    ],
)
def test_a_push_counts_the_gradients_that_it_is_made_of(changes, words):
    wanted, tables, facts = fresh("local:3")
    assert judge(wanted, tables, facts).verdict == "valid"
    verdict = judge(wanted, tables, {**facts, **changes})
    assert verdict.verdict == "invalid"
    assert any(words in violation for violation in verdict.violations), verdict.violations


@pytest.mark.parametrize(
    ("made", "judged", "words"),
    [
        ("asp", Eager(), "it had asked for them before"),
        ("eager", ASP(), "lacks the worker's own push"),
        ("eager", Eager(1), "and a window of 2 allows 1"),
        ("eager:1", Eager(3), "the policy starts it on version"),  # it waited without need
        ("backup:1", BSP(), "the policy cannot drop any"),
        ("backup:2", Backup(1), "the policy makes it of"),
        ("bsp", Backup(1), "the policy makes it of"),
        ("local:3", BSP(), "the server applied 27 pushes, the table has 9"),
        ("local:3", LocalSGD(2), "the server applied 27 pushes, the table has 18"),
        ("bsp", LocalSGD(3), "pushes were applied; the budget is 30"),
        ("local:3", SSP(0), "the server applied 27 pushes, the table has 9"),
    ],
)
def test_a_history_of_another_policy_is_found(made, judged, words):
    wanted, tables, facts = fresh(made)
    verdict = judge(wanted.but(sync=judged), tables, facts)
    assert verdict.verdict == "invalid"
    assert any(words in violation for violation in verdict.violations), verdict.violations


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["eager", "eager:1", "local:3", "backup:1", "backup:2"]), st.integers(0, 29),
       st.sampled_from(WHOLE_NUMBERS), st.sampled_from([-2, -1, 1, 2]))  # fmt: skip
def test_no_number_of_a_push_can_be_changed(sync, row, name, by):
    wanted, tables, facts = linked(sync)
    row %= len(tables["pushes"])
    assert judge(wanted, {**tables, "pushes": plus(tables["pushes"], row, name, by)}, facts).verdict == "invalid"
    changed = pulled(tables["pushes"], row, by)  # with the staleness that would go with it
    assert judge(wanted, {**tables, "pushes": changed}, facts).verdict == "invalid"


class Holding(Eager):
    """An eager policy that holds every other push until the next one comes."""

    def initial(self, workers):
        return ()

    def step(self, state, event, clocks):
        _, decisions = super().step(None, event, clocks)
        applied = tuple(each for each in decisions if type(each).__name__ == "Apply")
        starts = tuple(each for each in decisions if type(each).__name__ == "Start")
        if not applied:
            return state, starts
        held = (*state, *applied)
        return (held, starts) if len(held) < 2 else ((), (*held, *starts))


def test_what_cannot_be_replayed_is_said():
    wanted, tables, facts = history(Holding(), UNEVEN, workers=4)
    verdict = judge(wanted, tables, facts)
    assert verdict.verdict in ("valid", "invalid")
    # two pushes in one version: when they asked for the next weights is not in the order of application
    pairs = tables["pushes"].assign(version_applied=np.repeat(np.arange(1, 16), 2)[: len(tables["pushes"])])
    pairs["staleness"] = pairs.version_applied - 1 - np.minimum(pairs.version_pulled, pairs.version_applied - 1)
    pairs["version_pulled"] = pairs.version_applied - 1 - pairs.staleness
    verdict = judge(wanted, {"pushes": pairs}, facts)
    assert not any("replayed" in name for name in verdict.checked)
