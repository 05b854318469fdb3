"""What charts refuse, in words that say what to do."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import grids
import pandas as pd
import pytest
from gallery import gaps, made

from pslab import plots
from pslab.config.run import Run
from pslab.errors import ConfigError
from pslab.lab.records.summary import summary
from pslab.lab.records.tuning import goal
from pslab.lab.runs.grid import grid

RULES, BOTH = {"prune": ["none", "static:1%"]}, {"sync": ["bsp", "asp"], "prune": ["none", "static:1%"]}
EACH = {"facet": "sync", "row": "prune", "x": ["iteration", "seconds"]}


@pytest.mark.parametrize(("draw", "axes", "arguments", "words"), [
    (plots.curves, RULES, {"x": "second"}, "did you mean 'seconds'"),
    (plots.curves, RULES, {"y": "acuracy"}, "did you mean 'accuracy'"),
    (plots.curves, RULES, {"by": "prun"}, "did you mean 'prune'"),
    (plots.curves, RULES, {"by": "sync"}, "differ in prune"),
    (plots.curves, BOTH, EACH, "no direction for panels"),
    (plots.curves, {"metric": ["accuracy", "loss"]}, {}, "cannot be compared"),
    (summary, {"metric": ["accuracy", "loss"]}, {}, "cannot be compared"),
    (goal, {"metric": ["accuracy", "loss"]}, {}, "cannot be compared"),
    (plots.time_budget, RULES, {"by": "sync"}, "differ in prune"),
    (plots.time_budget, RULES, {"across": "prun"}, "did you mean 'prune'"),
    (plots.timeline, RULES, {"by": "sync"}, "differ in prune"),
    (plots.server_states, RULES, {"by": "sync"}, "differ in prune"),
    (plots.bars, RULES, {"y": ["waitings"], "by": "prune"}, "did you mean 'waiting'"),
    (plots.bars, {"rate": ["constant", "dynsgd"], "sync": ["bsp", "asp"]}, {"y": ["rate"]},
     "give the axis another name, as in grid"),
    (plots.points, BOTH, {"x": "sync", "y": "seconds", "by": []}, "differ in prune"),
    (plots.dots, RULES, {"y": "seconds", "by": "prune", "to": "nome"}, "did you mean 'none'"),
])  # fmt: skip
def test_what_cannot_be_drawn_is_refused(
    draw: Callable[..., Any], axes: dict[str, Any], arguments: dict[str, Any], words: str
):
    with pytest.raises(ConfigError, match=words):
        draw(made(**axes), **arguments)


@pytest.mark.parametrize(("draw", "words"), [(plots.why, "answer of advise"), (plots.where, "as advise_map")])
def test_what_no_search_has_made_is_refused(draw: Callable[..., Any], words: str):
    with pytest.raises(ConfigError, match=f"'DataFrame': must be .*{words}"):
        draw(pd.DataFrame({"seconds": [1.0]}))


@pytest.mark.parametrize("draw", [plots.curves, plots.timeline, plots.time_budget, plots.server_states])
def test_no_runs_are_refused_and_runs_that_are_no_results(draw: Callable[..., Any]):
    with pytest.raises(ConfigError, match="no run to draw"):
        draw([])
    for given in (Run(), [Run()]):
        with pytest.raises(ConfigError, match=r"must be a Result, but 1 of 1 rows have none: sweep\(runs\)"):
            draw(given)


def test_the_shares_of_a_time_budget_sum_to_the_whole():
    texts = " ".join(str(each.text) for each in plots.time_budget(gaps().result[0]).layout.annotations)
    assert "transferring 0\u00a0%, waiting 25\u00a0%, other 75\u00a0%" in texts


def test_a_table_lacks_a_column_or_what_tells_its_rows_apart():
    frame = pd.DataFrame({"n": [1, 1], "seconds": [1.0, 5.0]})
    for column, words in (("second", "did you mean 'seconds'"), ("n", "several rows have n=1: add a column")):
        with pytest.raises(ConfigError, match=words):
            plots.points(frame, column, "seconds", by=[])


def test_runs_in_which_no_worker_did_anything_have_no_time_to_show():
    results = grids.finished(grid(Run(pushes=8, workers=2)), Random(0), ["at once"])
    with pytest.raises(ConfigError, match="there is no time to show"):
        plots.time_budget(results)
