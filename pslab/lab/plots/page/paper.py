"""A figure for a paper, and its words, which stand under it there."""

from __future__ import annotations

import re

import plotly.graph_objects as go

from pslab.lab.plots.page.page import TITLE_ROW


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
