"""Every rule of the audit: a history that is changed in one way is found, and reported in the right words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
from histories import (
    UNEVEN,
    Change,
    assert_invalid,
    assert_valid,
    forgotten,
    fresh,
    judged,
    last_of,
    own,
    plus,
    pulled,
    renumbered,
    repeated,
    shifted,
    span,
    swapped,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.audit.verdict import audit

INTEGERS = ("push", "worker", "iteration", "range", "version_pulled", "version_applied", "staleness")


# --- pushes -----------------------------------------------------------------------------------------------------------


def waited(pushes: pd.DataFrame) -> int:
    """The first push whose worker had waited for two pushes of others."""
    made = pushes.version_applied
    return next(row for row in pushes.index[8:] if pushes.version_pulled[row] > made[own(pushes, row)] + 1)


def stale(pushes: pd.DataFrame) -> int:
    return pushes.index[(pushes.staleness > 0) & (pushes.iteration > 0)][0]


def first_of_the_slow(pushes: pd.DataFrame) -> int:
    return pushes.index[(pushes.iteration == 0) & (pushes.staleness > 0)][-1]


PUSHES: dict[str, tuple[Change, str]] = {
    "missing": (lambda p: p.drop(index=7).reset_index(drop=True), "push 9 is where push 8 was expected"),
    "missing, renumbered": (lambda p: renumbered(p.drop(index=7)), "was never applied: its next push"),
    "repeated": (lambda p: repeated(p, 7), "is applied twice: as push 8 and as push 9"),
    "two of one worker swapped": (
        lambda p: swapped(p, 12, own(p, 12), "iteration"), "is applied before the worker's iteration"),
    "two of two workers swapped": (
        lambda p: swapped(p, (r := last_of(p, 0)), r - 1, "worker", "iteration", "version_pulled", "staleness"),
        "has a recorded staleness of"),
    "unknown worker": (lambda p: plus(p, 12, "worker", 7), "not of 0 to 2"),
    "negative range": (lambda p: plus(p, 12, "range", -1), "both count from 0"),
    "skipped version": (
        lambda p: p.assign(version_applied=p.version_applied + (p.index > 12)), "is part of version 15; 13 or 14 was"),
    "first version is 2": (lambda p: p.assign(version_applied=p.version_applied + 1), "of version 2; 1 was expected"),
    "version from the future": (lambda p: pulled(p, 12, int(p.staleness[12]) + 1), "from the future"),
    "first pull not of version 0": (lambda p: pulled(p, first_of_the_slow(p), 1), "the weights start with version 0"),
    "negative version": (lambda p: pulled(p, 0, -1), "the weights start with version 0"),
    "own push not read": (
        lambda p: pulled(p, 12, int(p.version_applied[own(p, 12)] - 1 - p.version_pulled[12])),
        "lacks the worker's own push"),
    "older than before": (
        lambda p: pulled(p, 12, int(p.version_pulled[own(p, 12)] - 1 - p.version_pulled[12])), "the one before on"),
    "wrong staleness": (lambda p: plus(p, 12, "staleness", 1), "has a recorded staleness of"),
    "time runs backwards": (lambda p: swapped(p, 12, 13, "seconds"), "before push 13, which was applied at"),
    "negative time": (lambda p: plus(p, 0, "seconds", -9.0), "at a time outside the run"),
    "not the newest": (lambda p: pulled(p, waited(p), -2), "before the worker started"),
    "not made yet": (lambda p: pulled(p, stale(p), 1), "the worker had started before"),
}  # fmt: skip


def own_read(pushes: pd.DataFrame) -> pd.DataFrame:
    """As if a worker had requested its weights after its push, as others do."""
    row = pushes.index[-1]
    return pulled(pushes, row, int(pushes.version_applied[own(pushes, row)] - pushes.version_pulled[row]))


def too_many_missing(pushes: pd.DataFrame) -> pd.DataFrame:
    """As if a worker computed on weights without its last four pushes; also those before, so that none is older."""
    mine = pushes.index[pushes.worker == 1]
    old = int(pushes.version_applied[mine[2]]) - 1
    for each in mine[3:7]:
        pushes = pulled(pushes, each, min(0, old - int(pushes.version_pulled[each])))
    return pushes


EAGER_PUSHES: dict[str, tuple[Change, str]] = {
    "own push read": (own_read, "the policy is eager: the weights were requested before that push"),
    "more missing than it can add": (too_many_missing, "lacks the worker's own push"),
    "other weights": (lambda p: pulled(p, 20, 1), "which was made at"),
    "never received": (lambda p: forgotten(p, p.index[(p.worker == 1) & (p.iteration == 7)][0]),
                       "was never applied: its next push"),
}  # fmt: skip


# --- phases -----------------------------------------------------------------------------------------------------------


def released_late(phases: pd.DataFrame) -> int:
    """A wait that another worker ended."""
    waits = phases[(phases.phase == "wait") & (phases.waits_for >= 0)]
    return waits.index[len(waits) // 2]


PHASES: dict[str, tuple[Change, str]] = {
    "ends before it begins": (lambda p: plus(p, span(p, "pull"), "end_s", -1.0), "and ends before"),
    "unknown worker": (lambda p: plus(p, span(p, "pull"), "worker", 7), "the workers are 0 to 2"),
    "two computations at a time": (
        lambda p: plus(p, span(p, "compute"), "begin_s", -2.0), "before that of iteration 2 ends"),
    "computed twice": (lambda p: plus(p, span(p, "compute"), "iteration", -1), "where iteration 3 was expected"),
    "never computed": (lambda p: plus(p, span(p, "pull"), "iteration", 99), "which it never computed"),
    "pushed too early": (lambda p: plus(p, span(p, "push"), "begin_s", -0.5), "before it was computed"),
    "computed too early": (lambda p: plus(p, span(p, "compute"), "begin_s", -0.005), "before its weights arrived"),
    "received too late": (lambda p: shifted(p, span(p, "apply"), 0.1), "it arrived at"),
    "started too early": (
        lambda p: plus(plus(p, released_late(p), "end_s", -1e-3), released_late(p), "begin_s", -0.1),
        "had started before"),
    "recorded twice": (lambda p: pd.concat([p, p.loc[[span(p, "pull")]]]), "is recorded twice"),
    "not recorded": (
        lambda p: p[~((p.worker == 1) & (p.iteration == p.iteration[p.worker == 1].max()))], "was never computed"),
}  # fmt: skip


def late_weights(phases: pd.DataFrame) -> pd.DataFrame:
    """As if weights had arrived after the push that has to wait for them, and the computation had waited."""
    pull, following = span(phases, "pull"), span(phases, "compute", iteration=4)
    phases = plus(phases, following, "begin_s", 0.4)
    return plus(phases, pull, "end_s", float(phases.begin_s[following] - 0.1 - phases.end_s[pull]))


EAGER_PHASES: dict[str, tuple[Change, str]] = {
    "requested too early": (
        lambda p: plus(p, span(p, "wait"), "begin_s", -1.5), "requested the weights of iteration 4"),
    "pushed too early": (late_weights, "before the weights that it requested arrived"),
    "computed too early": (lambda p: plus(p, span(p, "decode"), "end_s", 2.5), "before its weights arrived"),
    "an answer two iterations ahead": (
        lambda p: plus(p, span(p, "pull"), "iteration", 40), "which it never computed"),
}  # fmt: skip


# --- the manifest, and faults -----------------------------------------------------------------------------------------


FACTS: dict[tuple[str, str], tuple[dict[str, Any], str]] = {
    ("asp", "faults without a plan"): ({"faulted": [["drop", "up", 0, 1, 0, 1.0]]}, "the cluster has none"),
    ("faults", "another count"): ({"faults": {"drop": 1, "stop": 1, "kill": 1}}, "it lists"),
}  # fmt: skip


def listed(change: Callable[[list[Any]], list[Any]]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The manifest's list of faults is another one, and it counts those."""

    def changed(facts: dict[str, Any]) -> dict[str, Any]:
        rows = change([list(row) for row in facts["faulted"]])
        return {"faulted": rows, "faults": {name: sum(row[0] == name for row in rows) for name in {r[0] for r in rows}}}

    return changed


LISTS: dict[str, tuple[Callable[[list[Any]], list[Any]], str]] = {
    "an unplanned fault": (lambda rows: [*rows, ["delay", "up", 0, 1, 0, 1.0]], "none of the cluster's plan"),
    "a fault of another worker": (lambda rows: [*rows, ["stop", "", 0, 1, -1, 3.0]], "none of the cluster's plan"),
    "a fault that is too early": (lambda rows: [*rows, ["stop", "", 1, 1, -1, 1.0]], "none of the cluster's plan"),
    "a fault is not listed": (
        lambda rows: [row for row in rows if row[:2] != ["drop", "up"]], "which the record does not have"),
    "a death of nothing": (lambda rows: [row for row in rows if row[0] != "kill"], "worker 2 died at"),
}  # fmt: skip


def asked(column: str, by: float) -> Change:
    """Worker 1's request for iteration 3 is another one."""

    def changed(arrivals: pd.DataFrame) -> pd.DataFrame:
        row = (arrivals.kind == "pull") & (arrivals.worker == 1) & (arrivals.iteration == 3)
        arrivals.loc[row, column] += by
        return arrivals.sort_values("seconds", kind="stable")

    return changed


def planned(*faults: dict[str, Any]) -> dict[str, Any]:
    """The fields of a run in whose cluster these faults were to happen."""
    return {"cluster": {**UNEVEN, "faults": list(faults)}, "on_death": "continue"}


#: What is changed -> the history, what is changed of its tables, "facts" or "run", and words of the verdict.
FOUND: dict[str, tuple[str, dict[str, Any], str]] = {
    **{f"pushes: {name}": ("ssp:1", {"pushes": change}, words) for name, (change, words) in PUSHES.items()},
    **{f"eager pushes: {name}": ("eager linked", {"pushes": change}, words)
       for name, (change, words) in EAGER_PUSHES.items()},
    "pushes that might have been dropped": ("many dropped", {"pushes": lambda p: forgotten(p, 12)}, ""),
    **{f"phases: {name}": ("ssp:1", {"phases": change}, words) for name, (change, words) in PHASES.items()},
    **{f"eager phases: {name}": ("eager linked", {"phases": change}, words)
       for name, (change, words) in EAGER_PHASES.items()},
    **{f"{sync}: {name}": (sync, {"facts": facts}, words) for (sync, name), (facts, words) in FACTS.items()},
    **{name: ("faults", {"facts": listed(change)}, words) for name, (change, words) in LISTS.items()},
    "an arrival of an unknown worker": ("ssp:1", {"arrivals": lambda a: plus(a, 12, "worker", 7)}, "of workers 0 to 2"),
    "an arrival before the one before it": (
        "ssp:1", {"arrivals": lambda a: plus(a, 12, "seconds", -1.0)}, "before earlier arrivals"),
    "what was delayed came later": ("delay", {"arrivals": asked("seconds", -0.5)}, "sooner than 0.6 s later"),
    "what was duplicated came twice": ("duplicate", {
        "arrivals": lambda a: a.drop_duplicates(["kind", "worker", "iteration"])}, "was duplicated, and came once"),
    "who was to be killed pushes no more": ("asp", {
        "run": planned({"what": "kill", "worker": 1, "iteration": 4}),
        "facts": {"faults": {"kill": 0}, "faulted": []}}, "was to kill it"),
    "a stop is recorded": ("stop", {"facts": {"faults": {"stop": 0}, "faulted": []}}, "the record has no such fault"),
    "a violation in an interrupted run": ("ssp:1", {
        "facts": {"outcome": "interrupted"}, "pushes": lambda p: plus(p, 12, "staleness", 1)}, "staleness of"),
}  # fmt: skip


@pytest.mark.parametrize("what", FOUND)
def test_a_changed_history_is_found(what):
    history, changes, words = FOUND[what]
    assert_invalid(judged(history, **changes), words)


@pytest.mark.parametrize("name", sorted({history for history, _, _ in FOUND.values()}))
def test_a_history_that_is_not_changed_is_valid(name):
    assert_valid(judged(name))


def test_a_decision_for_all_ranges_must_be_the_same_on_each():
    wanted, tables, facts = fresh("backup:1")
    second = tables["pushes"].assign(range=1)
    both = renumbered(pd.concat([tables["pushes"], second]).sort_values(["seconds", "version_applied"], kind="stable"))
    arrivals = pd.concat([tables["arrivals"], tables["arrivals"].assign(range=1)]).sort_index(kind="stable")
    tables, facts = {**tables, "arrivals": arrivals}, {**facts, "dropped": 2 * facts["dropped"], "ranges": 2}
    assert_valid(audit(wanted, {**tables, "pushes": both}, facts))
    assert_invalid(audit(wanted, {**tables, "pushes": both[:-1]}, facts), "the policy decides for all of them")


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["bsp", "ssp:1", "asp", "eager", "eager:1", "local:3", "backup:1", "backup:2"]),
       st.integers(0, 29), st.sampled_from(INTEGERS), st.sampled_from([-2, -1, 1, 2]))  # fmt: skip
def test_no_number_of_a_push_can_be_changed(sync, row, name, by):
    wanted, tables, facts = fresh(f"{sync} linked" if sync.startswith("eager") else sync)
    row %= len(tables["pushes"])
    assert_invalid(audit(wanted, {**tables, "pushes": plus(tables["pushes"], row, name, by)}, facts))
    changed = pulled(tables["pushes"], row, by)
    assert_invalid(audit(wanted, {**tables, "pushes": changed}, facts))


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["bsp", "ssp:1", "asp"]), st.sets(st.integers(0, 29), min_size=1, max_size=3))
def test_no_push_can_be_left_out(sync, rows):
    wanted, tables, facts = fresh(sync)
    changed = renumbered(tables["pushes"].drop(index=list(rows)))
    assert_invalid(audit(wanted, {**tables, "pushes": changed}, facts))


def test_a_push_that_arrived_in_time_must_not_be_dropped():
    wanted, tables, facts = fresh("backup:1")
    phases, pushes = tables["phases"], tables["pushes"]
    taken = phases[phases.phase == "apply"]
    applied = set(zip(pushes.worker, pushes.iteration, strict=True))
    dropped = [name for name in zip(taken.worker, taken.iteration, strict=True) if name not in applied]
    who, iteration = dropped[len(dropped) // 2]
    row, compute = span(phases, "apply", who, iteration), span(phases, "compute", who, iteration)
    # received as early as is possible, it would have been in time
    changed = shifted(phases, row, -0.99 * float(phases.begin_s[row] - phases.end_s[compute]))
    earlier = shifted(changed, row, -0.9 * float(changed.begin_s[row] - phases.begin_s[compute]))
    assert_invalid(audit(wanted, {**tables, "phases": earlier}, facts))


def test_phases_may_be_missing_only_of_a_worker_whose_process_had_them():
    wanted, tables, facts = fresh("asp")
    tables["phases"] = tables["phases"].query("worker != 2")
    assert_invalid(audit(wanted, tables, facts), "worker 2 pushed iteration 0, which was never computed")
    lost = {**facts, "phases_lost": [2]}
    assert_invalid(audit(wanted, tables, lost), "phases of worker 2 are said to be lost; none of its processes has")
    replaced = {**lost, "lives": [{"worker": 2, "iteration": 1, "seconds": 1.0, "how": "is gone"}]}
    assert_valid(audit(wanted.but(on_death="restart"), tables, replaced))


def test_a_run_whose_policy_is_unknown_is_audited_by_the_common_rules():
    wanted, tables, facts = fresh("asp")
    verdict = audit(wanted.but(sync="bps"), tables, facts)
    assert (verdict.verdict, "own pushes are read" in verdict.checked) == ("unknown", True)
    assert_invalid(audit(wanted.but(sync="bps"), {**tables, "pushes": repeated(tables["pushes"], 7)}, facts))
