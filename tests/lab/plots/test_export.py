"""Figures on disk: complete, reproducible, and never the end of a run."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import kaleido
import plotly.graph_objects as go
import plotly.io as pio
import pytest

from pslab.errors import ExportError
from pslab.lab.plots import export
from pslab.lab.plots.page.axes import Axis
from pslab.lab.plots.page.page import Page
from pslab.lab.plots.page.paper import heading_of


def figure_of(title: str = "a title") -> go.Figure:
    figure = go.Figure([go.Scatter(x=[1, 2, 3], y=[2.0, 1.5, 3.25], name="one"), go.Bar(y=[1, 2])])
    return figure.update_layout(title={"text": title}, width=400, height=300)


@pytest.fixture
def browser(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A stand-in for the browser that writes what it is asked for, with random identifiers as plotly's own."""
    calls: list[dict[str, Any]] = []

    def write(specs: list[dict[str, Any]], kopts: dict[str, Any]) -> None:
        figures, options = [go.Figure(spec["fig"]) for spec in specs], [spec["opts"] for spec in specs]
        scripts = re.findall('src="([^"]+)"', kaleido.PageGenerator(**kopts).generate_index())
        calls.append({"figures": figures, "scripts": scripts,
                      **{name: [each[name] for each in options] for name in ("width", "height", "scale")}})  # fmt: skip
        for figure, spec in zip(figures, specs, strict=True):
            key = os.urandom(3).hex()
            uids = " ".join(str(trace.uid) for trace in figure.data)
            spec["path"].write_text(f'<svg><defs id="topdefs-{key}"/><g clip-path="clip{key}xy"/>{uids}</svg>')

    monkeypatch.setattr(kaleido, "write_fig_from_object_sync", write)
    return calls


def test_json_and_html_always(tmp_path: Path):
    paths = export.write(figure_of(), "figure", tmp_path / "new" / "folder")
    assert [path.name for path in paths] == ["figure.json", "figure.html"]
    assert list(pio.read_json(paths[0]).data[0].y) == [2.0, 1.5, 3.25]


def test_caption_is_a_text_file_and_stands_in_the_page(tmp_path: Path):
    figure = figure_of().update_layout(meta={"caption": ["4 workers, 1 < 2", "cluster: lab"]})
    paths = export.write(figure, "figure", tmp_path)
    assert [path.suffix for path in paths] == [".json", ".html", ".txt"]
    assert paths[2].read_text() == "a title\n4 workers, 1 < 2\ncluster: lab\n"
    assert "<p>4 workers, 1 &lt; 2</p><p>cluster: lab</p>" in paths[1].read_text()


def test_html_needs_no_network_and_figures_share_the_script_beside_them(tmp_path: Path):
    text = export.write(figure_of("a <b>title</b>"), "figure", tmp_path)[1].read_text()
    assert re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=\"([^\"]*)", text) == ["plotly.min.js"]
    assert (tmp_path / "plotly.min.js").stat().st_size > 3_000_000 > 100 * len(text)
    assert not re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=", export.page(figure_of("alone"), "alone"))
    assert re.search(r"<title>[^<>]*title[^<>]*</title>", text)


def test_equal_figures_give_equal_bytes_however_they_were_built(tmp_path: Path, browser: list):
    one, other = figure_of(), go.Figure(json.loads(figure_of().to_json()))
    other.data[0].uid = "another"
    a, b = (export.write(figure, "figure", tmp_path / str(n), images=True) for n, figure in enumerate((one, other)))
    assert len(browser) == 2
    for left, right in zip(a, b, strict=True):
        if left.suffix in (".json", ".html", ".svg"):
            assert left.read_bytes() == right.read_bytes(), left.suffix


def test_two_figures_in_one_page_have_different_identifiers(tmp_path: Path):
    one, other = (export.page(figure_of(), name) for name in ("one", "other"))
    keys = [re.search(r'id="(figure-[0-9a-f]{6})"', text) for text in (one, other)]
    assert keys[0]
    assert keys[1]
    assert keys[0][1] != keys[1][1]


def test_a_file_that_is_equal_is_not_touched(tmp_path: Path):
    paths = export.write(figure_of(), "figure", tmp_path)
    for path in paths:
        os.utime(path, (1, 1))
    export.write(figure_of(), "figure", tmp_path)
    assert [path.stat().st_mtime for path in paths] == [1, 1]
    export.write(figure_of("another"), "figure", tmp_path)
    assert all(path.stat().st_mtime > 1 for path in paths)


def test_a_directory_that_is_a_file_is_refused(tmp_path: Path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(ExportError, match="cannot be written"):
        export.write(figure_of(), "figure", tmp_path / "taken")


def test_all_images_by_one_browser_in_the_figures_own_size(tmp_path: Path, browser: list):
    figures = {"a": figure_of(), "b": figure_of().update_layout(width=700)}
    paths = export.write_all(figures, tmp_path, images=True)
    assert sorted(path.name for path in paths) == sorted(
        f"{name}.{kind}" for name in "ab" for kind in ("json", "html", "png", "svg", "pdf"))  # fmt: skip
    (call,) = browser
    assert call["width"] == [400] * 3 + [700] * 3
    assert call["height"] == [300] * 6
    assert call["scale"] == [2, 1, 1] * 2
    assert all(path.is_file() for path in paths)


def test_the_browser_needs_no_network(tmp_path: Path, browser: list):
    """Where packets are dropped without a word it would wait for ever."""
    export.write(figure_of(), "figure", tmp_path, images=True)
    assert {script.partition(":")[0] for script in browser[0]["scripts"]} == {"file"}


def test_the_pdf_is_the_figure_of_a_paper(tmp_path: Path, browser: list):
    page = Page([[Axis()]], [[Axis()]])
    page.add(0, 0, go.Scatter(x=[0, 1], y=[0, 1]))
    figure = page.finish("What was found", ["what the runs share"])
    png, _, pdf = (path for path in export.write(figure, "figure", tmp_path, images=True)[3:])
    assert [png.suffix, pdf.suffix] == [".png", ".pdf"]
    drawn_png, _, drawn_pdf = browser[0]["figures"]
    assert heading_of(drawn_png) == "What was found"
    assert heading_of(drawn_pdf) == ""
    assert drawn_pdf.layout.width == drawn_png.layout.width == 687
    assert browser[0]["height"][2] == drawn_pdf.layout.height < browser[0]["height"][0]
    assert (tmp_path / "figure.txt").read_text() == "What was found\nwhat the runs share\n"


def test_images_from_json_files(tmp_path: Path, browser: list):
    source, _ = export.write(figure_of(), "figure", tmp_path)
    paths = export.write_images([(source, tmp_path / "0.1-figure")], formats=("svg",))
    assert [path.name for path in paths] == ["0.1-figure.svg"]  # a dot in the name is no suffix
    assert [trace.uid for trace in browser[0]["figures"][0].data] == ["000000", "000001"]


def test_exporting_images_leaves_the_figure_as_it_was(tmp_path: Path, browser: list):
    figure = figure_of()
    before = figure.to_json(remove_uids=False)
    export.write(figure, "figure", tmp_path, images=True)
    assert figure.to_json(remove_uids=False) == before


@pytest.mark.parametrize(("error", "words"), [
    (RuntimeError("Kaleido requires Google Chrome\nto be installed."), "no Chrome or Chromium was found"),
    (TimeoutError("after 90 s"), "TimeoutError: after 90 s"),
    (ValueError("a\nb"), "ValueError: a b"),
])  # fmt: skip
def test_what_goes_wrong_in_the_browser_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, error: Exception, words: str
):
    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(kaleido, "write_fig_from_object_sync", broken)
    paths = export.write(figure_of(), "figure", tmp_path, images=True)
    assert [path.suffix for path in paths] == [".json", ".html"]
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".html", ".js", ".json"]


@pytest.mark.parametrize(("does", "words"), [("exec sleep 1000", "does not answer within 0.1 s"), ("exit 3", "fails")])
def test_a_browser_that_does_not_answer_is_named(tmp_path, monkeypatch, capsys, does: str, words: str):
    (silent := tmp_path / "chrome").write_text(f"#!/bin/sh\n{does}\n")
    silent.chmod(0o700)
    monkeypatch.setenv("BROWSER_PATH", str(silent))
    monkeypatch.setattr(export, "ANSWER_LIMIT_S", 0.1 if "sleep" in does else 30.0)
    paths = export.write(figure_of(), "figure", tmp_path / "figures", images=True)
    assert [path.suffix for path in paths] == [".json", ".html"]
    assert capsys.readouterr().err == f"no PNG, SVG or PDF: `{silent} --version` {words}; HTML and JSON are written\n"


def test_nothing_to_export_starts_no_browser(browser: list):
    assert export.write_images([]) == []
    assert browser == []


@pytest.mark.slow
def test_a_real_browser_writes_real_images(tmp_path: Path, capsys: pytest.CaptureFixture):
    found = [export.write(figure_of(), "figure", tmp_path / n, images=True) for n in ("0", "1")]
    if "no Chrome or Chromium was found" in capsys.readouterr().err:
        pytest.skip("no Chrome or Chromium here")
    heads = {path.suffix: path.read_bytes()[:4] for path in found[0]}
    assert heads[".png"] == b"\x89PNG"
    assert heads[".pdf"] == b"%PDF"
    assert heads[".svg"] == b"<svg"
    width = int.from_bytes(found[0][2].read_bytes()[16:20], "big")
    assert width == 800  # twice the figure's
    assert found[0][3].read_bytes() == found[1][3].read_bytes()
