"""JupyterLab saves what a person wrote, and nothing of what was computed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_server.services.contents.largefilemanager import LargeFileManager
from traitlets.config import Config

from pslab.__main__ import main
from pslab.lab.commands.workplace.lab import HOOK

TOUR = Path(__file__).parents[4] / "notebooks" / "00_tour.ipynb"


def saved(folder: Path, change: Any) -> str:
    """The tour's text after Jupyter's own file manager has opened it, and saved it with changes."""
    shutil.copy(TOUR, folder)
    manager = LargeFileManager(root_dir=str(folder), config=Config(ContentsManager={"pre_save_hook": HOOK}))
    model = manager.get(TOUR.name)
    change(model["content"])
    manager.save(model, TOUR.name)
    return (folder / TOUR.name).read_text()


def executed(notebook: Any) -> None:
    notebook.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {"state": {}}}
    for cell in notebook.cells:
        cell.metadata["scrolled"] = True
        if cell.cell_type == "code":
            cell.execution_count = 7
            cell.outputs = [nbformat.v4.new_output("stream", text="epoch 1")]


def test_a_notebook_that_was_executed_is_saved_as_it_was(tmp_path: Path):
    assert nbformat.reads(saved(tmp_path, executed), 4) == nbformat.read(TOUR, 4)


def test_what_a_person_edits_is_saved(tmp_path: Path):
    def edited(notebook: Any) -> None:
        executed(notebook)
        notebook.cells[0].source += "\nmine"

    text = saved(tmp_path, edited)
    assert "mine" in nbformat.reads(text, 4).cells[0].source
    assert "epoch 1" not in text


def test_jupyter_gets_the_folder_and_the_hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, arguments: seen.append(arguments) or 0)
    main(["lab", "--notebooks", str(tmp_path)])
    ((_, *rest),) = seen
    assert rest == ["-m", "jupyterlab", str(tmp_path), f"--ContentsManager.pre_save_hook={HOOK}"]
