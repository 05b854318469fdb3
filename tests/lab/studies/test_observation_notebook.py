"""01_observation, executed by papermill on a few digits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest

from pslab.__main__ import main
from pslab.lab.studies import notebook as pages

TINY = {"data": "mnist:train=1024,test=100", "pushes": 8, "rules": ["static:1%", "std:2"], "repeats": 1}


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("results")
    assert batch(results) == 0
    return results


def batch(results: Path, *more: str) -> int:
    given = [f"--set={name}={json.dumps(value)}" for name, value in TINY.items()]
    return main(["figures", "--results", str(results), "--only", "01_observation", "--no-images", *given, *more])


def test_papermill_executes_it_to_a_record_and_figures(executed: Path):
    manifest = json.loads(next(executed.glob("observations/*/manifest.json")).read_text())
    assert manifest["observation"]["rules"] == ["static:1%", "std:2"]
    assert manifest["observation"]["moments"] == [0, 1, 4, 7]
    names = sorted(path.name for path in (executed / "figures").iterdir())
    pictures = pages.PICTURES["01_observation"]
    assert names == sorted(f"01_observation-mlp-{picture}.{kind}" for picture in pictures for kind in ("html", "json"))
    drawn = json.loads((executed / "figures" / "01_observation-mlp-density.json").read_text())
    assert {trace["name"] for trace in drawn["data"]} == {"static 1\u00a0%", "std 2\u00a0σ"}
    titles = [note["text"].split(" ")[0] for note in drawn["layout"]["annotations"]]
    assert titles == ["hidden1", "hidden2", "hidden3", "output"]


def test_its_cells_show_figures_tables_and_findings(executed: Path):
    notebook: Any = nbformat.read(executed / "notebooks" / "01_observation.ipynb", 4)
    outputs = {cell.id: cell.get("outputs", []) for cell in notebook.cells}
    shown = [output for found in outputs.values() for output in found]
    assert not [output for output in shown if output.output_type == "error"]
    assert sum("application/vnd.plotly.v1+json" in output.get("data", {}) for output in shown) == 4
    assert "Tsai 2018" in outputs["findings"][0]["text"]


@pytest.mark.slow
def test_a_deleted_figure_comes_back_from_the_record(executed: Path):
    figure = executed / "figures" / "01_observation-mlp-cost.json"
    before, record = figure.read_bytes(), next(executed.glob("observations/*/manifest.json"))
    written = record.stat().st_mtime_ns
    figure.unlink()
    assert batch(executed) == 0
    assert figure.read_bytes() == before
    assert record.stat().st_mtime_ns == written
