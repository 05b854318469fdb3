"""Tables and figures of runs with another metric than the accuracy: its name, its values, its direction."""

from __future__ import annotations

from typing import Any

import drawn
import handmade
import pytest

from pslab import plots
from pslab.config.run import Run
from pslab.lab.live import figure as live
from pslab.lab.live.state import Point, Track
from pslab.lab.plots.charts.tables import show
from pslab.lab.plots.labels import caption
from pslab.lab.records.frames import notes
from pslab.lab.records.summary import summary
from pslab.lab.records.tuning import best, goal
from pslab.lab.runs.grid import grid


def mean_error(output: Any, target: Any) -> Any:
    return (output - target).abs()


mean_error.lower_is_better = True  # type: ignore[attr-defined]
BASE = Run(pushes=8, workers=2, engine="virtual", cluster="lab", loss="mse", metric=mean_error)
FALLING, STEEP, FLAT = [8.0, 4.0, 2.0, 1.0, 0.5], [8.0, 0.9, 0.8, 0.7, 0.6], [8.0, 7.0, 6.0, 6.0, 7.5]


def of(base: Run) -> Any:
    ways = {0.1: FALLING, 0.2: STEEP, 0.4: FLAT}
    return handmade.finished(grid(base, learning_rate=list(ways)), lambda run: ways[run.learning_rate])


@pytest.fixture
def results() -> Any:
    return of(BASE)


def test_the_best_evaluation_is_the_lowest_and_a_goal_is_reached_from_above(results: Any):
    table = summary(results, by="learning_rate", goal=1.0, measures=["accuracy", "best_accuracy", "seconds_to_goal"])
    assert table.accuracy.tolist() == [0.5, 0.6, 7.5]
    assert table.best_accuracy.tolist() == [0.5, 0.6, 6.0]
    assert table.seconds_to_goal.tolist()[:2] == [3.0, 1.0]
    assert table.reached.tolist() == [1, 1, 0]
    for asked, rate in (({"goal": 1.0}, 0.2), ({"measure": "accuracy"}, 0.1), ({"goal": 0.01}, 0.1)):
        assert best(results, **asked).learning_rate.tolist() == [rate]
    assert "to mean error 1" in " ".join(notes(best(results, goal=1.0)))
    assert (goal(results), goal(results, over="seed", share=1.0)) == (0.5, 6.0)


def test_tables_and_figures_name_the_metric(results: Any):
    written = show(summary(results, by="learning_rate", goal=1.0)).to_html()
    assert all(words in written for words in ("final mean error", "time to mean error 1"))
    curves = plots.curves(results, x="seconds", by="learning_rate", goal=1.0)
    assert "test mean error" in drawn.texts(curves)
    assert "goal: mean error 1" in [name.replace("\u00a0", " ") for name in drawn.legend(curves)]
    assert list(drawn.lines(curves)["η\u00a0=\u00a00.1"].y) == FALLING
    assert "mean error 0.5, loss" in drawn.lines(curves)["η\u00a0=\u00a00.1"].hovertext[-1]
    for figure in (plots.bars(results, y="accuracy", by="learning_rate"),
                   plots.points(results, x="learning_rate", y="best_accuracy")):  # fmt: skip
        assert "mean error" in " ".join(drawn.texts(figure))
        assert "accuracy" not in " ".join(drawn.texts(figure))
    assert "squared error" in caption(results)[0]
    assert "accuracy" not in caption(results)[0]
    stopped = handmade.curve(None, BASE.but(target_accuracy=0.75), FALLING)
    assert "stops at 8 pushes or mean error 0.75" in caption([stopped])[0]


def test_the_loss_of_a_language_model_is_drawn_and_written_in_nats_per_byte():
    base = Run(pushes=8, workers=2, engine="virtual", cluster="lab", model="gpt", data="text", metric="loss")
    results = of(base)
    for y in ("accuracy", "loss"):
        figure = plots.curves(results, y=y, by="learning_rate", goal=1.0)
        assert "test loss (nats per byte)" in drawn.texts(figure)
        assert ("goal: loss 1" in drawn.legend(figure)) == (y == "accuracy")
    assert "best loss (nats per byte)" in drawn.texts(plots.points(results, x="learning_rate", y="best_accuracy"))
    tracks = [Track(base, base.digest, points=[Point(0, 0.0, 5.5, 5.5), Point(8, 1.0, 2.2, 2.2)])]
    view = live.curves(tracks, live.Session().names(tracks))
    assert view.layout.yaxis.title.text == "test loss (nats per byte)"
