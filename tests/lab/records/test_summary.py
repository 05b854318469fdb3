"""Tables of runs and results: what they refuse, what differs, records on disk; summary, goal and best over seeds."""

from __future__ import annotations

import math
import re
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import handmade
import pandas as pd
import pytest

from pslab.config.metric import Metric
from pslab.config.run import Run
from pslab.errors import ConfigError, RecordError
from pslab.lab.records import summary as summaries
from pslab.lab.records.card import recovered
from pslab.lab.records.frames import labels, unique, where
from pslab.lab.records.merit import MERITS, merit_of
from pslab.lab.records.results import ROWS, evaluations, load, records, tidy
from pslab.lab.records.summary import held, held_at, iteration_s, measured, summary
from pslab.lab.records.tuning import best, goal, rounded
from pslab.lab.runs.grid import alone, grid

BASE = Run(pushes=8, workers=2, engine="virtual", cluster="lab")
SLOW, FAST, NEVER = [0.1, 0.2, 0.6, 0.9, 0.95], [0.1, 0.9, 0.92, 0.93, 0.94], [0.1, 0.2, 0.3, 0.3, 0.4]
HIGHER = [0.1, 0.2, 0.5, 0.5, 0.45]  # never at 0.9 either


def made(runs: pd.DataFrame, curves: dict, **facts: dict) -> pd.DataFrame:
    """Results whose evaluations are given by (policy, learning rate, seed), or by a part of it."""

    def of(run: Run):
        keys = [(run.sync, run.learning_rate, run.seed), (run.sync, run.learning_rate), (run.sync, run.seed), run.sync]
        return next(curves[key] for key in keys if key in curves)

    return handmade.with_results(
        runs, lambda run: handmade.curve(None, run, of(run), **facts.get(f"{run.sync}{run.seed}", {}))
    )


def plain(text: str) -> str:
    return text.replace("\u00a0", " ")


FAMILIES = {"static": {"prune": ["none", "static:1%"]}, "std": {"prune": ["none"]}}


def finished(runs: pd.DataFrame, folder: Path | None = None) -> pd.DataFrame:
    return handmade.finished(runs, [0.1, 0.5, 0.9], folder)


# -- tables ----------------------------------------------------------------------------------------


def test_a_table_of_results_is_pandas_own():
    results = finished(grid(BASE, sync=["bsp", "asp"], push_weight=[None, 1.0], seed=[0, 1]))
    assert [*results.columns] == ["sync", "push_weight", "seed", "run", "result"]
    assert results[(results.sync == "asp") & (results.seed == 1)].push_weight.tolist() == [None, 1.0]
    assert [type(seed) for seed in results.seed] == [int] * 8
    assert len(unique(pd.concat([results, results]))) == 8  # a record counts once
    assert str(results.iloc[0].result) == "90.00%, 8 pushes, 2 s"


def test_rows_are_chosen_by_an_axis_or_by_a_field_of_their_run():
    both = pd.concat([finished(grid(BASE, sync=["asp"], seed=[0, 1])), finished(grid(alone(BASE)))])
    assert where(both, sync="bsp").result.tolist() == both.result.tolist()[2:]
    assert where(both, workers=2, seed=[1]).seed.tolist() == [1]


def test_what_differs_is_told_by_as_few_columns_as_there_can_be():
    families = {"static": {"prune": ["none", "static:1%"]}, "std": {"prune": ["none", "std:2"]}}
    results = finished(grid(BASE, family=families, sync=["bsp", "asp"], seed=[0, 1]))
    assert labels(results) == ["sync", "prune"]  # the family says nothing that its rule does not say
    assert labels(results[(results.sync == "bsp") & (results.family == "std")]) == ["prune"]
    assert labels(finished(grid(BASE, method={"whole": {"push_weight": 1.0}, "shared": {"learning_rate": 0.2}}))) == [
        "method"]  # fmt: skip
    assert labels(results[:1]) == []


def test_a_tidy_table_has_a_row_for_each_evaluation_at_each_point_or_for_each_run():
    table = tidy(finished(grid(BASE, family=FAMILIES, seed=[3])), "evaluation")
    assert len(table) == 3 * 3  # dense stands in both families
    wanted = {"family": "static", "prune": "none", "seed": 3, "pushes": 8, "seconds": 2.0, "accuracy": 0.9, "loss": 0.5,
              "bytes": 8 * 130, "bytes_up": 800, "bytes_down": 240}  # fmt: skip
    assert table.iloc[2][[*wanted]].to_dict() == wanted
    assert list(evaluations(handmade.curve(None, BASE, [0.1, 0.5, float("nan")])).accuracy) == [0.1, 0.5]
    # a single machine's iteration counts as many pushes as the others'
    table = tidy(finished(pd.concat([grid(BASE, sync=["bsp"]), grid(alone(BASE), seed=[0])])), "evaluation")
    assert table.groupby("workers").iteration.max().to_dict() == {1: 4.0, 2: 4.0}
    results = finished(grid(BASE, loss=["cross_entropy", "mse"]))
    row, table = tidy(results).iloc[1], tidy(results, "evaluation")
    assert (row.loss, row.sync, row.digest) == ("mse", "bsp", results.result[1].digest)
    assert (row.outcome, row.final, row.pushes, row.seconds, row.emulation_ok) == ("budget", 0.9, 8, 2.0, True)
    assert set(table.loss_of_run) == {"cross_entropy", "mse"}  # an axis that is named like a column of the table
    assert set(table.loss) == {0.5}
    results = [handmade.bsp(), handmade.asp()]
    for each in ROWS:
        table = tidy(results, each)
        assert len(table) == sum(len(ROWS[each](result)) for result in results)
        assert set(table.sync) == {"bsp", "asp"}
        assert table.columns.is_unique


# -- from disk -------------------------------------------------------------------------------------


def test_all_records_are_found_and_those_with_the_asked_fields(tmp_path: Path):
    made = finished(grid(BASE, sync=["bsp", "asp"], seed=[0, 1]), tmp_path)
    assert {run.digest for run in records(results=tmp_path).run} == {run.digest for run in made.run}
    found = records(results=tmp_path, sync="asp", seed=[1, 0])
    assert found[["sync", "seed"]].to_numpy().tolist() == [["asp", 0], ["asp", 1]]
    assert len(records(results=tmp_path / "none")) == 0
    (bad := made.result[0].path / "phases.csv").unlink()
    with pytest.warns(UserWarning, match=rf"1 of 4 records are left out: .*{bad.name}"):
        assert len(records(results=tmp_path)) == 3
    with pytest.raises(RecordError, match=rf"is not a complete record: {bad.name} missing"):
        load(bad.parent.name, tmp_path)


def test_the_start_of_a_digest_names_a_record_and_what_is_none_lists_the_nearest(tmp_path: Path):
    bsp, asp = handmade.bsp(tmp_path), handmade.asp(tmp_path)
    for name in (asp.digest, asp.digest[:6].upper(), str(asp.path)):
        assert load(name, tmp_path).path == asp.path
    wrong, none = asp.digest[:5] + "x" + asp.digest[6:], r"has a similar digest: .* lists all 2 records$"
    for name, words in ((wrong, rf"nearest:\n  {asp.digest}  Run\(workers=2, sync='asp', pushes=3\)$"), ("", none),
                        ("no/such/directory", none), ("zzz", none)):  # fmt: skip
        with pytest.raises(ConfigError, match=words):
            load(name, tmp_path)
    with pytest.raises(ConfigError, match="there is no record in"):
        load("abc", tmp_path / "none")
    (tmp_path / "runs" / bsp.digest).rename(tmp_path / "runs" / f"{asp.digest[:4]}aaaa")
    with pytest.raises(ConfigError, match=f"2 digests in .* begin so: give more(.|\\s)*{asp.digest}"):
        load(asp.digest[:4], tmp_path)


# -- measures --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fields", "curve", "seconds", "wanted"), [
    ({"pushes": 20}, [0.1] * 11, [0.0, 10.0, *(10.0 + step for step in range(1, 10))], 1.0),  # a long start
    ({"pushes": 4, "workers": 4}, [0.1, 0.2], [0.0, 3.0], 3.0),  # a short run has its whole time
])  # fmt: skip
def test_an_iteration_is_a_push_of_every_worker_in_the_middle_of_the_run(fields, curve, seconds, wanted):
    assert iteration_s(handmade.curve(None, BASE.but(**fields), curve, seconds)) == pytest.approx(wanted)


@pytest.mark.parametrize(("facts", "changed"), [
    ({}, {}), ({"network_bytes": 700}, {"network_bytes": 700.0}),
    ({"pushes": 6, "accepted": 8, "dropped": 4}, {"pushes": 6.0, "rate": 1.5, "iteration_s": 4 / 3}),
], ids=["usual", "what crossed the network", "dropped pushes"])  # fmt: skip
def test_each_measure_of_a_curve(facts: dict, changed: dict):
    result = handmade.curve(None, BASE, SLOW, **facts)
    (row,) = summary([result], goal=0.9, measures=list(summaries.MEASURES)).to_dict("records")
    expected = {"accuracy": 0.95, "best_accuracy": 0.95, "seconds_to_goal": 3.0, "pushes_to_goal": 6.0,
                "iterations_to_goal": 3.0, "rounds_to_goal": 3.0, "bytes_to_goal": 6 * 130.0, "bytes_up_to_goal": 600.0,
                "bytes_down_to_goal": 180.0, "held_s": 3.0, "held_pushes": 6.0, "held_bytes": 6 * 130.0,
                "seconds": 4.0, "pushes": 8.0, "rate": 2.0, "iteration_s": 1.0, "waiting": 0.25,
                "staleness": 1.5, "lead": 0.0, "bytes_up": 800.0,
                "bytes_down": 240.0, "network_bytes": 1040.0}  # fmt: skip
    assert {name: row[name] for name in summaries.MEASURES} == pytest.approx(expected | changed)


@pytest.mark.parametrize(("curve", "wanted"), [
    ([0.9, 0.1, 0.1], 0.0), ([0.9], math.inf), ([0.1, math.nan, 0.9, 0.9, 0.9], 2.0), ([math.nan], math.inf),
    ([0.1, 0.4, 0.5, 1.0, 1.0, 1.0], 2 + 4 / 5),  # medians .1 .4 .5 1.0: between two of them
], ids=["first", "only one", "what is not finite is none", "none", "between two"])  # fmt: skip
def test_a_goal_is_held_where_the_median_of_three_evaluations_reaches_it(curve: list, wanted: float):
    result = handmade.curve(None, BASE.but(pushes=max(1, 4 * len(curve) - 4)), curve)
    assert held(result, 0.9) == pytest.approx((wanted, 4 * wanted))


def test_a_metric_is_held_in_its_direction_and_measured_as_a_figure_of_merit():
    losses = handmade.curve(None, BASE.but(metric="loss"), SLOW[::-1])
    assert held(losses, 0.4) == pytest.approx((2.5, 5.0))
    result = handmade.curve(None, BASE, [0.1, 0.5, 0.8, 1.0, 1.0])
    assert held_at(result, 0.9, "bytes_up", "bytes_down", "bytes") == pytest.approx((500.0, 150.0, 650.0))
    assert held_at(result, 1.1, "bytes_up", "bytes") == (math.inf, math.inf)
    whole = {"seconds": ("4 s", "4.0 s", 4.0), "bytes": ("4 B", "4 B", 8 * 130.0),
             "gradients": ("4 gradients", "4 gradients", 8.0)}  # fmt: skip
    assert {*MERITS} == {*whole}
    for name, (*texts, of_all) in whole.items():
        merit = merit_of(name)
        assert [plain(text) for text in (merit.text(4.0), merit.text(4.0, 30.1))] == texts
        assert sum(held_at(result, 0.9, *merit.columns)) == pytest.approx(measured(result, merit.measure, 0.9))
        assert sum(measured(result, column) for column in merit.columns) == pytest.approx(of_all)


# -- over seeds ------------------------------------------------------------------------------------


def second(result: Any) -> float:
    return float(result.accuracy.accuracy.iloc[1])


def readings(curve: list[float], at: float) -> dict[str, float]:
    """Return the measures of a curve whose evaluations are a second and two pushes apart."""
    middle = [median([curve[max(0, i - 1)], curve[i], curve[i + 1]]) for i in range(len(curve) - 1)]
    reached = next((i for i, value in enumerate(curve) if value >= at), math.inf)
    held_s = next((float(i) for i, value in enumerate(middle) if value >= at), math.inf)
    if 0 < held_s < math.inf:
        before, here = middle[int(held_s) - 1], middle[int(held_s)]
        held_s += (at - here) / (here - before)
    return {"seconds_to_goal": reached, "pushes_to_goal": 2 * reached, "held_s": held_s, "accuracy": curve[-1],
            "second": curve[1]}  # fmt: skip


def spread(values: list[float]) -> list[float]:
    of = [median(values), min(values), max(values)] if values else [math.nan] * 3
    return [value if math.isfinite(value) else math.nan for value in of]


@pytest.mark.parametrize("number", range(12))
def test_a_group_has_medians_and_ranges_over_seeds_and_ratios_to_the_first_group(number: int):
    """Diverged seeds count in no accuracy, and seconds that were not emulated nowhere; never is infinite."""
    random, seeds, syncs = Random(f"summary {number}"), [*range(1 + number % 4)], ["bsp", "asp", "ssp:3"]
    curves = {(sync, seed): [random.choice([0.1, 0.3, 0.6, 0.8, 0.95]) for _ in range(5)]
              for sync in syncs for seed in seeds}  # fmt: skip
    facts = {f"{sync}{seed}": {"outcome": random.choice(["budget", "diverged"]), "dilation": random.choice([1.0, 2.0]),
                               "emulation_ok": random.random() < 0.7} for sync, seed in curves}  # fmt: skip
    measures = ["seconds_to_goal", "pushes_to_goal", "held_s", "accuracy", second]
    results = made(grid(BASE, sync=syncs, seed=seeds), curves, **facts)
    table = summary(results, by="sync", goal=0.7, measures=measures, paired=True)
    assert (list(table.index), table.index.name, table.attrs["goal"]) == (syncs, "sync", 0.7)
    assert table.equals(summary(results, goal=0.7, measures=measures, paired=True))  # the label is what differs
    first: dict[str, dict[int, float]] = {}
    for sync, row in zip(syncs, table.to_dict("records"), strict=True):
        ours = {seed: (readings(curves[sync, seed], 0.7), facts[f"{sync}{seed}"]) for seed in seeds}
        lost = sum(fact["outcome"] == "diverged" for _, fact in ours.values())
        counts = [sum(values[name] < math.inf for values, _ in ours.values()) for name in ("seconds_to_goal", "held_s")]
        assert [row[name] for name in ("seeds", "diverged", "reached", "held")] == [len(seeds), lost, *counts]
        assert row["emulation_ok"] == all(fact["emulation_ok"] for _, fact in ours.values())
        assert row["dilation"] == max(fact["dilation"] for _, fact in ours.values())
        for name in row.keys() & readings([0.0] * 5, 1.0).keys():
            values = {seed: found[name] for seed, (found, fact) in ours.items()
                      if (fact["emulation_ok"] or name not in ("seconds_to_goal", "held_s"))
                      and (fact["outcome"] == "budget" or name != "accuracy" or lost == len(seeds))}  # fmt: skip
            base = first.setdefault(name, values)
            ratios = [value / base[seed] for seed, value in values.items() if 0 < base.get(seed, 0) < math.inf]
            for column, wanted in ((name, spread([*values.values()])), (f"{name}_ratio", spread(ratios))):
                found = [row[f"{column}{end}"] for end in ("", "_low", "_high")]
                assert found == pytest.approx(wanted, nan_ok=True), (sync, column)


def test_a_single_machine_exchanges_nothing_and_without_a_value_of_an_axis_comes_last():
    weighed = made(grid(BASE, weight={"light": {}, "heavy": {"push_weight": 1.0}}, sync=["asp"]), {"asp": SLOW})
    single = made(grid(alone(BASE), seed=[0]), {"bsp": FAST})
    for parts in ((weighed, single), (single, weighed)):
        table = summary(pd.concat(parts), by="weight", goal=0.9)
        assert table.index.tolist() == ["light", "heavy", None]
        assert table.bytes_to_goal.isna().tolist() == table.waiting.isna().tolist() == [False, False, True]
        assert table.seconds_to_goal.tolist() == [3.0, 3.0, 1.0]


LIVES = [{"worker": worker, "how": "is gone"} for worker in (2, 0, 2)]
WITH_SERVER = [{"worker": worker, "how": "server is gone"} for worker in (0, 1)]


@pytest.mark.parametrize(("facts", "words"), [
    ({}, ""), ({"resumed": [{"pushes": 7, "made": "then"}]}, "continued at push 7 from the checkpoint of then"),
    ({"lives": LIVES[:1]}, "processes of worker 2 were replaced"),
    ({"lives": LIVES}, "processes of workers 0, 2 were replaced"),
    ({"lives": WITH_SERVER, "rewinds": [{}, {}]}, "its server was replaced 2 times"),
    ({"fallen_starts": ["server is gone"], "rewinds": [{}]}, "its server was replaced once; began again once"),
])  # fmt: skip
def test_what_a_run_went_on_after_is_said_and_counted(facts: dict, words: str):
    results = made(grid(BASE, sync=["bsp", "asp"]), {"bsp": SLOW, "asp": FAST}, asp0=facts)
    assert [recovered(result.manifest) for result in results.result] == ["", words]
    table = summary(results, by="sync")
    assert ("recovered" in table) == bool(words)
    assert not words or table.recovered.tolist() == [0, 1]


# -- goal and best ---------------------------------------------------------------------------------


def test_the_goal_is_the_highest_round_accuracy_that_half_of_the_groups_reach_with_every_seed():
    runs = grid(BASE, sync=["bsp", "asp", "ssp:3"], seed=[0, 1])
    results = made(runs, {"bsp": SLOW, ("asp", 0): FAST, ("asp", 1): [0.1, *[0.86] * 4], "ssp:3": NEVER})
    assert [goal(results), goal(results, share=1.0), goal(results, share=0.3)] == [0.85, 0.4, 0.95]
    assert goal(results, within=0.5) == 0.6  # half-way ssp:3 has 0.3, bsp 0.6, asp 0.92
    assert goal([]) == 0.3
    single = pd.concat([grid(BASE, sync=["asp"]), grid(alone(BASE), seed=[0])])  # the single machine sets no goal
    assert goal(made(single, {"asp": NEVER, "bsp": SLOW})) == 0.4


LOSS, SCORE = Metric("loss", True, share=False), Metric("loss", False, share=False)


@pytest.mark.parametrize(("value", "metric", "wanted"), [
    (0.9749, None, 0.97), (0.975, None, 0.975), (0.2, None, 0.3), (1.0, None, 0.99),
    (0.29, SCORE, 0.29), (0.29, LOSS, 0.29), (0.288, SCORE, 0.28), (0.288, LOSS, 0.29), (5.7, SCORE, 5.7),
    (0.1234, LOSS, 0.13), (97.1, LOSS, 98.0), (-0.1234, LOSS, -0.12), (0.0, LOSS, 0.0),
])  # fmt: skip
def test_a_round_value_is_not_better_and_stays_as_it_is(value: float, metric: Metric | None, wanted: float):
    assert rounded(value, *filter(None, [metric])) == pytest.approx(wanted)


BOTH = {"sync": ["bsp", "asp"], "learning_rate": [0.1, 0.2]}
TWO = {("asp", 0.2): FAST, ("bsp", 0.1): SLOW, "bsp": NEVER, "asp": NEVER}
RATES, SLOWER = {"learning_rate": [0.1, 0.2]}, {("bsp", 0.1): FAST, "bsp": SLOW}


@pytest.mark.parametrize(("axes", "curves", "facts", "named", "chosen"), [
    ({"sync": ["bsp", "asp"], "learning_rate": [0.1, 0.2, 0.4], "seed": [0, 1, 2]},
     {("bsp", 0.1): SLOW, ("bsp", 0.2, 0): NEVER, ("bsp", 0.2): FAST, ("bsp", 0.4, 0): FAST, ("bsp", 0.4): NEVER,
      ("asp", 0.1): NEVER, ("asp", 0.2): HIGHER, ("asp", 0.4): NEVER}, {}, {},
     [(sync, 0.2, seed) for sync in ("bsp", "asp") for seed in (0, 1, 2)]),
    ({"learning_rate": [0.4, 0.1]}, {"bsp": FAST}, {}, {}, [("bsp", 0.1, 0)]),
    (BOTH, TWO, {}, {"over": ["sync", "learning_rate"]}, [("asp", 0.2, 0)]),
    (BOTH, TWO, {}, {"over": ["sync", "learning_rate"], "measure": "accuracy"}, [("bsp", 0.1, 0)]),
    (RATES, {("bsp", 0.1): NEVER, "bsp": [0.1] * 5}, {"outcome": "diverged"}, {}, [("bsp", 0.2, 0)]),
    (RATES, SLOWER, {"emulation_ok": False}, {}, [("bsp", 0.2, 0)]),
    (RATES, SLOWER, {"emulation_ok": False}, {"measure": "pushes_to_goal"}, [("bsp", 0.1, 0)]),
], ids=["soonest by the median", "of equals the smaller", "over two fields", "by another measure", "diverged",
        "emulation not kept", "which pushes do not mind"])  # fmt: skip
def test_best_is_the_choice(axes: dict, curves: dict, facts: dict, named: dict, chosen: list):
    results = made(grid(BASE, **axes), curves)
    for result in results.result[results.get("learning_rate") == 0.1] if facts else ():
        result.manifest.update(facts)
    found = best(results, **{"goal": 0.9, **named})
    assert [(r.run.sync, r.run.learning_rate, r.run.seed) for r in found.result] == chosen


# -- printed ---------------------------------------------------------------------------------------


def lots(seeds: int = 1) -> pd.DataFrame:
    runs = grid(BASE.but(pushes=8000, workers=4), sync=["bsp", "asp"], seed=list(range(seeds)))
    return handmade.finished(runs, [0.1, 0.5, 0.95], seconds=lambda run: [0, 1, 2.0 + run.seed])


def test_printed_summary_begins_with_what_was_asked_in_units_and_without_ranges_of_one_seed():
    table = summary(lots(), by="sync", goal=0.9)
    head, _, bsp, *_ = plain(repr(table)).splitlines()
    assert head.split() == ["seconds_to_goal", "pushes_to_goal", "bytes_to_goal", "accuracy", "waiting"]
    assert re.split(" {2,}", bsp) == ["bsp", "2 s", "8\u202f000", "1.0 MB", "95.00 %", "25.0 %"]
    assert "1.0\u00a0MB" in table._repr_html_()
    several = plain(repr(summary(lots(3), by="sync", goal=0.9)))
    assert "3 s (2 to 4)" in several
    assert "seeds" in several
    results = made(grid(BASE, seed=[0, 1]), {("bsp", 0): [0.1, 0.95, 0.2, 0.3, 0.4], "bsp": SLOW})
    (row,) = summary(results, goal=0.9, measures=["seconds_to_goal", "held_s"]).read().to_numpy().tolist()
    assert [plain(text) for text in row] == ["2 s (1 to 3)", "reached by 1 of 2 seeds", "2"]
    assert "held" not in summary(results, goal=0.9)


def below(result: Any) -> float:
    return -0.218


def test_a_summary_in_latex_is_a_table_with_rules_escaped_and_at_most_ten_columns():
    runs = grid(BASE, rate={"50 % & more_{}": {"rate": "dynsgd"}, "a\\~^$": {}}, sync=["bsp"], seed=[0, 1])
    results = handmade.finished(runs, [0.1, 0.5, 0.95], seconds=lambda run: [0, 1, 2.0 + run.seed])
    asked = {"by": ["rate", "sync"], "goal": 0.9}
    assert summary(results, measures=["seconds_to_goal", "accuracy"], **asked).to_latex().splitlines() == [
        "% median and range of 2 seeds", r"\begin{tabular}{llrr}", r"\toprule",
        r"learning-rate policy & synchronization policy & time to 90~\% & final test accuracy \\", r"\midrule",
        r"50 \% \& more\_\{\} & BSP & 2.50~s (2.00 to 3.00) & 95.00~\% \\",
        r"a\textbackslash{}\textasciitilde{}\textasciicircum{}\$ & BSP & 2.50~s (2.00 to 3.00) & 95.00~\% \\",
        r"\bottomrule", r"\end{tabular}"]  # fmt: skip
    assert " & BSP & $-$0.218 " in summary(results, measures=[below], by=["rate", "sync"]).to_latex()
    lines = summary(results, measures=[*summaries.MEASURES], **asked).to_latex().splitlines()
    assert any("% left out: " in line and "largest lead; bytes pushed; " in line for line in lines)
    assert {line.count(" & ") for line in lines if line.endswith(r"\\")} == {9}
    assert all(line.isascii() for line in lines if line[0] != "%")
