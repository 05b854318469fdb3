"""Rates on uneven workers: what is tried, what is chosen, and what the tables, sentences and pictures say of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tiny import digits, net

from pslab.config.run import Run
from pslab.errors import ConfigError
from pslab.lab.records import time_to_accuracy as reached
from pslab.lab.records.record import Draft, Result
from pslab.lab.runs.run import sweep
from pslab.lab.studies import staleness, staleness_plots, staleness_tables

Make = Callable[..., Result]
GRIDS = {"constant": [0.2, 0.4], "dynsgd:inverse": [0.2, 0.4]}


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A record with an evaluation every ten pushes; the staleness of its pushes is 3 throughout."""

    def made(run: Run, accuracy: list[float], weights: float = 0.0) -> Result:
        at = 10 * np.arange(len(accuracy))
        table = pd.DataFrame({"pushes": at, "iteration": at / run.workers, "seconds": at / 10.0,
                              "accuracy": accuracy, "loss": 1.0})  # fmt: skip
        number = np.arange(1, at[-1] + 1)
        columns = {"push": number, "worker": number % run.workers, "staleness": 3, "bytes_up": 1, "bytes_down": 1}
        tables = {"accuracy": table, "phases": pd.DataFrame({"worker": [0]}), "pushes": pd.DataFrame(columns)}
        return Draft(run, tmp_path).save(tables, np.full(2, weights), {"outcome": "budget", "verdict": "valid"})

    return made


def trials(**parameters: Any) -> list[Run]:
    return staleness.rate_runs(**{"learning_rates": GRIDS, "undivided": [0.05, 0.2], "policies": ["asp"],
                                  "heterogeneity": [1, 8], "seeds": [4, 5], **parameters})  # fmt: skip


#: Of ten pushes to 80 %, by name and learning rate; 9 is never.
ARRIVES = {("SSP-SGD", 0.05): 4, ("SSP-SGD", 0.2): 9, ("CONSGD", 0.2): 4, ("CONSGD", 0.4): 5,
           ("DynSGD, inverse", 0.2): 2, ("DynSGD, inverse", 0.4): 3}  # fmt: skip


def records(make: Make, runs: list[Run]) -> list[Result]:
    found = []
    for run in runs:
        step = ARRIVES[staleness.name(run), run.learning_rate]
        weights = run.learning_rate * (1.0 if run.push_weight else 0.25)
        found.append(make(run, [0.1] * min(step, 8) + [0.8] * (8 - min(step, 8)), weights))
    return found


# -- runs ------------------------------------------------------------------------------------------


def test_every_rate_is_tried_with_its_grid_under_each_policy_and_cluster():
    runs = trials(policies=["ssp:3", "asp"])
    assert len(runs) == 2 * 2 * (2 + 2 + 2)
    assert {run.seed for run in runs} == {4}
    assert {staleness.name(run) for run in runs} == {"SSP-SGD", "CONSGD", "DynSGD, inverse"}
    assert {run.push_weight for run in runs if staleness.name(run) == "SSP-SGD"} == {1.0}
    assert {run.push_weight for run in runs if staleness.name(run) == "CONSGD"} == {None}


@pytest.mark.parametrize(("workers", "slow"), [(2, [0]), (4, [0]), (8, [0, 1]), (16, [0, 1, 2, 3])])
def test_a_quarter_of_the_workers_is_slow(workers: int, slow: list[int]):
    even, uneven = sorted({staleness.heterogeneity(r): r for r in trials(workers=workers)}.items())
    assert (even[0], uneven[0]) == (1, 8)
    assert "slow" not in even[1].cluster
    assert uneven[1].cluster["slow"] == dict.fromkeys(slow, 8.0)


@pytest.mark.parametrize(("field", "value"), [
    ("heterogeneity", [0.5]), ("heterogeneity", 4), ("heterogeneity", [True]), ("learning_rates", []),
    ("learning_rates", {"dynsgd": 0.1}), ("seeds", []), ("policies", "asp"), ("undivided", [0]),
])  # fmt: skip
def test_what_cannot_be_is_refused(field: str, value: Any):
    with pytest.raises(ConfigError):
        trials(**{field: value})


# -- each at its best ------------------------------------------------------------------------------


def test_each_rate_runs_at_its_soonest_learning_rate_with_every_seed(make: Make):
    chosen = staleness.tuned(records(make, trials()), [4, 5])
    rates = {staleness.name(run): run.learning_rate for run in chosen}
    assert rates == {"SSP-SGD": 0.05, "CONSGD": 0.2, "DynSGD, inverse": 0.2}
    assert len(chosen) == 2 * 3 * 2
    assert {run.seed for run in chosen} == {4, 5}


def test_where_none_gets_there_the_higher_end_is_better(make: Make):
    low, high = (make(Run(learning_rate=rate), [0.1, end]) for rate, end in ((0.1, 0.5), (0.2, 0.6)))
    assert reached.best_rate({0.1: [low], 0.2: [high]}, 0.9, "pushes") == 0.2
    assert reached.best_rate({0.1: [low], 0.2: [low]}, 0.9, "pushes") == 0.1


def test_the_goal_is_what_nine_tenths_reach_early(make: Make):
    runs = [Run(rate=f"modulated:{form}", seed=0) for form in ("offset", "inverse")]
    ends = [make(run, [0.1, 0.2, level, level, 0.99]) for run, level in zip(runs, (0.83, 0.91), strict=True)]
    assert staleness.goal(ends) == 0.8  # the last quarter does not count
    assert staleness.goal(ends[1:]) == 0.9


def test_a_seed_that_never_arrives_counts_as_later_than_all(make: Make):
    results = [make(Run(seed=seed), way) for seed, way in enumerate(([0.1, 0.9], [0.1, 0.1], [0.9, 0.1]))]
    assert [reached.arrival(r, 0.9, "pushes") for r in results] == [10, math.inf, 0]
    assert reached.middle(results, 0.9, "pushes") == 10
    row = staleness_tables.arrivals(results, 0.9).iloc[0]
    assert (row.pushes, row.low, row.high, row.reached, row.seeds) == (10, 0, math.inf, 2, 3)


# -- factors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "weight", "expected"), [
    ("constant", 1.0, [1, 1, 1]), ("constant", None, [0.25] * 3), ("dynsgd:inverse", None, [1, 1 / 4, 1 / 8]),
    ("modulated", None, [1 / 4, 1 / 4, 1 / 8]), ("modulated:reciprocal", None, [1 / 4, 1 / 12, 1 / 28]),
])  # fmt: skip
def test_a_rates_factor_by_staleness(rate: str, weight: float | None, expected: list[float]):
    scale = staleness.factor(rate, weight, 4)
    assert [scale(stale) for stale in (0, 3, 7)] == pytest.approx(expected)


def test_only_factors_have_a_mean_factor(make: Make):
    assert [staleness.scalar(Run(rate=rate)) for rate in ("modulated", "dynsgd", "split", "adagrad", "dynsgd:inverse")
            ] == [True, False, False, False, True]  # fmt: skip
    assert staleness.mean_factor([make(Run(rate="dynsgd:inverse"), [0.1, 0.2])]) == 0.25


# -- what is said ----------------------------------------------------------------------------------


def test_findings_are_what_the_records_hold(make: Make):
    tried = records(make, trials())
    results = records(make, staleness.tuned(tried, [4, 5]))
    told = staleness_tables.findings(tried, results, 0.8)
    assert "ASP, heterogeneity 8: DynSGD, inverse is first at 80 %, after 20 pushes (20 to 20); SSP-SGD" in told
    assert "SSP-SGD needs 40 pushes (40 to 40): 2.0 times as many, against 2.0 times at heterogeneity 1." in told
    assert "DynSGD, inverse needs at most 2.00 times fewer pushes than SSP-SGD" in told
    assert "up to 6 times fewer iterations is not reached here" in told
    assert "learning rate 0.2" in told
    assert "ASP: DynSGD, inverse 20, CONSGD 40, not there: SSP-SGD" in told
    assert "equal to the bit in 2 of 2 pairs" in told  # 0.05 and 0.2, on both clusters
    assert "Mean staleness at heterogeneity 1 and 8: ASP 3.0 and 3.0 (largest 3 and 3)" in told
    assert "Of 6 chosen learning rates 6 lie at an end of their grid" in told


def test_the_published_gain_is_said_to_be_reached_where_it_is(make: Make, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(ARRIVES, ("SSP-SGD", 0.05), 7)
    monkeypatch.setitem(ARRIVES, ("DynSGD, inverse", 0.2), 1)
    tried = records(make, trials())
    told = staleness_tables.findings(tried, records(make, staleness.tuned(tried, [4, 5])), 0.8)
    assert "at most 7.00 times fewer" in told
    assert "iterations is reached here" in told


def test_the_tables_for_people(make: Make, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(ARRIVES, ("CONSGD", 0.2), 9)
    results = records(make, staleness.tuned(records(make, trials()), [4, 5]))
    table = staleness_tables.readable(results, 0.8)
    assert list(table.columns) == ["HL 1", "HL 8"]
    assert table.loc[("ASP", "DynSGD, inverse"), "HL 8"] == "20 (20 to 20) at 0.2"
    assert table.loc[("ASP", "CONSGD"), "HL 8"] == "50 (50 to 50) at 0.4"
    assert staleness_tables.readable(results, 0.9).iloc[0, 0] == "not reached (0 of 2 seeds) at 0.05"
    steps = staleness_tables.steps(results)
    assert steps.loc[("ASP", "DynSGD, inverse")].tolist() == ["0.2", "0.250", "0.050"]


# -- pictures --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Result], list[Result]]:
    """Really run, in virtual time: trials and chosen runs."""
    place = tmp_path_factory.mktemp("results")
    small = {"model": net, "data": digits, "pushes": 40, "eval_every": 8, "batch_size": 16}
    tried = sweep(trials(policies=["ssp:3", "asp"], **small), results=place, progress=False)
    return tried, sweep(staleness.tuned(tried, [4, 5]), results=place, progress=False)


def test_real_trials_are_valid_and_the_constants_equal(ran: tuple[list[Result], list[Result]]):
    tried, results = ran
    assert {r.manifest["verdict"] for r in [*tried, *results]} == {"valid"}
    assert "equal to the bit in 4 of 4 pairs" in staleness_tables.findings(tried, results, 0.3)


def test_the_pictures_show_every_rate_once_in_the_legend(ran: tuple[list[Result], list[Result]]):
    _, results = ran
    for figure, names in (
        (staleness_plots.pushes(results, 0.3), ["SSP-SGD", "CONSGD", "DynSGD, inverse"]),
        (staleness_plots.accuracy(results), ["SSP-SGD", "DynSGD, inverse"]),
    ):
        assert [trace.name for trace in figure.data if trace.showlegend is not False] == names
        caption = figure.layout.title.subtitle.text.replace("<br>", " ")
        for words in ("push weight 1 for SSP-SGD", "stops at 40 pushes", "2 seeds", "worker 0", "100\u00a0Mbit/s"):
            assert words in caption
        assert "learning rate," not in caption  # each has its own


def test_what_is_not_reached_stands_above(make: Make):
    results = [make(Run(sync="asp", push_weight=1.0, cluster={"compute_s": 0.1}), [0.1, 0.2, 0.3])]
    crosses = [t for t in staleness_plots.pushes(results, 0.9).data if t.marker.symbol == "x"]
    assert [list(t.y) for t in crosses] == [[1.08 * 20]]
    assert not [t for t in staleness_plots.pushes(results, 0.25).data if t.marker.symbol == "x"]


def test_the_staleness_of_each_group_adds_up(ran: tuple[list[Result], list[Result]]):
    figure = staleness_plots.factors(ran[1])
    bars = [t for t in figure.data if t.type == "bar"]
    assert [t.name for t in bars] == ["other workers", "slow workers"] * 2
    assert [sum(t.y) for t in bars] == pytest.approx([100.0] * 4)
    asp = {t.name: float(np.dot(t.x, t.y) / 100) for t in bars[2:]}
    assert asp["slow workers"] > 2 * asp["other workers"]  # eight times slower
    flat = next(t for t in figure.data if t.name == "CONSGD")
    assert set(flat.y) == {0.25}
