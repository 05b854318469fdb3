"""How long searches take: the instances, the record, and that it is measured once."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest

from pslab.errors import ConfigError
from pslab.lab.studies import searching
from pslab.lab.studies.searching import Searches, SearchTimes, search
from pslab.policies.planning.zipline import zipline

SMALL = Searches(sizes=[3, 8], ends=[4, 6], repeats=2)


def test_instance_is_a_row_of_ends_per_worker_and_reproducible():
    points = searching.instance(5, 7, 1)
    assert [len(row) for row in points] == [7] * 5
    assert points == searching.instance(5, 7, 1) != searching.instance(5, 7, 2)
    for row in points:
        steps = [after - before for before, after in pairwise(row)]
        assert max(steps) - min(steps) < 1e-9
        assert 1.0 <= steps[0] <= 1.5
        assert steps[0] <= row[0] <= 2 * steps[0]
    assert zipline(points).spread >= 0


def test_search_is_measured_once_then_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert SearchTimes.find(SMALL, tmp_path) is None
    first = search(SMALL, results=tmp_path)
    assert getattr(SearchTimes.find(SMALL, tmp_path), "path", None) == first.path
    monkeypatch.setattr(searching, "measured", lambda wanted: pytest.fail("measured again"))
    again = search(Searches(sizes=[8, 3], ends=[6, 4], repeats=2), results=tmp_path)
    assert (first.cached, again.cached) == (False, True)
    assert len(again.times) == 2 * 2 * 2 * len(searching.SEARCHES)
    assert set(again.times.search) == set(searching.SEARCHES)
    assert (again.times.seconds > 0).all()


def test_exact_searches_find_the_least_spread(tmp_path: Path):
    wanted = Searches(sizes=[8], ends=[6], repeats=20)
    excess = search(wanted, results=tmp_path).times.groupby("search").excess
    assert (excess.min() >= -1e-12).all()
    assert (excess.max()[["zipline", "opt", "optbs", "lru", "sweep"]] == 0).all()
    assert excess.max()["grid"] > 0  # in some instance it misses the best plan


def test_slowest_heuristic_is_not_timed_on_large_instances(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(searching, "GENTLE", 100)
    table = searching.measured(SMALL)
    assert set(table[table.search == "fullgrid"].workers) == {3}
    assert set(table[table.search == "grid"].workers) == {3, 8}


@pytest.mark.parametrize(
    "wrong", [{"sizes": []}, {"sizes": [0]}, {"ends": "15"}, {"repeats": 0}, {"searches": ["lur"]}]
)
def test_impossible_searches_are_refused(wrong: dict):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Searches(**wrong)


def test_growth_is_the_slope_on_logarithmic_axes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rows = [{"search": "zipline", "workers": n, "ends": r, "repeat": 0, "seconds": 1e-6 * n**2 * r, "excess": 0.0}
            for n in (100, 1000) for r in (15, 150)]  # fmt: skip
    small = [{**rows[0], "workers": 10, "seconds": 1.0}]  # below the workers from which growth is fitted
    once = [{**rows[0], "search": "fullgrid"}]
    monkeypatch.setattr(searching, "measured", lambda wanted: pd.DataFrame([*rows, *small, *once]))
    growth = search(SMALL, results=tmp_path).growth()
    assert growth.loc["zipline"].tolist() == pytest.approx([2.0, 1.0])
    assert growth.loc["fullgrid"].isna().all()
