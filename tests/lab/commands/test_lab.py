"""JupyterLab saves what a person sees; git gets what they wrote, and nothing of what was computed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_server.services.contents.largefilemanager import LargeFileManager

from pslab.__main__ import main
from pslab.lab.commands import git_filter, lab

ROOT = Path(__file__).parents[3]
TOUR = "notebooks/00_tour.ipynb"


def git(clone: Path, *words: str) -> str:
    command = ["git", "-C", str(clone), "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A fresh clone with the tour in it, as `make` leaves it."""
    for name in (".gitattributes", TOUR, Path(git_filter.__file__).relative_to(ROOT).as_posix()):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    git(tmp_path, "init", "--quiet")
    lab.keep_outputs_out_of_git(tmp_path)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "begin")
    return tmp_path


def save(clone: Path, change: Any) -> Any:
    """Jupyter's own file manager opens the tour and saves it with changes; what it then opens."""
    manager = LargeFileManager(root_dir=str(clone))
    model = manager.get(TOUR)
    change(model["content"])
    manager.save(model, TOUR)
    return manager.get(TOUR)["content"]


def executed(notebook: Any) -> None:
    notebook.metadata["kernelspec"] = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    notebook.metadata["language_info"] = {"name": "python", "version": "3.12.1", "pygments_lexer": "ipython3"}
    notebook.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {"state": {}}}
    for cell in notebook.cells:
        cell.metadata["scrolled"] = True
        if cell.cell_type == "code":
            cell.execution_count = 7
            cell.outputs = [nbformat.v4.new_output("stream", text="epoch 1 \u2026")]


def test_outputs_are_saved_and_are_no_change_to_git(clone: Path):
    found = save(clone, executed)
    assert {cell.outputs[0].text for cell in found.cells if cell.cell_type == "code"} == {"epoch 1 \u2026"}
    assert git(clone, "diff", "--", TOUR) == ""
    git(clone, "add", TOUR)
    assert git(clone, "status", "--porcelain", "--", TOUR) == ""


def test_what_a_person_edits_is_committed_without_outputs(clone: Path):
    def edited(notebook: Any) -> None:
        executed(notebook)
        notebook.cells[0].source += "\nmine"

    save(clone, edited)
    git(clone, "commit", "--quiet", "--all", "--message", "mine")
    committed = git(clone, "show", f"HEAD:{TOUR}")
    assert nbformat.reads(committed, 4).cells[0].source.endswith("\nmine")
    assert "epoch 1" not in committed
    assert "epoch 1" in (clone / TOUR).read_text()


@pytest.mark.parametrize("path", sorted(ROOT.glob("notebooks/*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_of_the_project_passes_the_filter_unchanged(path: Path):
    text = path.read_text(encoding="utf-8")
    assert git_filter.without_outputs(text) == text  # else its next commit changes it everywhere


def test_what_is_not_known_goes_to_jupyter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, arguments: seen.append(arguments) or 0)
    monkeypatch.setattr(lab, "SOURCES", tmp_path)
    others = ["--port", "8899", "--no-browser", "--ip=0.0.0.0", "--allow-root", "--debug"]
    main(["lab", *others[:3], "--notebooks", str(tmp_path), *others[3:]])
    ((_, *rest),) = seen
    assert rest == ["-m", "jupyterlab", f"--ServerApp.root_dir={tmp_path}", *others]
    monkeypatch.setattr(os, "geteuid", lambda: 0, raising=False)
    main(["lab", "--notebooks", str(tmp_path)])
    assert seen[-1][-1] == "--allow-root", "the user of a container is root"


def test_other_verbs_refuse_what_they_do_not_know(capsys: pytest.CaptureFixture):
    assert main(["list", "--port", "8899"]) == 2
    assert "--port" in capsys.readouterr().err
