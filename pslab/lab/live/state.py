"""The state of a live view: runs under way and runs that have just ended, read only from their records."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pslab.config.run import Run
from pslab.errors import RecordError
from pslab.lab.plots.labels import marks
from pslab.lab.records import record
from pslab.lab.records.drafts import LIVE, DraftReader, drafts, written_here
from pslab.lab.records.results import load

SAMPLES = 60  # samples stored of a worker's activity: twelve seconds, as the server writes five a second
SILENT_S = 30.0  # a draft without new lines for this long counts as silent: its writer is probably dead
QUEUED, UNDER_WAY, SILENT = "queued", "under way", "silent"
FINISHED, INTERRUPTED, LOST = "finished", "interrupted", "lost"


class Point(NamedTuple):
    """An evaluation of a run."""

    pushes: int
    seconds: float
    accuracy: float  #: 0 to 1
    loss: float


class Doing(NamedTuple):
    """The activity of a worker at one instant."""

    doing: str  #: computing, waiting, transferring or dead
    whom: tuple[int, ...]  #: the workers that this worker waits for
    iteration: int | None


@dataclass
class Track:
    """A run in the view, with the data that its draft or its record has so far."""

    run: Run
    digest: str
    state: str = UNDER_WAY
    pushes: int = 0
    seconds: float = 0.0
    points: list[Point] = field(default_factory=list)
    workers: list[deque[Doing]] = field(default_factory=list)
    manifest: dict[str, Any] = field(default_factory=dict)
    path: Path | None = None  #: the folder of the complete record, if it exists
    here: bool = True  #: whether this process executes or requested the run
    again: str = ""  #: "once again, slower", if the run has been restarted
    seen: tuple[float, float, int] | None = None  #: where `pace` starts: this machine's clock, fraction and pushes

    def take(self, news: dict[str, Any]) -> None:
        """Add the data of a line of the draft. A line about a restart discards the points so far."""
        if news.get("repeated"):
            self.seconds, self.pushes, self.points, self.seen = 0.0, 0, [], None
            self.again = str(news["repeated"]).rpartition(": ")[2]
        self.seconds = max(self.seconds, float(news["seconds"]))
        self.pushes = max(self.pushes, int(news["pushes"]))
        if "accuracy" in news:
            point = Point(news["pushes"], news["seconds"], news["accuracy"], news["loss"])
            self.points = sorted([*self.points, point])
        for worker, doing in enumerate(news.get("workers", [])):
            if worker == len(self.workers):
                self.workers.append(deque(maxlen=SAMPLES))
            self.workers[worker].append(Doing(doing["doing"], tuple(doing["for"]), doing["iteration"]))

    def close(self, result: record.Result, state: str) -> None:
        """Replace the draft's data by the complete record of the ended run."""
        table = result.accuracy.sort_values("pushes", kind="stable")
        self.points = [Point(*row) for row in table[list(Point._fields)].itertuples(index=False)]
        self.state, self.path, self.manifest = state, result.path, dict(result.manifest)
        self.pushes, self.seconds = int(result.manifest["pushes"]), result.seconds

    @property
    def diverged(self) -> bool:
        return self.manifest.get("outcome") == "diverged"

    @property
    def marks(self) -> str:
        """The marks after the run's label, such as the mark of an emulation that missed the cluster's times."""
        return "" if self.diverged else marks([self])

    @property
    def fraction(self) -> float:
        """The share of the budget that is used up; 0 without a budget."""
        if self.run.pushes is not None:
            return min(1.0, self.pushes / self.run.pushes)
        return min(1.0, self.seconds / self.run.seconds) if self.run.seconds is not None else 0.0

    def pace(self, now: float) -> tuple[float, float] | None:
        """Return pushes per second, and the seconds until the budget is used up, both by this machine's clock at `now`;
        None while they are unknown. The cluster's own seconds may pass twenty times slower."""
        begun_s, fraction, pushes = self.seen or (now, 0.0, 0)
        if now <= begun_s or self.fraction <= fraction:
            return None
        spent_s = now - begun_s
        return (self.pushes - pushes) / spent_s, spent_s * (1 - self.fraction) / (self.fraction - fraction)


@dataclass
class _Draft:
    """The unfinished record of a run under way."""

    live: DraftReader
    written_s: float  #: the modification time of its file when it was first seen
    read_s: float = field(default_factory=time.monotonic)  #: when it last had new lines
    track: Track | None = None


class Watcher:
    """The runs in one results folder, the oldest first; `poll` updates them."""

    def __init__(self, results: Path) -> None:
        self.results = results
        self.tracks: dict[str, Track] = {}  #: by digest
        self._drafts: dict[Path, _Draft] = {}
        self._unreadable: set[Path] = set()

    def poll(self) -> bool:
        """Read the new lines of all drafts; return whether any run has changed."""
        for path in drafts(self.results):
            written_s = _written_s(path)
            if path not in self._drafts and path not in self._unreadable and time.time() - written_s < SILENT_S:
                self._drafts[path] = _Draft(DraftReader(path), written_s)
        changed = [self._read(path, draft) for path, draft in list(self._drafts.items())]
        return any(changed)

    def show(self, runs: Sequence[Run]) -> None:
        """Add these runs' finished records, and move these runs to the end, in this order."""
        for run in runs:
            known = self.tracks.get(run.digest)
            if (known is None or known.state != UNDER_WAY) and (result := record.find(run, self.results)) is not None:
                self.tracks[run.digest] = Track(run, run.digest)
                self.tracks[run.digest].close(result, FINISHED)
        for digest in [run.digest for run in runs if run.digest in self.tracks]:
            self.tracks[digest] = self.tracks.pop(digest)

    def forget(self) -> None:
        """Remove all runs except the runs under way."""
        self.tracks = {digest: track for digest, track in self.tracks.items() if track.state == UNDER_WAY}

    @property
    def under_way(self) -> list[Track]:
        return [track for track in self.tracks.values() if track.state == UNDER_WAY]

    def _read(self, path: Path, draft: _Draft) -> bool:
        present = path.is_dir()  # checked before the last lines are read: a draft is removed after its last line
        try:
            news = draft.live.news()
            for line in news:
                self._take(draft, line)
        except Exception:  # perhaps another version of pslab wrote the draft
            self._unreadable.add(path)
            del self._drafts[path]
            return False
        if news:
            draft.read_s = time.monotonic()
            if (track := draft.track) is not None and track.seen is None and track.pushes:
                track.seen = draft.read_s, track.fraction, track.pushes
        if not present:
            del self._drafts[path]
            self._close(draft)
        elif draft.track is not None:
            state, silent = draft.track.state, time.monotonic() - draft.read_s > SILENT_S
            draft.track.state = SILENT if silent else UNDER_WAY
            return bool(news) or draft.track.state != state
        return bool(news) or not present

    def _take(self, draft: _Draft, line: dict[str, Any]) -> None:
        if "digest" in line:
            draft.track = Track(Run.of(line["run"]), line["digest"], here=written_here(draft.live.path.parent))
            self.tracks.pop(line["digest"], None)  # a run that is run again moves to the end
            self.tracks[line["digest"]] = draft.track
        elif draft.track is not None:
            draft.track.take(line)

    def _close(self, draft: _Draft) -> None:
        """Set the final state of a run whose draft was removed: finished, interrupted, or lost if it left no record."""
        if (track := draft.track) is None:
            return
        track.state = LOST
        for state, folder in ((FINISHED, "runs"), (INTERRUPTED, "interrupted")):
            for path in (self.results / folder).glob(f"{track.digest}*"):
                # an older record is of an earlier run; an unreadable record was deleted
                with contextlib.suppress(OSError, RecordError):
                    if track.state == LOST and os.path.getmtime(path / "manifest.json") >= draft.written_s:
                        track.close(load(path), state)


def _written_s(draft: Path) -> float:
    """Return the modification time of a draft; 0 if it no longer exists."""
    try:
        return (draft / LIVE).stat().st_mtime
    except OSError:
        return 0.0
