"""pslab: a workbench for parameter-server training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pslab.config.run import Run
from pslab.errors import ConfigError, PslabError

if TYPE_CHECKING:
    from pslab.lab.commands.check import check
    from pslab.lab.records.record import Result
    from pslab.lab.runs.run import run, sweep

__all__ = ["ConfigError", "PslabError", "Result", "Run", "check", "run", "sweep"]

_LAZY = {
    "check": "pslab.lab.commands.check",
    "run": "pslab.lab.runs.run",
    "sweep": "pslab.lab.runs.run",
    "Result": "pslab.lab.records.record",
}


def __getattr__(name: str) -> Any:
    """Workers import pslab too: the lab (pandas, plotly) is loaded only where it is used."""
    if name not in _LAZY:
        raise AttributeError(f"module 'pslab' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
