"""Runs in a thread of this process, one after another, so that a notebook's cell is free at once."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Iterable
from pathlib import Path

from pslab.config.run import Run
from pslab.errors import ConfigError, PslabError, StartFailed, SweepFailed
from pslab.lab.records.record import Result, default_results

LAST_WORDS_S = 2.5  # what a process that ends gives its runs to end in order


class Background:
    """Runs in the background; the workers are processes anyway.

    Raises:
        StartFailed: this process executes others already: it has one pool.
    """

    def __init__(self, runs: Iterable[Run], results: Path | str | None = None) -> None:
        global _latest
        self.runs = list(runs)
        self.results = default_results() if results is None else Path(results)
        self.finished: list[Result] = []  #: completed ones, in the order of the runs, once all have ended
        self.failure: BaseException | None = None
        self.note = ""  #: how an ordered stop ended, in words
        if _latest is not None and _latest.alive:
            raise StartFailed(f"{len(_latest.runs)} runs are under way in this notebook already: stop them first")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._execute, name="pslab-background", daemon=True)
        _latest = self
        atexit.register(self._wind_up)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether runs are under way."""
        return self._thread.is_alive()

    @property
    def stopping(self) -> bool:
        """Whether a stop was asked for and has not happened yet."""
        return self._stop.is_set() and self.alive

    @property
    def error(self) -> str:
        """The error in words; empty if there is none."""
        if self.failure is None:
            return ""
        known = isinstance(self.failure, PslabError)
        return str(self.failure) if known else f"{type(self.failure).__name__}: {self.failure}"

    @property
    def field(self) -> str:
        """The field of Run that was refused, if that went wrong: ``"sync"``."""
        return self.failure.field.partition(".")[0] if isinstance(self.failure, ConfigError) else ""

    def stop(self) -> None:
        """End the current run in order and start no other; returns at once."""
        self._stop.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all have ended, or for so long; whether they have."""
        self._thread.join(timeout_s)
        return not self.alive

    def _execute(self) -> None:
        try:
            from pslab.lab.runs.run import sweep

            self.finished = list(sweep(self.runs, results=self.results, progress=False, stop=self._stop))
        except KeyboardInterrupt as interrupt:
            self.note = str(interrupt)
        except SweepFailed as error:
            self.finished, self.failure = list(error.results), error
        except Exception as error:  # a user's model or policy may raise anything; the view says it
            self.failure = error
        finally:
            atexit.unregister(self._wind_up)

    def _wind_up(self) -> None:
        """Keep the completed part of the run, because the process ends."""
        self.stop()
        self.wait(LAST_WORDS_S)


_latest: Background | None = None


def current() -> Background | None:
    """The runs that are under way in the background of this process, if there are any."""
    return _latest if _latest is not None and _latest.alive else None
