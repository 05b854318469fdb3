"""How far the batch is: a line that rewrites itself on a terminal, plain lines now and then elsewhere."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pslab.lab.records import journal
from pslab.lab.runs.progress import in_words
from pslab.lab.studies.batch import Entry


class Watch:
    """Shows the sweep of the notebook under way, by its kernel's journal, and what the notebooks after it took last."""

    def __init__(self, todo: Sequence[Entry]) -> None:
        self._todo, self._place = list(todo), 0
        self._journal: Path | None = None
        self._live = sys.stderr.isatty()
        self._ended, self._lock = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._show, daemon=True)

    def __enter__(self) -> Watch:
        if self._todo:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._todo:
            self._thread.join()
            self._print("\r\x1b[K" if self._live else "", end="")

    def start(self, entry: Entry, written: Path) -> None:
        """A notebook is under way; its kernel writes this journal."""
        self._place, self._journal = self._todo.index(entry) + 1, written

    def stop(self) -> None:
        """Its kernel has ended."""
        self._journal = None

    def say(self, text: str) -> None:
        """A line that stays."""
        self._print(f"\r\x1b[K{text}" if self._live else text)

    def line(self) -> str:
        """How far the notebook under way and the batch are."""
        at = max(1, self._place)
        words = [f"[{at}/{len(self._todo)}] {self._todo[at - 1].name}: {self._sweeping()}"]
        later = [other.expected_s() for other in self._todo[at:]]
        known = [seconds for seconds in later if seconds is not None]
        if later:
            ahead = [f"then {len(later)} notebook{'s' if len(later) > 1 else ''}"]
            ahead += [f"about {in_words(sum(known))}"] if known else []
            ahead += [f"{len(later) - len(known)} never executed"] if len(known) < len(later) else []
            words.append(", ".join(ahead))
        return "; ".join(words)

    def _sweeping(self) -> str:
        found = journal.entries(self._journal) if self._journal else []
        sweeping = [entry for entry in found if {"progress", "asked", "swept_s"} & set(entry)]
        latest: dict[str, Any] = sweeping[-1] if sweeping else {}
        if latest.get("missing"):
            return f"{latest['missing']} runs"
        if "progress" not in latest:
            return "draws" if found else "images" if self._place and not self._journal else "starts"
        at = latest["progress"]
        left = "" if at["left_s"] is None else f", about {in_words(at['left_s'])} left"
        return f"run {min(at['done'] + 1, at['of'])}/{at['of']}{left}"

    def _show(self) -> None:
        while not self._ended.wait(1.0 if self._live else 30.0):
            self._print(f"\r\x1b[K{self.line()}" if self._live else self.line(), end="" if self._live else "\n")

    def _print(self, text: str, end: str = "\n") -> None:
        with self._lock:
            print(text, end=end, file=sys.stderr, flush=True)
