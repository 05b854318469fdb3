"""Every change of the pushes is found and reported in the right words."""

from __future__ import annotations

import pandas as pd
import pytest
from histories import (
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
    swapped,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from pslab.lab.judge.verdict import judge

INTEGERS = ("push", "worker", "iteration", "range", "version_pulled", "version_applied", "staleness")


def waited(pushes: pd.DataFrame) -> int:
    """The first push whose worker had waited for two pushes of others."""
    made = pushes.version_applied
    return next(row for row in pushes.index[8:] if pushes.version_pulled[row] > made[own(pushes, row)] + 1)


def stale(pushes: pd.DataFrame) -> int:
    return pushes.index[(pushes.staleness > 0) & (pushes.iteration > 0)][0]


def first_of_the_slow(pushes: pd.DataFrame) -> int:
    return pushes.index[(pushes.iteration == 0) & (pushes.staleness > 0)][-1]


CHANGES: dict[str, tuple[Change, str]] = {
    "none": (lambda p: p[:0], "which the table of pushes lacks"),
    "missing": (lambda p: p.drop(index=7).reset_index(drop=True), "push 9 is where push 8 was expected"),
    "missing, renumbered": (lambda p: renumbered(p.drop(index=7)), "was never applied: its next push"),
    "repeated": (lambda p: repeated(p, 7), "is applied twice: as push 8 and as push 9"),
    "two of one worker swapped": (
        lambda p: swapped(p, 12, own(p, 12), "iteration"), "is applied before the worker's iteration"),
    "two of two workers swapped": (
        lambda p: swapped(p, (r := last_of(p, 0)), r - 1, "worker", "iteration", "version_pulled", "staleness"),
        "has a recorded staleness of"),
    "never received": (lambda p: forgotten(p, last_of(p, 0)), "the policy makes it of worker 0's iteration 8"),
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


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_push_is_found(name):
    change, words = CHANGES[name]
    assert_invalid(judged("ssp:1", pushes=change), words)


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


EAGER: dict[str, tuple[Change, str]] = {
    "own push read": (own_read, "the policy is eager: the weights were requested before that push"),
    "more missing than it can add": (too_many_missing, "lacks the worker's own push"),
    "other weights": (lambda p: pulled(p, 20, 1), "which was made at"),
    "never received": (lambda p: forgotten(p, p.index[(p.worker == 1) & (p.iteration == 7)][0]),
                       "was never applied: its next push"),
}  # fmt: skip


@pytest.mark.parametrize("name", EAGER)
def test_a_changed_push_of_an_eager_worker_is_found(name):
    change, words = EAGER[name]
    assert_invalid(judged("eager", linked=True, pushes=change), words)


def test_last_pushes_of_an_eager_worker_that_are_missing_are_found():
    def change(pushes: pd.DataFrame) -> pd.DataFrame:
        for row in pushes.index[pushes.worker == 2][-1:-4:-1]:  # two may be in hand
            pushes = forgotten(pushes, row)
        return pushes

    assert_invalid(judged("eager", pushes=change), "the policy makes")


def test_a_decision_for_all_ranges_must_be_the_same_on_each():
    wanted, tables, facts = fresh("backup:1")
    second = tables["pushes"].assign(range=1)
    both = renumbered(pd.concat([tables["pushes"], second]).sort_values(["seconds", "version_applied"], kind="stable"))
    arrivals = pd.concat([tables["arrivals"], tables["arrivals"].assign(range=1)]).sort_index(kind="stable")
    tables, facts = {**tables, "arrivals": arrivals}, {**facts, "dropped": 2 * facts["dropped"]}
    assert_valid(judge(wanted, {**tables, "pushes": both}, facts))
    assert_invalid(judge(wanted, {**tables, "pushes": both[:-1]}, facts), "the policy decides for all of them")


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(["bsp", "ssp:1", "asp", "eager", "eager:1", "local:3", "backup:1", "backup:2"]),
       st.integers(0, 29), st.sampled_from(INTEGERS), st.sampled_from([-2, -1, 1, 2]))  # fmt: skip
def test_no_number_of_a_push_can_be_changed(sync, row, name, by):
    wanted, tables, facts = fresh(sync, linked=sync.startswith("eager"))
    row %= len(tables["pushes"])
    assert_invalid(judge(wanted, {**tables, "pushes": plus(tables["pushes"], row, name, by)}, facts))
    changed = pulled(tables["pushes"], row, by)
    assert_invalid(judge(wanted, {**tables, "pushes": changed}, facts))
    if sync in ("bsp", "ssp:1", "asp"):  # the phases are not needed for it: the versions and the policy are enough
        assert_invalid(judge(wanted, {"pushes": changed, "arrivals": tables["arrivals"]}, facts))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["bsp", "ssp:1", "asp"]), st.sets(st.integers(0, 29), min_size=1, max_size=3))
def test_no_push_can_be_left_out(sync, rows):
    wanted, tables, facts = fresh(sync)
    changed = renumbered(tables["pushes"].drop(index=list(rows)))
    assert_invalid(judge(wanted, {**tables, "pushes": changed}, facts))
