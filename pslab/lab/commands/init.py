"""pslab init FOLDER: makes a working copy of the notebooks and their data, from an installed package or the sources.

pslab init --study NAME: adds a new notebook for a user's question, and its entry in batch.yaml.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from pslab.errors import ConfigError, Unwritable
from pslab.lab.studies.batch import PLAN, folder
from pslab.version import DISTRIBUTION

SHARED = "share/pslab/"  # the wheel's folder of these files: see data-files in pyproject.toml
KEPT = ("notebooks/*.ipynb", f"notebooks/{PLAN}", "data/README.md", "data/MNIST/raw/*.gz")
NEXT = """  pslab figures --only 02_first_study   a first finding, in about a minute
  pslab lab                             JupyterLab; 00_tour is the place to begin
  pslab init --study NAME               a notebook of your own"""
MODEL = "02_first_study"  # the shortest complete study, from which new studies are made
ENTRY = """- notebook: {name}
  tiny: {{policies: [bsp, asp], pushes: 16, model: "mlp:8", data: "mnist:train=2048,test=500", seeds: [0]}}
"""
README = f"""# Studies with pslab

The notebooks and MNIST as distributed with pslab; records and figures go to `results/`. In a shell, in this folder:

{NEXT.replace("  pslab", "    pslab")}
"""


def add(verbs: Any) -> None:
    """Add the verb and its options."""
    parser = verbs.add_parser("init", help="a new folder with the notebooks and MNIST; or a notebook of your own")
    parser.add_argument("folder", nargs="?", type=Path, help="the new folder; one that exists must be empty")
    parser.add_argument("--study", metavar="NAME", help="make a notebook that runs as it is, such as 90_mine: in the "
                        "new folder, or without one in the project's notebooks/")  # fmt: skip


def main(options: argparse.Namespace) -> int:
    """Make the folder, the study or both, and print the next commands; return 0.

    Raises:
        ConfigError: the options have neither a folder nor a study, or a name cannot be used.
    """
    if options.folder is None and options.study is None:
        raise ConfigError("folder", None, "must be given: pslab init FOLDER, or pslab init --study NAME")
    if options.study is not None and not re.fullmatch(r"\w+", options.study, re.ASCII):
        raise ConfigError("study", options.study, "may have only letters, digits and underscores, such as 90_mine")
    if options.folder is not None:
        lay_out(project := options.folder.expanduser())
    if options.study is not None:
        add_study(options.study, (folder(Path.cwd()) if options.folder is None else project / "notebooks").resolve())
    return 0


def lay_out(folder: Path) -> None:
    """Make the new folder, copy the notebooks and the data, and print the next commands.

    Raises:
        ConfigError: the folder exists and is not empty, or the package has no notebooks.
        Unwritable: the disk is full, or the folder cannot be written to.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ConfigError("folder", str(folder), "exists and is not empty: name a new folder")
    contents = dict(files())
    if not contents:
        problem = "the installed package has no notebooks: install it from a wheel or from its sources"
        raise ConfigError("folder", str(folder), problem)
    try:
        for name, file in contents.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, folder / name)
        (folder / "results").mkdir()
        (folder / "README.md").write_text(README)
    except OSError as error:
        raise Unwritable(f"the files cannot be written to {folder}: {error}; name another folder") from error
    studies = sum(name.endswith(".ipynb") for name in contents)
    print(f"{studies} notebooks and MNIST are in {folder}; go there, and then\n{NEXT}")


def files() -> Iterator[tuple[str, Path]]:
    """Yield (name in the working copy, path) for each file to copy, from a checkout or from the installed wheel;
    nothing if neither has the notebooks."""
    sources = Path(__file__).parents[3]
    if (sources / "notebooks" / PLAN).is_file():
        for pattern in KEPT:
            yield from ((path.relative_to(sources).as_posix(), path) for path in sorted(sources.glob(pattern)))
        return
    for installed in distributions(name=DISTRIBUTION):  # none if the package is only on the path, not installed
        for file in installed.files or ():
            _, shared, name = file.as_posix().partition(SHARED)
            if shared:
                yield name, Path(str(file.locate()))


def add_study(name: str, notebooks: Path) -> None:
    """Write a notebook with this name, add its entry to batch.yaml, and print the next commands.

    Raises:
        ConfigError: a notebook has this name, or the folder has no batch.yaml or no study to copy.
    """
    path, plan, model = notebooks / f"{name}.ipynb", notebooks / PLAN, notebooks / f"{MODEL}.ipynb"
    if path.exists():
        raise ConfigError("study", name, f"{path} exists already: choose another name")
    for file in (plan, model):
        if not file.is_file():
            problem = f"{notebooks} has no {file.name}, but a new study is made from it"
            raise ConfigError("study", name, f"{problem}: make a new folder, pslab init FOLDER --study {name}")
    notebook = json.loads(model.read_text())
    heading, *others = notebook["cells"]
    about = name.lstrip("0123456789_").replace("_", " ").capitalize() or name
    heading["source"] = [f"# {about}: what do you ask?\n", "\n", "Name the compared policies, and your expectation."]
    for cell in others:
        cell["source"] = [line.replace(f'"{MODEL}"', f'"{name}"') for line in cell["source"]]
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
    with plan.open("a") as entries:
        entries.write(ENTRY.format(name=name))
    print(f"{path} runs as it is: pslab lab, or pslab figures --only {name}; change its question, parameters and words")
