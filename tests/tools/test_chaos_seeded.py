"""A chaos campaign finds seeded bugs of the server, the workers, virtual time, links, faults, policies and records."""

from __future__ import annotations

from collections import Counter

import pytest
from seeded import BUGS, Bug, found_by_chaos, seed


@pytest.mark.parametrize(
    "bug", [pytest.param(bug, marks=[pytest.mark.slow] * bug.slow, id=bug.name) for bug in BUGS])
def test_a_seeded_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch):
    seed(bug, monkeypatch)
    number, words = found_by_chaos()
    assert bug.says
    assert bug.says in words, f"run {number}: {words or 'nothing was found'}"


def test_at_least_forty_bugs_are_seeded_in_every_part_of_a_run():
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 40
    parts = Counter(".".join(bug.where.split(".")[:2]) for bug in BUGS)
    assert set(parts) == {"engines.server", "engines.worker", "engines.virtual", "engines.emulation", "policies.sync",
                          "lab.judge"}  # fmt: skip


def test_an_edit_that_matches_no_line_is_refused(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(AssertionError, match="0 times"):
        seed(Bug("nothing", BUGS[0].where, "no such text", "", ""), monkeypatch)
