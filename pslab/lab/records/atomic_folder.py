"""A record's directory: complete, or absent."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from pslab.errors import RecordError
from pslab.lab.records import journal


def draft_of(place: Path) -> Path:
    """Where this process writes what will be `place`: beside it, with the writer in its name."""
    return place.with_name(f".{place.name}.{platform.node()}.{os.getpid()}.{uuid.uuid4().hex[:8]}")


def publish(draft: Path, place: Path) -> None:
    """Move the draft to its place, in one step."""
    _publish(draft, place)
    journal.note(read=f"{place.parent.name}/{place.name}")


def _publish(draft: Path, place: Path) -> None:
    try:
        draft.rename(place)
    except OSError:
        if not place.is_dir():
            raise
        # another process completed the same run, or its digest does not say everything about it
        old = draft.with_name(draft.name + "-old")
        place.rename(old)
        draft.rename(place)
        shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def written(place: Path) -> Iterator[Path]:
    """A draft to fill, which is moved to its place at the end; if it cannot be written, nothing is left.

    Raises:
        RecordError: the disk is full, or the place cannot be written to.
    """
    draft = draft_of(place)
    try:
        draft.mkdir(parents=True)
        yield draft
        publish(draft, place)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise RecordError(f"the record of {place.name} cannot be written to {place.parent}: {error}") from error


def read_manifest(place: Path, files: Iterable[str]) -> dict[str, Any]:
    """The manifest of a record that has all its files.

    Raises:
        RecordError: files are missing, or the manifest is no JSON.
    """
    missing = [name for name in files if not (place / name).is_file()]
    if missing:
        raise RecordError(f"{place} is not a complete record: {', '.join(missing)} missing; delete it and run again")
    try:
        manifest: dict[str, Any] = json.loads((place / "manifest.json").read_text())
    except ValueError as error:
        raise RecordError(f"{place}/manifest.json cannot be read ({error}); delete {place} and run again") from error
    journal.note(read=f"{place.parent.name}/{place.name}")
    return manifest


def write_manifest(place: Path, manifest: Mapping[str, Any]) -> None:
    """The last file of a record."""
    (place / "manifest.json").write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")


def read_table(place: Path, name: str, rows: Mapping[str, int], dtypes: dict[str, str] | None = None) -> pd.DataFrame:
    """A table of a record, with as many rows as its manifest says.

    Raises:
        RecordError: it cannot be read, or has lost rows.
    """
    path = place / f"{name}.csv"
    try:
        table = pd.read_csv(path, dtype=dtypes)
    except (OSError, ValueError) as error:
        raise RecordError(f"{path} cannot be read ({error}); delete {place} and run again") from error
    if len(table) != rows[name]:
        raise RecordError(f"{path} has {len(table)} rows, not {rows[name]}; delete {place}")
    return table
