"""Runs under way: the drafts of their records, and what they have reported so far."""

from __future__ import annotations

import json
import os
import platform
import shutil
from pathlib import Path
from typing import Any

LIVE = "live.jsonl"


class Live:
    """Reads what a run under way has reported, from its start; `news` gives what is new since the last call."""

    def __init__(self, draft: Path) -> None:
        self.path = draft / LIVE
        self._read_bytes = 0

    def news(self) -> list[dict[str, Any]]:
        """Complete new lines; none if there are none, or if the run has ended."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._read_bytes)
                lines = file.read().splitlines(keepends=True)
        except OSError:
            return []
        whole = [line for line in lines if line.endswith(b"\n")]
        self._read_bytes += sum(map(len, whole))
        return [json.loads(line) for line in whole]


def drafts(results: Path) -> list[Path]:
    """The directories of the runs that are under way, the oldest first."""
    found = [path for path in (results / "runs").glob(".*.*.*.*") if (path / LIVE).is_file()]
    return sorted(found, key=lambda path: (path / LIVE).stat().st_ctime)


def written_here(draft: Path) -> bool:
    """Whether this process writes it."""
    return f".{platform.node()}.{os.getpid()}." in draft.name


def clean(results: Path) -> None:
    """Remove the drafts of processes on this machine that have ended."""
    for draft in (results / "runs").glob(f".*.{platform.node()}.*.*"):
        process = draft.name.split(".")[-2]
        if process.isdigit() and not _alive(int(process)):
            shutil.rmtree(draft, ignore_errors=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True
