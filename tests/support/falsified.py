"""Records that are falsified, and who notices: the sums, the judge, or a rerun.

    record = run(Run(...)).path
    copy = falsified(record, tmp_path, cell("accuracy", 3, "accuracy", lambda accuracy: accuracy + 0.1))
    who_notices(copy)          # ("rerun", "differs in accuracy.csv"); ("", "") if nobody does

A falsification changes the files of a folder. `table`, `cell`, `facts`, `fact`, `without` and `relabelled` make one,
and `both` makes one of several.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pslab.config.run import Run
from pslab.errors import RecordError
from pslab.lab.commands.finding import PROBLEM
from pslab.lab.commands.verify import judgement, rerun, sums
from pslab.lab.records.disk import write_manifest
from pslab.lab.records.results import load

Falsify = Callable[[Path], None]


def table(name: str, change: Callable[[pd.DataFrame], pd.DataFrame]) -> Falsify:
    """One table of a record is another one."""

    def falsify(folder: Path) -> None:
        path = folder / f"{name}.csv"
        change(pd.read_csv(path)).to_csv(path, index=False)

    return falsify


def cell(name: str, row: int, column: str, change: Callable[[float], float]) -> Falsify:
    """One number of a table is another one."""

    def changed(found: pd.DataFrame) -> pd.DataFrame:
        column_type = found[column].dtype
        found[column] = found[column].astype(float)
        found.loc[found.index[row], column] = change(found[column].iloc[row])
        return found.astype({column: column_type}) if column_type == np.int64 else found

    return table(name, changed)


def manifest(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Falsify:
    """The manifest says something else."""

    def falsify(folder: Path) -> None:
        path = folder / "manifest.json"
        path.write_text(json.dumps(change(json.loads(path.read_text()))))

    return falsify


def facts(**changed: object) -> Falsify:
    """These facts of the manifest are others."""
    return manifest(lambda found: {**found, **changed})


def fact(name: str, change: Callable[[Any], object]) -> Falsify:
    """One fact of the manifest is another one."""
    return manifest(lambda found: {**found, name: change(found.get(name))})


def relabelled(**fields: object) -> Falsify:
    """The manifest names another run, with the digest of that."""

    def change(found: dict[str, Any]) -> dict[str, Any]:
        other = Run.of({**found["run"], **fields})
        return {**found, "run": other.plain(), "digest": other.digest}

    return manifest(change)


def both(*falsifies: Falsify) -> Falsify:
    def falsify(folder: Path) -> None:
        for each in falsifies:
            each(folder)

    return falsify


def truncated(name: str, share: float = 0.5) -> Falsify:
    def falsify(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(share * len(content))])

    return falsify


def without_file(name: str) -> Falsify:
    """There is no such file, and no sum of it."""

    def falsify(folder: Path) -> None:
        (folder / name).unlink()
        fact("sha256", lambda found: {other: value for other, value in found.items() if other != name})(folder)

    return falsify


def hidden_drop(folder: Path) -> None:
    """The first dropped push never arrived."""
    pushes = pd.read_csv(folder / "pushes.csv")
    applied = set(zip(pushes.worker, pushes.iteration, strict=True))

    def hide(arrivals: pd.DataFrame) -> pd.DataFrame:
        names = zip(arrivals.kind, arrivals.worker, arrivals.iteration, strict=True)
        lost = [at for at, (kind, *name) in enumerate(names) if kind == "push" and tuple(name) not in applied]
        return arrivals.drop(index=lost[0])

    both(table("arrivals", hide), fact("dropped", lambda dropped: dropped - 1))(folder)


def other_weights(folder: Path) -> None:
    np.save(folder / "weights.npy", np.load(folder / "weights.npy") * 1.01)


def falsified(record: Path, place: Path, falsify: Falsify, *, sums: bool = True) -> Path:
    """A copy of a record that is falsified, in the folder of its digest.

    Args:
        sums: whether the forger makes the sums of the files anew.
    """
    copy = shutil.copytree(record, place / record.name)
    falsify(copy)
    if not sums:
        return copy
    found = json.loads((copy / "manifest.json").read_text())
    write_manifest(copy, found, list(found["sha256"]))
    return copy.rename(copy.with_name(found["digest"]))


def who_notices(folder: Path, *, again: bool = True) -> tuple[str, str]:
    """Who is the first to notice what is wrong with a record: sums, judge, rerun; "" if nobody. And the words.

    Args:
        again: whether the run is executed again, too, as `pslab verify` does.
    """
    who = "sums"
    try:
        result = load(folder)
        sums(result)
        for who, check in (("judge", judgement), *([("rerun", rerun)] if again else [])):
            if (found := check(result)).state == PROBLEM:
                return who, found.text
    except RecordError as error:
        return who, str(error)
    return "", ""
