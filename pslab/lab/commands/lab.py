"""pslab lab: opens JupyterLab on the notebooks."""

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
    parser.add_argument("--notebooks", type=Path, help="folder of the notebooks (default: the project's)")
    parser.set_defaults(unknown=[])


def main(options: argparse.Namespace) -> int:
    """Replace this process by JupyterLab on the notebooks' folder; never return."""
    root_dir = (options.notebooks or folder(Path.cwd())).resolve()
    # Jupyter refuses to run as root, the usual user in a container
    root = ["--allow-root"] * (hasattr(os, "geteuid") and os.geteuid() == 0 and "--allow-root" not in options.unknown)
    arguments = ["-m", "jupyterlab", f"--ServerApp.root_dir={root_dir}", *root]
    os.execv(sys.executable, [sys.executable, *arguments, *options.unknown])
