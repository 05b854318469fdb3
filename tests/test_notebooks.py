"""The notebooks as they are committed, and one of them executed by papermill on real processes."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import nbformat
import pytest

from pslab.__main__ import main
from pslab.config.run import KINDS
from pslab.errors import ConfigError
from pslab.lab.commands import figures
from pslab.lab.studies import notebook as pages
from pslab.lab.studies.studies import STUDIES

NOTEBOOKS = sorted((Path(figures.__file__).parents[3] / "notebooks").glob("*.ipynb"))
TINY = {"data": "mnist:train=2048,test=500", "pushes": 24, "cluster": "free", "thresholds": ["1%"]}


def cells(path: Path) -> list[Any]:
    found: list[Any] = nbformat.read(path, 4).cells
    return found


def literals(source: str) -> dict[str, Any]:
    """The names that a cell assigns, with their values; ValueError where one is not a plain literal."""
    return {node.targets[0].id: ast.literal_eval(node.value) for node in ast.parse(source).body}


def test_there_is_a_study_and_a_list_of_pictures_for_each():
    assert [path.stem for path in NOTEBOOKS] == sorted(STUDIES) == sorted(pages.PICTURES)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_committed_without_outputs_and_valid(path: Path):
    notebook: Any = nbformat.read(path, nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert notebook.metadata.kernelspec.name == "python3"
    assert set(notebook.metadata) <= {"kernelspec", "language_info"}
    for cell in notebook.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
        assert set(cell.metadata) <= {"tags"}
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_cell_of_parameters_holds_the_studys_defaults_as_plain_literals(path: Path):
    tagged = [cell.source for cell in cells(path) if "parameters" in cell.metadata.get("tags", [])]
    assert len(tagged) == 1
    assert tagged[0].startswith(pages.PARAMETERS_CELL)
    assert literals(tagged[0]) == pages.allowed(path.stem)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_parameters_are_named_as_runs_fields(path: Path):
    of_the_study = {"family", "thresholds", "policies", "push_weights", "seeds", "images",
                    "moments", "every", "rules", "repeats", "live", "stalenesses", "learning_rates", "clusters",
                    "undivided", "heterogeneity", "sizes", "ends", "speeds", "duration_s", "ratios", "horizons",
                    "crowds", "search_costs", "bandwidths", "network", "prunes", "others", "in_time", "small", "pieces",
                    "syncs", "credits", "orders", "uneven_model", "uneven", "overhead_s", "crowd", "models",
                    "latency_s", "halves_s", "trained", "trained_sizes", "trained_cluster", "longer",
                    "longer_size"}  # fmt: skip
    assert set(pages.allowed(path.stem)) - of_the_study <= set(KINDS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_are_thin(path: Path):
    for cell in cells(path):
        # the class that a reader writes is as long as it is
        if cell.cell_type == "code" and not {"parameters", "policy"} & set(cell.metadata.get("tags", [])):
            assert len(cell.source.splitlines()) <= 5
            assert not [node for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.FunctionDef)]


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """10_pruning, executed with one threshold on a few digits; the folder of its results."""
    results = tmp_path_factory.mktemp("results")
    assert batch(results) == 0
    return results


def batch(results: Path) -> int:
    given = [f"--set={name}={json.dumps(value)}" for name, value in TINY.items()]
    return main(["figures", "--results", str(results), "--only", "10_pruning-static-bsp", "--no-images", *given])


def test_papermill_executes_a_notebook_to_records_and_figures(executed: Path):
    manifests = [json.loads(path.read_text()) for path in executed.glob("runs/*/manifest.json")]
    assert sorted((m["run"]["prune"], m["run"]["workers"]) for m in manifests) == [
        ("none", 1), ("none", 4), ("static:1%", 4)]  # fmt: skip
    assert all(m["pushes"] == 24 for m in manifests)
    stems = [f"10_pruning-static-bsp-free-{picture}" for picture in pages.PICTURES["10_pruning"]]
    files = sorted(f"{stem}.{kind}" for stem in stems for kind in ("html", "json"))
    assert sorted(path.name for path in (executed / "figures").iterdir()) == files
    drawn = json.loads((executed / "figures" / "10_pruning-static-bsp-free-accuracy.json").read_text())
    names = {trace["name"].split(" (")[0] for trace in drawn["data"]}
    assert names == {"dense", "static 1\u00a0%", "single machine"}


def test_the_executed_notebook_shows_its_figures_without_a_network(executed: Path):
    outputs = [output for cell in cells(executed / "notebooks" / "10_pruning-static-bsp-free.ipynb")
               for output in cell.get("outputs", [])]  # fmt: skip
    shown = [output.data for output in outputs if "application/vnd.plotly.v1+json" in output.get("data", {})]
    assert len(shown) == 3
    assert all("text/html" in data for data in shown)  # for a page that is made from the notebook
    assert any("plotly.js v" in str(output.get("data", {}).get("text/html", "")) for output in outputs)
    assert not [output for output in outputs if output.output_type == "error"]


def test_a_second_time_nothing_is_executed(executed: Path, capsys: pytest.CaptureFixture):
    assert batch(executed) == 0
    assert "0 notebooks executed, 1 up to date" in capsys.readouterr().out


@pytest.mark.slow
def test_a_notebook_refuses_what_papermill_only_warns_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import papermill

    monkeypatch.setenv("PSLAB_RESULTS", str(tmp_path))
    with pytest.raises(papermill.PapermillExecutionError) as caught:
        papermill.execute_notebook(str(NOTEBOOKS[0].with_name("10_pruning.ipynb")), str(tmp_path / "out.ipynb"),
                                   parameters={"famly": "std"}, kernel_name="python3", progress_bar=False)  # fmt: skip
    assert caught.value.ename == ConfigError.__name__
    assert "did you mean 'family'" in caught.value.evalue
    assert not (tmp_path / "runs").exists()
