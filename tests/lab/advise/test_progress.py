"""What a search says while it goes on."""

from __future__ import annotations

import time

import pytest

from pslab.lab.advise.progress import SearchProgress
from pslab.lab.advise.race import Race, RaceAnswer, Trial


def told(seeds: int) -> RaceAnswer:
    """Two policies, of which asp is always the soonest."""
    race = Race({"asp": [0.1], "bsp": [0.1]}, "bsp", simplicity={"asp": (1,), "bsp": (0,)}, seeds=range(8))
    race.tell({Trial(policy, 0.1, seed): time_s * (1 + seed / 100) for seed in range(seeds)
               for policy, time_s in (("asp", 1.0), ("bsp", 2.0 + 0.1 * (seed % 2)))})  # fmt: skip
    return race.answer()


def test_what_is_tried_who_leads_and_how_sure_that_is_stand_on_a_line(capsys: pytest.CaptureFixture):
    shown = SearchProgress(True, time.monotonic() + 120)
    shown.say("the pace of 2 policies")
    shown.say("asp with seed 1", told(1))
    shown.say("asp with seed 1", told(1))  # as of several learning rates
    shown.say("asp with seed 3", told(3))
    first, one, three = capsys.readouterr().err.splitlines()
    assert first == "trying the pace of 2 policies; at most 2.0 min left"
    assert one.startswith("asp leads; trying asp with seed 1"), "of one seed nothing is sure"
    assert three.startswith("asp leads (100\u00a0% sure); trying")


def test_a_batch_and_who_wants_none_see_nothing(capsys: pytest.CaptureFixture):
    SearchProgress(False, 0.0).say("asp with seed 1", told(1))
    assert capsys.readouterr().err == ""
