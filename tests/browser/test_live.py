"""The live view in JupyterLab, driven by a real browser: it starts, grows, obeys its controls, and stops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pandas as pd
import pytest

from pslab.config.run import Run
from pslab.lab.records.drafts import Draft
from pslab.lab.records.results import load

pytestmark = [pytest.mark.browser, pytest.mark.slow]

CELL = """
from pslab.lab.live.view import Live
view = Live(sync=["bsp"], workers=4, pushes=4000, learning_rate=0.2, cluster={"preset": "lab", "compute_s": 0.01},
            model="tiny:net", data="tiny:digits", batch_size=16)
view
"""
WATCH = """
from pslab.lab.live.view import Live
Live(results={place!r})
"""
LINE = ".pslab-live .js-plotly-plot .scatterlayer path.js-line"


@pytest.fixture
def page(lab: Any, browser: Any) -> Any:
    return opened(lab, browser, "live.ipynb", CELL)


def written(lab: Any, name: str, *cells: str) -> None:
    """A notebook of these cells."""
    notebook: Any = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell.strip()) for cell in cells])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, lab.notebooks / name)


def opened(lab: Any, browser: Any, name: str, *cells: str) -> Any:
    """The page of a notebook of these cells, which are run."""
    written(lab, name, *cells)
    browser.open(lab, name)
    browser.run_all_cells()
    return browser.page


def button(page: Any, name: str) -> Any:
    return page.locator(".pslab-live").get_by_role("button", name=name, exact=True)


def test_it_starts_grows_obeys_and_stops(page: Any, browser: Any, lab: Any, expect: Any, tmp_path: Path):
    start, stop = button(page, "Start"), button(page, "Stop")
    expect(start).to_be_enabled()
    expect(stop).to_be_disabled()
    start.click()
    expect(page.locator(".pslab-strips")).to_contain_text("worker 3")
    line = page.locator(LINE).first
    expect(line).to_be_attached()
    before = line.get_attribute("d")
    expect(line).not_to_have_attribute("d", before or "")  # the curve grows
    expect(start).to_be_disabled()
    stop.click()
    expect(page.locator(".pslab-live .pslab-runs")).to_contain_text("interrupted, kept")
    expect(start).to_be_enabled()
    (kept,) = lab.results.glob("interrupted/*")
    assert load(kept).run.sync == "bsp"

    button(page, "BSP").click()
    button(page, "ASP").click()
    pushes = page.locator(".pslab-live input[type=number]").nth(2)
    pushes.fill("120")
    pushes.press("Tab")
    start.click()
    expect(page.locator(".pslab-live .pslab-runs")).to_contain_text("finished")
    (finished,) = lab.results.glob("runs/[!.]*")
    run = load(finished).run
    assert (run.sync, run.pushes, run.learning_rate, run.evaluate) == ("asp", 120, 0.2, "beside")
    page.locator(".pslab-live").screenshot(path=str(tmp_path / "live.png"))
    assert browser.complaints == []


# -- pages that come, go, and are slow -------------------------------------------------------------

SHORT = """
from pslab.lab.live.view import Live
view = Live(sync=["bsp"], workers=2, pushes={pushes}, cluster="free", batch_size=16, results={place!r},
            model="tiny:net", data="tiny:digits")
view.start()
view
"""


def lines(page: Any, view: int = 0) -> Any:
    return page.locator(".pslab-live").nth(view).locator(".js-plotly-plot .scatterlayer path.js-line")


def run_again(page: Any) -> None:
    page.locator(".jp-CodeCell .cm-content").first.click()
    page.keyboard.press("Control+Enter")


def test_a_page_that_is_slow_draws_what_comes_late(lab: Any, browser: Any, expect: Any, tmp_path: Path):
    page = browser.page
    written(lab, "slow.ipynb", SHORT.format(pushes=60, place=str(tmp_path)))
    browser.open(lab, "slow.ipynb")
    slow = page.context.new_cdp_session(page)
    slow.send("Emulation.setCPUThrottlingRate", {"rate": 20})  # a module of some megabytes takes seconds to load
    run_again(page)
    expect(page.locator(".pslab-live .pslab-runs")).to_contain_text("finished")
    expect(lines(page)).to_have_count(2)
    slow.send("Emulation.setCPUThrottlingRate", {"rate": 1})
    expect(page.locator(".pslab-live .ytitle").first).to_have_text("test accuracy (%)")
    assert browser.complaints == []


def test_a_page_that_is_loaded_again_has_its_view_and_a_cell_that_is_run_again_has_a_new_one(
    lab: Any, browser: Any, expect: Any, tmp_path: Path
):
    page = opened(lab, browser, "again.ipynb", SHORT.format(pushes=60, place=str(tmp_path)))
    expect(page.locator(".pslab-live .pslab-runs")).to_contain_text("finished")
    expect(lines(page)).to_have_count(2)
    expect(page.get_by_text("ended with its kernel")).to_be_hidden()
    page.keyboard.press("Control+s")
    saved = lab.notebooks / "again.ipynb"
    page.wait_for_function("() => !document.querySelector('.lm-TabBar-tab.jp-mod-dirty, .jp-mod-dirty')")
    assert "ended with its kernel" in saved.read_text()

    page.goto(f"{lab.url}/lab/tree/again.ipynb")
    expect(lines(page)).to_have_count(2)
    expect(page.get_by_text("ended with its kernel")).to_be_hidden()
    button(page, "ASP").click()
    button(page, "Start").click()
    expect(lines(page)).to_have_count(4)
    run_again(page)
    expect(button(page, "BSP")).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".pslab-live .pslab-runs tbody tr")).to_have_count(1)
    expect(lines(page)).to_have_count(2)
    assert browser.complaints == []

    lab.end_kernel("again.ipynb")
    page.goto(f"{lab.url}/lab/tree/again.ipynb?reset")
    gone = page.get_by_text("ended with its kernel")
    expect(gone).to_be_visible()
    expect(page.locator(".pslab-runs")).to_contain_text("finished")


# -- how it looks ----------------------------------------------------------------------------------

PARTS = Path(__file__).with_name("parts.js").read_text()
POINTS = {"pushes": [0, 40, 80], "seconds": [0.0, 1.0, 2.0], "accuracy": [0.1, 0.5, 0.9], "loss": [2.3, 1.0, 0.3]}


def under_way(place: Path) -> tuple[Draft, Draft]:
    """Two runs that somebody else executes."""
    ending, under_way = (Draft(Run(pushes=pushes, sync=sync), place) for pushes, sync in ((80, "asp"), (400, "bsp")))
    ending.note({"pushes": 80, "seconds": 2.0})
    for pushes, seconds, accuracy, loss in zip(*POINTS.values(), strict=True):
        under_way.note({"index": pushes, "pushes": pushes, "seconds": seconds, "accuracy": accuracy, "loss": loss})
    busy = {"doing": "computing", "for": [], "iteration": 20}
    waiting = {**busy, "doing": "waiting", "for": [1]}
    under_way.note({"pushes": 80, "seconds": 2.0, "workers": [waiting, busy, busy, busy]})
    return ending, under_way


def finish(draft: Draft) -> None:
    """It ends, and its emulation was not kept."""
    accuracy = pd.DataFrame({**POINTS, "iteration": [0.0, 10.0, 20.0]})
    tables = {"accuracy": accuracy, "phases": pd.DataFrame({"a": []}), "pushes": pd.DataFrame({"a": []})}
    facts = {"pushes": 80, "seconds": 2.0, "outcome": "budget", "emulation_ok": False}
    draft.save(tables, np.zeros(3), facts)


def test_it_is_read_in_both_themes_by_every_reader_and_in_a_narrow_window(
    lab: Any, browser: Any, expect: Any, tmp_path: Path
):
    page = browser.page
    page.emulate_media(color_scheme="dark")
    opened(lab, browser, "look.ipynb", WATCH.format(place=str(tmp_path)))
    view = page.locator(".pslab-live")
    expect(view).to_be_visible()
    ending, other = under_way(tmp_path)
    expect(view.locator(".pslab-runs tbody tr")).to_have_count(2)
    finish(ending)
    expect(view.locator(".legendtext", has_text="ASP*")).to_be_visible()
    expect(view.locator(".pslab-notes")).to_contain_text("* the machine was too slow")
    expect(page.locator(LINE)).to_have_count(4)
    other.note({"pushes": 84, "seconds": 2.1})

    sync = view.get_by_role("group", name="synchronization")
    expect(sync.get_by_role("button", pressed=True)).to_have_text(["BSP", "SSP, s\u00a0=\u00a03", "ASP"])
    sync.get_by_role("button", name="ASP").click()
    expect(sync.get_by_role("button", pressed=False)).to_have_text(["ASP"])
    for name in ("workers", "learning rate", "schedule", "pushes", "cluster", "seed"):
        expect(view.get_by_label(name, exact=True)).to_have_count(1)
    others = sync.get_by_label("others")
    others.fill("spp:3")
    others.press("Tab")
    button(page, "Start").click()
    expect(view.get_by_role("alert")).to_contain_text("did you mean 'ssp'")
    expect(others).to_have_attribute("aria-invalid", "true")

    for width in (1500, 620):
        if width == 620:
            page.get_by_role("tab", name="File Browser").first.click()  # beside it there is no room
            page.set_viewport_size({"width": width, "height": 1250})
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            axis = view.locator(".js-plotly-plot .xtick text").first
            expect(axis).to_have_css("fill", "rgb(224, 224, 224)" if theme == "dark" else "rgb(34, 34, 34)")
            page.wait_for_function(f"({PARTS})().every(each => each.over <= 1)", timeout=90_000)
            parts = page.evaluate(PARTS)
            assert len([part for part in parts if part["line"]]) >= 2
            for part in parts:
                if not part["exempt"] and (part["text"] or part["line"]):
                    assert part["contrast"] >= (3 if part["line"] else 4.5), (theme, width, part)
            view.screenshot(path=str(tmp_path / f"live-{theme}-{width}.png"))
    assert browser.complaints == []
