"""git gets what a person wrote in a notebook, and nothing of what was computed; how verbs call what they start."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

from pslab.__main__ import main
from pslab.lab.advise import search

ROOT = Path(__file__).parents[3]


def executed(path: Path, place: Path) -> Path:
    """A notebook as JupyterLab saves it when its cells have been run."""
    notebook: Any = nbformat.read(path, 4)
    notebook.metadata["language_info"] |= {
        "codemirror_mode": {"name": "ipython", "version": 3}, "file_extension": ".py", "mimetype": "text/x-python",
        "nbconvert_exporter": "python", "pygments_lexer": "ipython3", "version": "3.12"}  # fmt: skip
    notebook.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {"state": {}}}
    for cell in notebook.cells:
        cell.metadata |= {"scrolled": True, "editable": True, "slideshow": {"slide_type": ""}}
        if cell.cell_type == "code":
            cell.execution_count, cell.outputs = 7, [nbformat.v4.new_output("stream", text="epoch 1 \u2026")]
    nbformat.write(notebook, place / path.name)
    return place / path.name


def test_git_gets_every_notebook_without_what_was_computed(tmp_path: Path):
    """A difference would be in the next commit of a notebook."""
    for name in ("Makefile", ".gitattributes"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    make = ["make", "--silent", "git-filter"]
    subprocess.run(make, cwd=tmp_path, check=True)
    assert not (tmp_path / ".git").exists(), "what is no clone stays none"
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    for _ in range(2):
        subprocess.run(make, cwd=tmp_path, check=True)

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    assert git("check-attr", "filter", "notebooks/00_tour.ipynb").endswith("filter: without-outputs\n")
    notebooks = sorted(ROOT.glob("notebooks/*.ipynb"))
    command = f"{git('config', 'filter.without-outputs.clean').strip()} --textconv"
    command += "".join(f" '{path}' '{executed(path, tmp_path)}'" for path in notebooks)
    found = subprocess.run(command, shell=True, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert found.stdout == "".join(2 * path.read_text(encoding="utf-8") for path in notebooks)


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
