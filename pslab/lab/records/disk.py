"""Files and folders that are on disk as a whole or not at all: a record's folder, a figure's file."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
import shutil
import uuid
import warnings
from collections.abc import Callable, Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from pslab.config.untrusted import read_bytes, read_json
from pslab.errors import DamagedRecord, RecordError, Unwritable
from pslab.lab.records import journal

MANIFEST = "manifest.json"
DAMAGED = "damaged"  # the folder beside the records' folders
TABLE_TIMES = 8  # the memory of a table, in sizes of its text: its bytes, and eight for each number of one digit
T = TypeVar("T")


class Damaged(UserWarning):
    """A record that cannot be read was moved aside, and what it is a record of is made again."""


def draft_of(place: Path) -> Path:
    """The file that this process writes before it becomes `place`: beside it, with the writer in its name."""
    return place.with_name(f".{place.name}.{platform.node()}.{os.getpid()}.{uuid.uuid4().hex[:8]}")


def publish(draft: Path, place: Path, aside: Path | None = None) -> bool:
    """Move the draft to its place, in one step; False if another process was first: its record stays, the draft goes.

    A record that is there may be read by another process, so it is never overwritten: one that is to be replaced is
    first moved `aside` as a whole.
    """
    try:
        if aside is not None and place.is_dir():
            aside.parent.mkdir(exist_ok=True)
            place.rename(aside)
        draft.rename(place)
        _flush(place.parent)
        return True
    except OSError:
        if not place.is_dir():
            raise
        shutil.rmtree(draft, ignore_errors=True)
        return False
    finally:
        journal.note(read=f"{place.parent.name}/{place.name}")


def write_file(path: Path, content: bytes) -> Path:
    """Write a file in one step; a file that has this content already stays as it is.

    Raises:
        Unwritable: the disk is full or the directory cannot be written to.
    """
    draft = draft_of(path)
    try:
        if path.is_file() and path.read_bytes() == content:
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(content)
        os.replace(draft, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise Unwritable(f"{path} ({len(content)} bytes) cannot be written: {error}") from error
    return path


def records_in(folder: Path) -> list[Path]:
    """The folders of records, whole or not, the one first whose manifest was written first."""
    return sorted(folder.glob("[!.]*"), key=lambda place: (written_s(place / MANIFEST), place.name))


def written_s(path: Path) -> float:
    """When a file was written; 0 if there is none, or another process has moved it away meanwhile."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def read_manifest(place: Path, files: Iterable[str]) -> dict[str, Any]:
    """The manifest of a record that has these files, and all that it names.

    Raises:
        DamagedRecord: files are missing, or the manifest is no JSON.
        RecordError: it cannot be opened now.
    """
    manifest: Any = {}
    try:
        if (place / MANIFEST).is_file():
            manifest = read_json(place / MANIFEST)
        if not isinstance(manifest, dict) or not isinstance(manifest.get("sha256", {}), dict):
            raise DamagedRecord(place, f"{place / MANIFEST} is no manifest")
        names = dict.fromkeys([MANIFEST, *files, *manifest.get("sha256", ())])
        if missing := [name for name in names if not (place / name).is_file()]:
            raise DamagedRecord(place, f"{place} is not a complete record: {', '.join(missing)} missing")
    except ValueError as error:
        raise DamagedRecord(place, f"{place / MANIFEST} cannot be read ({error})") from error
    except OSError as error:
        raise RecordError(f"{place / MANIFEST} cannot be read: {error}") from error
    journal.note(read=f"{place.parent.name}/{place.name}")
    return dict(manifest)


def write_manifest(place: Path, manifest: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Write a record's last file, the manifest: these facts and the sums of the other files. It is returned."""
    sums = {name: hashlib.sha256((place / name).read_bytes()).hexdigest() for name in names if name != MANIFEST}
    whole = {**manifest, "sha256": sums}
    (place / MANIFEST).write_text(json.dumps(whole, indent=1, sort_keys=True) + "\n")
    for path in (*(place / name for name in (*sums, MANIFEST)), place):
        _flush(path)
    return whole


def write_record(place: Path, facts: Mapping[str, Any], files: Mapping[str, Callable[[Path], Any]]) -> dict[str, Any]:
    """Write a record into a draft beside its place, which takes that place when it is complete. Its manifest is
    returned; what another process has recorded there meanwhile stays.

    Args:
        files: by name, what writes each of them.

    Raises:
        Unwritable: the disk is full, or the place cannot be written to.
    """
    draft = draft_of(place)
    try:
        draft.mkdir(parents=True)
        for name, write in files.items():
            write(draft / name)
        manifest = write_manifest(draft, facts, files)
        publish(draft, place)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        problem = f"the record of {place.name} cannot be written to {place.parent}: {error} ({room_at(place)})"
        raise Unwritable(problem) from error
    return manifest


def _flush(path: Path) -> None:
    """Flush to the disk, so that a file or folder that is renamed afterwards is whole even after a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_file(place: Path, name: str, manifest: Mapping[str, Any]) -> BytesIO:
    """The content of a record's file, which has not changed since this manifest was written.

    Raises:
        DamagedRecord: it was changed.
        RecordError: it cannot be opened now.
    """
    try:
        content = read_bytes(place / name, TABLE_TIMES)
    except OSError as error:
        raise RecordError(f"{place / name} cannot be read: {error}") from error
    if hashlib.sha256(content).hexdigest() != manifest.get("sha256", {}).get(name):
        raise DamagedRecord(place, f"{place / name} is not what its manifest says: it was changed since: find it anew")
    return BytesIO(content)


def check_sums(place: Path, manifest: Mapping[str, Any], names: Iterable[str]) -> None:
    """Refuse a record of whose files one was changed: as `read_file`."""
    for name in names:
        read_file(place, name, manifest)


def find_whole(find: Callable[[], T]) -> T | None:
    """Return what `find` finds on disk; None for a damaged record, which is moved to results/damaged/ with a warning.

    Raises:
        RecordError: the record cannot be opened now, or not be moved.
    """
    with contextlib.suppress(DamagedRecord):
        return find()
    try:
        return find()  # another process may have replaced it while it was read
    except DamagedRecord as error:
        aside = error.place.parents[1] / DAMAGED / f"{error.place.name}-{uuid.uuid4().hex[:8]}"
        try:
            aside.parent.mkdir(exist_ok=True)
            error.place.rename(aside)
        except FileNotFoundError:  # another process was first
            return None
        except OSError:
            raise error from None
        words = f"{error.problem}; the damaged record was moved to {aside}, and is made again"
        warnings.warn(words, Damaged, stacklevel=3)
        return None


def read_table(
    place: Path, name: str, manifest: Mapping[str, Any], dtypes: dict[str, str] | None = None
) -> pd.DataFrame:
    """A table of a record.

    Raises:
        DamagedRecord: it was changed, or is no table.
        RecordError: it cannot be opened now.
    """
    try:
        return pd.read_csv(read_file(place, f"{name}.csv", manifest), dtype=dtypes)
    except (ValueError, OverflowError) as error:
        raise DamagedRecord(place, f"{place / name}.csv cannot be read ({error})") from error


def room_at(place: Path) -> str:
    """Return the free space in words: ``"12.3 MB are free in results"``."""
    folder, free = free_bytes(place)
    return f"{in_bytes(free)} are free in {folder}"


def free_bytes(place: Path) -> tuple[Path, int]:
    """The place, or the first folder above it that is there, and the room in it."""
    folder = next(each for each in (place, *place.absolute().parents) if each.exists())
    return folder, shutil.disk_usage(folder).free


def in_bytes(count: float) -> str:
    """``"12.3 MB"``."""
    power = min(4, int(math.log(max(count, 1), 1000)))
    return f"{count / 1000**power:.{1 if power else 0}f} {('bytes', 'kB', 'MB', 'GB', 'TB')[power]}"
