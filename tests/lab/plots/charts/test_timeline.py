"""The time line: its window. What it shows stands in the gallery."""

from __future__ import annotations

import handmade

from pslab.lab.plots.charts.timeline import timeline
from pslab.lab.records import intervals


def test_one_instant_alone_gets_the_usual_length():
    result = handmade.bsp()
    low, high = intervals.window([result])
    assert list(timeline(result, begin_s=2.0).layout.xaxis.range) == [2.0, 2.0 + high - low]
    assert timeline(result, end_s=10.6).layout.xaxis.range[1] == 10.6
    assert list(timeline(result).layout.xaxis.range) == [low, high]
