"""Records that are falsified, and who notices: the sums, the judge, or a rerun.

    record = run(Run(...)).path
    copy = falsified(record, tmp_path, cell("accuracy", 3, "accuracy", lambda accuracy: accuracy + 0.1))
    who_notices(copy)          # ("rerun", "differs in accuracy.csv"); ("", "") if nobody does

A falsification changes the files of a folder.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from pslab.config.run import Run
from pslab.errors import RecordError
from pslab.lab.commands.finding import PROBLEM
from pslab.lab.commands.verify import judgement, rerun, sums
from pslab.lab.records.disk import write_manifest
from pslab.lab.records.results import load

Falsify = Callable[[Path], object]


def table(name: str, change: Callable[[pd.DataFrame], pd.DataFrame]) -> Falsify:
    """Return a falsification by which one table is another one."""
    return lambda folder: change(pd.read_csv(folder / f"{name}.csv")).to_csv(folder / f"{name}.csv", index=False)


def cell(name: str, row: int, column: str, change: Callable[[float], float]) -> Falsify:
    """Return a falsification by which one number of a table is another one."""

    def changed(found: pd.DataFrame) -> pd.DataFrame:
        values = found[column].tolist()
        values[row] = type(values[row])(change(values[row]))
        return found.assign(**{column: values})

    return table(name, changed)


def manifest(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Falsify:
    """Return a falsification by which the manifest says something else, too."""

    def falsify(folder: Path) -> None:
        found = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps({**found, **change(found)}))

    return falsify


def facts(**changed: object) -> Falsify:
    return manifest(lambda found: changed)


def fact(name: str, change: Callable[[Any], object]) -> Falsify:
    return manifest(lambda found: {name: change(found.get(name))})


def relabelled(**fields: object) -> Falsify:
    """Return a falsification by which the manifest names another run, with the digest of that."""

    def change(found: dict[str, Any]) -> dict[str, Any]:
        other = Run.of({**found["run"], **fields})
        return {"run": other.plain(), "digest": other.digest}

    return manifest(change)


def without_file(name: str) -> Falsify:
    """Return a falsification by which there is no such file, and no sum of it."""

    def falsify(folder: Path) -> None:
        (folder / name).unlink()
        fact("sha256", lambda found: {other: value for other, value in found.items() if other != name})(folder)

    return falsify


def falsified(record: Path, place: Path, falsify: Falsify) -> Path:
    """Return a copy of a record that is falsified, with new sums of its files, in the folder of its digest."""
    copy = shutil.copytree(record, place / record.name)
    falsify(copy)
    found = json.loads((copy / "manifest.json").read_text())
    write_manifest(copy, found, list(found["sha256"]))
    return copy.rename(copy.with_name(found["digest"]))


def who_notices(folder: Path) -> tuple[str, str]:
    """Return who is the first to notice what is wrong with a record: sums, judge, rerun, or "". And the words."""
    who = "sums"
    try:
        result = load(folder)
        sums(result)
        for who, check in (("judge", judgement), ("rerun", rerun)):
            if (found := check(result)).state == PROBLEM:
                return who, found.text
    except RecordError as error:
        return who, str(error)
    return "", ""
