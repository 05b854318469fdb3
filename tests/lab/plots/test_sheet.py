"""Pictures by matplotlib: the values and words of the plotly figure, on the sheet. Files are whole and reproducible."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import plotly.express as px
import plotly.graph_objects as go
import pytest
from gallery import FIGURES

from pslab.config.table import ROWS
from pslab.lab import plots
from pslab.lab.plots import export, sheet
from pslab.lab.plots.arrange import finish
from pslab.lab.plots.sheet import NotDrawn, Sheet
from pslab.lab.plots.theme import MARKERS, OWN_MARKERS, fills


def laid_out(figure: go.Figure) -> Sheet:
    with matplotlib.rc_context(sheet.STYLE):
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
            assert min(box.x0, box.y0, wide - box.x1, high - box.y1) > -4, text.get_text()


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


def test_a_note_has_an_arrow_if_it_says_so_or_the_template_does_not_say_otherwise():
    for template, said, drawn in (("pslab", None, False), ("pslab", True, True), ("plotly", None, True)):
        figure = go.Figure([go.Scatter(x=[0, 1], y=[0, 1])], layout={"template": template})
        figure.add_annotation(text="P3", x=0.5, y=0.5, showarrow=said)
        (note,) = Sheet(figure).panels["x", "y"].axes.texts
        assert (note.arrow_patch is not None) == drawn, (template, said)


def test_a_legend_fills_columns_so_that_neighbours_stand_together():
    names = [f"curve number {number}" for number in range(5)]
    figure = finish(go.Figure([go.Scatter(x=[0, 1], y=[0, 1], name=name) for name in names]), "", [], "column")
    texts = laid_out(figure).made.legends[0].get_texts()
    boxes = {text.get_text(): text.get_window_extent() for text in texts}
    assert [*sorted(boxes, key=lambda name: (round(boxes[name].x0), -boxes[name].y0))] == names


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


def test_kinds_that_are_not_drawn_are_refused_by_name_a_browser_draws_them_and_without_one_a_line_says_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    for refused, problem in (
        (go.Figure(go.Violin(y=[1, 2])), "a trace of type 'violin'"), (go.Figure(go.Histogram(x=[1, 2])), "histogram"),
        (go.Figure(go.Scatter(x=["2026-01-01", "2026-01-02"], y=[1, 2])), "an axis of dates"),
        (px.scatter(TABLE, x="seconds", y="policy", color="seconds"), "coloraxis cannot be drawn"),
    ):  # fmt: skip
        with pytest.raises(NotDrawn, match=problem):
            sheet.paper(refused)
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


def figure_of(title: str = "a title") -> go.Figure:
    figure = go.Figure([go.Scatter(x=[1, 2, 3], y=[2.0, 1.5, 3.25], name="one"), go.Bar(y=[1, 2])])
    return figure.update_layout(title={"text": title}, width=400, height=300)


def test_a_page_has_its_caption_needs_no_network_and_shares_the_script_beside_it(tmp_path: Path):
    figure = figure_of("a <b>title</b>").update_layout(meta={"caption": ["4 workers, 1 < 2", "cluster: lab"]})
    paths = export.write_all(figure, "figure", tmp_path)
    assert [path.suffix for path in paths] == [".json", ".html", ".txt"]
    assert paths[2].read_text().endswith("title\n4 workers, 1 < 2\ncluster: lab\n")
    text = paths[1].read_text()
    assert "<p>4 workers, 1 &lt; 2</p><p>cluster: lab</p>" in text
    assert re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=\"([^\"]*)", text) == ["plotly.min.js"]
    assert (tmp_path / "plotly.min.js").stat().st_size > 3_000_000 > 100 * len(text)
    assert not re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=", export.page(figure_of("alone"), "alone"))
    assert re.search(r"<title>[^<>]*title[^<>]*</title>", text)


def test_equal_figures_give_equal_bytes_however_they_were_built(tmp_path: Path):
    one, other = figure_of(), go.Figure(json.loads(figure_of().to_json()))
    other.data[0].uid = "another"
    a, b = (export.write_all(figure, "figure", tmp_path / str(n), images=True) for n, figure in enumerate((one, other)))
    for left, right in zip(a, b, strict=True):
        assert left.read_bytes() == right.read_bytes(), left.suffix


def test_a_script_writes_the_pictures_of_a_figure_or_one_of_them(tmp_path: Path):
    for path, suffixes in (("new/v1.5", {".png", ".svg", ".pdf"}), ("one.pdf", {".pdf"})):
        written = plots.write(figure_of(), str(tmp_path / path))
        assert {each.suffix for each in written} == suffixes
        assert {each.with_suffix("") for each in written} == {(tmp_path / path.removesuffix(".pdf"))}
        assert all(each.stat().st_size for each in written)


def test_a_file_that_is_equal_is_not_touched(tmp_path: Path):
    paths = export.write_all(figure_of(), "figure", tmp_path)
    for path in paths:
        os.utime(path, (1, 1))
    export.write_all(figure_of(), "figure", tmp_path)
    assert [path.stat().st_mtime for path in paths] == [1, 1]
    export.write_all(figure_of("another"), "figure", tmp_path)
    assert all(path.stat().st_mtime > 1 for path in paths)


def test_images_are_the_figure_of_a_paper_whose_title_stands_in_its_caption(tmp_path: Path):
    figure = finish(go.Figure(go.Scatter(x=[0, 1], y=[0, 1])), "What was found", ["what the runs share"])
    assert figure.layout.width is None
    assert f'"height":{figure.layout.height}' in export.page(figure, "name")
    before = figure.to_json(remove_uids=False)
    paths = export.write_all(figure, "0.1-figure", tmp_path, images=True)  # a dot in the name is no suffix
    assert [path.name for path in paths[3:]] == ["0.1-figure.png", "0.1-figure.svg", "0.1-figure.pdf"]
    png, svg = (path.read_bytes() for path in paths[3:5])
    assert int.from_bytes(png[16:20], "big") == 1432  # 7.16 in, 200 of a PNG's pixels in each
    assert b'width="515' in svg
    assert (tmp_path / "0.1-figure.txt").read_text() == "What was found\nwhat the runs share\n"
    assert figure.to_json(remove_uids=False) == before, "exporting leaves it as it was"
