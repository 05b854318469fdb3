"""Seeded bugs: edits of the source of protocol/ and policies/, each of which the checker finds."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from bugs import BUGS, CHECKED, Bug

from pslab.engines.check.explorer import explore
from pslab.engines.check.plan import resolve_sync
from pslab.engines.check.result import Explored


def explored(bug: Bug) -> Explored:
    return explore(resolve_sync(bug.policy), **bug.cluster)


def test_each_bug_is_an_edit_of_the_present_source():
    assert all(bug.text() for bug in BUGS)


@pytest.mark.one_of(2)
@pytest.mark.parametrize("bug", CHECKED, ids=lambda bug: bug.name)
def test_checker_finds_seeded_bug(bug: Bug, monkeypatch: pytest.MonkeyPatch):
    bug.seed(monkeypatch)
    found = explored(bug)
    assert found.violation is not None, f"{found.states} states are {found.verdict}"
    assert bug.says
    assert bug.says in found.violation.what, str(found.violation)
    assert found.violation.path, "no bug shows before the first event"


def _large(bug: Bug) -> bool:
    cluster: dict[str, Any] = {"ranges": 1, "faults": (), **bug.cluster}
    several = cluster["workers"] > 1 and cluster["ranges"] > 1
    return cluster["workers"] > 2 or bug.policy.startswith("dssp") or (
        several and ("servers" in cluster or "rejoin" in cluster["faults"]))  # fmt: skip


@pytest.mark.parametrize("bug", [
    pytest.param(bug, marks=[pytest.mark.slow] * _large(bug), id=f"{bug.policy} {bug.cluster}")
    for bug in {(bug.policy, str(bug.cluster)): bug for bug in CHECKED}.values()])  # fmt: skip
def test_the_code_without_a_bug_is_clean(bug: Bug):
    """What the tests of the machines leave to the checker is in these explorations."""
    found = explored(bug)
    assert found.verdict == "clean", str(found.violation)


def test_every_module_has_seeded_bugs():
    modules = Counter(bug.where.partition(":")[0] for bug in CHECKED)
    assert len({bug.name for bug in CHECKED}) == len(CHECKED) >= 50
    assert set(modules) == {
        *(f"protocol.{name}" for name in ("window", "messages", "server", "store", "worker")),
        *(f"policies.sync.{name}" for name in ("bsp", "ssp", "asp", "backup", "eager", "dssp", "elastic")),
        "policies.methods.decoupled",
    }  # fmt: skip


def test_a_bug_is_gone_after_its_test_and_an_edit_that_matches_no_line_is_refused():
    for name in ("a departure's fields are in another order", "weights that are read in place change"):
        (bug,) = (each for each in CHECKED if each.name == name)
        with pytest.MonkeyPatch.context() as patch:
            bug.seed(patch)
            assert explored(bug).verdict == "violated"
        assert explored(bug).verdict == "clean"
    with pytest.raises(AssertionError, match="0 times"):
        Bug("nothing", "protocol.window", "no such text", "", "").text()


def test_worker_numbers_are_the_same_along_a_path(monkeypatch: pytest.MonkeyPatch):
    (bug,) = [each for each in CHECKED if each.name == "staleness has no bound"]
    bug.seed(monkeypatch)
    violation: Any = explored(bug).violation
    fast = re.match(r"worker (\d) is started", violation.what)
    assert fast
    assert violation.path[-1].endswith(f"the server starts worker {fast[1]} with iteration 2")
    assert sum(f"worker {fast[1]} has computed" in words for words in violation.path) == 2
