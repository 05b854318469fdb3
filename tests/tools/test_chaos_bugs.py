"""A chaos campaign finds seeded bugs of the server, the workers, virtual time, links, faults, policies and records."""

from __future__ import annotations

from collections import Counter

import pytest
from bugs import DRAWN, Bug
from found import COMMON, FOUND

from pslab.config.run import Run
from tools.chaos.campaign import performed
from tools.chaos.draw import drawn

SEED, RUNS = 0, 1000  # of the campaign that shows nearly all of them


@pytest.mark.parametrize("bug", DRAWN, ids=lambda bug: bug.name)
def test_a_seeded_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch):
    """In the run that its list names; or, if that is drawn otherwise by now, in any run, which takes long."""
    bug.seed(monkeypatch)
    assert bug.says
    for name in (bug.run, *FOUND, *range(RUNS)):
        run = Run.of({**COMMON, **FOUND[name]}) if isinstance(name, str) else drawn(SEED, name, "timing")
        if bug.says in "; ".join(performed(run)[1]):
            return
    pytest.fail("nothing was found")


def test_bugs_are_seeded_in_every_part_of_a_run():
    assert len({bug.name for bug in DRAWN}) == len(DRAWN) >= 40
    parts = Counter(".".join(bug.where.partition(":")[0].split(".")[:2]) for bug in DRAWN)
    assert set(parts) == {"engines.server", "engines.worker", "engines.virtual", "engines.emulation", "policies.sync",
                          "lab.judge"}  # fmt: skip
