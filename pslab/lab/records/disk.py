"""Files and folders that are written completely or not at all: a record's folder, a figure's file."""

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
DAMAGED = "damaged"  # the folder for damaged records, beside the records' folders
TABLE_TIMES = 8  # memory that reading a table needs, as a multiple of its file's size
T = TypeVar("T")


class Damaged(UserWarning):
    """A damaged record was moved to results/damaged/, and will be made again."""


def draft_of(folder: Path) -> Path:
    """Return a new path beside `folder` for a draft of it; the name has this machine and process."""
    return folder.with_name(f".{folder.name}.{platform.node()}.{os.getpid()}.{uuid.uuid4().hex[:8]}")


def publish(draft: Path, folder: Path, aside: Path | None = None) -> bool:
    """Rename the draft to `folder`; return False, and remove the draft, if another process has made `folder` first.

    Another process may be reading an existing record, so the record's files are never overwritten: to replace the
    record, its whole folder is first moved to `aside`.
    """
    try:
        if aside is not None and folder.is_dir():
            aside.parent.mkdir(exist_ok=True)
            folder.rename(aside)
        draft.rename(folder)
        _flush(folder.parent)
        return True
    except OSError:
        if not folder.is_dir():
            raise
        shutil.rmtree(draft, ignore_errors=True)
        return False
    finally:
        journal.note(read=f"{folder.parent.name}/{folder.name}")


def write_file(path: Path, content: bytes) -> Path:
    """Write a file completely or not at all; do nothing if it has this content already. Return its path.

    Raises:
        Unwritable: the disk is full or the directory is not writable.
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
        problem = f"{path} ({len(content)} bytes) cannot be written: {error} ({room_at(path)})"
        raise Unwritable(f"{problem}; free some space, or choose another folder") from error
    return path


def records_in(folder: Path) -> list[Path]:
    """Return the folders of records, complete or not, in order of the times at which their manifests were written."""
    return sorted(folder.glob("[!.]*"), key=lambda record: (written_s(record / MANIFEST), record.name))


def written_s(path: Path) -> float:
    """Return the time at which a file was written, in seconds since 1970; 0 if the file does not exist."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def read_manifest(folder: Path, files: Iterable[str]) -> dict[str, Any]:
    """Return the manifest of a record; check that the record has these files, and the files that the manifest lists.

    Raises:
        DamagedRecord: files are missing, or the manifest is not a JSON object.
        RecordError: the manifest cannot be opened now.
    """
    manifest: Any = {}
    try:
        if (folder / MANIFEST).is_file():
            manifest = read_json(folder / MANIFEST)
        if not isinstance(manifest, dict) or not isinstance(manifest.get("sha256", {}), dict):
            raise DamagedRecord(folder, f"{folder / MANIFEST} is not a JSON object with the files' checksums")
        names = dict.fromkeys([MANIFEST, *files, *manifest.get("sha256", ())])
        if missing := [name for name in names if not (folder / name).is_file()]:
            raise DamagedRecord(folder, f"{folder} is not a complete record: {', '.join(missing)} missing")
    except ValueError as error:
        raise DamagedRecord(folder, f"{folder / MANIFEST} cannot be read ({error})") from error
    except OSError as error:
        raise RecordError(f"{folder / MANIFEST} cannot be read: {error}; make the file readable") from error
    journal.note(read=f"{folder.parent.name}/{folder.name}")
    return dict(manifest)


def write_manifest(folder: Path, manifest: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Write a record's manifest, as its last file: these facts, and the other files' checksums. Return the manifest."""
    sums = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names if name != MANIFEST}
    whole = {**manifest, "sha256": sums}
    (folder / MANIFEST).write_text(json.dumps(whole, indent=1, sort_keys=True) + "\n")
    for path in (*(folder / name for name in (*sums, MANIFEST)), folder):
        _flush(path)  # a record that is renamed afterwards is complete even after a power failure
    return whole


def write_record(folder: Path, facts: Mapping[str, Any], files: Mapping[str, Callable[[Path], Any]]) -> dict[str, Any]:
    """Write a record into a draft beside its folder, and rename the draft when it is complete; return its manifest. A
    record that another process has written meanwhile is kept instead.

    Args:
        files: the function that writes each file, by the file's name.

    Raises:
        Unwritable: the disk is full, or the folder is not writable.
    """
    draft = draft_of(folder)
    try:
        draft.mkdir(parents=True)
        for name, write in files.items():
            write(draft / name)
        manifest = write_manifest(draft, facts, files)
        publish(draft, folder)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        problem = f"the record of {folder.name} cannot be written to {folder.parent}: {error} ({room_at(folder)})"
        raise Unwritable(f"{problem}; free some space, or choose another folder by results=") from error
    return manifest


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_file(folder: Path, name: str, manifest: Mapping[str, Any]) -> BytesIO:
    """Return the content of a record's file; check that it has the checksum in this manifest.

    Raises:
        DamagedRecord: the file was changed.
        RecordError: the file cannot be opened now.
    """
    try:
        content = read_bytes(folder / name, TABLE_TIMES)
    except OSError as error:
        raise RecordError(f"{folder / name} cannot be read: {error}; make the file readable") from error
    if hashlib.sha256(content).hexdigest() != manifest.get("sha256", {}).get(name):
        raise DamagedRecord(folder, f"{folder / name} was changed since its manifest was written")
    return BytesIO(content)


def check_sums(folder: Path, manifest: Mapping[str, Any], names: Iterable[str]) -> None:
    """Check that these files of a record are unchanged; raises as `read_file`."""
    for name in names:
        read_file(folder, name, manifest)


def find_whole(find: Callable[[], T]) -> T | None:
    """Return the result of `find`; None for a damaged record, which is moved to results/damaged/ with a warning.

    Raises:
        RecordError: the record cannot be opened now, or cannot be moved.
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
        words = f"{error.problem}; the damaged record was moved to {aside}, and will be made again"
        warnings.warn(words, Damaged, stacklevel=3)
        return None


def read_table(
    folder: Path, name: str, manifest: Mapping[str, Any], dtypes: dict[str, str] | None = None
) -> pd.DataFrame:
    """Return a table of a record.

    Raises:
        DamagedRecord: the file was changed, or is not a table.
        RecordError: the file cannot be opened now.
    """
    try:
        return pd.read_csv(read_file(folder, f"{name}.csv", manifest), dtype=dtypes)
    except (ValueError, OverflowError) as error:
        raise DamagedRecord(folder, f"{folder / name}.csv cannot be read ({error})") from error


def room_at(path: Path) -> str:
    """Return the free space for a path in words: ``"12.3 MB are free in results"``."""
    folder, free = free_bytes(path)
    return f"{in_bytes(free)} are free in {folder}"


def free_bytes(path: Path) -> tuple[Path, int]:
    """Return the path or, if it does not exist, its nearest existing parent folder, and the free bytes there."""
    folder = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    return folder, shutil.disk_usage(folder).free


def in_bytes(count: float) -> str:
    """Return a number of bytes in words: ``"12.3 MB"``."""
    power = min(4, int(math.log(max(count, 1), 1000)))
    return f"{count / 1000**power:.{1 if power else 0}f} {('bytes', 'kB', 'MB', 'GB', 'TB')[power]}"
