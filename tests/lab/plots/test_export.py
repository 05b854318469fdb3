"""Figures on disk: complete, reproducible, and never the end of a run."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import plotly.graph_objects as go

from pslab.lab.plots import export
from pslab.lab.plots.arrange import finish


def figure_of(title: str = "a title") -> go.Figure:
    figure = go.Figure([go.Scatter(x=[1, 2, 3], y=[2.0, 1.5, 3.25], name="one"), go.Bar(y=[1, 2])])
    return figure.update_layout(title={"text": title}, width=400, height=300)


def test_a_page_has_its_caption_needs_no_network_and_shares_the_script_beside_it(tmp_path: Path):
    figure = figure_of("a <b>title</b>").update_layout(meta={"caption": ["4 workers, 1 < 2", "cluster: lab"]})
    paths = export.write(figure, "figure", tmp_path)
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
    a, b = (export.write(figure, "figure", tmp_path / str(n), images=True) for n, figure in enumerate((one, other)))
    for left, right in zip(a, b, strict=True):
        assert left.read_bytes() == right.read_bytes(), left.suffix


def test_a_file_that_is_equal_is_not_touched(tmp_path: Path):
    paths = export.write(figure_of(), "figure", tmp_path)
    for path in paths:
        os.utime(path, (1, 1))
    export.write(figure_of(), "figure", tmp_path)
    assert [path.stat().st_mtime for path in paths] == [1, 1]
    export.write(figure_of("another"), "figure", tmp_path)
    assert all(path.stat().st_mtime > 1 for path in paths)


def test_images_are_the_figure_of_a_paper_whose_title_stands_in_its_caption(tmp_path: Path):
    figure = finish(go.Figure(go.Scatter(x=[0, 1], y=[0, 1])), "What was found", ["what the runs share"])
    assert figure.layout.width is None
    assert f'"height":{figure.layout.height}' in export.page(figure, "name")
    before = figure.to_json(remove_uids=False)
    paths = export.write(figure, "0.1-figure", tmp_path, images=True)  # a dot in the name is no suffix
    assert [path.name for path in paths[3:]] == ["0.1-figure.png", "0.1-figure.svg", "0.1-figure.pdf"]
    png, svg = (path.read_bytes() for path in paths[3:5])
    assert int.from_bytes(png[16:20], "big") == 1432  # 7.16 in, 200 of a PNG's pixels in each
    assert b'width="515' in svg
    assert (tmp_path / "0.1-figure.txt").read_text() == "What was found\nwhat the runs share\n"
    assert figure.to_json(remove_uids=False) == before, "exporting leaves it as it was"
