"""Processes that kill or stop themselves, with a real signal, at a place in pslab's own code."""

from __future__ import annotations

import importlib
import inspect
import multiprocessing
import os
import re
import signal
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from tiny import net
from torch import nn

from pslab.engines.worker.state import TORN

DECIDER = "pslab-server"


def replaced(where: str, made: Callable[[Any], Any]) -> None:
    """Put what `made` makes of a function, "module:path", in its place."""
    module, _, path = where.partition(":")
    *owners, name = path.split(".")
    owner = reduce(getattr, owners, importlib.import_module(module))
    new, bound = made(getattr(owner, name)), isinstance(inspect.getattr_static(owner, name), classmethod)
    setattr(owner, name, staticmethod(new) if bound else new)


def dying(where: str, count: int, when: str = "before", end: int = signal.SIGKILL) -> None:
    """End this process at the count-th call of a function: before it, after it, or in the midst of what it writes:
    half of the first piece that `os.writev` has, or a state of what a worker keeps (`WorkerState._put`)."""

    def made(original: Any) -> Any:
        calls = 0

        def counted(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == count:
                if when == "torn":
                    arguments[0]._numbers[arguments[1]] = TORN
                elif when == "half":
                    (first, *_) = arguments[1]
                    original(arguments[0], [first[: len(first) // 2]])
                elif when == "after":
                    original(*arguments, **named)
                os.kill(os.getpid(), end)
            return original(*arguments, **named)

        return counted

    replaced(where, made)


class Signals:
    """The receiver of a run's news by which a process gets a signal, once the run has made more than so many pushes."""

    def __init__(self, number: int, by: int, after: int = 20) -> None:
        self._number, self._by, self._after = number, by, after
        self.sent = False

    def __call__(self, news: dict[str, Any]) -> None:
        from pslab.engines.processes import pool  # which children do without

        if news.get("pushes", 0) > self._after and not self.sent and pool._kept is not None:
            os.kill(pool._kept.processes[self._number].pid, self._by)
            self.sent = True


def once(marker: Path | None, process: str) -> bool:
    """Return whether this is that process, and nothing has been done there in this run."""
    if marker is None or multiprocessing.current_process().name != process:
        return False
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def stopped() -> None:
    """Stop this process by a signal."""
    os.kill(os.getpid(), signal.SIGSTOP)


def died() -> None:
    """End this process at once."""
    os._exit(9)


def in_c_code(begun: Path) -> None:
    """Run C code that keeps the interpreter's lock for years; before that, write a word into a pipe with a name."""
    begun.write_text("begun")
    re.match("(a+)+b", "a" * 64)


class SabotagedServer:
    """A policy that does what another one does; once in a run `act` happens in a server's process: in that of the one
    that decides at its first step, in another's, "pslab-worker 2", say, when it gets its role."""

    def __init__(self, like: Any, marker: Path | None, act: Callable[[], None] | None, process: str = DECIDER) -> None:
        self.like, self.marker, self.act, self.process = like, marker, act, process

    def __getattr__(self, name: str) -> Any:
        if name == "like":  # of an object that is being made
            raise AttributeError(name)
        return getattr(self.like, name)

    def _act_in(self, process: str) -> None:
        if self.act is not None and self.process == process and once(self.marker, process):
            self.act()

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self.process != DECIDER:
            self._act_in(self.process)

    def step(self, state: Any, event: Any, clocks: Any) -> Any:
        self._act_in(DECIDER)
        return self.like.step(state, event, clocks)


class Acts(nn.Module):
    """A model; in one process `act` happens: at a batch of training, or in each evaluation. With a
    `marker`, which says that it has, it happens once in a run."""

    def __init__(self, act: Callable[[], object] | None, batch: int = 7, who: str = "worker 1", *,
                 evaluating: bool = False, marker: Path | None = None) -> None:  # fmt: skip
        super().__init__()
        self.net, self.left, self.act, self.process = net(), batch, act, f"pslab-{who}"
        self.evaluating, self.marker = evaluating, marker

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.left -= self.training
        due = not self.training if self.evaluating else self.training and not self.left
        here = self.act is not None and multiprocessing.current_process().name == self.process
        if due and here and (self.marker is None or once(self.marker, self.process)):
            self.act()
        return self.net(x)
