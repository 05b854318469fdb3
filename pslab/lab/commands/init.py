"""pslab init FOLDER: a working copy of the notebooks and their data, from an installed package or from the sources."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from pslab.errors import ConfigError, Unwritable
from pslab.lab.studies.batch import PLAN
from pslab.version import DISTRIBUTION

SHARED = "share/pslab/"  # where a wheel puts them: see data-files in pyproject.toml
KEPT = ("notebooks/*.ipynb", f"notebooks/{PLAN}", "data/README.md", "data/MNIST/raw/*.gz")
NEXT = """  pslab figures --only 02_first_study   a first finding, in about a minute
  pslab lab                             JupyterLab; 00_tour is the place to begin
  pslab new-study NAME                  a notebook of your own"""
README = f"""# Studies with pslab

The notebooks and MNIST as they came with pslab; `results/` gets the records and figures. Here, in a shell:

{NEXT.replace("  pslab", "    pslab")}
"""


def add(verbs: Any) -> None:
    """The verb and its options."""
    parser = verbs.add_parser("init", help="a new folder with the notebooks and MNIST, to work in")
    parser.add_argument("folder", type=Path, help="the new folder; one that exists must be empty")


def main(options: argparse.Namespace) -> int:
    """Make the folder with its files, and print how to go on."""
    place = options.folder.expanduser()
    if place.exists() and not (place.is_dir() and not any(place.iterdir())):
        raise ConfigError("folder", str(place), "is there, and not empty: name a new one")
    found = dict(files())
    if not found:
        problem = "the installed package has no notebooks: install it from a wheel or from its sources"
        raise ConfigError("folder", str(place), problem)
    try:
        for name, file in found.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place / name)
        (place / "results").mkdir()
        (place / "README.md").write_text(README)
    except OSError as error:
        raise Unwritable(f"{place} could not be laid out: {error}") from error
    studies = sum(name.endswith(".ipynb") for name in found)
    print(f"{studies} notebooks and MNIST are in {place}; go there, and then\n{NEXT}")
    return 0


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
