"""pslab: a workbench for parameter-server training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pslab.config.run import Run
from pslab.errors import ConfigError, PslabError

if TYPE_CHECKING:
    from pslab.engines.check.plan import check
    from pslab.lab import plots
    from pslab.lab.records.choosing import best, goal
    from pslab.lab.records.record import Result
    from pslab.lab.records.summary import summary
    from pslab.lab.runs.grid import grid, tuned
    from pslab.lab.runs.run import run, sweep
    from pslab.lab.studies.claims import claim
    from pslab.lab.studies.figures import save
    from pslab.lab.studies.parameters import parameters

__all__ = [
    "ConfigError", "PslabError", "Result", "Run", "best", "check", "claim", "goal", "grid", "parameters", "plots",
    "run", "save", "summary", "sweep", "tuned",
]  # fmt: skip

_LAZY = {
    "Result": "pslab.lab.records.record",
    "best": "pslab.lab.records.choosing",
    "check": "pslab.engines.check.plan",
    "claim": "pslab.lab.studies.claims",
    "goal": "pslab.lab.records.choosing",
    "grid": "pslab.lab.runs.grid",
    "parameters": "pslab.lab.studies.parameters",
    "run": "pslab.lab.runs.run",
    "save": "pslab.lab.studies.figures",
    "summary": "pslab.lab.records.summary",
    "sweep": "pslab.lab.runs.run",
    "tuned": "pslab.lab.runs.grid",
}


def __getattr__(name: str) -> Any:
    """Workers import pslab too: the lab (pandas, plotly) is loaded only where it is used."""
    if name not in __all__:
        raise AttributeError(f"module 'pslab' has no attribute {name!r}")
    from importlib import import_module

    if name == "plots":
        return import_module("pslab.lab.plots")
    return getattr(import_module(_LAZY[name]), name)
