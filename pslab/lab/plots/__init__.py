"""Figures and tables of results: curves, points, bars, heat, time_budget, timeline, show and more; all from records."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pslab.lab.plots.arrange import caption_of, finish, heading_of
    from pslab.lab.plots.charts.bars import bars, heat
    from pslab.lab.plots.charts.budget import time_budget
    from pslab.lab.plots.charts.curves import curves
    from pslab.lab.plots.charts.ratios import dots
    from pslab.lab.plots.charts.scatter import points
    from pslab.lab.plots.charts.server_states import server_states
    from pslab.lab.plots.charts.tables import show
    from pslab.lab.plots.charts.timeline import timeline
    from pslab.lab.plots.charts.where import where
    from pslab.lab.plots.charts.why import why
    from pslab.lab.plots.export import write
    from pslab.lab.plots.labels import name
    from pslab.lab.plots.theme import Look, looks

__all__ = [
    "Look", "bars", "caption_of", "curves", "dots", "finish", "heading_of", "heat", "looks", "name", "points",
    "server_states", "show", "time_budget", "timeline", "where", "why", "write",
]  # fmt: skip

_MODULES = {
    "curves": "charts.curves", "points": "charts.scatter", "bars": "charts.bars", "heat": "charts.bars",
    "dots": "charts.ratios", "time_budget": "charts.budget", "timeline": "charts.timeline",
    "server_states": "charts.server_states", "show": "charts.tables", "why": "charts.why", "where": "charts.where",
    "caption_of": "arrange", "heading_of": "arrange", "name": "labels",
    "write": "export",
    # for figures that no chart draws
    "finish": "arrange", "Look": "theme", "looks": "theme",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a name's module at its first use, because plotly takes long to load."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
