"""The error tree. An error names the case, the rule, the way out and the nearest right name.

PslabError
├── ConfigError        the caller's parameters: refused before a process starts
├── ProtocolError      an event that the state machines do not allow: nothing changed
├── FrameError         bytes that are not a complete, unchanged frame: nothing was applied
├── RecordError        a directory of results that is not what its manifest says
│   └── DamagedRecord      it can never be read: what it is a record of is made anew
├── CheckpointError    a run's state that cannot be saved, or bytes that are no such state: nothing was restored
├── ExportError        a figure could not be written
│   └── Unwritable         (a RecordError, too) nothing can be written: no room, no permission
└── RunError           a run that could not go on
    ├── WorkerFailed       a worker raised: its number, iteration and traceback
    ├── WorkerDied         a process is gone, or silent beyond its lease
    ├── Stalled            no worker can go on: each one waits
    ├── StartFailed        the processes could not be started
    └── SweepFailed        some runs of a sweep failed, each for a reason of its own

KeyboardInterrupt
└── RunsInterrupted    runs were interrupted: the kept ones
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any


class Sentence(BaseException):
    """An error of which a notebook shows what it says, and `%tb Verbose` the traceback."""

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython prints: the error alone, unless its mode asks for more."""
        shell = sys.modules["IPython"].get_ipython()
        if shell.InteractiveTB.mode not in ("Context", "Minimal"):
            lines: list[str] = shell.InteractiveTB.structured_traceback(type(self), self, self.__traceback__)
            return lines
        return [f"\x1b[31m{type(self).__name__}\x1b[39m: {self}"]


class PslabError(Sentence, Exception):
    """Everything that pslab raises on purpose, but for an interrupt."""


class RunsInterrupted(Sentence, KeyboardInterrupt):
    """Runs were interrupted, and ended in order; the message names the results that they left."""


class ConfigError(PslabError, ValueError):
    """A parameter that cannot be used. `field` and `value` say which."""

    def __init__(self, field: str, value: object, problem: str) -> None:
        self.field, self.value, self.problem = field, value, problem
        super().__init__(f"{shortened(field, str)}={shortened(value)}: {shortened(problem, str)}")

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, object, str]]:
        return type(self), (self.field, self.value, self.problem)


class ProtocolError(PslabError):
    """An event that is not allowed in this state."""


class FrameError(PslabError):
    """Bytes that are not a frame."""


class RecordError(PslabError):
    """Results on disk that are incomplete."""


class DamagedRecord(RecordError):
    """The record at `place` lacks a file, or has one that was cut or changed: no later attempt reads it."""

    def __init__(self, path: Path, problem: str) -> None:
        self.place, self.problem = path, problem
        super().__init__(f"{problem}; delete {path}, and what it records is made again")


class CheckpointError(PslabError):
    """The state of a run cannot be saved, or these bytes are not the state of this run."""


class ExportError(PslabError):
    """A figure that could not be written."""


class Unwritable(RecordError, ExportError):
    """Results that cannot be written, and so none of the next ones either."""


class RunError(PslabError):
    """A run that could not go on.

    `outcome` is what it had completed, or None (see pslab.engines.experiment.experiment); `kept` says where it lies.
    """

    outcome: Any = None
    kept: str = ""

    def __str__(self) -> str:
        return super().__str__() + (f"; {self.kept}" if self.kept else "")


class StartFailed(RunError):
    """The processes of a run could not be started."""


class SweepFailed(RunError):
    """Some runs of a sweep failed; `failures` has their errors, `results` the other runs' rows or results."""

    def __init__(self, failures: Mapping[str, Exception], results: Any, completed: int) -> None:
        self.failures, self.results = dict(failures), results
        lines = "".join(f"\n  {name}: {in_a_sentence(error)}" for name, error in failures.items())
        count, others = len(failures), "the others are recorded" if completed else "none is recorded"
        super().__init__(f"{count} of {count + completed} runs failed; {others}:{lines}")


class WorkerFailed(RunError):
    """A worker, or the server, raised."""

    def __init__(self, who: str, iteration: int, traceback: str) -> None:
        self.who, self.iteration, self.traceback = who, iteration, traceback
        super().__init__(f"{who} raised in iteration {iteration}:\n{traceback}")


class WorkerDied(RunError):
    """A process of a run is gone, or has been silent for longer than its lease."""

    def __init__(self, who: str, iteration: int | None, how: str) -> None:
        self.who, self.iteration, self.how = who, iteration, how
        super().__init__(f"{who} {how}" + ("" if iteration is None else f", in iteration {iteration}"))


class Stalled(RunError):
    """No worker can go on: each one waits, and nothing is under way to the server or from it."""


def in_a_sentence(error: BaseException) -> str:
    """An error on one line; of a worker's that raised, the last line of its traceback."""
    if isinstance(error, WorkerFailed):
        last = error.traceback.strip().rpartition("\n")[2]
        return "; ".join(filter(None, (f"{error.who} raised in iteration {error.iteration}: {last}", error.kept)))
    text = str(error).partition("\n")[0]
    return shortened(text if isinstance(error, PslabError) else f"{type(error).__name__}: {text}".rstrip(": "), str)


LONGEST = 1000  # characters of a value in a message


def shortened(value: object, form: Callable[[object], str] = repr) -> str:
    """A value as a message quotes it: of a long one the beginning and the end."""
    try:
        text = form(value)
    except ValueError:  # Python writes no number of more than 4300 digits
        return f"a {type(value).__name__} that cannot be written"
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} … {text[-LONGEST // 2 :]}"


def ended(exit_code: int | None) -> str:
    """How a process ended: ``"killed by SIGKILL"``, ``"exit code 3"``; None if nobody saw that."""
    if exit_code is None:
        return "nobody saw its end: its host may be gone, or the way there"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-(exit_code or 0)).name}"
    return f"exit code {exit_code}{', as where the fork server has ended that started it' if exit_code == 255 else ''}"


def nearest(name: str, allowed: Iterable[str]) -> str:
    """The sentence that helps after an unknown name: the name most like it, then all the names."""
    names = sorted(allowed)
    close = get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}allowed: {', '.join(names)}"
