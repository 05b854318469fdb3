"""The judge: every valid history passes, each change of one is found and told in the right words."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import lru_cache

import handmade
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny

from pslab.config.run import Run
from pslab.engines.execute import execute
from pslab.lab.judge.verdict import FEW, judge
from pslab.lab.records.record import load
from pslab.lab.runs.resolve import resolve
from pslab.lab.runs.run import InvalidRun, run, tables_of
from pslab.policies.sync.asp import ASP
from pslab.policies.sync.bsp import BSP
from pslab.policies.sync.ssp import SSP
from pslab.protocol.messages import Aggregate, Apply, Asked, Pushed, Start

UNEVEN = {"compute_s": 1.0, "slow": {0: 3.0}, "latency_s": 0.01, "compute_sigma": 0.1}
History = tuple[Run, dict[str, pd.DataFrame], dict]


def history(sync="ssp:1", cluster=UNEVEN, **fields) -> History:
    """The run, the tables and the facts of a run without tensors."""
    wanted = tiny(engine="timing", sync=sync, cluster=cluster, **{"workers": 3, "pushes": 30, **fields})
    outcome = execute(resolve(wanted), lambda news: None)
    return wanted, tables_of(wanted, outcome)[0], outcome.facts


@lru_cache(maxsize=8)
def cached(sync: str) -> History:
    return history(sync)


def fresh(sync: str) -> History:
    wanted, tables, facts = cached(sync)
    return wanted, {name: table.reset_index(drop=True).copy() for name, table in tables.items()}, copy.copy(facts)


# --- valid ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", [handmade.bsp, handmade.asp])
def test_what_is_valid_by_hand(tmp_path, made):
    result = made(tmp_path)
    verdict = judge(result.run, {"pushes": result.pushes, "phases": result.phases}, result.manifest)
    assert (verdict.verdict, verdict.violations) == ("valid", ())
    assert "the policy's decisions, replayed" in verdict.checked


def test_what_is_valid_in_two_ranges(tmp_path):
    for made in (handmade.bsp, handmade.asp):
        result = handmade.two_ranges(made(tmp_path / made.__name__))
        pushes = result.pushes.sort_values("seconds", kind="stable")
        pushes = pushes.assign(push=range(1, len(pushes) + 1))
        phases = result.phases.sort_values("begin_s")
        # weights of the second range arrive a quarter second later, and only then may one go on
        phases.loc[(phases.phase == "compute") & (phases.iteration > 0), "begin_s"] += 0.4
        verdict = judge(result.run, {"pushes": pushes, "phases": phases}, {})
        assert (verdict.verdict, verdict.violations) == ("valid", ())


@pytest.mark.parametrize("engine", ["virtual", "local"])
@pytest.mark.parametrize("sync", ["bsp", "ssp:1", "asp"])
@pytest.mark.parametrize("fields", [{}, {"prune": "static:5%", "pull": "changed"}], ids=["dense", "pruned"])
def test_real_runs_are_valid(tmp_path, recwarn, engine, sync, fields):
    cluster = {"compute_s": 0.002, "slow": {0: 3.0}}
    result = run(tiny(engine=engine, sync=sync, cluster=cluster, **fields), results=tmp_path, progress=False)
    assert result.manifest["verdict"] == "valid"
    assert "violations" not in result.manifest
    assert not [w for w in recwarn if issubclass(w.category, InvalidRun)]
    # what a file has rounded is judged alike
    again = load_and_judge(result.path) if not fields else judge(result.run, vars_of(result), result.manifest)
    assert again.verdict == "valid"
    assert "the policy's decisions, replayed" in again.checked


def vars_of(result) -> dict[str, pd.DataFrame]:
    return {name: getattr(result, name) for name in ("accuracy", "phases", "pushes")}


def load_and_judge(path):
    result = load(path)
    return judge(result.run, vars_of(result), result.manifest)


def test_weights_in_place_are_valid(tmp_path):
    result = run(tiny(pushes=37), results=tmp_path, progress=False)  # the last round is never applied
    assert (result.manifest["verdict"], result.manifest["pushes"]) == ("valid", 36)


CLUSTERS = st.fixed_dictionaries(
    {"compute_s": st.just(1.0), "compute_sigma": st.sampled_from([0.0, 0.3]), "latency_s": st.sampled_from([0.0, 0.2]),
     "slow": st.dictionaries(st.integers(0, 1), st.sampled_from([0.5, 2.0, 3.0])),
     "stall_probability": st.sampled_from([0.0, 0.2]), "stall_factor": st.just(4.0),
     "apply_s": st.sampled_from([0.0, 0.03]), "message_s": st.sampled_from([0.0, 0.01]),
     "serve_s": st.sampled_from([0.0, 0.01]), "decode_s": st.sampled_from([0.0, 0.02])})  # fmt: skip
SYNCS = st.sampled_from(["bsp", "ssp:0", "ssp:1", "ssp:3", "asp"])


@settings(max_examples=60, deadline=None)
@given(SYNCS, CLUSTERS, st.integers(2, 5), st.integers(1, 60), st.integers(0, 9), st.booleans())
def test_every_history_of_the_virtual_engine_is_valid(sync, cluster, workers, pushes, seed, timed):
    stop = {"pushes": None, "seconds": pushes / 3} if timed else {"pushes": pushes}
    wanted, tables, facts = history(sync, cluster, workers=workers, seed=seed, **stop)
    verdict = judge(wanted, tables, facts)
    if facts["pushes"]:
        assert (verdict.verdict, verdict.violations, verdict.unjudged) == ("valid", (), ())
        assert "the policy's decisions, replayed" in verdict.checked[-1]
    else:
        assert verdict.verdict == "unknown"


@settings(max_examples=40, deadline=None)
@given(SYNCS, st.sampled_from([0.0, 0.2]), st.floats(0.5, 8), st.floats(0.5, 8), st.integers(0, 2))
def test_workers_that_come_and_go_break_no_rule(sync, latency_s, leave_s, join_s, who):
    moves = {"leave": {who: leave_s}, "join": {who: join_s, (who + 1) % 3: join_s / 2}}
    cluster = {"compute_s": 1.0, "compute_sigma": 0.3, "latency_s": latency_s, **moves}
    if leave_s == join_s:
        return
    wanted, tables, facts = history(sync, cluster, pushes=None, seconds=12.0)
    verdict = judge(wanted, tables, facts)
    assert (verdict.verdict, verdict.violations) == ("valid", ())


def test_the_dead_leave_no_phases():
    wanted, tables, facts = history("asp", {**UNEVEN, "leave": {2: 4.5}})
    phases = tables["phases"][tables["phases"].worker != 2]
    died = {"worker": 2, "iteration": 4, "how": "is gone", "seconds": 4.5}
    still = wanted.but(cluster=UNEVEN)
    assert judge(still, {**tables, "phases": phases}, {**facts, "deaths": [died]}).verdict == "valid"
    # a worker that is still there does not go without a trace
    assert judge(still, {**tables, "phases": phases}, {**facts, "deaths": []}).verdict == "invalid"


class Pairs:
    """A policy of a user: two pushes make a step, whosoever; then both go on."""

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
    assert (verdict.verdict, verdict.violations) == ("valid", ())
    assert verdict.checked[-1].startswith("the policy's decisions, replayed")
    wanted, tables, facts = history("asp", workers=4)
    assert "the policy makes it of" in judge(wanted.but(sync=Pairs()), tables, facts).violations[0]


class Clocked(ASP):
    """A policy that looks at the clock: who pushes in an odd millisecond is held until the next push."""

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


def test_a_policy_that_looks_at_the_clock_is_not_judged_by_instants_that_nobody_knows():
    verdict = judge(*history(Clocked(), {**UNEVEN, "apply_s": 0.071}, workers=4))
    assert (verdict.verdict, verdict.violations) == ("valid", ())
    assert "they hang on what the record does not tell" in verdict.unjudged[0]


# --- invalid ----------------------------------------------------------------------------------------------------------


def renumbered(pushes: pd.DataFrame) -> pd.DataFrame:
    return pushes.reset_index(drop=True).assign(push=range(1, len(pushes) + 1))


def repeated(pushes: pd.DataFrame, row: int) -> pd.DataFrame:
    return renumbered(pd.concat([pushes[: row + 1], pushes[row : row + 1], pushes[row + 1 :]]))


def forgotten(pushes: pd.DataFrame, row: int) -> pd.DataFrame:
    """As if the server had never heard of a push: versions move up."""
    version = pushes.version_applied[row]
    rest = pushes.drop(index=row)
    for name in ("version_applied", "version_pulled"):
        rest[name] -= rest[name] >= version
    return renumbered(rest.assign(staleness=rest.version_applied - 1 - rest.version_pulled))


def swapped(pushes: pd.DataFrame, row: int, other: int, *names: str) -> pd.DataFrame:
    changed = pushes.copy()
    for name in names:
        changed.loc[[row, other], name] = pushes.loc[[other, row], name].to_numpy()
    return changed


def plus(table: pd.DataFrame, row: int, name: str, by: float) -> pd.DataFrame:
    changed = table.copy()
    changed.loc[row, name] += by
    return changed


def pulled(pushes: pd.DataFrame, row: int, by: int) -> pd.DataFrame:
    return plus(plus(pushes, row, "version_pulled", by), row, "staleness", -by)


def own(pushes: pd.DataFrame, row: int) -> int:
    """The row of the same worker's push before."""
    return pushes.index[(pushes.worker == pushes.worker[row]) & (pushes.index < row)][-1]


def span(phases: pd.DataFrame, phase: str, worker: int = 1, iteration: int = 3) -> int:
    (row,) = phases.index[(phases.phase == phase) & (phases.worker == worker) & (phases.iteration == iteration)]
    return row


def waited(pushes: pd.DataFrame) -> int:
    """The first push whose worker had waited for two pushes of others."""
    made = pushes.version_applied
    return next(row for row in pushes.index[8:] if pushes.version_pulled[row] > made[own(pushes, row)] + 1)


def stale(pushes: pd.DataFrame) -> int:
    return pushes.index[(pushes.staleness > 0) & (pushes.iteration > 0)][0]


def last_of(pushes: pd.DataFrame, worker: int) -> int:
    return pushes.index[pushes.worker == worker][-1]


Change = Callable[[pd.DataFrame], pd.DataFrame]
PUSHES: dict[str, tuple[Change, str]] = {
    "one is missing": (lambda p: p.drop(index=7).reset_index(drop=True), "push 9 stands where push 8 was expected"),
    "one is missing, counted anew": (lambda p: renumbered(p.drop(index=7)), "was never applied: its next push"),
    "one twice": (lambda p: repeated(p, 7), "is applied twice: as push 8 and as push 9"),
    "two of one worker in turn": (
        lambda p: swapped(p, 12, own(p, 12), "iteration"), "is applied before the worker's iteration"),
    "two of two workers in turn": (
        lambda p: swapped(p, (r := last_of(p, 0)), r - 1, "worker", "iteration", "version_pulled", "staleness"),
        "is told to be"),
    "never heard of": (lambda p: forgotten(p, last_of(p, 0)), "but the worker went on at"),
    "a stranger": (lambda p: plus(p, 12, "worker", 7), "there are 0 to 2"),
    "a range below 0": (lambda p: plus(p, 12, "range", -1), "both count from 0"),
    "a version is skipped": (
        lambda p: p.assign(version_applied=p.version_applied + (p.index > 12)), "is part of version 15; 13 or 14 was"),
    "versions begin late": (lambda p: p.assign(version_applied=p.version_applied + 1), "of version 2; 1 was expected"),
    "a version from the future": (lambda p: pulled(p, 12, int(p.staleness[12]) + 1), "from the future"),
    "a run begins with version 0": (lambda p: pulled(p, late0(p), 1), "weights begin with version 0"),
    "a version below 0": (lambda p: pulled(p, 0, -1), "weights begin with version 0"),
    "its own push is missing": (
        lambda p: pulled(p, 12, int(p.version_applied[own(p, 12)] - 1 - p.version_pulled[12])),
        "lacks the worker's own push"),
    "older than before": (
        lambda p: pulled(p, 12, int(p.version_pulled[own(p, 12)] - 1 - p.version_pulled[12])), "the one before on"),
    "staleness": (lambda p: plus(p, 12, "staleness", 1), "is told to be"),
    "time runs backwards": (lambda p: swapped(p, 12, 13, "seconds"), "before push 13, which was at"),
    "before all time": (lambda p: plus(p, 0, "seconds", -9.0), "at no instant of the run"),
    "not the newest": (lambda p: pulled(p, waited(p), -2), "before the worker was started"),
    "not yet made": (lambda p: pulled(p, stale(p), 1), "the worker had been started before"),
}  # fmt: skip


def late0(pushes: pd.DataFrame) -> int:
    """The first push of the slow worker, which others had come before."""
    return pushes.index[(pushes.iteration == 0) & (pushes.staleness > 0)][-1]


@pytest.mark.parametrize("name", PUSHES)
def test_a_change_of_the_pushes_is_found(name):
    change, words = PUSHES[name]
    wanted, tables, facts = fresh("ssp:1")
    changed = change(tables["pushes"])
    verdict = judge(wanted, {**tables, "pushes": changed}, {**facts, "pushes": len(changed)})
    assert verdict.verdict == "invalid"
    assert any(words in violation for violation in verdict.violations), verdict.violations


PHASES: dict[str, tuple[Change, str]] = {
    "backwards": (lambda p: plus(p, span(p, "pull"), "end_s", -1.0), "and ends before"),
    "a stranger": (lambda p: plus(p, span(p, "pull"), "worker", 7), "there are workers 0 to 2"),
    "two at a time": (lambda p: plus(p, span(p, "compute"), "begin_s", -2.0), "before that of iteration 2 ends"),
    "one computed twice": (lambda p: plus(p, span(p, "compute"), "iteration", -1), "where iteration 3 was expected"),
    "never computed": (lambda p: plus(p, span(p, "pull"), "iteration", 99), "which it never computed"),
    "pushed too early": (lambda p: plus(p, span(p, "push"), "begin_s", -0.5), "before it was computed"),
    "begun too early": (lambda p: plus(p, span(p, "compute"), "begin_s", -0.005), "before the weights for it were"),
    "taken too late": (lambda p: plus(plus(p, span(p, "apply"), "begin_s", 0.1), span(p, "apply"), "end_s", 0.1),
                       "the server took it at"),
    "started too early": (
        lambda p: plus(plus(p, released_late(p), "end_s", -1e-3), released_late(p), "begin_s", -0.1),
        "had been started before"),
    "not recorded": (
        lambda p: p[~((p.worker == 1) & (p.iteration == p.iteration[p.worker == 1].max()))], "was never computed"),
}  # fmt: skip


def released_late(phases: pd.DataFrame) -> int:
    """A waiting that somebody else ended."""
    waits = phases[(phases.phase == "wait") & (phases.waits_for >= 0)]
    return waits.index[len(waits) // 2]


@pytest.mark.parametrize("name", PHASES)
def test_a_change_of_the_phases_is_found(name):
    change, words = PHASES[name]
    wanted, tables, facts = fresh("ssp:1")
    verdict = judge(wanted, {**tables, "phases": change(tables["phases"])}, facts)
    assert verdict.verdict == "invalid"
    assert any(words in violation for violation in verdict.violations), verdict.violations


@pytest.mark.parametrize(
    ("made", "judged", "words"),
    [
        ("ssp:2", SSP(1), "worker 0 had pushed 0 iterations: 2 ahead, and a window of 2 allows 1"),
        ("asp", SSP(2), "and a window of 3 allows 2"),
        ("asp", BSP(), "the policy claims a barrier"),
        ("ssp:0", BSP(), "the policy claims a barrier"),
        ("bsp", SSP(0), "the policy makes it of worker"),
        ("ssp:1", SSP(2), "the policy starts it on version"),  # it waited without need
        ("ssp:1", ASP(), "the policy starts it on version"),
    ],
)
def test_a_history_of_another_policy_is_found(made, judged, words):
    wanted, tables, facts = fresh(made)
    verdict = judge(wanted.but(sync=judged), tables, facts)
    assert verdict.verdict == "invalid"
    assert any(words in violation for violation in verdict.violations), verdict.violations


WHOLE_NUMBERS = ("push", "worker", "iteration", "range", "version_pulled", "version_applied", "staleness")


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["bsp", "ssp:1", "asp"]), st.integers(0, 29), st.sampled_from(WHOLE_NUMBERS),
       st.sampled_from([-2, -1, 1, 2]))  # fmt: skip
def test_no_number_of_a_push_can_be_changed(sync, row, name, by):
    wanted, tables, facts = fresh(sync)
    changed = plus(tables["pushes"], row, name, by)
    assert judge(wanted, {**tables, "pushes": changed}, facts).verdict == "invalid"


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(["bsp", "ssp:1", "asp"]), st.integers(0, 29), st.sampled_from([-2, -1, 1, 2]))
def test_no_push_can_claim_other_weights(sync, row, by):
    wanted, tables, facts = fresh(sync)
    changed = pulled(tables["pushes"], row, by)  # with the staleness that would go with it
    verdict = judge(wanted, {**tables, "pushes": changed}, facts)
    assert verdict.verdict == "invalid"
    # the phases are not needed for it: the versions and the policy tell
    assert judge(wanted, {"pushes": changed}, facts).verdict == "invalid"


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["bsp", "ssp:1", "asp"]), st.sets(st.integers(0, 29), min_size=1, max_size=3))
def test_no_push_can_be_left_out(sync, rows):
    wanted, tables, facts = fresh(sync)
    changed = renumbered(tables["pushes"].drop(index=list(rows)))
    verdict = judge(wanted, {**tables, "pushes": changed}, facts)
    assert verdict.verdict == "invalid"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"accepted": 31}, "stopped at its budget of 30 pushes after 31"),
        ({"accepted": 34}, "at most one of each of the 3 workers may be in hand"),
        ({"accepted": 29}, "29 pushes are counted as accepted and 30 were applied"),
        ({"pushes": 29}, "the server applied 29 pushes, the table has 30"),
        ({"outcome": "seconds"}, "the run stopped for its time of None s"),
        ({"outcome": "target"}, "the run stopped for an accuracy of None"),
        ({"outcome": "stalled"}, "the run stalled"),
    ],
)
def test_the_stop_rule_is_judged(changes, words):
    wanted, tables, facts = fresh("ssp:1")
    verdict = judge(wanted, tables, {**facts, **changes})
    assert verdict.verdict == "invalid"
    assert any(words in violation for violation in verdict.violations), verdict.violations


def test_more_pushes_than_the_budget_are_found():
    wanted, tables, _ = fresh("ssp:1")
    assert "the budget is 29" in judge(wanted.but(pushes=29), tables).violations[0]


def test_a_stop_at_a_target_needs_the_accuracy():
    wanted, tables, facts = fresh("asp")
    wanted = wanted.but(engine="virtual", target_accuracy=0.5)
    for reached, verdict in ((0.5, "valid"), (0.49, "invalid")):
        accuracy = pd.DataFrame({"accuracy": [0.1, reached]})
        assert judge(wanted, {**tables, "accuracy": accuracy}, {**facts, "outcome": "target"}).verdict == verdict


# --- unknown ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda tables: tables.pop("pushes"), "there is no table of pushes"),
        (lambda tables: tables.pop("phases"), "there is no table of phases"),
        (lambda tables: tables.update(pushes=tables["pushes"][:0]), "the table of pushes is empty"),
        (lambda tables: tables.update(phases=tables["phases"][:0]), "the table of phases is empty"),
        (lambda tables: tables["pushes"].pop("version_pulled"), "the table of pushes has no column version_pulled"),
        (lambda tables: tables["phases"].pop("phase"), "the table of phases has no column phase"),
    ],
)
def test_a_history_that_is_not_enough_is_unknown(change, why):
    wanted, tables, facts = fresh("ssp:1")
    change(tables)
    verdict = judge(wanted, tables, facts)
    assert verdict.verdict == "unknown"
    assert verdict.unjudged[0].startswith(why)
    assert verdict.facts() == {"verdict": "unknown", "unjudged": list(verdict.unjudged)}


@pytest.mark.parametrize(("value", "why"), [("two", "what is no number"), (0.5, "what is no whole number")])
def test_a_table_that_cannot_be_read_is_unknown(value, why):
    wanted, tables, facts = fresh("ssp:1")
    tables["pushes"]["worker"] = tables["pushes"].worker.astype(object)
    tables["pushes"].loc[3, "worker"] = value
    verdict = judge(wanted, tables, facts)
    assert verdict.verdict == "unknown"
    assert why in verdict.unjudged[0]


def test_an_interrupted_run_is_unknown_but_for_what_is_wrong_in_it():
    wanted, tables, facts = fresh("ssp:1")
    facts = {**facts, "outcome": "interrupted"}
    assert judge(wanted, tables, facts).unjudged[0].startswith("the run was interrupted")
    assert judge(wanted, tables, facts).verdict == "unknown"
    changed = plus(tables["pushes"], 12, "staleness", 1)
    assert judge(wanted, {**tables, "pushes": changed}, facts).verdict == "invalid"


@pytest.mark.parametrize("sync", ["class Mine(ASP):\n    pass\n{}", "bps"])
def test_without_its_policy_a_run_is_judged_by_what_binds_all(sync):
    wanted, tables, facts = fresh("asp")
    wanted = wanted.but(sync=sync)
    verdict = judge(wanted, tables, facts)
    assert verdict.verdict == "unknown"
    assert "its bound and its decisions were not judged" in verdict.unjudged[0]
    assert "own pushes are read" in verdict.checked
    assert judge(wanted, {**tables, "pushes": forgotten(tables["pushes"], 7)}, facts).verdict == "invalid"


# --- what is told -----------------------------------------------------------------------------------------------------


class Careless(ASP):
    """A policy that claims a barrier and has none."""

    barrier = True


def test_an_invalid_run_is_recorded_and_said_aloud(tmp_path):
    wanted = tiny(engine="virtual", sync=Careless(), pull="changed", cluster=UNEVEN, workers=3, pushes=12)
    with pytest.warns(InvalidRun, match="judged INVALID.*the policy claims a barrier"):
        first = run(wanted, results=tmp_path, progress=False)
    with pytest.warns(InvalidRun):
        again = run(wanted, results=tmp_path, progress=False)
    assert again.cached
    assert again.manifest["verdict"] == "invalid"
    assert 0 < len(again.manifest["violations"]) <= FEW
    assert again.manifest["violations"] == first.manifest["violations"]


def test_a_verdict_depends_on_the_history_alone():
    wanted, tables, facts = fresh("ssp:2")
    wanted = wanted.but(sync="ssp:1")
    shuffled = tables["phases"].sample(frac=1.0, random_state=1)
    assert judge(wanted, tables, facts).violations == judge(wanted, {**tables, "phases": shuffled}, facts).violations
