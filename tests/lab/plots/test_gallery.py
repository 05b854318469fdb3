"""A gallery of figures: what holds for all of them, and what each one shows, as approved in gallery.txt.

A change that is intended is approved with `PSLAB_APPROVE=1 pytest tests/lab/plots/test_gallery.py`, and read as a diff.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import drawn
import plotly.graph_objects as go
import pytest
from gallery import FIGURES

from pslab.config.table import ROWS
from pslab.lab.plots.labels import name
from pslab.lab.plots.theme import BEHIND

APPROVED = Path(__file__).with_name("gallery.txt")
MOST = 6  # numbers of a row that are written


COLOURS = {name(kind, row.example or row.name): row.colour for kind in ("sync", "prune")
           for row in ROWS[kind].values() if row.colour}  # fmt: skip


@pytest.mark.parametrize("title", FIGURES)
def test_a_figure_shows_what_was_approved_and_each_curve_is_told_apart(title: str):
    figures = FIGURES[title]()
    approved = dict(part.split("\n", 1) for part in APPROVED.read_text().split("\n# ")[1:]) if APPROVED.exists() else {}
    found = "\n".join(described(figures["page"]))
    if os.environ.get("PSLAB_APPROVE"):
        approved[title] = found + "\n"
        parts = [f"# {key}\n{approved[key].rstrip()}\n" for key in FIGURES if key in approved]
        APPROVED.write_text("Figures of the gallery, in words.\n\n" + "\n".join(parts))
    assert found.splitlines() == approved[title].rstrip().splitlines()
    for figure in figures.values():
        assert not drawn.alike(figure)
        assert max(Counter(drawn.legend(figure)).values(), default=1) == 1
    assert not unanswered(figures["page"])
    go.Figure(json.loads(figures["page"].to_json()))  # validates every property
    for trace in figures["page"].data:
        if trace.name in COLOURS and trace.type == "scatter" and "lines" in (trace.mode or "") and not trace.fill:
            assert trace.line.color in (COLOURS[trace.name], BEHIND)


def unanswered(figure: go.Figure) -> set[str]:
    """The names in a legend that hide nothing if they are clicked; but those of shapes, arrows and parts of a trace."""
    shows = [trace.x is not None and any(x is not None for x in trace.x) for trace in figure.data]
    groups = {trace.legendgroup for trace, seen in zip(figure.data, shows, strict=True) if seen} - {None}
    samples = [trace for trace, seen in zip(figure.data, shows, strict=True)
               if trace.showlegend is not False and not seen and any(shows)]  # fmt: skip
    known = ("releases", "saved", "paid", *(trace.name for trace in samples if trace.name.startswith("goal")))
    return {trace.name for trace in samples if trace.legendgroup not in groups} - {*known}


# -- a figure in words -----------------------------------------------------------------------------


def described(figure: go.Figure) -> list[str]:
    """A line for each part of a figure: a few of its numbers, and a sum of all."""
    layout = figure.layout
    axes = {key: value for key, value in layout.to_plotly_json().items() if key[1:5] == "axis"}
    return [
        *(f"caption: {line}" for line in layout.meta["caption"]),
        f"texts: {' / '.join(drawn.texts(figure))}",
        *(f"{key}: {value['type']} | range {_brief(value['range'])} | ticks {_brief(value.get('ticktext', ()))}"
          for key, value in axes.items() if value["showticklabels"]),
        *(_trace(trace) for trace in figure.data if trace.hovertemplate or trace.fill or trace.mode == "text"),
        f"legend: {' | '.join(drawn.legend(figure)) or 'none'}",
    ]  # fmt: skip


def _trace(trace: Any) -> str:
    if trace.type == "heatmap":
        return _line(trace.type, trace.xaxis, {"text": [text for row in trace.text for text in row]}, trace.z)
    look = [trace.marker.color, *([trace.marker.symbol, trace.line.dash] if trace.type == "scatter" else [])]
    look = [each for each in look if isinstance(each, str)]
    shown = {"x": trace.x, "y": trace.y, "base": getattr(trace, "base", None), "text": trace.text}
    mode = trace.mode if trace.type == "scatter" else ""
    words = " ".join([trace.xaxis or "x", *([mode] if mode else []), *look, f"'{trace.name}'"])
    return _line(trace.type, words, shown, [trace.x, trace.y, trace.text])


def _line(kind: str, words: Any, shown: dict[str, Any], whole: Any) -> str:
    words = [words, *(f"{key} {_brief(value)}" for key, value in shown.items() if value is not None and len(value))]
    text = json.dumps(_rounded(whole), sort_keys=True, ensure_ascii=True)
    return f"{kind}: {' | '.join(map(str, words))} [{hashlib.sha256(text.encode()).hexdigest()[:8]}]"


def _brief(values: Any) -> str:
    if isinstance(values, str):
        return values
    found = [each if isinstance(each, str) else str(_rounded(each)) for each in values]
    return ", ".join(found[:MOST]) + (f", ... ({len(found)})" if len(found) > MOST else "")


def _rounded(value: Any) -> Any:
    """With five digits of each number, as JSON has it."""
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items() if key != "uid"}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_rounded(each) for each in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value
