"""What the page does for a live view, in a page of its own: when it begins, and that figures follow their cell."""

from __future__ import annotations

from typing import Any

import pytest

from pslab.lab.live.front import HERE

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PAGE = """
<div id="cell" style="width: 600px"><div class="pslab-live"><i id="front"></i>
<div class="js-plotly-plot"><svg class="main-svg"></svg></div>
<div class="js-plotly-plot"><svg class="main-svg"></svg></div>
</div></div>
"""
RENDER = """async (source) => {
  const front = (await import(URL.createObjectURL(new Blob([source], {type: "text/javascript"})))).default;
  window.said = {}; window.resizes = 0;
  window.addEventListener("resize", () => window.resizes += 1);
  const model = {set: (values) => Object.assign(window.said, values), save_changes: () => {}};
  window.end = front.render({model, el: document.querySelector("#front")});
}"""
FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))"
DRAW = """(place) => {
  document.querySelectorAll(".main-svg")[place].innerHTML = '<g class="xtick"></g>';
}"""


@pytest.fixture
def page(browser: Any) -> Any:
    browser.page.set_content(PAGE)
    browser.page.evaluate(RENDER, (HERE / "front.js").read_text())
    return browser.page


def test_nothing_is_asked_for_before_both_figures_are_drawn(page: Any):
    for place in (0, 1):
        page.evaluate(FRAMES)
        assert page.evaluate("window.said") == {}  # they have an empty figure, which loses what is sent to it
        page.evaluate(DRAW, place)
    page.wait_for_function("window.said.shown")


def test_figures_follow_the_width_of_their_cell_and_not_that_of_the_window_alone(page: Any):
    for place in (0, 1):
        page.evaluate(DRAW, place)
    page.wait_for_function("window.said.shown && window.resizes > 0")
    page.evaluate(FRAMES)
    page.evaluate("window.resizes = 0")
    page.evaluate("document.querySelector('#cell').style.width = '300px'")
    page.wait_for_function("window.resizes > 0", timeout=10_000)


def test_a_view_that_has_ended_follows_nothing(page: Any):
    for place in (0, 1):
        page.evaluate(DRAW, place)
    page.wait_for_function("window.said.shown && window.resizes > 0")
    page.evaluate(FRAMES)
    page.evaluate("window.end(); window.resizes = 0")
    page.evaluate("document.querySelector('#cell').style.width = '300px'")
    page.evaluate(FRAMES)
    assert page.evaluate("window.resizes") == 0
