"""A grid grows until the best lies inside it."""

from __future__ import annotations

from pathlib import Path

import handmade
import pandas as pd
import pytest

from pslab.config.run import Run
from pslab.lab.records.frames import levels, notes
from pslab.lab.records.record import find
from pslab.lab.records.tuning import best
from pslab.lab.runs import grid as tuning
from pslab.lab.runs.grid import grid, tuned

BEST = {"bsp": 0.8, "asp": 0.1, "ssp:3": 0.2}  # the learning rate at which each policy is soonest


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[Run]]:
    """What was swept; a run is the sooner, the nearer its learning rate is to its policy's best one."""
    seen = []

    def sweep(runs, *, results=None, progress=None):
        seen.append(runs.run.tolist())
        for run in runs.run:
            ratio = run.learning_rate / BEST[str(run.sync)]
            if find(run, tmp_path) is None:
                handmade.curve(tmp_path, run, [0.1] * round(2 * max(ratio, 1 / ratio)) + [0.9])
        return handmade.with_results(runs, lambda run: find(run, tmp_path))

    monkeypatch.setattr(tuning, "sweep", sweep)
    return seen


def rates(runs: list[Run], sync: str) -> list[float]:
    return [run.learning_rate for run in runs if run.sync == sync]


def test_a_grid_grows_beyond_its_ends_until_the_best_lies_inside(asked: list[list[Run]]):
    found = tuned(grid(Run(pushes=40), sync=[*BEST], learning_rate=[0.1, 0.2, 0.4], seed=[0, 1]), goal=0.9)
    first, second, third = asked
    assert len(first) == 18
    assert rates(second, "bsp") == [0.8, 0.8]
    assert rates(second, "asp") == pytest.approx([0.05, 0.05])
    assert rates(second, "ssp:3") == []
    assert (rates(third, "bsp"), rates(third, "asp")) == ([1.6, 1.6], [])
    assert levels(found, "learning_rate") == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6])
    chosen = best(found, goal=0.9)
    assert dict(zip(chosen.sync, chosen.learning_rate, strict=True)) == BEST
    assert "at an end" not in notes(chosen)[0]


def test_growing_ends_after_so_many_rounds_and_the_figure_says_so(asked: list[list[Run]]):
    found = tuned(grid(Run(pushes=40), sync=["bsp"], learning_rate=[0.1, 0.2]), goal=0.9, rounds=1)
    assert [len(runs) for runs in asked] == [2, 1]
    assert "1 of 1 lie at an end of their grid" in notes(best(found, goal=0.9))[0]


def test_one_value_is_no_grid(asked: list[list[Run]]):
    parts = [grid(Run(pushes=40), sync=[sync], learning_rate=[0.1]) for sync in ("bsp", "asp")]
    assert levels(tuned(pd.concat(parts), goal=0.9), "sync") == ["bsp", "asp"]
    assert len(asked) == 1
