"""How the runs of a live view are called and drawn, on a page that is light or dark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from pslab.config.run import FIELDS, Run
from pslab.lab.live.state import Track
from pslab.lab.plots.labels import label_of
from pslab.lab.plots.page.theme import (
    DARK,
    DASHES,
    LEADING,
    PHASES,
    Look,
    looks,
    on_dark,
    told_apart,
    variant,
)
from pslab.lab.plots.page.theme import template as template_of
from pslab.lab.records.grid_axes import value_of
from pslab.lab.records.results import Runs

CLEAR = "rgba(0,0,0,0)"  # the page is the paper
DEAD = "#9E1B32"
BESIDE = {"evaluate", "eval_every"}  # fields of a run that make no other curve


class Ground(NamedTuple):
    """What a figure is drawn on."""

    page: str
    template: go.layout.Template
    doing: dict[str, str]  #: the colour of what a worker does

    @property
    def is_dark(self) -> bool:
        return self.page == DARK


_DOING = {"computing": PHASES["compute"], "transferring": PHASES["push"], "waiting": PHASES["wait"], "dead": DEAD}
LIGHT_PAGE = Ground("#FFFFFF", template_of(paper=CLEAR), _DOING)
DARK_PAGE = Ground(DARK, template_of("#E0E0E0", "#3A3A3A", CLEAR),
                   {**{doing: on_dark(colour) for doing, colour in _DOING.items()}, "waiting": "#484848"})  # fmt: skip


class Named(NamedTuple):
    """How a run is called and drawn in a view."""

    label: str
    look: Look


class Session:
    """Labels and looks of the runs of one view. Whatever comes and goes, what was drawn keeps its look.

    One field gives the colour, as in the other figures: the first of LEADING in which the first runs differ, else the
    synchronization. Runs that differ otherwise differ in dash and fill.
    """

    def __init__(self) -> None:
        self._lead = ""
        self._values: dict[str, Any] = {}  # of the leading field, in the order in which they were seen
        self._bases: dict[str, Look] = {}
        self._ranks: dict[str, int] = {}  # of all that runs are beside it
        self._looks: dict[str, Look] = {}  # by digest

    def names(self, tracks: Sequence[Track]) -> list[Named]:
        """Label and look of each run: its policy, what else differs among these, and the seed where seeds differ."""
        runs = Runs([track.run.but(evaluate="after", eval_every=None) for track in tracks])
        columns, seeds = runs.differing(), len({run.seed for run in runs}) > 1
        shown = columns if "sync" in columns or not columns else ["sync", *columns]
        self._lead = self._lead or next((name for name in LEADING if name in columns), "sync" if tracks else "")
        keys = [{column: value_of(run, {}, column) for column in shown} for run in runs]
        labels = [label_of(key, shown, run) + (f", seed {run.seed}" if seeds else "")
                  for key, run in zip(keys, runs, strict=True)]  # fmt: skip
        self._take(tracks)
        return [Named(label, self._looks[track.digest]) for label, track in zip(labels, tracks, strict=True)]

    def _take(self, tracks: Sequence[Track]) -> None:
        """Looks for those that have none; they differ from those that are shown beside them."""
        new = [track for track in tracks if track.digest not in self._looks]
        values = {repr(value): value for value in (value_of(track.run, {}, self._lead) for track in new)}
        self._values |= {name: value for name, value in values.items() if name not in self._values}
        found = looks([{self._lead: value} for value in self._values.values()])
        self._bases = {**dict(zip(self._values, found, strict=True)), **self._bases}
        drawn = [self._looks[track.digest] for track in tracks if track.digest in self._looks]
        for track in new:
            base = self._bases[repr(value_of(track.run, {}, self._lead))]
            rank = self._ranks.setdefault(self._rest(track.run), len(self._ranks))
            look = variant(base, rank, DASHES.index(base.dash)) if rank else base
            drawn.append(told_apart([*drawn, look], [{0}] * (len(drawn) + 1))[-1])
            self._looks[track.digest] = drawn[-1]

    def _rest(self, run: Run) -> str:
        return repr([value_of(run, {}, name) for name in FIELDS if name not in {self._lead, *BESIDE}])
