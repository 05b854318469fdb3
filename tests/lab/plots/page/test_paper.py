"""One figure in two sizes: those of a paper, and those of a screen."""

from __future__ import annotations

from pathlib import Path

import plotly.graph_objects as go
import plotly.io as pio
import pytest

from pslab.lab.plots import export
from pslab.lab.plots.page.axes import Axis
from pslab.lab.plots.page.page import Key, Line, Page
from pslab.lab.plots.page.paper import SCREEN, TOOLBAR, screen
from pslab.lab.plots.page.theme import TYPE, WIDTHS, Look


def figure() -> go.Figure:
    shown = Axis("x", 0, 3)
    page = Page([[shown, shown]], [[shown, shown]])
    page.add(0, 0, Line("one", Look("#004488", "6px,2.5px"), [0, 1, 2], [0, 1, 2]))
    page.add(0, 1, go.Bar(x=[1, 2], y=[1, 2], width=0.5))
    return page.finish("A title that says what is seen here", ["one seed"], [Key("one", Look("#004488"))])


def test_screen_is_as_wide_as_its_page_in_larger_type_with_room_for_the_toolbar():
    paper, shown = figure(), screen(figure())
    assert (paper.layout.width, paper.layout.template.layout.font.size) == (WIDTHS["page"], TYPE)
    assert (shown.layout.width, shown.layout.autosize) == (None, True)
    assert shown.layout.template.layout.font.size == pytest.approx(SCREEN * TYPE)
    assert shown.layout.height == round(SCREEN * paper.layout.height + TOOLBAR)
    assert shown.layout.margin.t == TOOLBAR
    assert next(trace for trace in shown.data if trace.hovertemplate).line.dash == "7.5px,3.125px"
    assert next(trace for trace in shown.data if trace.type == "bar").width == 0.5  # in units of its axis
    assert shown.layout.legend.y * shown.layout.height == pytest.approx(
        SCREEN * paper.layout.legend.y * paper.layout.height, abs=1)  # fmt: skip


def test_notebook_and_html_show_the_screen_and_files_the_paper(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pio.renderers, "default", "plotly_mimetype")
    for own in (figure(), figure().update_layout(title=None)):
        (shown,) = own._repr_mimebundle_().values()
        assert "width" not in shown["layout"]
    assert '"width":687' not in export.page(figure(), "name")
    assert '"width":687' in export.plain(figure())


def test_figure_that_no_page_has_made_stays_as_it_is():
    own = go.Figure(go.Scatter(x=[1], y=[1]), layout={"width": 300, "height": 200})
    assert screen(own) is own


WORDS = """() => {
    const shown = [...document.querySelectorAll(".annotation-text")];
    const found = shown.map((each) => each.getBoundingClientRect().toJSON());
    return found.length && found.every((each) => each.width) && found;
}"""


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("width", [1400, 700])
def test_page_is_filled_and_its_toolbar_lies_over_no_words(tmp_path: Path, width: int):
    playwright = pytest.importorskip("playwright.sync_api")
    if not export.browser():
        pytest.skip("there is no browser")
    (tmp_path / "figure.html").write_text(export.page(figure(), "figure"))
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=export.browser(), args=["--no-sandbox", "--disable-gpu"])
        page = chromium.new_page(viewport={"width": width, "height": 700})
        page.goto(f"file://{tmp_path}/figure.html")
        page.wait_for_selector(".modebar-btn")
        graph, bar, caption = (page.locator(which).bounding_box() for which in (".js-plotly-plot", ".modebar", "p"))
        words = page.wait_for_function(WORDS).json_value()  # of one drawing: it is drawn again once it fills the page
        chromium.close()
    assert graph["width"] > 0.97 * width
    assert caption["y"] >= graph["y"] + graph["height"] - 1
    assert words
    for each in words:
        assert each["y"] >= bar["y"] + bar["height"] - 1
        assert each["x"] >= 0
        assert each["x"] + each["width"] <= width
