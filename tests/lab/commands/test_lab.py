"""JupyterLab saves what a person sees; git gets what they wrote, and nothing of what was computed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_server.services.contents.largefilemanager import LargeFileManager

from pslab.__main__ import main
from pslab.lab.advise import search

ROOT = Path(__file__).parents[3]
TOUR = "notebooks/00_tour.ipynb"


def git(clone: Path, *words: str) -> str:
    command = ["git", "-C", str(clone), "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh clone with the tour in it, as `make` leaves it."""
    made = tmp_path_factory.mktemp("clone")
    for name in (".gitattributes", "Makefile", TOUR):
        (made / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, made / name)
    (made / ".venv").symlink_to(sys.prefix)
    make_filter(made)
    assert not (made / ".git").exists(), "what is no clone stays none"
    git(made, "init", "--quiet")
    make_filter(made)
    make_filter(made)
    git(made, "add", "notebooks", ".gitattributes", "Makefile")
    git(made, "commit", "--quiet", "--message", "begin")
    return made


def make_filter(clone: Path) -> None:
    subprocess.run(["make", "--silent", "git-filter"], cwd=clone, check=True)


def save(clone: Path, change: Any) -> Any:
    """Jupyter's own file manager opens the tour and saves it with changes; what it then opens."""
    manager = LargeFileManager(root_dir=str(clone))
    model = manager.get(TOUR)
    change(model["content"])
    manager.save(model, TOUR)
    return manager.get(TOUR)["content"]


def executed(notebook: Any) -> None:
    notebook.metadata["kernelspec"] = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    notebook.metadata["language_info"] = {
        "codemirror_mode": {"name": "ipython", "version": 3}, "file_extension": ".py", "mimetype": "text/x-python",
        "name": "python", "nbconvert_exporter": "python", "pygments_lexer": "ipython3", "version": "3.12"}  # fmt: skip
    notebook.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {"state": {}}}
    for cell in notebook.cells:
        cell.metadata |= {"scrolled": True, "editable": True, "slideshow": {"slide_type": ""}}
        if cell.cell_type == "code":
            cell.execution_count = 7
            cell.outputs = [nbformat.v4.new_output("stream", text="epoch 1 \u2026")]


@pytest.mark.slow
def test_outputs_are_saved_and_are_no_change_to_git_which_gets_what_a_person_edits(clone: Path):
    found = save(clone, executed)
    assert {cell.outputs[0].text for cell in found.cells if cell.cell_type == "code"} == {"epoch 1 \u2026"}
    assert git(clone, "diff", "--", TOUR) == ""
    git(clone, "add", TOUR)
    assert git(clone, "status", "--porcelain", "--", TOUR) == ""

    def edited(notebook: Any) -> None:
        executed(notebook)
        notebook.cells[0].source += "\nmine"

    save(clone, edited)
    git(clone, "commit", "--quiet", "--all", "--message", "mine")
    committed = git(clone, "show", f"HEAD:{TOUR}")
    assert nbformat.reads(committed, 4).cells[0].source.endswith("\nmine")
    assert "epoch 1" not in committed
    assert "epoch 1" in (clone / TOUR).read_text()


def test_the_notebooks_of_the_project_pass_the_filter_unchanged(clone: Path):
    """Else the next commit of one changes it everywhere."""
    notebooks = sorted(ROOT.glob("notebooks/*.ipynb"))
    command = f"{git(clone, 'config', 'filter.without-outputs.clean').strip()} --textconv"
    command += "".join(f" '{path}'" for path in notebooks)
    found = subprocess.run(command, shell=True, cwd=clone, check=True, capture_output=True, text=True)
    assert found.stdout == "".join(path.read_text(encoding="utf-8") for path in notebooks)


def test_what_is_not_known_goes_to_jupyter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, arguments: seen.append(arguments) or 0)
    others = ["--port", "8899", "--no-browser", "--ip=0.0.0.0", "--allow-root", "--debug"]
    main(["lab", *others[:3], "--notebooks", str(tmp_path), *others[3:]])
    ((_, *rest),) = seen
    assert rest == ["-m", "jupyterlab", f"--ServerApp.root_dir={tmp_path}", *others]
    monkeypatch.setattr(os, "geteuid", lambda: 0, raising=False)
    main(["lab", "--notebooks", str(tmp_path)])
    assert seen[-1][-1] == "--allow-root", "the user of a container is root"


def test_options_of_advise_become_the_question(monkeypatch: pytest.MonkeyPatch):
    asked: dict[str, Any] = {}

    def advise(base: Any, **question: Any) -> None:
        asked.update(question, cluster=base.cluster)
        raise search.Unreached("nothing is run here")

    monkeypatch.setattr(search, "advise", advise)
    assert main(["advise", "--target", "0.9", "--cluster", "lab", "--merit", "bytes", "--seeds", "3"]) == 1
    assert asked == {"target": 0.9, "minutes": 5.0, "seeds": range(3), "merit": "bytes", "results": None,
                     "cluster": "lab"}  # fmt: skip
