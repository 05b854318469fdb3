"""pslab new-study NAME: a notebook that asks a question of one's own, and its entry in batch.yaml."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from pslab.errors import ConfigError
from pslab.lab.studies.batch import PLAN, folder

MODEL = "02_first_study"  # a whole study of the least length: what a new one begins as
ENTRY = """- notebook: {name}
  tiny: {{policies: [bsp, asp], pushes: 16, model: "mlp:8", data: "mnist:train=2048,test=500", seeds: [0]}}
"""


def add(verbs: Any) -> None:
    """The verb and its options."""
    parser = verbs.add_parser("new-study", help="a notebook of your own, which runs as it is, in notebooks/")
    parser.add_argument("name", help="of the notebook, of letters, digits and underscores, such as 90_mine")
    parser.add_argument("--notebooks", type=Path, help="where notebooks are (default: the project's)")


def main(options: argparse.Namespace) -> int:
    """Write the notebook and its entry, and print how to go on.

    Raises:
        ConfigError: the name cannot be one, is taken, or there is no folder of notebooks.
    """
    name, place = options.name.removesuffix(".ipynb"), (options.notebooks or folder(Path.cwd())).resolve()
    if not re.fullmatch(r"\w+", name, re.ASCII):
        raise ConfigError("name", name, "must be of letters, digits and underscores: 90_mine")
    path, plan, model = place / f"{name}.ipynb", place / PLAN, place / f"{MODEL}.ipynb"
    if path.exists():
        raise ConfigError("name", name, f"{path} is there already: choose another one")
    for file in (plan, model):
        if not file.is_file():
            raise ConfigError("notebooks", str(place), f"has no {file.name}: a new study is made from it")
    path.write_text(json.dumps(_renamed(json.loads(model.read_text()), name), indent=1, ensure_ascii=False) + "\n")
    with plan.open("a") as entries:
        entries.write(ENTRY.format(name=name))
    print(f"{path} runs as it is: pslab lab, or pslab figures --only {name}; change its question, parameters and words")
    return 0


def _renamed(notebook: dict[str, Any], name: str) -> dict[str, Any]:
    """The same notebook under another name, with a heading that its author is to change."""
    heading, *others = notebook["cells"]
    about = name.lstrip("0123456789_").replace("_", " ").capitalize() or name
    heading["source"] = [f"# {about}: what do you ask?\n", "\n", "Say here what is compared, and what you expect."]
    for cell in others:
        cell["source"] = [line.replace(f'"{MODEL}"', f'"{name}"') for line in cell["source"]]
    return notebook
