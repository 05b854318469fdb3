"""What the page does for a live view, in a page of its own: it draws what is there, whenever that comes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pslab.lab.live.front import HERE

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PAGE = '<div id="cell" style="width: 600px"><div class="pslab-live"><i id="front"></i></div></div>'
LIBRARY = """
window.Plotly = {
  react: async (place, data) => { place.data = data; window.drawn.push(data[0]); },
  Plots: {resize: () => window.resizes += 1}, purge: () => {},
};"""
RENDER = """async ([source, library]) => {
  const model = (values) => {  // of ipywidgets, as far as it is used
    const heard = {};
    return {
      get: (name) => values[name],
      set: (news) => { Object.assign(values, news); for (const name in news) heard[`change:${name}`]?.(); },
      on: (names, call) => { for (const name of names.split(" ")) heard[name] = call; },
      off: (_, call) => { for (const name in heard) if (heard[name] === call) delete heard[name]; },
      save_changes: () => {},
    };
  };
  const url = URL.createObjectURL(new Blob([source], {type: "text/javascript"}));
  window.drawn = []; window.resizes = 0;
  window.values = {curves: "", strips: "", shown: true};
  window.models = {a: model(window.values), b: model({source: library})};
  const front = {get: (name) => ({page: "IPY_MODEL_a", library: "IPY_MODEL_b"})[name],
                 widget_manager: {get_model: async (name) => window.models[name]}};
  const made = (await import(url)).default();
  window.show = () => window.end = made.render({model: front, el: document.querySelector("#front")});
  window.show();
}"""
FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))"


def send(page: Any, **figures: str) -> None:
    """What the kernel does: figures whose only trace is a word."""
    news = {name: json.dumps({"data": [word], "layout": {}}) if word else "" for name, word in figures.items()}
    page.evaluate("(news) => window.models.a.set(news)", news)


@pytest.fixture
def page(browser: Any) -> Any:
    browser.page.set_content(PAGE)
    browser.page.evaluate(RENDER, [(HERE / "front.js").read_text(), LIBRARY])
    browser.page.wait_for_function("document.querySelector('.pslab-curves') && window.resizes === 0")
    browser.page.evaluate(FRAMES)
    return browser.page


def test_of_what_comes_between_two_frames_the_last_is_drawn(page: Any):
    page.evaluate("() => [1, 2, 3].forEach(word => window.models.a.set({curves: JSON.stringify({data: [word]})}))")
    page.wait_for_function("window.drawn.length > 0")
    page.evaluate(FRAMES)
    assert page.evaluate("window.drawn") == [3]
    send(page, strips="d")
    page.wait_for_function("window.drawn.length > 1")
    assert page.evaluate("window.drawn") == [3, "d"]  # the other one has not changed
    send(page, strips="")
    page.wait_for_function("document.querySelector('.pslab-strips').style.display === 'none'")


def test_a_view_that_is_shown_once_more_is_drawn_as_it_is(page: Any):
    send(page, curves="a")
    page.wait_for_function("window.drawn.length === 1")
    page.evaluate("window.end()")
    assert page.evaluate("window.values.shown") is False
    send(page, curves="b")
    page.evaluate(FRAMES)
    assert page.evaluate("window.drawn") == ["a"]
    page.evaluate("void window.show()")
    page.wait_for_function("window.drawn.length === 2")
    assert page.evaluate("[window.drawn[1], window.values.shown]") == ["b", True]


def test_a_view_without_its_library_says_so_and_the_next_one_tries_again(browser: Any):
    browser.page.set_content(PAGE)
    browser.page.evaluate(RENDER, [(HERE / "front.js").read_text(), "throw new Error('half of it')"])
    browser.page.wait_for_function("document.querySelector('#front').textContent.includes('half of it. Run the cell')")
    assert browser.page.evaluate("window.pslabPlotly === undefined")


def test_figures_follow_the_width_of_their_cell_and_not_that_of_the_window_alone(page: Any):
    send(page, curves="a")
    page.wait_for_function("window.drawn.length === 1")
    page.evaluate("document.querySelector('.pslab-curves').style.cssText = 'display: block; height: 9px'")
    page.evaluate("document.querySelector('#front').style.display = 'block'")
    page.evaluate("document.querySelector('#cell').style.width = '300px'")
    page.wait_for_function("window.resizes > 0", timeout=10_000)
