"""Seeded bugs: edits of the source of protocol/ and policies/, each of which the checker finds."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from mutants import MUTANTS, Mutant, explored, load, modules


@pytest.mark.one_of(2)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_checker_finds_seeded_bug(mutant: Mutant):
    found = explored(load(mutant), mutant)
    assert found.violation is not None, f"{mutant.name}: {found.states} states are {found.verdict}"
    assert mutant.says
    assert mutant.says in found.violation.what, f"{mutant.name}:\n{found.violation}"
    assert found.violation.path, "no bug shows before the first event"


CLUSTERS = {(m.policy, m.faults, m.workers, m.ranges, m.iterations, m.servers) for m in MUTANTS}


@pytest.mark.one_of(8)
@pytest.mark.parametrize("cluster", sorted(CLUSTERS))
def test_modules_without_a_bug_are_clean(cluster: tuple):
    policy, faults, workers, ranges, iterations, servers = cluster
    sound = Mutant("none", "", "", "", "", policy, faults, workers, ranges, iterations, servers=servers)
    found = explored(modules({}), sound)
    assert found.verdict == "clean", str(found.violation)


def test_every_file_has_seeded_bugs():
    files = Counter(mutant.file for mutant in MUTANTS)
    assert len(MUTANTS) >= 50
    assert set(files) == {
        "protocol/window.py", "protocol/messages.py", "protocol/server.py", "protocol/store.py",
        "protocol/worker.py",
        *(f"policies/sync/{name}.py" for name in ("bsp", "ssp", "asp", "backup", "eager", "dssp", "elastic")),
    }  # fmt: skip
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_an_edit_that_matches_no_line_is_refused():
    with pytest.raises(AssertionError, match="0 times"):
        load(Mutant("nothing", "protocol/window.py", "no such text", "", ""))


def test_loading_a_mutant_leaves_the_real_modules_unchanged():
    import pslab.protocol.server
    from pslab.protocol.server import Server

    load(MUTANTS[0])
    assert pslab.protocol.server.Server is Server
    import sys

    assert sys.modules["pslab.protocol.server"].Server is Server


def test_worker_numbers_are_the_same_along_a_path():
    (mutant,) = [each for each in MUTANTS if each.name == "staleness has no bound"]
    violation = explored(load(mutant), mutant).violation
    assert violation is not None
    fast = re.match(r"worker (\d) is started", violation.what)
    assert fast
    assert violation.path[-1].endswith(f"the server starts worker {fast[1]} with iteration 2")
    assert sum(f"worker {fast[1]} has computed" in words for words in violation.path) == 2
