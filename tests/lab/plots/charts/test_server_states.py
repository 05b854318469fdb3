"""The figure of the server's two states: its lanes, its intervals, its messages, and what stands above them."""

from __future__ import annotations

from pathlib import Path

import drawn
import handmade
import pytest

from pslab import plots


@pytest.fixture
def figure(tmp_path: Path):
    return plots.server_states([handmade.bsp(tmp_path), handmade.asp(tmp_path)], 0.0, 11.0)


def bars(figure, name: str, axis: str) -> list[tuple[float, float]]:
    return [(round(base, 6), round(base + x, 6)) for trace in figure.data
            if trace.type == "bar" and trace.name == name and trace.yaxis == axis
            for base, x in zip(trace.base, trace.x, strict=True)]  # fmt: skip


def test_a_lane_is_push_but_where_pulls_are_answered(figure):
    assert bars(figure, "state PUSH", "y") == [(0.0, 11.0)]
    assert bars(figure, "state PULL (answering)", "y") == [(4.2, 4.4), (9.9, 10.1)]
    assert bars(figure, "state PULL (answering)", "y2") == [(2.1, 2.2), (4.6, 4.7), (5.1, 5.2)]
    assert bars(figure, "of it, applying", "y2") == [(5.0, 5.1), (2.0, 2.1), (4.5, 4.6)]


def test_the_messages_that_arrived_stand_at_their_instants(figure):
    arrived = {trace.name: sorted(trace.x) for trace in figure.data if trace.type == "scatter" and trace.yaxis == "y2"}
    assert arrived["push arrives"] == pytest.approx([2.0, 4.5, 5.0])
    assert arrived["pull arrives"] == pytest.approx([2.1, 4.6, 5.1])


def test_above_a_run_stands_how_often_and_how_long_it_answers(figure):
    found = drawn.texts(figure)
    assert any("in state PULL 2 times, 2.0 pulls each, 3.6 % of the time" in text for text in found)
    assert any("in state PULL 3 times, one pull each, 2.7 % of the time" in text for text in found)
    assert not drawn.outside(figure)


def test_each_range_has_a_lane(tmp_path: Path):
    shown = plots.server_states(handmade.two_ranges(handmade.bsp(tmp_path)), 4.0, 5.0)
    assert list(shown.layout.yaxis.ticktext) == ["range 0", "range 1"]
    assert {float(y) for trace in shown.data if trace.type == "bar" for y in trace.y} == {0.0, 1.0}
    assert all(base >= 4.0 for trace in shown.data if trace.type == "bar" for base in trace.base)
