"""The time line draws what the records say, where and when they say it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import drawn
import handmade
import plotly.graph_objects as go
import pytest

from pslab.lab.plots.charts import timeline as module
from pslab.lab.plots.charts.timeline import timeline
from pslab.lab.plots.page.theme import rgb, shade
from pslab.lab.records import intervals


def bars(figure: go.Figure, name: str, axis: str = "y") -> list[tuple[float, float, float]]:
    """(lane, begin, end) of each bar with this name, in one panel."""
    return [(round(y, 3), round(begin, 6), round(begin + x, 6))
            for t in figure.data if t.type == "bar" and t.name == name and t.yaxis == axis
            for y, begin, x in zip(t.y, t.base, t.x, strict=True)]  # fmt: skip


def headings(figure: go.Figure) -> list[str]:
    """The lines above the panels."""
    return [note.text.replace("\u00a0", " ") for note in figure.layout.annotations if "style='color" in note.text]


def marks(figure: go.Figure, name: str, axis: str = "y") -> Any:
    """The trace of this name that has points."""
    points = [t for t in figure.data if t.type == "scatter" and t.x[0] is not None]
    found = [t for t in points if t.name == name and t.yaxis == axis]
    return found[0] if found else None


def test_a_heading_too_long_for_a_column_is_in_several_lines(tmp_path: Path):
    results = [handmade.bsp(tmp_path), handmade.asp(tmp_path)]
    wide, narrow = timeline(results, 0.0, 6.0), timeline(results, 0.0, 6.0, width="column")
    assert drawn.outside(narrow) == []
    assert headings(narrow)[0].partition("   ")[0] == headings(wide)[0].partition("   ")[0]
    words = headings(wide)[0].partition("   ")[2]
    assert "   " not in headings(narrow)[0]
    assert words in " ".join(drawn.texts(narrow)[::-1])
    upper, lower = narrow.layout.yaxis.domain, narrow.layout.yaxis2.domain
    assert (upper[0] - lower[1]) * narrow.layout.height > 50


def test_one_instant_alone_gets_the_usual_length(tmp_path: Path):
    result = handmade.bsp(tmp_path)
    low, high = intervals.window([result])
    assert list(timeline(result, begin_s=2.0).layout.xaxis.range) == [2.0, 2.0 + high - low]
    assert timeline(result, end_s=10.6).layout.xaxis.range[1] == 10.6
    assert list(timeline(result).layout.xaxis.range) == [low, high]


def test_staler_pushes_are_darker():
    shades = [sum(rgb(shade(s, 40))) for s in range(41)]
    assert shades == sorted(shades, reverse=True)
    assert len(set(shades)) == 41
    assert shade(0, 0) == "#FFFFFF"
    assert len({shade(s, 4) for s in range(5)}) == 5


def test_ranges_that_overlap_share_a_lane(tmp_path: Path):
    figure = timeline(handmade.two_ranges(handmade.asp(tmp_path)), 0.0, 6.0)
    pushes = bars(figure, "push")
    assert len(pushes) == 6
    lanes: dict[float, list[tuple[float, float]]] = {}
    for trace in figure.data:
        for y, begin, x in zip(trace.y, trace.base, trace.x, strict=True) if trace.type == "bar" else ():
            if y < 1.5:
                lanes.setdefault(round(y, 3), []).append((begin, begin + x))
    assert {round(y) for y in lanes} == {0, 1}
    assert len(lanes) > 2
    for own in lanes.values():
        ordered = sorted(own)
        assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(ordered))


def test_caption_says_how_many_pieces_are_not_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MOST", 3)
    figure = timeline(handmade.asp(tmp_path), 0.0, 6.0)
    assert "the shortest 12 pieces are not drawn" in drawn.caption(figure)
    assert bars(figure, "compute") == [(0, 0.0, 4.0), (1, 0.0, 1.0)]


def test_overlapped_transfers_lie_under_the_computation(tmp_path: Path):
    figure = timeline(handmade.eager(tmp_path), 0.0, 12.0)
    ways = {name: {bar[0] for bar in bars(figure, name)} for name in ("compute", "push", "pull, decode")}
    ((above,), (middle,), (below,)) = ways.values()
    assert -module.BAR / 2 < above < middle < below < module.BAR / 2
    widths = {t.name: set(t.width) for t in figure.data if t.type == "bar"}
    assert min(widths["compute"]) > 2 * max(widths["push"])
    computing = [trace for trace in figure.data if trace.type == "bar" and trace.name == "compute"]
    assert [text for trace in computing for text in trace.text] == ["0", "1", "2"]
    edges = sorted((next(iter(ways[name])), max(widths[name])) for name in ways)
    assert all(a + wide / 2 <= b - thin / 2 for (a, wide), (b, thin) in pairwise(edges))  # none hides another
    (stale,) = set(marks(figure, "staleness").y)
    assert stale > below
