"""The time line draws what the records say, where and when they say it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import drawn
import handmade
import plotly.graph_objects as go
import pytest

from pslab.config.run import Run
from pslab.config.table import ROWS
from pslab.lab.plots.charts import timeline as module
from pslab.lab.plots.charts.timeline import timeline
from pslab.lab.plots.page.theme import INK, PHASES, rgb, shade
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


def test_no_text_is_outside_and_panels_have_room_for_their_headings(tmp_path: Path):
    figure = timeline([handmade.bsp(tmp_path), handmade.asp(tmp_path)], 0.0, 6.0)
    assert drawn.outside(figure) == []
    assert drawn.sizes(figure) == {7, 8, 9}
    upper, lower = figure.layout.yaxis.domain, figure.layout.yaxis2.domain
    assert (upper[0] - lower[1]) * figure.layout.height > 25


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


def test_bar_lies_in_its_workers_lane_at_its_time(tmp_path: Path):
    figure = timeline(handmade.bsp(tmp_path), 0.0, 10.6)
    assert bars(figure, "compute") == [(0, 0.0, 1.0), (0, 5.1, 8.8), (1, 0.0, 3.0), (1, 5.2, 6.2)]
    assert bars(figure, "select, encode") == [(0, 1.0, 1.1), (0, 1.1, 1.2)]
    assert bars(figure, "push") == [(0, 1.2, 2.0), (0, 8.8, 9.6), (1, 3.2, 4.0), (1, 6.2, 7.0)]
    assert bars(figure, "wait (for worker)")[0] == (0, 2.1, 4.2)
    assert (0, 5.0, 5.1) in bars(figure, "pull, decode")
    drawn = {t.name: t.marker.color for t in figure.data if t.type == "bar"}
    assert drawn["compute"] == PHASES["compute"]
    assert drawn["wait (for worker)"] == PHASES["wait"]


def test_server_has_a_lane_of_its_own(tmp_path: Path):
    figure = timeline(handmade.bsp(tmp_path), 0.0, 10.6)
    lane = figure.layout.yaxis.tickvals[-1]
    assert list(figure.layout.yaxis.ticktext) == ["worker 0", "worker 1", "server"]
    assert lane > 1.5
    applies = [bar[1:] for bar in bars(figure, "server applies") if bar[0] == round(lane, 3)]
    assert sorted(applies) == [(2.0, 2.1), (4.0, 4.3), (7.0, 7.1), (9.6, 10.0)]
    assert {bar[0] for bar in bars(figure, "push")} == {0, 1}  # nothing else is the server's


def test_window_cuts_bars_and_leaves_out_marks(tmp_path: Path):
    figure = timeline(handmade.bsp(tmp_path), 0.5, 4.15)
    assert list(figure.layout.xaxis.range) == [0.5, 4.15]
    assert bars(figure, "compute") == [(0, 0.5, 1.0), (1, 0.5, 3.0)]
    assert bars(figure, "wait (for worker)") == [(0, 2.1, 4.15)]
    assert list(marks(figure, "staleness").x) == [4.1, 4.1]
    assert marks(figure, "releases") is None  # at 4.2


def test_one_instant_alone_gets_the_usual_length(tmp_path: Path):
    result = handmade.bsp(tmp_path)
    low, high = intervals.window([result])
    assert list(timeline(result, begin_s=2.0).layout.xaxis.range) == [2.0, 2.0 + high - low]
    assert timeline(result, end_s=10.6).layout.xaxis.range[1] == 10.6
    assert list(timeline(result).layout.xaxis.range) == [low, high]


def test_release_leads_from_the_releaser_to_the_waiting_worker(tmp_path: Path):
    trace = marks(timeline(handmade.bsp(tmp_path), 0.0, 10.6), "releases")
    assert list(trace.x) == [4.2, 4.2, None, 9.9, 9.9, None]
    assert [round(y, 2) for y in trace.y if y is not None] == [1, 0.33, 0, 0.67]  # to the edge of the waiting bar
    assert trace.hovertext[0] == "iteration 0 of worker 1 releases worker 0"
    assert [size > 0 for size in trace.marker.size] == [False, True, False] * 2


def test_barrier_is_a_hairline_through_all_lanes(tmp_path: Path):
    result = handmade.bsp(tmp_path)
    trace = marks(timeline(result, 0.0, 10.6), "barrier")
    assert list(trace.x) == [4.1, 4.1, None, 9.7, 9.7, None]
    assert trace.y[0] < -0.33
    assert trace.y[1] > 1.33
    assert trace.hovertext[0] == "barrier: 2 pushes in one step, version 1"
    assert marks(timeline(handmade.asp(tmp_path), 0.0, 6.0), "barrier") is None


def test_mark_shows_staleness_where_the_push_is_applied(tmp_path: Path):
    trace = marks(timeline(handmade.asp(tmp_path), 0.0, 6.0), "staleness")
    assert list(trace.x) == [2.05, 4.55, 5.05]
    assert [*trace.y] == [0.5, 0.5, -0.5]  # between the lanes, where it hides no bar
    assert list(trace.text) == ["0", "0", "2"]
    fresh, _, stale = trace.marker.color
    assert fresh == "#FFFFFF"
    assert sum(rgb(stale)) < 600
    assert "computed on version 0, makes version 3: staleness 2" in trace.hovertext[2]


def test_staler_pushes_are_darker():
    shades = [sum(rgb(shade(s, 40))) for s in range(41)]
    assert shades == sorted(shades, reverse=True)
    assert len(set(shades)) == 41
    assert shade(0, 0) == "#FFFFFF"
    assert len({shade(s, 4) for s in range(5)}) == 5


def test_numbers_are_written_where_there_is_room(tmp_path: Path):
    wide = timeline(handmade.bsp(tmp_path), 0.0, 10.6)
    texts = {t.name: list(t.text) for t in wide.data if t.type == "bar"}
    assert texts["compute"] == ["0", "1", "0", "1"]
    assert texts["wait (for worker)"] == ["waits for 1", "", "", "waits for 0"]
    assert "a number in a computation is its iteration" in drawn.caption(wide)
    colours = {t.name: t.textfont.color for t in wide.data if t.type == "bar"}
    assert (colours["compute"], colours["wait (for worker)"]) == ("#FFFFFF", INK)


def test_thin_lanes_explain_shades_instead_of_numbers(tmp_path: Path):
    workers = 64
    rows = [(w, 0, "compute", 0.0, 1.0 + w / 64, -1) for w in range(workers)]
    pushes = [(w + 1, w, 0, 0, w + 1, w, 1.0 + w / 64) for w in range(workers)]
    figure = timeline(handmade.record(tmp_path, Run(sync="asp", workers=workers), rows, pushes), 0.0, 2.0)
    assert marks(figure, "staleness").text is None
    assert not any(any(t.text) for t in figure.data if t.type == "bar")
    assert "darker the staler it is (here up to 63)" in drawn.caption(figure)
    assert len(figure.layout.yaxis.ticktext) == 33  # every second worker, and the server
    assert figure.layout.height < 1200


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


# -- several runs ----------------------------------------------------------------------------------


def test_several_runs_show_one_window(tmp_path: Path):
    figure = timeline([handmade.bsp(tmp_path), handmade.asp(tmp_path)], 0.0, 6.0)
    assert bars(figure, "compute", "y")[1] == (0, 5.1, 6.0)
    assert bars(figure, "compute", "y2") == [(0, 0.0, 4.0), (1, 0.0, 1.0), (1, 3.0, 3.5)]
    assert list(figure.layout.xaxis.range) == list(figure.layout.xaxis2.range) == [0.0, 6.0]
    assert figure.layout.xaxis2.matches == "x"
    words = headings(figure)
    assert words[0].endswith("2 pushes applied, workers wait 18 % of the time, staleness 0")  # 2.1 of 12 s
    assert words[1].endswith("3 pushes applied, workers wait 0 % of the time, staleness 0.7 on average")
    assert ROWS["sync"]["asp"].colour in words[1]


def test_legend_has_each_name_once(tmp_path: Path):
    figure = timeline([handmade.bsp(tmp_path), handmade.asp(tmp_path)], 0.0, 6.0)
    shown = drawn.legend(figure)
    assert len(shown) == len(set(shown))
    assert {"compute", "wait (for worker)", "barrier", "releases", "push applied"} <= set(shown)


def test_policy_alone_keeps_its_colour(tmp_path: Path):
    assert ROWS["sync"]["asp"].colour in headings(timeline(handmade.asp(tmp_path)))[0]


def test_of_several_seeds_the_first_and_no_single_machine(tmp_path: Path):
    runs = [Run(sync="asp", workers=2, seed=1), Run(sync="asp", workers=2), Run(workers=1)]
    results = [handmade.record(tmp_path, run, handmade.ASP, handmade.ASP_PUSHES) for run in runs]
    figure = timeline(results, 0.0, 6.0)
    assert len(headings(figure)) == 1
    assert "the first of 2 seeds" in drawn.caption(figure)


def test_run_without_an_iteration_is_drawn(tmp_path: Path):
    empty = handmade.record(tmp_path, Run(workers=2), [], [])
    assert "no push applied" in headings(timeline(empty))[0]


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
