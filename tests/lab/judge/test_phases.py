"""Every change of the phases is found and reported in the right words."""

from __future__ import annotations

import pandas as pd
import pytest
from histories import Change, assert_invalid, fresh, judged, plus, shifted, span

from pslab.lab.judge.verdict import judge


def released_late(phases: pd.DataFrame) -> int:
    """A wait that another worker ended."""
    waits = phases[(phases.phase == "wait") & (phases.waits_for >= 0)]
    return waits.index[len(waits) // 2]


CHANGES: dict[str, tuple[Change, str]] = {
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


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_phase_is_found(name):
    change, words = CHANGES[name]
    assert_invalid(judged("ssp:1", phases=change), words)


def late_weights(phases: pd.DataFrame) -> pd.DataFrame:
    """As if weights had arrived after the push that has to wait for them, and the computation had waited."""
    pull, following = span(phases, "pull"), span(phases, "compute", iteration=4)
    phases = plus(phases, following, "begin_s", 0.4)
    return plus(phases, pull, "end_s", float(phases.begin_s[following] - 0.1 - phases.end_s[pull]))


EAGER: dict[str, tuple[Change, str]] = {
    "requested too early": (
        lambda p: plus(p, span(p, "wait"), "begin_s", -1.5), "requested the weights of iteration 4"),
    "pushed too early": (late_weights, "before the weights that it requested arrived"),
    "computed too early": (lambda p: plus(p, span(p, "decode"), "end_s", 2.5), "before its weights arrived"),
    "an answer two iterations ahead": (
        lambda p: plus(p, span(p, "pull"), "iteration", 40), "which it never computed"),
}  # fmt: skip


@pytest.mark.parametrize("name", EAGER)
def test_a_changed_phase_of_an_eager_worker_is_found(name):
    change, words = EAGER[name]
    assert_invalid(judged("eager", linked=True, phases=change), words)


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
    assert_invalid(judge(wanted, {**tables, "phases": earlier}, facts))
