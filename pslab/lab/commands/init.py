"""pslab init FOLDER: a working copy of the notebooks and their data, from an installed package or from the sources.

pslab init --study NAME: a notebook that asks a question of one's own, and its entry in batch.yaml.
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

SHARED = "share/pslab/"  # where a wheel puts them: see data-files in pyproject.toml
KEPT = ("notebooks/*.ipynb", f"notebooks/{PLAN}", "data/README.md", "data/MNIST/raw/*.gz")
NEXT = """  pslab figures --only 02_first_study   a first finding, in about a minute
  pslab lab                             JupyterLab; 00_tour is the place to begin
  pslab init --study NAME               a notebook of your own"""
MODEL = "02_first_study"  # a whole study of the least length, from which a new one is made
ENTRY = """- notebook: {name}
  tiny: {{policies: [bsp, asp], pushes: 16, model: "mlp:8", data: "mnist:train=2048,test=500", seeds: [0]}}
"""
README = f"""# Studies with pslab

The notebooks and MNIST as they came with pslab; `results/` gets the records and figures. Here, in a shell:

{NEXT.replace("  pslab", "    pslab")}
"""


def add(verbs: Any) -> None:
    """Add the verb and its options."""
    parser = verbs.add_parser("init", help="a new folder with the notebooks and MNIST; or a notebook of your own")
    parser.add_argument("folder", nargs="?", type=Path, help="the new folder; one that exists must be empty")
    parser.add_argument("--study", metavar="NAME", help="make a notebook that runs as it is, such as 90_mine: in the "
                        "new folder, or without one in the project's notebooks/")  # fmt: skip


def main(options: argparse.Namespace) -> int:
    """Make the folder, the study or both, and print how to go on.

    Raises:
        ConfigError: neither is named; what `lay_out` and `add_study` raise.
    """
    if options.folder is None and options.study is None:
        raise ConfigError("folder", None, "must be named: pslab init FOLDER; or pslab init --study NAME")
    if options.study is not None and not re.fullmatch(r"\w+", options.study, re.ASCII):
        raise ConfigError("study", options.study, "must be of letters, digits and underscores: 90_mine")
    if options.folder is not None:
        lay_out(project := options.folder.expanduser())
    if options.study is not None:
        add_study(options.study, (folder(Path.cwd()) if options.folder is None else project / "notebooks").resolve())
    return 0


def lay_out(folder: Path) -> None:
    """Make the folder with its files, and print how to go on.

    Raises:
        ConfigError: the folder has files, or there is nothing to lay out. Unwritable: the disk refuses.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ConfigError("folder", str(folder), "is there, and not empty: name a new one")
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
        raise Unwritable(f"{folder} could not be laid out: {error}") from error
    studies = sum(name.endswith(".ipynb") for name in contents)
    print(f"{studies} notebooks and MNIST are in {folder}; go there, and then\n{NEXT}")


def files() -> Iterator[tuple[str, Path]]:
    """The files of a working copy, by their names in it: of the sources that this package is imported from, or of the
    wheel that it was installed from."""
    sources = Path(__file__).parents[3]
    if (sources / "notebooks" / PLAN).is_file():
        for pattern in KEPT:
            yield from ((path.relative_to(sources).as_posix(), path) for path in sorted(sources.glob(pattern)))
        return
    for installed in distributions(name=DISTRIBUTION):  # none, if the package was only put on the path
        for file in installed.files or ():
            _, shared, name = file.as_posix().partition(SHARED)
            if shared:
                yield name, Path(str(file.locate()))


def add_study(name: str, notebooks: Path) -> None:
    """Write a notebook of this name and its entry in the plan, and print how to go on.

    Raises:
        ConfigError: the name is taken, or the folder has no study to begin from.
    """
    path, plan, model = notebooks / f"{name}.ipynb", notebooks / PLAN, notebooks / f"{MODEL}.ipynb"
    if path.exists():
        raise ConfigError("study", name, f"{path} is there already: choose another one")
    for file in (plan, model):
        if not file.is_file():
            raise ConfigError("study", name, f"{notebooks} has no {file.name}, from which a new study is made")
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
