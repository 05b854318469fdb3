"""summary, goal and best: reduced over seeds and over nothing else."""

from __future__ import annotations

import math
import re
from typing import Any

import handmade
import pandas as pd
import pytest

from pslab.config.metric import Metric
from pslab.config.run import Run
from pslab.lab.records import summary as summaries
from pslab.lab.records.card import recovered
from pslab.lab.records.merit import MERITS, merit_of
from pslab.lab.records.summary import held, held_at, iteration_s, measured, over_seeds, summary
from pslab.lab.records.tuning import best, goal, rounded
from pslab.lab.records.units import DASH
from pslab.lab.runs.grid import alone, grid

BASE = Run(pushes=8, workers=2, engine="virtual", cluster="lab")
SLOW, FAST, NEVER = [0.1, 0.2, 0.6, 0.9, 0.95], [0.1, 0.9, 0.92, 0.93, 0.94], [0.1, 0.2, 0.3, 0.3, 0.4]
HIGHER = [0.1, 0.2, 0.5, 0.5, 0.45]  # never at 0.9 either
NAN = pytest.approx(math.nan, nan_ok=True)


def made(runs: pd.DataFrame, curves: dict, **facts: dict) -> pd.DataFrame:
    """Results whose evaluations are given by (policy, learning rate, seed), or by a part of it."""

    def of(run: Run):
        keys = [(run.sync, run.learning_rate, run.seed), (run.sync, run.learning_rate), (run.sync, run.seed), run.sync]
        return next(curves[key] for key in keys if key in curves)

    return handmade.with_results(
        runs, lambda run: handmade.curve(None, run, of(run), **facts.get(f"{run.sync}{run.seed}", {}))
    )


def column(table: pd.DataFrame, name: str) -> list[Any]:
    return table[name].tolist()


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
    ([0.1, 0.95, 0.2, 0.92, 0.93, 0.94], 1 + 70 / 72),  # one is not enough; medians .1 .2 .92 .92 .93
    ([0.1, 0.4, 0.5, 1.0, 1.0, 1.0], 2 + 4 / 5),  # medians .1 .4 .5 1.0: between two of them
    ([0.1, 0.2, 0.3, 0.8, 0.95], math.inf),  # the last one has none after it
    ([0.9, 0.1, 0.1], 0.0), ([0.9], math.inf), ([0.1, math.nan, 0.9, 0.9, 0.9], 2.0), ([], math.inf),
], ids=["lucky", "between two", "last", "first", "only one", "what is not finite is none", "none"])  # fmt: skip
def test_a_goal_is_held_where_the_median_of_three_evaluations_reaches_it(curve: list, wanted: float):
    result = handmade.curve(None, BASE.but(pushes=max(1, 4 * len(curve) - 4)), curve or [math.nan])
    assert held(result, 0.9) == pytest.approx((wanted, 4 * wanted))


def test_a_metric_is_held_in_its_direction_and_measured_as_a_figure_of_merit():
    losses = handmade.curve(None, BASE.but(metric="loss"), SLOW[::-1])
    assert held(losses, 0.4) == pytest.approx((2.5, 5.0))
    result = handmade.curve(None, BASE, [0.1, 0.5, 0.8, 1.0, 1.0])
    assert held_at(result, 0.9, "bytes_up", "bytes_down", "bytes") == pytest.approx((500.0, 150.0, 650.0))
    assert measured(result, "held_bytes", 0.9) == pytest.approx(650.0)
    assert held_at(result, 1.1, "bytes_up", "bytes") == (math.inf, math.inf)
    whole = {"seconds": ("4 s", "4.0 s", 4.0), "bytes": ("4 B", "4 B", 8 * 130.0),
             "gradients": ("4 gradients", "4 gradients", 8.0)}  # fmt: skip
    assert {*MERITS} == {*whole}
    for name, (*texts, of_all) in whole.items():
        merit = merit_of(name)
        assert [text.replace("\u00a0", " ") for text in (merit.text(4.0), merit.text(4.0, 30.1))] == texts
        assert sum(held_at(result, 0.9, *merit.columns)) == pytest.approx(measured(result, merit.measure, 0.9))
        assert sum(measured(result, column) for column in merit.columns) == pytest.approx(of_all)


def test_a_summary_counts_those_that_hold_beside_those_that_reach():
    results = made(grid(BASE, seed=[0, 1]), {("bsp", 0): [0.1, 0.95, 0.2, 0.3, 0.4], "bsp": SLOW})
    table = summary(results, goal=0.9, measures=["seconds_to_goal", "held_s", "held_pushes"])
    assert table[["reached", "held", "held_pushes_low"]].iloc[0].tolist() == [2, 1, 6.0]
    assert [text.replace("\u00a0", " ") for text in table.read().iloc[0, :2]] == [
        "2 s (1 s to 3 s)",
        "not reached (1 of 2 seeds)",
    ]
    assert "held" not in summary(results, goal=0.9)
    # a single machine exchanges nothing
    runs = pd.concat([grid(BASE, sync=["asp"]), grid(alone(BASE), seed=[0])])
    table = summary(made(runs, {"bsp": SLOW, "asp": FAST}), by="workers", goal=0.9)
    assert table.bytes_to_goal.isna().tolist() == table.waiting.isna().tolist() == [False, True]
    assert column(table, "seconds_to_goal") == [1.0, 3.0]


# -- over seeds ------------------------------------------------------------------------------------


def test_a_row_for_each_group_with_raw_values_as_index_in_which_never_counts_as_infinite():
    assert over_seeds([1.0, math.inf, 3.0]) == (3.0, 1.0, NAN)
    assert over_seeds([1.0, math.inf]) == (NAN, 1.0, NAN)
    assert over_seeds([]) == (NAN, NAN, NAN)

    def second(result):
        return result.accuracy.accuracy.iloc[1]

    runs = grid(BASE, sync=["bsp", "asp"], seed=[0, 1, 2])
    results = made(runs, {("bsp", 2): NEVER, "bsp": SLOW, ("asp", 0): FAST, "asp": NEVER})
    table = summary(results, by="sync", goal=0.9)
    assert (list(table.index), table.index.name, table.attrs["goal"]) == (["bsp", "asp"], "sync", 0.9)
    assert (column(table, "seeds"), column(table, "reached")) == ([3, 3], [2, 1])
    found = [column(table, f"seconds_to_goal{end}") for end in ("", "_low", "_high")]
    assert found == [[3.0, NAN], [3.0, 1.0], [NAN, NAN]]
    assert table.equals(summary(results, goal=0.9))  # the label is what differs
    own = summary(results, by="sync", measures=["pushes", second]).loc["asp"]  # a function is a measure of its name
    assert own[["pushes", "second", "second_low", "second_high"]].tolist() == [8, 0.2, 0.2, 0.9]


def test_paired_ratios_are_to_the_first_row_with_the_same_seed():
    runs = grid(BASE, sync=["bsp", "asp", "ssp:3"], seed=[0, 1, 2])
    curves = {("bsp", 0): [0.1, 0.9, 0.9, 0.9, 0.9], ("bsp", 1): [0.1, 0.2, 0.9, 0.9, 0.9], ("bsp", 2): NEVER,
              ("asp", 0): [0.1, 0.2, 0.9, 0.9, 0.9], "asp": FAST, ("ssp:3", 0): SLOW, "ssp:3": NEVER}  # fmt: skip
    table = summary(made(runs, curves), by="sync", goal=0.9, measures=["seconds_to_goal", "seconds"], paired=True)
    found = [column(table, f"seconds_to_goal_ratio{end}") for end in ("", "_low", "_high")]
    assert found == [[1.0, 1.25, NAN], [1.0, 0.5, 3.0], [1.0, 2.0, NAN]]  # 1, 2, never: 2, 1, 1; and 3, never, never
    assert column(table, "seconds_ratio") == [1.0, 1.0, 1.0]
    assert table.read().seconds_to_goal_ratio.tolist() == ["1", "1.25 (0.500 to 2)", DASH]
    assert summary(made(runs, curves), by="sync", goal=0.9, measures=["seconds_to_goal"]).columns[-1] == (
        "seconds_to_goal_high"
    )


def test_results_that_have_no_value_of_an_axis_are_a_group_of_their_own_and_come_last():
    weighed = made(grid(BASE, weight={"light": {}, "heavy": {"push_weight": 1.0}}, sync=["asp"]), {"asp": SLOW})
    single = made(grid(alone(BASE)), {"bsp": FAST})
    for parts in ((weighed, single), (single, weighed)):
        assert summary(pd.concat(parts), by="weight", goal=0.9).index.tolist() == ["light", "heavy", None]


def test_diverged_seeds_count_in_no_accuracy_and_seconds_that_were_not_emulated_are_left_out():
    gone = {"outcome": "diverged"}
    runs = grid(BASE, sync=["bsp", "asp"], seed=[0, 1])
    results = made(runs, {("bsp", 0): NEVER, "bsp": SLOW, "asp": NEVER}, bsp0=gone, asp0=gone, asp1=gone)
    table = summary(results, by="sync", measures=["accuracy"])
    assert (column(table, "diverged"), column(table, "accuracy")) == ([1, 2], [0.95, 0.4])
    runs = grid(BASE, sync=["bsp", "asp", "ssp:3"], seed=[0, 1])
    bad = {"emulation_ok": False, "dilation": 2.0}
    results = made(runs, {"bsp": SLOW, ("asp", 0): FAST, "asp": SLOW, "ssp:3": FAST}, asp1=bad, bsp0=bad,
                   bsp1=bad)  # fmt: skip
    table = summary(results, by="sync", goal=0.9, measures=["seconds_to_goal", "pushes_to_goal"])
    assert (column(table, "emulation_ok"), column(table, "dilation")) == ([False, False, True], [2.0, 2.0, 1.0])
    assert column(table, "seconds_to_goal") == [NAN, 1.0, 1.0]
    assert column(table, "seconds_to_goal_high") == [NAN, 1.0, 1.0]
    assert not table.pushes_to_goal.isna().any()  # accuracy against pushes is as good as ever


LIVES = [{"worker": worker, "how": "is gone"} for worker in (2, 0, 2)]
SERVER = "its server was replaced once"
WITH_SERVER = [{"worker": worker, "how": "server is gone"} for worker in (0, 1)]


@pytest.mark.parametrize(("facts", "words"), [
    ({}, ""), ({"resumed": [{"pushes": 7, "made": "then"}]}, "continued at push 7 from the checkpoint of then"),
    ({"lives": LIVES[:1]}, "processes of worker 2 were replaced"),
    ({"lives": LIVES}, "processes of workers 0, 2 were replaced"),
    ({"lives": WITH_SERVER, "rewinds": [{}, {}]}, "its server was replaced 2 times"),
    ({"lives": LIVES[:1] + WITH_SERVER, "rewinds": [{}]}, f"{SERVER}; processes of worker 2 were replaced"),
    ({"fallen_starts": ["server is gone"], "rewinds": [{}]}, f"{SERVER}; began again once"),
])  # fmt: skip
def test_what_a_run_went_on_after_is_said_and_counted(facts: dict, words: str):
    results = made(grid(BASE, sync=["bsp", "asp"]), {"bsp": SLOW, "asp": FAST}, asp0=facts)
    assert [recovered(result.manifest) for result in results.result] == ["", words]
    table = summary(results, by="sync")
    assert table.get("recovered", pd.Series([0, 0])).tolist() == [0, int(bool(words))]
    assert ("recovered" in table) == bool(words)


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


@pytest.mark.parametrize(("axes", "curves", "named", "chosen"), [
    ({"sync": ["bsp", "asp"], "learning_rate": [0.1, 0.2, 0.4], "seed": [0, 1, 2]},
     {("bsp", 0.1): SLOW, ("bsp", 0.2, 0): NEVER, ("bsp", 0.2): FAST, ("bsp", 0.4, 0): FAST, ("bsp", 0.4): NEVER,
      ("asp", 0.1): NEVER, ("asp", 0.2): HIGHER, ("asp", 0.4): NEVER}, {},
     [(sync, 0.2, seed) for sync in ("bsp", "asp") for seed in (0, 1, 2)]),
    ({"learning_rate": [0.4, 0.1]}, {"bsp": FAST}, {}, [("bsp", 0.1, 0)]),
    ({"sync": ["bsp", "asp"], "learning_rate": [0.1, 0.2]},
     {("asp", 0.2): FAST, ("bsp", 0.1): SLOW, "bsp": NEVER, "asp": NEVER}, {"over": ["sync", "learning_rate"]},
     [("asp", 0.2, 0)]),
    ({"sync": ["bsp", "asp"], "learning_rate": [0.1, 0.2]},
     {("asp", 0.2): FAST, ("bsp", 0.1): SLOW, "bsp": NEVER, "asp": NEVER},
     {"over": ["sync", "learning_rate"], "measure": "accuracy"}, [("bsp", 0.1, 0)]),
], ids=["soonest by the median", "of equals the smaller", "over two fields", "by another measure"])  # fmt: skip
def test_best_is_the_choice(axes: dict, curves: dict, named: dict, chosen: list):
    found = best(made(grid(BASE, **axes), curves), **{"goal": 0.9, **named})
    assert [(r.run.sync, r.run.learning_rate, r.run.seed) for r in found.result] == chosen


@pytest.mark.parametrize(("curve", "facts", "measure", "wanted"), [
    (NEVER, {"outcome": "diverged"}, "seconds_to_goal", 0.2), (FAST, {"emulation_ok": False}, "seconds_to_goal", 0.2),
    (FAST, {"emulation_ok": False}, "pushes_to_goal", 0.1),
], ids=["diverged", "emulation not kept", "which pushes do not mind"])  # fmt: skip
def test_what_says_nothing_is_not_chosen(curve: list, facts: dict, measure: str, wanted: float):
    runs = grid(BASE, learning_rate=[0.1, 0.2])
    results = handmade.with_results(
        runs, lambda run: handmade.curve(None, run, curve, **(facts if run.learning_rate == 0.1 else {}))
    )
    assert best(results, goal=0.9, measure=measure).learning_rate.tolist() == [wanted]


# -- printed ---------------------------------------------------------------------------------------


def lots(seeds: int = 1) -> pd.DataFrame:
    runs = grid(BASE.but(pushes=8000, workers=4), sync=["bsp", "asp"], seed=list(range(seeds)))
    return handmade.finished(runs, [0.1, 0.5, 0.95], seconds=lambda run: [0, 1, 2.0 + run.seed])


def test_printed_summary_begins_with_what_was_asked_in_units_and_without_ranges_of_one_seed():
    table = summary(lots(), by="sync", goal=0.9)
    head, _, bsp, *_ = repr(table).replace("\u00a0", " ").splitlines()
    assert head.split() == ["seconds_to_goal", "pushes_to_goal", "bytes_to_goal", "accuracy", "waiting"]
    assert bsp.split("  ")[0] == "bsp"
    assert all(words in bsp for words in ("2 s", "1.0 MB", "95.00 %"))
    assert "to" not in bsp
    assert "1.0\u00a0MB" in table._repr_html_()
    assert {"seeds", "reached", "seconds_to_goal_low", "bytes_to_goal_high", "emulation_ok"} < {*table}
    assert column(table, "seconds_to_goal") == [2.0, 2.0]
    several = repr(summary(lots(3), by="sync", goal=0.9)).replace("\u00a0", " ")
    assert "3 s (2 s to 4 s)" in several
    assert "seeds" in several


@pytest.mark.parametrize("measures", [["seconds_to_goal", "bytes_to_goal", "accuracy"], [*summaries.MEASURES]],
                         ids=["three", "all"])  # fmt: skip
def test_a_summary_in_latex_is_a_table_with_rules_escaped_and_at_most_ten_columns(measures: list[str]):
    runs = grid(BASE, rate={"50 % & more_{}": {"rate": "dynsgd"}, "a\\~^$": {}}, sync=["bsp", "asp"], seed=[0, 1])
    text = summary(handmade.finished(runs, [0.1, 0.5, 0.95], seconds=lambda run: [0, 1, 2.0 + run.seed]),
                   by=["rate", "sync"], goal=0.9, measures=measures).to_latex()  # fmt: skip
    notes = [line for line in text.splitlines() if line.startswith("% ")]
    begin, top, head, middle, *rows, bottom, end = [line for line in text.splitlines() if line not in notes]
    assert (top, middle, bottom, end) == (r"\toprule", r"\midrule", r"\bottomrule", r"\end{tabular}")
    assert (sides := re.fullmatch(r"\\begin\{tabular\}\{(ll)(r+)\}", begin)) is not None
    assert len(rows) == 4
    for line in (head, *rows):  # as many cells as columns, and no character that LaTeX takes for something else
        assert line.endswith(r" \\")
        bare = re.sub(r"\\[&%$#_{}]", "", line.removesuffix(r" \\"))
        assert len(bare.split("&")) == len(sides[1] + sides[2]) == min(10, 2 + len(measures))
        bare = re.sub(r"\\text[a-z]+\{\}|\$[^$]*\$", "", bare)
        assert not re.search(r"[%$#_{}^\\<>|]|[^\x00-\x7f]", bare.replace("–", "--")), line
    assert head.startswith(r"learning-rate policy & synchronization policy & ")
    assert r" & time to 90~\% & " in head
    assert rows[0].startswith(r"50 \% \& more\_\{\} & BSP & ")
    assert r" & 2.50~s (2~s to 3~s) & " in rows[0]
    assert rows[2].startswith(r"a\textbackslash{}\textasciitilde{}\textasciicircum{}\$ & ")
    left_out = [note for note in notes if note.startswith("% left out: ")]
    assert len(left_out) == (len(measures) > 8)
    assert all("largest lead; bytes pushed; " in note for note in left_out)
