"""Tables say what summaries say, with names and units, and never hide what was not reached."""

from __future__ import annotations

import math
from typing import Any

import handmade
import pandas as pd
import pytest

from pslab.config.run import Run
from pslab.errors import ConfigError
from pslab.lab.plots.charts.tables import show, tabled
from pslab.lab.records.summary import cell, summary
from pslab.lab.runs.grid import grid

BASE = Run(pushes=8, engine="virtual", cluster="lab")
WAYS = {"none": [0.1, 0.5, 0.8, 0.95], "static:1%": [0.1, 0.7, 0.9, 0.94], "std:3": [0.1, 0.2, 0.3, 0.4]}


def results(**axes: Any) -> pd.DataFrame:
    return handmade.finished(grid(BASE, **axes), lambda run: WAYS[str(run.prune)])


def words(text: str) -> str:
    return text.replace("\u00a0", " ").replace("\u202f", " ")


@pytest.mark.parametrize(("row", "column", "full", "brief"), [
    ({"seeds": 1, "seconds": 2.5}, "seconds", "2.50 s", "2.50 s"),
    ({"seeds": 3, "seconds": 2.0, "seconds_low": 1.5, "seconds_high": 150.2}, "seconds",
     "2 s (1.50 s to 150 s)", "2 s"),
    ({"seeds": 3, "accuracy": 0.9712, "accuracy_low": 0.97, "accuracy_high": 0.98}, "accuracy",
     "97.12 % (97.00 % to 98.00 %)", "97.12 %"),
    ({"seeds": 3, "reached": 2, "bytes_to_goal": 1.5e6, "bytes_to_goal_low": 1.2e6, "bytes_to_goal_high": math.nan},
     "bytes_to_goal", "1.5 MB (1.2 MB to never)", "1.5 MB (2 of 3)"),
    ({"seeds": 3, "reached": 1, "pushes_to_goal": math.nan}, "pushes_to_goal", "not reached (1 of 3 seeds)",
     "not reached (1 of 3)"),
    ({"seeds": 3, "reached": 0, "pushes_to_goal": math.nan}, "pushes_to_goal", "not reached", "not reached"),
    ({"seeds": 1, "waiting": math.nan}, "waiting", "–", "–"),
    ({"seeds": 1, "waiting": 0.256}, "waiting", "25.6 %", "25.6 %"),
    ({"ratio": 12345.6}, "ratio", "12 346", "12 346"),
])  # fmt: skip
def test_cell_has_unit_and_range(row: dict, column: str, full: str, brief: str):
    assert words(cell(row, column)) == full
    assert words(cell(row, column, brief=True)) == brief


def test_sizes_of_one_column_have_one_unit():
    frame = pd.DataFrame({"sync": ["bsp", "asp"], "bytes_to_goal": [2.1e9, 340e6]})
    rows = tabled(frame, "sync", [], ["bytes_to_goal"], None).rows
    assert [words(cell(row, "bytes_to_goal")) for row in rows] == ["2.1 GB", "0.34 GB"]


def test_results_become_rows_in_the_grids_order():
    found = results(prune=["static:1%", "none"], sync=["bsp", "asp"], seed=[0, 1])
    table = tabled(found, "prune", ["sync"], ["seconds_to_goal"], 0.9)
    assert table.names == ["prune"]
    assert table.levels("prune") == ["static:1%", "none"]
    assert [words(text) for text in table.heads("sync")] == ["BSP", "ASP"]
    assert [(row["seconds_to_goal"], row["seeds"]) for row in table.where(sync="asp").rows] == [(2, 2), (3, 2)]
    assert "median and range of 2 seeds" in " ".join(table.caption)


def test_given_table_is_reduced_over_seeds_and_nothing_else():
    frame = pd.DataFrame({"n": [1, 1, 1, 2], "seed": [0, 1, 2, 0], "t": [1.0, 5.0, 3.0, 4.0]})
    first, second = tabled(frame, (), ["n"], ["t"], None).rows
    assert (first["t"], first["t_low"], first["t_high"], first["seeds"]) == (3, 1, 5, 3)
    assert (second["t"], second["seeds"]) == (4, 1)
    with pytest.raises(ConfigError, match="several rows have n=1: add a column in which they differ"):
        tabled(frame.drop(columns="seed"), (), ["n"], ["t"], None)


def test_show_names_rows_and_columns():
    found = results(prune=["none", "static:1%", "std:3"], seed=[0, 1])
    styler = show(summary(found, by="prune", goal=0.9, measures=["seconds_to_goal", "accuracy"]))
    shown = styler.data
    assert [words(text) for text in shown.index] == ["dense", "static 1 %", "std 3 σ"]
    assert shown.index.name == "pruning rule"
    assert [words(text) for text in shown.columns] == ["time to 90 %", "final test accuracy"]
    assert [words(text) for text in shown.iloc[:, 0]] == ["3 s", "2 s", "not reached"]
    assert styler.caption == "median and range of 2 seeds"
    assert "static" in styler.to_html()


@pytest.mark.parametrize(("fact", "value", "column", "said"), [
    ("emulation_ok", False, "machine fast enough", ["off", "on"]), ("rewinds", [{}], "recovered", ["1", "0"]),
])  # fmt: skip
def test_show_says_what_must_not_be_hidden(fact: str, value: Any, column: str, said: list[str]):
    facts = {fact: lambda run: value if run.sync == "bsp" else True if fact == "emulation_ok" else []}
    found = handmade.finished(grid(BASE, sync=["bsp", "asp"]), WAYS["none"], **facts)
    shown = show(summary(found, by=["sync", "prune"], measures=["seconds"])).data
    assert list(shown[column]) == said
    assert shown.index.names == ["synchronization policy", "pruning rule"]
