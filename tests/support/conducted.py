"""Tiny runs without a record: what comes of them, and what is done to their processes meanwhile."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import torch
from tiny import net, tiny
from tools.audit.rules import audit
from torch import nn

from pslab.config.run import Run
from pslab.engines.execute import execute
from pslab.engines.experiment.experiment import Outcome
from pslab.engines.processes import pool
from pslab.lab.judge import tables_of
from pslab.lab.runs.resolve import resolve

Look = Callable[[dict[str, Any]], None]  # the receiver of a run's news


def quiet(news: dict[str, Any]) -> None:
    """A receiver that does nothing."""


def conduct(look: Look = quiet, **fields: Any) -> Outcome:
    """A run of 2 workers with these fields."""
    return execute(resolve(tiny(**{"workers": 2, **fields})), look)


def judged(run: Run, outcome: Outcome) -> dict[str, Any]:
    """The audit's verdict on a run, and the rules that it breaks, if any."""
    tables, _, facts = tables_of(run, outcome)
    found = audit(run, tables, facts)
    return {"verdict": found.verdict, **({"violations": found.violations} if found.violations else {})}


class Signals:
    """The receiver of a run's news by which a process gets a signal, once the run has made more than so many pushes."""

    def __init__(self, number: int, by: int, after: int = 20) -> None:
        self._number, self._by, self._after = number, by, after
        self.sent = False

    def __call__(self, news: dict[str, Any]) -> None:
        if news.get("pushes", 0) > self._after and not self.sent and pool._kept is not None:
            os.kill(pool._kept.processes[self._number].pid, self._by)
            self.sent = True


def stopped() -> None:
    """This process is stopped by a signal."""
    os.kill(os.getpid(), signal.SIGSTOP)


def died() -> None:
    """This process ends at once."""
    os._exit(9)


class Acts(nn.Module):
    """A model that does something in one process: at a batch of training, or in each evaluation."""

    def __init__(self, act: Callable[[], Any], batch: int = 7, who: str = "worker 1", *, evaluating: bool = False):
        super().__init__()
        self.net, self.left, self.act, self.who, self.evaluating = net(), batch, act, f"pslab-{who}", evaluating

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from multiprocessing import current_process

        self.left -= self.training
        due = not self.training if self.evaluating else self.training and not self.left
        if due and current_process().name == self.who:
            self.act()
        return self.net(x)
