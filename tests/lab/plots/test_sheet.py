"""Pictures by matplotlib: the values and words of the plotly figure, on the sheet, the same bytes everywhere."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.express as px
import plotly.graph_objects as go
import pytest
from gallery import FIGURES

from pslab.config.table import ROWS
from pslab.lab.plots import export, sheet
from pslab.lab.plots.sheet import NotDrawn, Sheet
from pslab.lab.plots.theme import MARKERS, OWN_MARKERS, fills


def laid_out(figure: go.Figure) -> Sheet:
    made = Sheet(figure)
    made.fit(titled=True)
    return made


@pytest.fixture(params=[pytest.param(title, marks=pytest.mark.one_of(9)) for title in FIGURES])
def case(request: pytest.FixtureRequest) -> dict[str, go.Figure]:
    """A figure of the gallery in every width."""
    return FIGURES[request.param]()


def test_every_value_stands_beside_the_name_that_it_has_in_plotly(case: dict[str, go.Figure]):
    figure = case["page"]
    made = laid_out(figure)
    for axes, panel in made.panels.items():
        assert Counter(by_matplotlib(panel)) == Counter(by_plotly(figure, axes))


def test_nothing_leaves_the_sheet_in_any_width(case: dict[str, go.Figure]):
    for figure in case.values():
        made = laid_out(figure)
        wide, high = made.made.bbox.width, made.made.bbox.height
        assert wide == made.made.dpi * figure.layout.meta["inches"]
        for text in words(made):
            box = text.get_window_extent(made.renderer)
            assert box.x0 > -4, text.get_text()
            assert box.y0 > -4, text.get_text()
            assert box.x1 < wide + 4, text.get_text()
            assert box.y1 < high + 4, text.get_text()


def words(made: Sheet) -> Iterator[Any]:
    """The texts around the panels: titles, names beside ticks, and the legend's."""
    if made.made._suptitle is not None:
        yield made.made._suptitle
    for panel in made.panels.values():
        yield from (panel.axes.xaxis.label, panel.axes.yaxis.label)
        for axis in (panel.axes.xaxis, panel.axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            yield from (tick.label1 for tick in axis.get_major_ticks()
                        if tick.label1.get_visible() and low <= tick.get_loc() <= high)  # fmt: skip
    for legend in made.made.legends:
        yield from legend.get_texts()


def name(ticks: dict[float, str], value: float) -> Any:
    """The name at the tick that is nearest to a value, if the axis has names; else the value."""
    if not ticks:
        return float(f"{value:.6g}")
    near = min(ticks, key=lambda at: abs(at - value))
    return f"{ticks[near]} {value - near:.4f}"


def named(axis: Any) -> dict[float, str]:
    """The ticks of one of plotly's axes that has names."""
    if axis.showgrid is not False or not axis.ticktext:
        return {}
    texts = (re.sub(r"<[^>]*>", " ", str(text)).strip() for text in axis.ticktext)
    return dict(zip(axis.tickvals, texts, strict=True))


def by_plotly(figure: go.Figure, axes: tuple[str, str]) -> Iterator[tuple[Any, ...]]:
    """(kind, name or value on x, name or value on y) of each bar's end and each point in a panel."""
    x_ticks, y_ticks = (named(figure.layout[f"{each[0]}axis{each[1:]}"]) for each in axes)
    for trace in figure.data:
        if (trace.xaxis or "x", trace.yaxis or "y") != axes:
            continue
        if trace.type == "bar":
            ends = np.asarray(trace.x, float) + (0 if trace.base is None else np.asarray(trace.base, float))
            if figure.layout.barmode != "stack":
                yield from (("bar", name({}, x), name(y_ticks, y)) for x, y in zip(ends, trace.y, strict=True))
        elif trace.type == "scatter" and "markers" in (trace.mode or ""):
            for x, y in zip(trace.x, trace.y, strict=True):
                if x is not None and np.isfinite(x) and np.isfinite(y):
                    yield "point", name(x_ticks, x), name(y_ticks, y)


def by_matplotlib(panel: Any) -> Iterator[tuple[Any, ...]]:
    """The same of the drawn panel."""
    ticks = []
    for axis, scale in ((panel.axes.xaxis, panel.x), (panel.axes.yaxis, panel.y)):
        texts = {float(tick.get_loc()): tick.label1.get_text().replace("\n", " ") for tick in axis.get_major_ticks()}
        ticks.append(texts if scale.spec.get("showgrid") is False and scale.spec.get("ticktext") is not None else {})
    for bars in panel.axes.containers:
        for each in getattr(bars, "patches", ()):
            if not panel.stacks:
                end, middle = each.get_x() + each.get_width(), each.get_y() + each.get_height() / 2
                yield "bar", name({}, end), name(ticks[1], middle)
    for line in panel.axes.lines:
        if line.get_marker() not in ("None", "|", "_"):  # these are the ends of ranges
            for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True):
                if np.isfinite(x) and np.isfinite(y):
                    yield "point", name(ticks[0], float(x)), name(ticks[1], float(y))


def test_every_marker_of_the_theme_is_drawn_and_differs_from_the_others():
    shapes = {*MARKERS, *OWN_MARKERS, *(row.marker for rows in ROWS.values() for row in rows.values() if row.marker)}
    symbols = sorted({shape + fill for shape in shapes for fill in fills(shape)})
    figure = go.Figure([go.Scatter(x=[k], y=[0], mode="markers", marker={"symbol": symbol, "color": "#004488"})
                        for k, symbol in enumerate(symbols)])  # fmt: skip
    lines = Sheet(figure).panels["x", "y"].axes.lines
    drawn = {(str(line.get_marker()), str(line.get_markerfacecolor()), line.get_markeredgewidth()) for line in lines}
    assert len(drawn) == len(symbols) > 60


# -- files -----------------------------------------------------------------------------------------

MANY = "what was not reached stands above a line"


def test_fonts_are_embedded_and_the_pdf_has_no_title():
    files = sheet.paper(FIGURES[MANY]()["page"])
    assert files["png"][:4] == b"\x89PNG"
    assert b"/FontFile2" in files["pdf"]
    assert b"/Type3" not in files["pdf"]
    assert b"<text" not in files["svg"]  # letters are outlines
    heights = {kind: int(re.search(pattern, files[kind])[1]) for kind, pattern in (  # type: ignore[index]
        ("pdf", rb"/MediaBox \[ 0 0 \d+\.?\d* (\d+)"), ("svg", rb'height="(\d+)'))}  # fmt: skip
    assert heights["pdf"] < heights["svg"]


DIGESTS = """
import hashlib, sys
from gallery import FIGURES
from pslab.lab.plots import sheet
print(*(hashlib.sha256(data).hexdigest() for _, data in sorted(sheet.paper(FIGURES[sys.argv[1]]()["column"]).items())))
"""


@pytest.mark.slow
def test_two_processes_write_the_same_bytes():
    found = [hashlib.sha256(data).hexdigest() for _, data in sorted(sheet.paper(FIGURES[MANY]()["column"]).items())]
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", DIGESTS, MANY]
    other = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert other.stdout.split() == found


# -- figures of users ------------------------------------------------------------------------------

TABLE = pd.DataFrame({"policy": ["bsp", "asp", "ssp"], "seconds": [3.0, 1.0, 2.0], "side": ["a", "b", "a"]})


def test_bars_of_a_matched_axis_stand_beside_their_own_names():
    figure = px.bar(TABLE, x="seconds", y="policy", facet_col="side", orientation="h")
    made = Sheet(figure)
    made.fit(titled=False)
    for axes, expected in ((("x", "y"), {"bsp": 3.0, "ssp": 2.0}), (("x2", "y2"), {"asp": 1.0})):
        panel = made.panels[axes]
        ranks = {rank: policy for policy, rank in (panel.y.categories or {}).items()}
        drawn = {ranks[round(each.get_y() + each.get_height() / 2)]: each.get_width()
                 for bars in panel.axes.containers for each in bars.patches}  # fmt: skip
        assert drawn == expected


@pytest.mark.parametrize(("figure", "words"), [
    (go.Figure(go.Violin(y=[1, 2])), "a trace of type 'violin'"), (go.Figure(go.Box(y=[1, 2])), "'box'"),
    (go.Figure(go.Histogram(x=[1, 2])), "'histogram'"),
    (go.Figure(go.Scatter(x=["2026-01-01", "2026-01-02"], y=[1, 2])), "an axis of dates"),
    (px.scatter(TABLE, x="seconds", y="policy", color="seconds"), "coloraxis cannot be drawn"),
])  # fmt: skip
def test_kinds_that_are_not_drawn_are_refused_by_name(figure: go.Figure, words: str):
    with pytest.raises(NotDrawn, match=words):
        sheet.paper(figure)


def test_a_browser_draws_a_refused_figure_and_without_one_a_line_says_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    figure = go.Figure(go.Box(y=[1, 2]))
    monkeypatch.setattr(go.Figure, "to_image", lambda self, format, scale: b"a picture of the browser")
    written = export.write_images([(figure, tmp_path / "one")])
    assert [path.name for path in written] == ["one.png", "one.svg", "one.pdf"]
    assert capsys.readouterr().err == ""

    def missing(*_: object, **__: object) -> bytes:
        raise ValueError("Image export using the kaleido engine requires the Kaleido package")

    monkeypatch.setattr(go.Figure, "to_image", missing)
    assert export.write_images([(figure, tmp_path / "two")]) == []
    said = capsys.readouterr().err
    assert said.startswith("two: no PNG, SVG, PDF: a trace of type 'box'")
    assert "[browser]" in said
    assert said.count("\n") == 1
