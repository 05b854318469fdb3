"""The error tree. An error names the case, the rule, the remedy and the nearest valid name.

PslabError
├── ConfigError        a parameter cannot be used; raised before a process starts
├── ProtocolError      the protocol does not allow an event in this state; the state is unchanged
├── FrameError         bytes are not a complete, unchanged frame; nothing was applied
├── RecordError        a record on disk cannot be read
│   └── DamagedRecord      a file of the record is missing or changed; the next call makes the record again
├── CheckpointError    a run's state cannot be saved, or bytes are not this run's state; nothing was restored
├── ExportError        a figure or an export cannot be written
│   └── Unwritable         (also a RecordError) results cannot be written: disk full, or no permission
└── RunError           a run cannot continue
    ├── WorkerFailed       a worker or the server raised an exception
    ├── WorkerDied         a process has ended, or was silent for longer than its lease
    ├── Stalled            every worker waits, and no message is in transit
    ├── StartFailed        the processes cannot be started
    └── SweepFailed        some runs of a sweep failed

KeyboardInterrupt
└── RunsInterrupted    the runs were interrupted; the message says where completed parts are stored
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any


class Sentence(BaseException):
    """An error that a notebook shows without its traceback; `%tb Verbose` shows the traceback."""

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython prints: the error's type and message, in verbose modes the traceback."""
        shell = sys.modules["IPython"].get_ipython()
        if shell.InteractiveTB.mode not in ("Context", "Minimal"):
            lines: list[str] = shell.InteractiveTB.structured_traceback(type(self), self, self.__traceback__)
            return lines
        return [f"\x1b[31m{type(self).__name__}\x1b[39m: {self}"]


class PslabError(Sentence, Exception):
    """The base of all errors that pslab raises on purpose, except interrupts."""


class RunsInterrupted(Sentence, KeyboardInterrupt):
    """Runs were interrupted and shut down cleanly; the message says where completed parts are stored."""


class ConfigError(PslabError, ValueError):
    """A parameter that cannot be used: its name, its value, and `problem`, the rule with the remedy."""

    def __init__(self, field: str, value: object, problem: str) -> None:
        self.field, self.value, self.problem = field, value, problem
        super().__init__(f"{shortened(field, str)}={shortened(value)}: {shortened(problem, str)}")

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, object, str]]:
        return type(self), (self.field, self.value, self.problem)


class ProtocolError(PslabError):
    """An event that the protocol does not allow in this state; the state is unchanged."""


class FrameError(PslabError):
    """Bytes that are not a complete, unchanged frame; nothing was applied."""


class RecordError(PslabError):
    """A record on disk that cannot be read."""


class DamagedRecord(RecordError):
    """A record with a missing or changed file; the record has to be made again."""

    def __init__(self, path: Path, problem: str) -> None:
        self.place, self.problem = path, problem
        super().__init__(f"{problem}; delete {path}, and the next call makes the record again")


class CheckpointError(PslabError):
    """A run's state that cannot be saved, or bytes that are not this run's state; nothing was restored."""


class ExportError(PslabError):
    """A figure or an export that cannot be written."""


class Unwritable(RecordError, ExportError):
    """Results that cannot be written (disk full, no permission); writing further results would fail, too."""


class RunError(PslabError):
    """A run that cannot continue.

    `outcome` is its completed part (see pslab.engines.experiment.experiment) or None; `saved` says where this part is
    stored.
    """

    outcome: Any = None
    saved: str = ""

    def __str__(self) -> str:
        return super().__str__() + (f"; {self.saved}" if self.saved else "")


class StartFailed(RunError):
    """A run whose processes cannot be started."""


class SweepFailed(RunError):
    """Some runs of a sweep failed: `failures` has their errors by name, `results` the other runs' rows or results."""

    def __init__(self, failures: Mapping[str, Exception], results: Any, completed: int) -> None:
        self.failures, self.results = dict(failures), results
        lines = "".join(f"\n  {name}: {in_a_sentence(error)}" for name, error in failures.items())
        count, others = len(failures), "the others are recorded" if completed else "none is recorded"
        super().__init__(f"{count} of {count + completed} runs failed; {others}:{lines}")


class WorkerFailed(RunError):
    """A worker or the server raised an exception; `who` names the process."""

    def __init__(self, who: str, iteration: int, traceback: str) -> None:
        self.who, self.iteration, self.traceback = who, iteration, traceback
        super().__init__(f"{who} raised in iteration {iteration}:\n{traceback}")


class WorkerDied(RunError):
    """A process of a run has ended, or was silent for longer than its lease; `how` says which."""

    def __init__(self, who: str, iteration: int | None, how: str) -> None:
        self.who, self.iteration, self.how = who, iteration, how
        super().__init__(f"{who} {how}" + ("" if iteration is None else f", in iteration {iteration}"))


class Stalled(RunError):
    """A run in which every worker waits, and no message is in transit."""


def in_a_sentence(error: BaseException) -> str:
    """Return the first line of an error's message; of a WorkerFailed, the last line of its traceback."""
    if isinstance(error, WorkerFailed):
        last = error.traceback.strip().rpartition("\n")[2]
        return "; ".join(filter(None, (f"{error.who} raised in iteration {error.iteration}: {last}", error.saved)))
    text = str(error).partition("\n")[0]
    return shortened(text if isinstance(error, PslabError) else f"{type(error).__name__}: {text}".rstrip(": "), str)


LONGEST = 1000  # most characters of a value in a message


def shortened(value: object, form: Callable[[object], str] = repr) -> str:
    """Return a value's text for a message; of more than LONGEST characters, only the beginning and the end."""
    try:
        text = form(value)
    except ValueError:  # Python refuses to write a number of more than 4300 digits
        return f"a {type(value).__name__} that cannot be written"
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} … {text[-LONGEST // 2 :]}"


def ended(exit_code: int | None) -> str:
    """Return how a process with this exit code ended, ``"killed by SIGKILL"`` or ``"exit code 3"``; None: unknown."""
    if exit_code is None:
        return "its exit code is unknown: its host may be gone, or the connection to it"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-(exit_code or 0)).name}"
    return f"exit code {exit_code}{', as when the fork server that started it has ended' if exit_code == 255 else ''}"


#: Names in other libraries: by name, the valid name that replaces it, and its use.
ELSEWHERE = {"lr": ("learning_rate", "learning_rate"), "cifar10": ("torchvision:NAME", "torchvision:CIFAR10"),
             "epochs": ("pushes", "pushes=epochs * examples // batch_size")}  # fmt: skip


def nearest(name: str, allowed: Iterable[str], first: Sequence[str] = ()) -> str:
    """Return a hint for an unknown name: the most similar valid name, if one is similar, and all valid names. Names in
    `first` are listed first, and are preferred."""
    names = [*sorted({*first}), *sorted({*allowed} - {*first})]
    valid, usual = ELSEWHERE.get(word := name.lower(), ("", ""))
    close = [usual] if valid in names else get_close_matches(word, first, n=1, cutoff=0.5)
    close = close or get_close_matches(word, names, n=1, cutoff=0.51)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}allowed: {', '.join(names)}"
