"""The time line: its window, its shades and what it leaves out. What it shows stands in the gallery."""

from __future__ import annotations

import drawn
import handmade
import pytest

from pslab.lab.plots.charts import timeline as module
from pslab.lab.plots.charts.timeline import timeline
from pslab.lab.records import intervals


def test_one_instant_alone_gets_the_usual_length():
    result = handmade.bsp()
    low, high = intervals.window([result])
    assert list(timeline(result, begin_s=2.0).layout.xaxis.range) == [2.0, 2.0 + high - low]
    assert timeline(result, end_s=10.6).layout.xaxis.range[1] == 10.6
    assert list(timeline(result).layout.xaxis.range) == [low, high]


def test_caption_says_how_many_pieces_are_not_drawn(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MOST", 3)
    figure = timeline(handmade.asp(), 0.0, 6.0)
    assert "the shortest 12 pieces are not drawn" in drawn.caption(figure)
    computing = [(*trace.base, *trace.x) for trace in figure.data if trace.type == "bar" and trace.name == "compute"]
    assert computing == [(0.0, 0.0, 4.0, 1.0)]
