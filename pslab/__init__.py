"""pslab: a workbench for parameter-server training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pslab.config.run import Run
from pslab.errors import ConfigError, PslabError
from pslab.version import __version__ as __version__

if TYPE_CHECKING:
    from pslab import ddp
    from pslab.engines.check.plan import check
    from pslab.lab import plots
    from pslab.lab.advise.advice import Advice
    from pslab.lab.advise.map import advise_map
    from pslab.lab.advise.search import advise
    from pslab.lab.advise.throughput import throughput
    from pslab.lab.records.export import export
    from pslab.lab.records.frames import where
    from pslab.lab.records.record import Result
    from pslab.lab.records.results import load, records, tidy
    from pslab.lab.records.summary import summary
    from pslab.lab.records.tuning import best, goal
    from pslab.lab.runs.grid import grid, tuned
    from pslab.lab.runs.run import run, sweep
    from pslab.lab.studies.claims import claim
    from pslab.lab.studies.figures import save
    from pslab.lab.studies.parameters import parameters

__all__ = [
    "Advice", "ConfigError", "PslabError", "Result", "Run", "advise", "advise_map", "best",
    "check", "claim", "ddp", "export", "goal", "grid", "load", "parameters", "plots", "records", "run", "save",
    "summary", "sweep", "throughput", "tidy", "tuned", "where",
]  # fmt: skip

_LAZY = {
    "Advice": "pslab.lab.advise.advice",
    "Result": "pslab.lab.records.record",
    "advise": "pslab.lab.advise.search",
    "advise_map": "pslab.lab.advise.map",
    "best": "pslab.lab.records.tuning",
    "check": "pslab.engines.check.plan",
    "claim": "pslab.lab.studies.claims",
    "export": "pslab.lab.records.export",
    "goal": "pslab.lab.records.tuning",
    "grid": "pslab.lab.runs.grid",
    "load": "pslab.lab.records.results",
    "parameters": "pslab.lab.studies.parameters",
    "records": "pslab.lab.records.results",
    "run": "pslab.lab.runs.run",
    "save": "pslab.lab.studies.figures",
    "summary": "pslab.lab.records.summary",
    "sweep": "pslab.lab.runs.run",
    "throughput": "pslab.lab.advise.throughput",
    "tidy": "pslab.lab.records.results",
    "tuned": "pslab.lab.runs.grid",
    "where": "pslab.lab.records.frames",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: worker processes import pslab, too, without pslab.lab, pandas and plotly."""
    if name not in __all__:
        raise AttributeError(f"module 'pslab' has no attribute {name!r}")
    from importlib import import_module

    if name in (modules := {"ddp": "pslab.ddp", "plots": "pslab.lab.plots"}):
        return import_module(modules[name])
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    """Return the public names, so that tab completion offers only these."""
    return sorted(__all__)
