"""pslab lab: JupyterLab on the notebooks."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from pslab.lab.studies.batch import folder


def add(verbs: Any) -> None:
    """Add the verb and its options."""
    about = "JupyterLab on the notebooks. Other options go to it: --port, --no-browser, --ip, --allow-root, ..."
    parser = verbs.add_parser("lab", help="JupyterLab on the notebooks", description=about)
    parser.add_argument("--notebooks", type=Path, help="where the notebooks are (default: the project's)")
    parser.set_defaults(unknown=[])


def main(options: argparse.Namespace) -> int:
    """Replace this process by JupyterLab."""
    root_dir = (options.notebooks or folder(Path.cwd())).resolve()
    # Jupyter refuses to run as root, which the user of a container is
    root = ["--allow-root"] * (hasattr(os, "geteuid") and os.geteuid() == 0 and "--allow-root" not in options.unknown)
    arguments = ["-m", "jupyterlab", f"--ServerApp.root_dir={root_dir}", *root]
    os.execv(sys.executable, [sys.executable, *arguments, *options.unknown])
