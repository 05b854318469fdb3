"""The study of ElasticBSP: its runs, its tables with the numbers that are known by hand, its pictures and words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pslab.config.run import Run
from pslab.errors import ConfigError
from pslab.lab.records import intervals as spans
from pslab.lab.records import time_to_accuracy as reached
from pslab.lab.records.record import Result
from pslab.lab.runs.run import sweep
from pslab.lab.studies import elastic_plots, elastic_tables, elastic_words, elasticity
from pslab.lab.studies.searching import Searched, Searches, search

SMALL: dict[str, Any] = {
    "sizes": [3, 100, 110], "ends": [2, 3], "repeats": 1, "ratios": [1.0, 2.0], "horizons": [15, 30], "crowds": [4],
    "policies": ["bsp", "asp", "elastic:3"], "learning_rates": [0.1, 0.4], "pushes": 24, "eval_every": 8, "seeds": [0],
    "data": "mnist:train=512,test=200", "model": "mlp:8",
}  # fmt: skip
Study = tuple[Searched, dict[str, list[Result]]]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Everything, small, but for the speeds, which are the published check's."""
    results = tmp_path_factory.mktemp("results")
    asked = elasticity.elastic_groups(**SMALL)
    searched = search(asked.pop("search")[0], results=results)
    return searched, {part: sweep(runs, results=results, progress=False) for part, runs in asked.items()}


def test_all_groups_are_asked_for_once():
    wanted = elasticity.elastic_runs(**SMALL)
    assert len({each.digest for each in wanted}) == len(wanted)
    assert [type(each) for each in wanted[:2]] == [Searches, Run]
    trained = [run for run in wanted[1:] if run.engine == "virtual"]
    assert len(trained) == 2 + 2 * 2 * 2  # BSP has no push weight
    assert all(run.engine == "timing" for run in wanted[1:] if run not in trained)
    assert elasticity.crowd(3) == {1: 2.0, 2: 3.0}


@pytest.mark.parametrize("wrong", [{"ratios": []}, {"crowds": [1]}, {"policies": "bsp"}, {"sizes": [0]}, {"seeds": 3}])
def test_what_cannot_be_is_refused(wrong: dict):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        elasticity.elastic_runs(**{**SMALL, **wrong})


def test_throughput_with_speeds_that_stay(study: Study):
    """Compute (1, 1.37, 2.11, 2.9), 300 s: worked out by hand for BSP, SSP(3), ElasticBSP(15) and ASP."""
    table = elastic_tables.throughput(study[1]["speeds"])
    names = dict(zip(elasticity.TIMED, table.index, strict=True))
    pushes = {policy: int(table.pushes[names[policy]]) for policy in ("bsp", "ssp:3", "elastic:15", "asp")}
    assert pushes == {"bsp": 413, "ssp:3": 422, "elastic:15": 754, "asp": 763}
    waits = table.waits_s[names["elastic:15"]]
    assert waits == pytest.approx([1.3, 0, 5.7, 10.8], abs=0.05)
    assert table.waiting[names["elastic:15"]] == pytest.approx(sum(waits) / 1200)
    assert table.waits_s[names["asp"]] == [0, 0, 0, 0]
    assert table.lead[names["ssp:3"]] == 3
    assert table.lead[names["dssp:3,12"]] <= 15
    assert table.dropped[names["backup:1"]] == 103  # all of the slowest worker's
    shown = elastic_tables.throughput_table(study[1]["speeds"])
    assert shown.pushes[names["backup:1"]].endswith("(103 dropped)")


@pytest.mark.parametrize(("policy", "speeds", "pushes", "lead"), [
    ("bsp", (1, 3), 200, None), ("ssp:3", (1, 3), 203, None), ("ssp:15", (1, 3), 215, None), ("asp", (1, 3), 400, None),
    ("dssp:3,12,literal", (1, 3), 393, 194), ("dssp:3,12,literal", (1, 1, 1, 2), 1050, 151),
    ("dssp:3,12", (1, 3), 204, 5),
])  # fmt: skip
def test_pushes_and_leads_known_by_hand(policy: str, speeds: tuple[int, ...], pushes: int, lead: int | None,
                                        tmp_path: Path):  # fmt: skip
    cluster = {"compute_s": 1.0, "slow": dict(enumerate(map(float, speeds)))}
    run = elasticity.timed(policy, cluster, len(speeds), None, seconds=300.0)
    # what begins at the last instant has no end: the lead is seen a second later
    result, later = sweep([run, run.but(seconds=301.0)], results=tmp_path, progress=False)
    assert abs(int(result.manifest["accepted"]) - pushes) <= (1 if policy == "bsp" else 0)  # before the last barrier
    assert lead in (None, elastic_tables.largest_lead(later))


def test_two_workers_take_what_their_speeds_say(study: Study):
    over = elastic_tables.speed_ups(study[1]["pair"])
    assert over.loc[1.0].tolist() == pytest.approx([1.0] * 4, abs=0.01)
    literal = elastic_tables.name(elasticity.timed("dssp:3,12,literal", {}, 2, 1))
    assert over[literal][2.0] == pytest.approx(1.5, abs=0.03)  # (1 + r) / 2
    assert over["ASP"][2.0] == pytest.approx(1.5, abs=0.03)


def test_barriers_are_where_all_start_on_the_same_weights(study: Study):
    """Two workers of 2 and 3 s, R = 4: barriers at 12 and 24 s."""
    found = {r.run.sync: r for r in study[1]["speeds"]}
    at = list(spans.common_starts(found["elastic:15"]).at_s)
    assert len(at) > 5
    assert len(spans.common_starts(found["asp"])) == 0
    begins = found["elastic:15"].phases.query("phase == 'compute'").begin_s
    assert all((abs(begins - each) < 1e-9).sum() == 4 for each in at)


def test_barriers_of_the_vector(tmp_path: Path):
    run = elasticity.timed("elastic:4", {"compute_s": 2.0, "slow": {1: 1.5}}, 2, None, seconds=40.0)
    (result,) = sweep([run], results=tmp_path, progress=False)
    assert list(spans.common_starts(result).at_s)[:2] == pytest.approx([12.0, 24.0])


def test_stragglers_and_the_horizon(study: Study):
    table = elastic_tables.stragglers(study[1]["stragglers"]).set_index(["kind", "policy"])
    assert table.rate["permanent", "SSP, s\u00a0=\u00a03"] < 0.45
    assert table.rate["transient", "SSP, s\u00a0=\u00a03"] > 0.8
    ahead = elastic_tables.horizons(study[1]["horizon"])
    planned = ahead[ahead.ends > 0]
    assert set(planned.ends) == {15, 30}
    assert (planned.break_even_s > planned.search_s).all()
    bsp = float(ahead[ahead.policy == "BSP"].rate.iloc[0])
    assert (planned.rate > bsp).all()


def test_a_break_even_is_where_bsp_is_as_fast(study: Study, tmp_path: Path):
    """Charged with it, ElasticBSP is about as fast as BSP: other plans are made then, so not to the digit."""
    ahead = elastic_tables.horizons(study[1]["horizon"])
    row = ahead[ahead.ends == 15].iloc[0]
    run = next(r.run for r in study[1]["horizon"] if r.run.sync == "elastic:15")
    assert not isinstance(run.cluster, str)
    (dear,) = sweep([run.but(cluster={**run.cluster, "search_s": float(row.break_even_s)})], results=tmp_path,
                    progress=False)  # fmt: skip
    bsp = next(r for r in study[1]["horizon"] if r.run.sync == "bsp")
    assert elastic_tables.rate(dear) == pytest.approx(elastic_tables.rate(bsp), rel=0.25)


def test_own_best_rates_and_the_weight_that_is_a_rate(study: Study):
    groups = elastic_tables.by_rate(study[1]["accuracy"])
    assert list(groups) == [(p, w) for w in (None, 1.0) for p in SMALL["policies"]]
    assert all(set(rates) == {0.1, 0.4} for rates in groups.values())
    goal = elastic_tables.goal_of(groups)
    for rates in groups.values():
        best = reached.best_rate(rates, goal)
        assert all(reached.middle(rates[best], goal) <= reached.middle(r, goal)
                   for r in rates.values())  # fmt: skip
    one, other = groups["asp", 1.0][0.1][0], groups["asp", None][0.4][0]
    assert (one.weights == other.weights).all()
    assert "of 2 runs whose weight times rate equals another's, 2 ended" in elastic_words.findings(*study)


def test_the_pictures_show_what_the_tables_say(study: Study):
    searched, results = study
    bars = elastic_plots.throughput(results["speeds"])
    assert bars.data[0].x[0] == 413
    lanes = elastic_plots.barriers(results["speeds"])
    (planned,) = [trace for trace in lanes.data if trace.legendgroup == "planned"]
    assert set(planned.x) - {None} <= set(spans.common_starts(results["speeds"][5]).at_s)
    hollow = [t for t in elastic_plots.search(searched).data if "open" in str(t.marker.symbol)]
    assert 6370e-6 not in [y for t in hollow for y in t.y]  # of R = 15: there is no such panel here
    for figure in (elastic_plots.pair(results["pair"]), elastic_plots.stragglers(results["stragglers"]),
                   elastic_plots.accuracy(results["accuracy"]), elastic_plots.horizon(results["horizon"])):  # fmt: skip
        said = figure.layout.title.subtitle.text
        assert "stops at" in said
        assert "seed" in said
        assert "weight" in said
        assert "computation" in said
    assert elastic_tables.accuracy_table(results["accuracy"]).shape[0] == 5
    assert elastic_words.findings(searched, results).count("\n") == 5
