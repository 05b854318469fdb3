"""python -m pslab lab: JupyterLab on the notebooks. What is saved has no outputs: those are in results/notebooks."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from pslab.lab.studies.batch import folder

HOOK = f"{__name__}.without_outputs"
KEPT = {"kernelspec", "language_info"}  # of a notebook's metadata; of a cell's its tags


def add(verbs: Any) -> None:
    """The verb and its options."""
    parser = verbs.add_parser("lab", help="JupyterLab on the notebooks, which are saved without outputs")
    parser.add_argument("--notebooks", type=Path, help="where the notebooks are (default: the project's)")


def main(options: argparse.Namespace) -> int:
    """This process becomes JupyterLab."""
    place = (options.notebooks or folder(Path.cwd())).resolve()
    hook = f"--ContentsManager.pre_save_hook={HOOK}"
    os.execv(sys.executable, [sys.executable, "-m", "jupyterlab", str(place), hook])


def without_outputs(model: MutableMapping[str, Any], **_: Any) -> None:
    """What Jupyter calls with a file that is about to be saved: of a notebook, what a person wrote is kept alone."""
    if model["type"] != "notebook":
        return
    notebook = model["content"]
    notebook["metadata"] = {name: value for name, value in notebook["metadata"].items() if name in KEPT}
    for cell in notebook["cells"]:
        cell["metadata"] = {name: value for name, value in cell["metadata"].items() if name == "tags"}
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
