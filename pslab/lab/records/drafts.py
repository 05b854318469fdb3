"""Drafts: the unfinished records of current runs, with the reports of the runs so far."""

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
READ_BYTES = 1 << 24  # most bytes of live.jsonl that are read at a time
LEFT_S = 30 * 86400.0  # age at which a draft of another machine, perhaps a removed container, is abandoned


class Draft:
    """The record of a current run: a directory that is renamed to the record's name when it is complete.

    Until then its `live.jsonl` grows: the first line has the run, and each further line one report of the engine.
    """

    def __init__(self, run: Run, results: Path, *, again: bool = False) -> None:
        self.run, self.results, self._again = run, results, again
        self.path = disk.draft_of(results / "runs" / run.digest)
        try:
            self.path.mkdir(parents=True)
        except OSError as error:
            problem = f"a record cannot be started in {results / 'runs'}: {error}"
            raise Unwritable(f"{problem}; choose a writable folder by results= or PSLAB_RESULTS") from error
        self.note({"digest": run.digest, "run": run.plain()})

    def note(self, news: Mapping[str, Any]) -> None:
        """Add a report to the draft, for live views; if the report cannot be written, the run continues."""
        with contextlib.suppress(OSError):
            journal.append(self.path / LIVE, json.dumps(news))

    def save(self, tables: Mapping[str, pd.DataFrame], weights: np.ndarray, facts: Mapping[str, Any]) -> Result:
        """Write the record of a finished run; a record that another process has written meanwhile is kept instead.

        If the run was executed again because its emulation was not kept, the old record is moved to results/replaced/.
        """
        name = _unique_name(self.run) if self.run.unknown else self.run.digest
        return self._save(tables, weights, facts, self.results / "runs" / name, self.run.keep_weights)

    def set_aside(self, tables: Mapping[str, pd.DataFrame], weights: np.ndarray, facts: Mapping[str, Any]) -> Result:
        """Write the completed part of a run that ended early to results/interrupted/, where `run` does not look."""
        return self._save(tables, weights, facts, self._aside(self.results), True)

    def drop(self) -> None:
        """Remove the draft without writing a record."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _save(
        self, tables: Mapping[str, pd.DataFrame], weights: np.ndarray, facts: Mapping[str, Any], to: Path, whole: bool
    ) -> Result:
        """Write a record to its folder; if this fails, write it to a temporary folder and raise Unwritable."""
        try:
            return self._write(tables, weights, facts, to, whole)
        except OSError as error:
            self.drop()
            name, room = self.run.digest, disk.room_at(to)
            problem = f"the record of {name} cannot be written to {to}: {error} ({room})"
            try:
                private = Path(tempfile.mkdtemp(prefix="pslab-"))  # readable by this user alone
                self.path = disk.draft_of(private / name)
                written = self._write(tables, weights, facts, self._aside(self.path.parent), True)
            except OSError as other:
                self.drop()
                problem = f"{problem}; nor can it be written to {tempfile.gettempdir()}: {other}"
                raise Unwritable(f"{problem}; free some space, and execute the run again") from error
            raise Unwritable(f"{problem}; it was written to {written.path} instead: free some space") from error

    def _source(self) -> dict[str, Any]:
        """Return the manifest's fact about the source text of the user's objects; {} if there is no text."""
        if not self.run.surveys:
            return {}
        from pslab.lab.records.own_source import texts_of  # a run without objects has no source text

        return {"source": texts} if (texts := texts_of(self.run)) else {}

    def _write(
        self, tables: Mapping[str, pd.DataFrame], weights: np.ndarray, facts: Mapping[str, Any], to: Path, ended: bool
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
        self.path.mkdir(parents=True, exist_ok=True)  # the draft may have been removed meanwhile
        for name in tables:
            tables[name].to_csv(self.path / f"{name}.csv", index=False)
        if ended:
            np.save(self.path / WEIGHTS, weights, allow_pickle=False)
        files = [f"{name}.csv" for name in tables] + [WEIGHTS] * ended
        manifest = disk.write_manifest(self.path, manifest, files)
        (self.path / LIVE).unlink(missing_ok=True)
        to.parent.mkdir(exist_ok=True)
        aside = self.results / "replaced" / _unique_name(self.run) if self._replaces(to) else None
        if not disk.publish(self.path, to, aside):
            manifest = read_facts(to)
        return Result(self.run, to, manifest, cached=False)

    def _aside(self, results: Path) -> Path:
        return results / "interrupted" / _unique_name(self.run)

    def _replaces(self, folder: Path) -> bool:
        # whether the folder has a record whose emulation was not kept, and this run is to replace the record
        return self._again and folder.is_dir() and not emulation_ok(disk.read_manifest(folder, FILES))


def _unique_name(run: Run) -> str:
    return f"{run.digest}-{uuid.uuid4().hex[:8]}"


class DraftReader:
    """Reads the reports of a current run, beginning with the first one."""

    def __init__(self, draft: Path) -> None:
        self.path = draft / LIVE
        self._read_bytes = 0

    def news(self) -> list[dict[str, Any]]:
        """Return the reports since the last call; [] if there are none, or if the run has ended."""
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
    """Return the drafts of the current runs; the draft with the latest report is the last one."""
    folders = [path for path in (results / "runs").glob(".*.*.*.*") if (path / LIVE).is_file()]
    return sorted(folders, key=lambda path: disk.written_s(path / LIVE))


def written_here(draft: Path) -> bool:
    """Whether this process writes the draft."""
    return f".{platform.node()}.{os.getpid()}." in draft.name


def clean(results: Path) -> None:
    """Remove drafts of ended processes of this machine, and drafts without a report for LEFT_S seconds."""
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
