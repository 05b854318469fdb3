"""The notebooks as they are committed, and executed by papermill on real processes."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import drawn
import nbformat
import plotly.io as pio
import pytest

from pslab.__main__ import main
from pslab.lab.plots.arrange import INCHES
from pslab.lab.studies import batch
from pslab.lab.studies.parameters import CELL, of_notebook

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
OWN = {"95_published_clusters-dense", "95_published_clusters-map"}  # figures by plotly.express alone: of no set size


def cells(path: Path) -> list[Any]:
    found: list[Any] = nbformat.read(path, 4).cells
    return found


def code_cells(path: Path) -> list[str]:
    return [cell.source for cell in cells(path) if cell.cell_type == "code"]


def test_the_batch_executes_every_notebook(tmp_path: Path):
    assert {entry.notebook for entry in batch.plan(FOLDER, tmp_path)} == {path.stem for path in NOTEBOOKS}
    assert batch.plan(FOLDER, tmp_path)[0].notebook == "10_pruning"  # the thesis's figures come first
    main_ones = {entry.name for entry in batch.plan(FOLDER, tmp_path, every=False)}
    assert {"10_pruning", "20_sync_policies", "00_tour"} < main_ones < {e.name for e in batch.plan(FOLDER, tmp_path)}
    assert all(entry.takes for entry in batch.plan(FOLDER, tmp_path))


def committed(path: Path) -> str:
    """A notebook as git has it: a user who works with it may have saved outputs. Without git, as it is."""
    command = ["git", "show", f":./{path.name}"]
    found = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, check=False)
    return path.read_text() if found.returncode else found.stdout


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_without_outputs_and_valid(path: Path):
    """Its parameters are in its first cell, what it imports is there, and a reader sees its claims and tables."""
    notebook: Any = nbformat.reads(committed(path), nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert notebook.metadata.kernelspec.name == "python3"
    assert set(notebook.metadata) <= {"kernelspec", "language_info"}
    for cell in notebook.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
        assert set(cell.metadata) <= {"tags"}
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
    tagged = [cell.source for cell in cells(path) if "parameters" in cell.metadata.get("tags", [])]
    assert tagged == code_cells(path)[:1]
    assert tagged[0].startswith(CELL)
    assert of_notebook(path)
    for source in code_cells(path):
        for node in ast.parse(source).body[: None if source.rstrip().endswith(";") else -1]:
            called = node.value.func if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
            assert called is None or ast.unparse(called) not in ("claim", "plots.show"), ast.unparse(node)
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                exec(ast.unparse(node), {})


MOST_SEEN = ("00_tour", "02_first_study", "10_pruning", "20_sync_policies")  # by newcomers, and by `make figures`
STUDY = "02_first_study"  # the shortest one
UNTITLED = ("rates", "targets", "bytes", "timeline", "states")  # of 20_sync_policies: they state no finding


@pytest.mark.parametrize("name", MOST_SEEN)
def test_the_most_seen_figures_state_a_finding_that_their_records_show(name: str):
    trees = [ast.parse(source) for source in code_cells(FOLDER / f"{name}.ipynb")]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for call in calls:
        if ast.unparse(call.func) == "save":
            (figure,) = (node for node in call.args[1:] if isinstance(node, (ast.Call, ast.IfExp)))
            untitled = name == "20_sync_policies" and ast.literal_eval(call.args[0]) in UNTITLED
            assert untitled or re.search("title=|time_budget", ast.unparse(figure)), ast.unparse(call.args[0])
        if ast.unparse(call.func) == "claim":  # so that its title says how many seeds it rests on
            assert "results" in {keyword.arg for keyword in call.keywords}, ast.unparse(call.args[0])


def executed(results: Path, *only: str) -> int:
    chosen = [f"--only={name}" for name in only]
    return main(["figures", "--all", "--tiny", "--results", str(results), "--no-images", *chosen])


def test_papermill_executes_a_notebook_to_records_and_figures(tmp_path: Path, capsys: pytest.CaptureFixture):
    """The notebook shows its figures without a network; a second time nothing is executed."""
    assert executed(tmp_path, STUDY) == 0
    made = json.loads((tmp_path / "notebooks" / f"{STUDY}.json").read_text())["made"]
    assert made["records"]
    for figure in made["figures"]:
        assert {path.suffix for path in (tmp_path / "figures").glob(f"{figure}.*")} >= {".html", ".json"}
    caption = (tmp_path / "figures" / f"{STUDY}-accuracy.txt").read_text()
    assert caption.startswith("No policy reaches 90 % within 16 pushes\n")
    manifests = [json.loads(path.read_text()) for path in tmp_path.glob("runs/*/manifest.json")]
    assert {m["run"]["sync"] for m in manifests} >= {"bsp", "asp"}
    assert all(m["pushes"] == 16 for m in manifests)
    executed_cells = cells(tmp_path / "notebooks" / f"{STUDY}.ipynb")
    outputs = [output for cell in executed_cells for output in cell.get("outputs", [])]
    shown = [output.data for output in outputs if "application/vnd.plotly.v1+json" in output.get("data", {})]
    assert len(shown) >= len(made["figures"]) > 0
    assert all("text/html" in data for data in shown)  # for a page that is made from the notebook
    assert any("plotly.js v" in str(output.get("data", {}).get("text/html", "")) for output in outputs)
    assert not [output for output in outputs if output.output_type == "error"]
    assert executed(tmp_path, STUDY) == 0
    assert "0 notebooks executed, 1 up to date" in capsys.readouterr().out


@pytest.mark.slow
def test_every_entry_of_the_batch_is_executed_with_few_pushes(tmp_path: Path):
    assert executed(tmp_path) == 0
    for entry in batch.plan(FOLDER, tmp_path, tiny=True):
        assert entry.figures, entry.name
        assert entry.done(), entry.name
        for path in entry.figures:
            figure = pio.read_json(path.with_name(f"{path.name}.json"))
            assert drawn.alike(figure) == [], path.name
            if path.name not in OWN:
                assert figure.layout.meta["inches"] in INCHES.values(), path.name
