"""Runs under way: the drafts of their records, and what they have reported so far."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pslab.config.run import Run
from pslab.errors import Unwritable
from pslab.lab.records import disk, journal
from pslab.lab.records.record import FILES, WEIGHTS, Result, emulation_ok, environment, read_facts

LIVE = "live.jsonl"
READ_BYTES = 1 << 24  # of a draft's lines at a time
LEFT_S = 30 * 86400.0  # after which a draft of another machine, perhaps a container that is gone, is nobody's


class Draft:
    """The record of a run that is under way: a directory beside its place, which gets its name when it is complete.

    Meanwhile `live.jsonl` in it grows: the run on its first line, then the engine's news, one a line.
    """

    def __init__(self, run: Run, results: Path, *, again: bool = False) -> None:
        self.run, self.results, self._again = run, results, again
        self.path = disk.draft_of(results / "runs" / run.digest)
        try:
            self.path.mkdir(parents=True)
        except OSError as error:
            raise Unwritable(f"a record cannot be started in {results / 'runs'}: {error}") from error
        self.note({"digest": run.digest, "run": run.plain()})

    def note(self, news: Mapping[str, Any]) -> None:
        """Add a line to what a live view reads; a run does not fail if it cannot be written."""
        with contextlib.suppress(OSError):
            journal.append(self.path / LIVE, json.dumps(news))

    def save(self, tables: Mapping[str, pd.DataFrame], weights: np.ndarray, facts: Mapping[str, Any]) -> Result:
        """The run is finished: its record takes its place; what another process has recorded there meanwhile stays.

        If it was run again, a record whose emulation was not kept goes to results/replaced/ instead, where it is no
        result.
        """
        name = _unique_name(self.run) if self.run.unknown else self.run.digest
        return self._save(tables, weights, facts, self.results / "runs" / name, self.run.keep_weights)

    def set_aside(self, tables: Mapping[str, pd.DataFrame], weights: np.ndarray, facts: Mapping[str, Any]) -> Result:
        """The run was ended early: what it completed goes to results/interrupted/, where it is no result."""
        return self._save(tables, weights, facts, self._aside(self.results), True)

    def drop(self) -> None:
        """Remove the draft: there is nothing to keep."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _save(
        self, tables: Mapping[str, pd.DataFrame], weights: np.ndarray, facts: Mapping[str, Any], place: Path, kept: bool
    ) -> Result:
        """Write a record to its place, or, where that cannot be, where temporary files are kept.

        Raises:
            Unwritable: it is not in its place; the message says what room there is, and where it lies instead.
        """
        try:
            return self._write(tables, weights, facts, place, kept)
        except OSError as error:
            self.drop()
            name, room = self.run.digest, disk.room_at(place)
            problem = f"the record of {name} cannot be written to {place}: {error} ({room})"
            try:
                own = Path(tempfile.mkdtemp(prefix="pslab-"))  # of this user alone
                self.path = disk.draft_of(own / name)
                found = self._write(tables, weights, facts, self._aside(self.path.parent), True)
            except OSError as other:
                self.drop()
                raise Unwritable(f"{problem}; nor to {tempfile.gettempdir()}: {other}") from error
            raise Unwritable(f"{problem}; completed runs are kept in {found.path}") from error

    def _source(self) -> dict[str, Any]:
        """Return the text of the user's own objects, if the run has any."""
        if not self.run.surveys:
            return {}
        from pslab.lab.records.own_source import texts_of  # a run of names has no text

        return {"source": texts} if (texts := texts_of(self.run)) else {}

    def _write(
        self, tables: Mapping[str, pd.DataFrame], weights: np.ndarray, facts: Mapping[str, Any], place: Path, kept: bool
    ) -> Result:
        manifest = {
            "digest": self.run.digest,
            "run": self.run.plain(),
            **self._source(),
            **({"not_found_again": self.run.unknown} if self.run.unknown else {}),
            **facts,
            "weights_sha256": hashlib.sha256(np.ascontiguousarray(weights).data).hexdigest(),
            "environment": environment(self.run.device),
        }
        self.path.mkdir(parents=True, exist_ok=True)  # it may have been removed meanwhile
        for name in tables:
            tables[name].to_csv(self.path / f"{name}.csv", index=False)
        if kept:
            np.save(self.path / WEIGHTS, weights, allow_pickle=False)
        files = [f"{name}.csv" for name in tables] + [WEIGHTS] * kept
        manifest = disk.write_manifest(self.path, manifest, files)
        (self.path / LIVE).unlink(missing_ok=True)
        place.parent.mkdir(exist_ok=True)
        aside = self.results / "replaced" / _unique_name(self.run) if self._replaces(place) else None
        if not disk.publish(self.path, place, aside):
            manifest = read_facts(place)
        return Result(self.run, place, manifest, cached=False)

    def _aside(self, results: Path) -> Path:
        return results / "interrupted" / _unique_name(self.run)

    def _replaces(self, place: Path) -> bool:
        """Whether what lies at this place is a record that this run was to be run again for."""
        return self._again and place.is_dir() and not emulation_ok(disk.read_manifest(place, FILES))


def _unique_name(run: Run) -> str:
    """The name of a folder that no other has."""
    return f"{run.digest}-{uuid.uuid4().hex[:8]}"


class DraftReader:
    """Reads the reports of a run under way, from its start; `news` gives the reports since the last call."""

    def __init__(self, draft: Path) -> None:
        self.path = draft / LIVE
        self._read_bytes = 0

    def news(self) -> list[dict[str, Any]]:
        """Complete new lines; none if there are none, or if the run has ended."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._read_bytes)
                lines = file.read(READ_BYTES).splitlines(keepends=True)
        except OSError:
            return []
        whole = [line for line in lines if line.endswith(b"\n")]
        self._read_bytes += sum(map(len, whole))
        return [json.loads(line) for line in whole]


def drafts(results: Path) -> list[Path]:
    """The directories of the runs that are under way, the oldest first."""
    found = [path for path in (results / "runs").glob(".*.*.*.*") if (path / LIVE).is_file()]
    return sorted(found, key=lambda path: disk.written_s(path / LIVE))


def written_here(draft: Path) -> bool:
    """Whether this process writes it."""
    return f".{platform.node()}.{os.getpid()}." in draft.name


def clean(results: Path) -> None:
    """Remove the drafts of processes on this machine that have ended, and those to which nobody wrote for long."""
    for draft in results.glob("*/.*.*.*.*"):
        *_, process, _ = draft.name.split(".")
        if not process.isdigit():
            continue
        gone = f".{platform.node()}.{process}." in draft.name and not _alive(int(process))
        if gone or max(disk.written_s(draft), disk.written_s(draft / LIVE)) < time.time() - LEFT_S:
            shutil.rmtree(draft, ignore_errors=True)
            with contextlib.suppress(OSError):
                draft.unlink()


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True
