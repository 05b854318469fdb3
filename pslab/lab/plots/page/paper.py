"""A figure for a paper or a screen, and its words, which stand under it in a paper."""

from __future__ import annotations

import re
from typing import Any

import plotly.graph_objects as go

from pslab.lab.plots.page.theme import TITLE_ROW

SCREEN = 1.25  # times the type of a paper
TOOLBAR = 28.0  # px over the title, where plotly's toolbar lies
#: What plotly takes in px. The width of a bar is one of its own axis.
LENGTHS = {"size", "width", "height", "thickness", "xshift", "yshift", "ticklen", "tickwidth", "linewidth", "gridwidth",
           "borderpad", "entrywidth", "itemwidth", "dash"}  # fmt: skip


class Figure(go.Figure):  # type: ignore[misc]  # plotly has no types
    """A figure in the sizes of a paper, that a notebook shows in those of a screen."""

    def _repr_mimebundle_(self, *args: Any, **kwargs: Any) -> Any:
        return screen(self)._repr_mimebundle_(*args, **kwargs)

    def _ipython_display_(self) -> None:
        screen(self)._ipython_display_()

    def show(self, *args: Any, **kwargs: Any) -> Any:
        """What plotly's `show` does, on a screen."""
        return screen(self).show(*args, **kwargs)


def screen(figure: go.Figure) -> go.Figure:
    """A copy for a screen: as wide as what shows it, in larger type, its toolbar over the title; of a figure that no
    Page has made, itself."""
    if None in (figure.layout.width, figure.layout.height, figure.layout.meta):
        return figure
    made = figure.to_dict()
    layout = {name: _scaled(name, value) for name, value in made["layout"].items() if name != "width"}
    height = layout["height"] + TOOLBAR
    layout |= {"autosize": True, "height": round(height), "margin": {"l": 0, "r": 0, "b": 0, "t": TOOLBAR}}
    if "y" in layout.get("legend", {}):
        layout["legend"]["y"] *= 1 - TOOLBAR / height  # a share of all, with the toolbar
    traces = [{name: value if name == "width" else _scaled(name, value) for name, value in trace.items()}
              for trace in made["data"]]  # fmt: skip
    return go.Figure({"data": traces, "layout": layout})


def _scaled(name: str, value: Any) -> Any:
    """A property of a figure in the type of a screen."""
    if isinstance(value, dict):
        return {key: _scaled(key, each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_scaled(name, each) for each in value]
    if name not in LENGTHS or value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return re.sub(r"[\d.]+(?=px)", lambda found: f"{SCREEN * float(found[0]):g}", value)
    return SCREEN * value


def paper(figure: go.Figure) -> go.Figure:
    """A copy for a paper, which has its words under the figure: without the title, type of 7 and 8 pt, as wide as one
    column or two (`width` of what draws it). `heading_of` and `caption_of` are its caption.
    """
    made = go.Figure(figure)
    titles = [note for note in made.layout.annotations if note.name == "title"]
    if not titles:
        return made
    height, cut = float(made.layout.height), TITLE_ROW * len(titles) + 2
    made.layout.annotations = [note for note in made.layout.annotations if note.name != "title"]
    for shown in made.select_yaxes():
        shown.domain = [end * height / (height - cut) for end in shown.domain]
    for note in made.layout.annotations:
        if note.yref == "paper":
            note.y *= height / (height - cut)
    if made.layout.legend.y is not None:
        made.layout.legend.y *= height / (height - cut)
    return made.update_layout(height=height - cut)


def heading_of(figure: go.Figure) -> str:
    """The sentence over a figure; "" if there is none."""
    lines = [note.text for note in figure.layout.annotations if note.name == "title"]
    return re.sub(r"<[^>]*>", "", " ".join(lines or [figure.layout.title.text or ""]))


def caption_of(figure: go.Figure) -> list[str]:
    """The lines of a figure's caption."""
    return list((figure.layout.meta or {}).get("caption", []))
