"""The time budget stacks what the records hold, of every worker once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import drawn
import handmade
import pytest

from pslab.config.run import Run
from pslab.errors import ConfigError
from pslab.lab import plots
from pslab.lab.plots.charts.budget import LANE
from pslab.lab.plots.page.theme import PHASES
from pslab.lab.records.results import Results
from pslab.lab.runs.grid import alone, grid

BASE = Run(pushes=8, workers=2, engine="virtual", cluster="lab")


def results(folder: Path, **axes: Any) -> Results:
    """Each worker computes 3 s and waits 1 s for worker 0."""
    runs = grid(BASE, **axes)
    return runs.finished([handmade.curve(folder, run, [0.1, 0.9], seconds=[0, 4]) for run in runs])


def bars(figure: Any, axis: str = "x") -> dict[str, list[float]]:
    return {trace.name: list(trace.x) for trace in figure.data if trace.type == "bar" and (trace.xaxis or "x") == axis}


def test_bars_are_the_workers_seconds(tmp_path: Path):
    figure = plots.time_budget(results(tmp_path, sync=["bsp", "asp"]), by="sync")
    for axis in ("x", "x2"):
        assert bars(figure, axis) == {"compute": [3, 3], "waits for worker 0": [1, 1]}
    assert drawn.legend(figure) == ["compute", "wait (for worker)"]
    said = "computing 75 %, sending 0 %, waiting 25 %"
    assert {f"BSP   {said}", f"ASP   {said}", "training time (s)"} < {*drawn.texts(figure)}
    assert [*figure.layout.yaxis.ticktext] == ["worker 0", "worker 1"]
    waiting = next(trace for trace in figure.data if trace.name == "waits for worker 0")
    assert list(waiting.text) == ["0", "0"]
    assert waiting.marker.color == PHASES["wait"]
    assert figure.layout.barmode == "stack"


def test_seeds_are_averaged(tmp_path: Path):
    figure = plots.time_budget(results(tmp_path, seed=[0, 1]))
    assert bars(figure)["compute"] == [3, 3]
    assert "mean of 2 seeds" in drawn.caption(figure)


def test_encoding_counts_as_selecting_and_decoding_as_pulling(tmp_path: Path):
    found = results(tmp_path)
    found[0].phases.loc[found[0].phases.phase == "compute", "phase"] = "encode"
    found[0].phases.loc[found[0].phases.phase == "wait", "phase"] = "decode"
    found[0].phases.loc[found[0].phases.phase == "decode", "waits_for"] = -1
    assert drawn.legend(plots.time_budget(found)) == ["select, encode", "pull, decode"]


def test_single_machine_has_a_panel_of_bars_as_thick(tmp_path: Path):
    runs = grid(BASE) + grid(alone(BASE))
    found = runs.finished([handmade.curve(tmp_path, run, [0.1, 0.9], seconds=[0, 4]) for run in runs])
    figure = plots.time_budget(found)
    assert any(text.startswith("single machine") for text in drawn.texts(figure))
    assert bars(figure, "x2")["compute"] == [3]
    assert list(figure.layout.xaxis2.range) == list(figure.layout.xaxis.range)
    (upper, lower), high = ([axis.domain[1] - axis.domain[0] for axis in figure.select_yaxes()]), figure.layout.height
    assert (upper - lower) * high == pytest.approx(LANE[1], abs=0.5)  # of two workers, and of one


def test_columns_can_stand_side_by_side_per_iteration(tmp_path: Path):
    found = results(tmp_path, sync=["bsp", "asp"], prune=["none", "static:1%"])
    figure = plots.time_budget(found, by="sync", across="prune", per_iteration=True)
    assert [*figure.layout.yaxis.ticktext] == ["dense", "static 1\u00a0%"]
    assert "BSP" in drawn.texts(figure)
    assert bars(figure)["compute"] == pytest.approx([750, 750])  # ms: 3 s in 8 pushes of 2 workers
    assert "ms per iteration" in drawn.texts(figure)


def test_time_that_no_phase_covers_is_shown(tmp_path: Path):
    found = results(tmp_path)
    found[0].phases.loc[found[0].phases.phase == "wait", "begin_s"] = 3.5
    figure = plots.time_budget(found)
    assert bars(figure) == {"compute": [3, 3], "waits for worker 0": [0.5, 0.5], "not measured": [0.5, 0.5]}


def test_phase_without_a_colour_is_drawn(tmp_path: Path):
    found = results(tmp_path)
    found[0].phases.loc[found[0].phases.phase == "compute", "phase"] = "search"
    assert "search" in drawn.legend(plots.time_budget(found))


def test_many_panels_lie_one_under_the_other_with_headings(tmp_path: Path):
    figure = plots.time_budget(results(tmp_path, sync=[f"ssp:{bound}" for bound in range(1, 9)]), by="sync")
    assert len({axis.domain[0] for axis in figure.select_yaxes()}) == 8
    assert {f"SSP, s = {bound}" for bound in range(1, 9)} < {text.partition("   ")[0] for text in drawn.texts(figure)}
    assert drawn.outside(figure) == []


def test_runs_that_differ_in_more_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="differ in prune"):
        plots.time_budget(results(tmp_path, prune=["none", "static:1%"]), by="sync")
