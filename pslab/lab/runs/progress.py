"""Progress of one or many runs: one line that rewrites itself on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

from pslab.config.run import Run

PLAIN_PERIOD_S = 10.0
LIVE_PERIOD_S = 0.1


class Progress:
    """Shows pushes, rate and time left. `shown` None: lines if it is not a terminal, but few."""

    def __init__(self, runs: int, *, shown: bool | None = None, stream: TextIO | None = None) -> None:
        self._runs, self._done = runs, 0
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._shown = shown if shown is not None else True
        self._printed_s = time.monotonic()
        self._run: Run | None = None
        self._width = 0

    def begin(self, run: Run) -> None:
        """A run starts."""
        self._run, self._printed_s = run, time.monotonic()

    def update(self, news: dict[str, Any]) -> None:
        """How far the run is: {"pushes", "seconds"}, and "accuracy" where it is known."""
        now = time.monotonic()
        if not self._shown or now - self._printed_s < (LIVE_PERIOD_S if self._live else PLAIN_PERIOD_S):
            return
        self._printed_s = now
        self._print(f"{self._place()} {self._label()}: {_how_far(self._run, news)}", end="" if self._live else "\n")

    def end(self, seconds: float, accuracy: float | None) -> None:
        """The run is finished and recorded."""
        self._done += 1
        reached = "ended" if accuracy is None else f"{accuracy:.2%}"
        if self._shown:
            self._print(f"{self._place()} {self._label()}: {reached} after {seconds:.1f} s", end="\n")

    def _place(self) -> str:
        return f"[{min(self._done + 1, self._runs)}/{self._runs}]" if self._runs > 1 else "[run]"

    def _label(self) -> str:
        run = self._run
        return "" if run is None else f"{_word(run.sync)} {_word(run.prune)} W={run.workers} seed {run.seed}"

    def _print(self, text: str, end: str) -> None:
        start = "\r" if self._live else ""
        print(start + text.ljust(self._width if self._live else 0), end=end, file=self._stream, flush=True)
        self._width = len(text) if end == "" else 0


def _word(value: object) -> str:
    return value if isinstance(value, str) else type(value).__name__


def _how_far(run: Run | None, news: dict[str, Any]) -> str:
    pushes, seconds = news["pushes"], news["seconds"]
    rate = pushes / seconds if seconds > 0 else 0.0
    if run is not None and run.pushes is not None:
        left = f", {(run.pushes - pushes) / rate:.0f} s left" if rate > 0 else ""
        return f"{pushes}/{run.pushes} pushes, {rate:.0f}/s{left}"
    if run is not None and run.seconds is not None:
        return f"{pushes} pushes, {rate:.0f}/s, {max(0.0, run.seconds - seconds):.0f} s left"
    return f"{pushes} pushes, {rate:.0f}/s"
