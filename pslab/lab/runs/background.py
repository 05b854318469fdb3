"""Runs in a thread of this process, one after another, so that a notebook's cell returns at once."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Iterable
from pathlib import Path

from pslab.config.run import Run
from pslab.errors import ConfigError, PslabError, StartFailed, SweepFailed
from pslab.lab.records.record import Result, default_results

LAST_WORDS_S = 2.5  # longest wait for runs to shut down cleanly when this process ends


class Background:
    """Executes runs in a background thread of this process.

    Raises:
        StartFailed: this process already executes runs in the background.
    """

    def __init__(self, runs: Iterable[Run], results: Path | str | None = None) -> None:
        global _latest
        self.runs = list(runs)
        self.results = default_results() if results is None else Path(results)
        self.finished: list[Result] = []  #: results of the completed runs, in order, once all have ended
        self.failure: BaseException | None = None
        self.note = ""  #: words for how a requested stop ended
        if _latest is not None and _latest.alive:
            problem = f"{len(_latest.runs)} runs are executed in this notebook already, and only one sweep can be"
            raise StartFailed(f"{problem}: wait for these runs, or stop them")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._execute, name="pslab-background", daemon=True)
        _latest = self
        atexit.register(self._wind_up)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether runs are being executed."""
        return self._thread.is_alive()

    @property
    def stopping(self) -> bool:
        """Whether a stop was requested, and runs are still being executed."""
        return self._stop.is_set() and self.alive

    @property
    def error(self) -> str:
        """Return the error that ended the runs, in words; "" if there is none."""
        if self.failure is None:
            return ""
        known = isinstance(self.failure, PslabError)
        return str(self.failure) if known else f"{type(self.failure).__name__}: {self.failure}"

    @property
    def field(self) -> str:
        """Return the field of Run that was refused, such as ``"sync"``; "" if none was."""
        return self.failure.field.partition(".")[0] if isinstance(self.failure, ConfigError) else ""

    def stop(self) -> None:
        """Request that the current run shuts down cleanly, and that no further run starts; return at once."""
        self._stop.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all runs have ended, at most for `timeout_s`; return whether they have."""
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
        except Exception as error:  # a user's model or policy may raise any exception; the view shows it
            self.failure = error
        finally:
            atexit.unregister(self._wind_up)

    def _wind_up(self) -> None:
        # the process ends: keep the completed part of the run
        self.stop()
        self.wait(LAST_WORDS_S)


_latest: Background | None = None


def current() -> Background | None:
    """Return the Background whose runs this process is executing; None if there is none."""
    return _latest if _latest is not None and _latest.alive else None
