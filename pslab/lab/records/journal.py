"""The journal of a notebook that the batch executes: lines of JSON in the file that PSLAB_JOURNAL names.

    {"asked": [digests], "missing": n}        a sweep starts
    {"progress": {"done", "of", "left_s"}}    runs that are done, all runs of the sweep, seconds left
    {"swept_s": s}                            a sweep ends: its seconds
    {"read": folder}                          a record was read or written: its folder, relative to results/
    {"figure": name}                          a figure was saved
    {"claim": {"text", "value", "holds", "why"}}

Nothing is written unless the batch executes the notebook.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pslab.errors import Unwritable

JOURNAL = "PSLAB_JOURNAL"


def active() -> bool:
    """Whether the batch executes this notebook, so that `note` writes a journal."""
    return JOURNAL in os.environ


def note(**entry: Any) -> None:
    """Add a line with this entry to the journal; do nothing unless the batch executes this notebook.

    Raises:
        Unwritable: the line cannot be written; no part of it is left.
    """
    if not active():
        return
    path = Path(os.environ[JOURNAL])
    try:
        append(path, json.dumps(entry))
    except OSError as error:
        free = shutil.disk_usage(path.parent).free if path.parent.is_dir() else 0
        room = f"{free:,} bytes are free"
        raise Unwritable(f"the journal {path} cannot be written: {error} ({room}); free some space") from error


def append(path: Path, text: str) -> None:
    """Add a line to a file, completely or not at all.

    Raises:
        OSError: the line cannot be written.
    """
    with path.open("ab", buffering=0) as file:
        begin, line = file.seek(0, os.SEEK_END), f"{text}\n".encode()
        try:
            while line:
                line = line[file.write(line) :]
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(begin)
            raise


def entries(journal: Path) -> list[dict[str, Any]]:
    """Return the entries on the complete lines of a journal; [] if the file does not exist yet."""
    try:
        lines = journal.read_bytes().splitlines(keepends=True)
    except OSError:
        return []
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


def collected(lines: Sequence[dict[str, Any]], kind: str) -> list[Any]:
    """Return the values of all entries of a kind, each once; lists among the values are joined."""
    values = [entry[kind] for entry in lines if kind in entry]
    flat = [item for value in values for item in (value if isinstance(value, list) else [value])]
    return [item for index, item in enumerate(flat) if item not in flat[:index]]
