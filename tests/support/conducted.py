"""Tiny runs without a record: what comes of them, and signals to their processes meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from tiny import tiny
from tools.audit.rules import audit

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
