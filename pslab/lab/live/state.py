"""The state of a live view: the runs under way and just ended, read from their records and from nothing else."""

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

SAMPLES = 60  # of a worker's activity that are stored: twelve seconds, at the server's five a second
SILENT_S = 30.0  # a draft without news for so long has a dead writer, until it grows again
QUEUED, UNDER_WAY, SILENT = "queued", "under way", "silent"
FINISHED, INTERRUPTED, LOST = "finished", "interrupted", "lost"


class Point(NamedTuple):
    """An evaluated snapshot."""

    pushes: int
    seconds: float
    accuracy: float  #: 0 to 1
    loss: float


class Doing(NamedTuple):
    """The activity of a worker at one instant."""

    doing: str  #: computing, waiting, transferring or dead
    whom: tuple[int, ...]  #: the workers that it waits for
    iteration: int | None


@dataclass
class Track:
    """A run, as far as its record tells."""

    run: Run
    digest: str
    state: str = UNDER_WAY
    pushes: int = 0
    seconds: float = 0.0
    points: list[Point] = field(default_factory=list)
    workers: list[deque[Doing]] = field(default_factory=list)
    manifest: dict[str, Any] = field(default_factory=dict)
    path: Path | None = None  #: of the complete record, if it exists
    here: bool = True  #: whether this process executes it, or asked for it
    again: str = ""  #: "once again, slower", if it has begun again
    seen: tuple[float, float, int] | None = None  #: where its pace begins: this machine's clock, share and pushes

    def take(self, news: dict[str, Any]) -> None:
        """Take a line of a draft. A run that begins again starts from nothing."""
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
        """Replace the draft of a run that has ended by its complete record."""
        table = result.accuracy.sort_values("pushes", kind="stable")
        self.points = [Point(*row) for row in table[list(Point._fields)].itertuples(index=False)]
        self.state, self.path, self.manifest = state, result.path, dict(result.manifest)
        self.pushes, self.seconds = int(result.manifest["pushes"]), result.seconds

    @property
    def diverged(self) -> bool:
        return self.manifest.get("outcome") == "diverged"

    @property
    def marks(self) -> str:
        """Return the marks behind its label, such as the mark of an emulation that was not kept."""
        return "" if self.diverged else marks([self])

    @property
    def fraction(self) -> float:
        """The share of the budget that is used up; 0 without a budget."""
        if self.run.pushes is not None:
            return min(1.0, self.pushes / self.run.pushes)
        return min(1.0, self.seconds / self.run.seconds) if self.run.seconds is not None else 0.0

    def pace(self, now: float) -> tuple[float, float] | None:
        """Pushes a second and the seconds left of the training by this machine's clock, which shows `now`; None while
        they are unknown. The cluster's seconds may pass twenty times slower."""
        begun_s, fraction, pushes = self.seen or (now, 0.0, 0)
        if now <= begun_s or self.fraction <= fraction:
            return None
        spent_s = now - begun_s
        return (self.pushes - pushes) / spent_s, spent_s * (1 - self.fraction) / (self.fraction - fraction)


@dataclass
class _Draft:
    """A run's directory while it is under way."""

    live: DraftReader
    written_s: float  #: its file's time when it was seen first
    read_s: float = field(default_factory=time.monotonic)
    track: Track | None = None


class Watcher:
    """The runs of one results folder, the oldest first; `poll` brings them up to date."""

    def __init__(self, results: Path) -> None:
        self.results = results
        self.tracks: dict[str, Track] = {}  #: by digest
        self._drafts: dict[Path, _Draft] = {}
        self._unreadable: set[Path] = set()

    def poll(self) -> bool:
        """Read new lines; return whether there were any."""
        for path in drafts(self.results):
            written_s = _written_s(path)
            if path not in self._drafts and path not in self._unreadable and time.time() - written_s < SILENT_S:
                self._drafts[path] = _Draft(DraftReader(path), written_s)
        changed = [self._read(path, draft) for path, draft in list(self._drafts.items())]
        return any(changed)

    def show(self, runs: Sequence[Run]) -> None:
        """Add the runs that are finished already, last and in this order."""
        for run in runs:
            known = self.tracks.get(run.digest)
            if (known is None or known.state != UNDER_WAY) and (result := record.find(run, self.results)) is not None:
                self.tracks[run.digest] = Track(run, run.digest)
                self.tracks[run.digest].close(result, FINISHED)
        for digest in [run.digest for run in runs if run.digest in self.tracks]:
            self.tracks[digest] = self.tracks.pop(digest)

    def forget(self) -> None:
        """Leave out what has ended."""
        self.tracks = {digest: track for digest, track in self.tracks.items() if track.state == UNDER_WAY}

    @property
    def under_way(self) -> list[Track]:
        return [track for track in self.tracks.values() if track.state == UNDER_WAY]

    def _read(self, path: Path, draft: _Draft) -> bool:
        present = path.is_dir()  # asked before its last lines are read: once it is removed, none are written
        try:
            news = draft.live.news()
            for line in news:
                self._take(draft, line)
        except Exception:  # another version's, perhaps
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
            self.tracks.pop(line["digest"], None)  # run anew: the newest last
            self.tracks[line["digest"]] = draft.track
        elif draft.track is not None:
            draft.track.take(line)

    def _close(self, draft: _Draft) -> None:
        """Take a removed draft as ended: its run was finished, interrupted, or came to nothing."""
        if (track := draft.track) is None:
            return
        track.state = LOST
        for state, folder in ((FINISHED, "runs"), (INTERRUPTED, "interrupted")):
            for path in (self.results / folder).glob(f"{track.digest}*"):
                # an older one is of an earlier run; one that cannot be read was deleted
                with contextlib.suppress(OSError, RecordError):
                    if track.state == LOST and os.path.getmtime(path / "manifest.json") >= draft.written_s:
                        track.close(load(path), state)


def _written_s(draft: Path) -> float:
    """When a draft was last written; 0 if it no longer exists."""
    try:
        return (draft / LIVE).stat().st_mtime
    except OSError:
        return 0.0
