"""The live view in JupyterLab, driven by a real browser: it starts, grows, obeys its controls, and stops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest

from pslab.lab.records.results import load

pytestmark = [pytest.mark.browser, pytest.mark.slow]

LIMIT_MS = 90_000
CELL = """
from pslab.lab.live.view import Live
view = Live(sync=["bsp"], workers=4, pushes=4000, learning_rate=0.2, cluster={"preset": "lab", "compute_s": 0.01},
            model="tiny:net", data="tiny:digits", batch_size=16)
view
"""
LINE = ".pslab-live .js-plotly-plot .scatterlayer path.js-line"


@pytest.fixture
def page(lab: Any, browser: Any) -> Any:
    notebook: Any = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL.strip())])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, lab.notebooks / "live.ipynb")
    browser.open(lab, "live.ipynb")
    browser.run_all_cells()
    return browser.page


def button(page: Any, name: str) -> Any:
    return page.locator(".pslab-live").get_by_role("button", name=name, exact=True)


def test_it_starts_grows_obeys_and_stops(page: Any, browser: Any, lab: Any, tmp_path: Path):
    from playwright.sync_api import expect

    start, stop = button(page, "Start"), button(page, "Stop")
    expect(start).to_be_enabled(timeout=LIMIT_MS)
    expect(stop).to_be_disabled()
    start.click()
    expect(page.locator(".pslab-workers").first).to_contain_text("worker 3", timeout=LIMIT_MS)
    line = page.locator(LINE).first
    expect(line).to_be_attached(timeout=LIMIT_MS)
    before = line.get_attribute("d")
    expect(line).not_to_have_attribute("d", before or "", timeout=LIMIT_MS)  # the curve grows
    expect(start).to_be_disabled()
    stop.click()
    expect(page.locator(".pslab-runs")).to_contain_text("interrupted, kept", timeout=LIMIT_MS)
    expect(start).to_be_enabled(timeout=LIMIT_MS)
    (kept,) = lab.results.glob("interrupted/*")
    assert load(kept).run.sync == "bsp"

    button(page, "BSP").click()
    button(page, "ASP").click()
    pushes = page.locator(".pslab-live input[type=number]").nth(2)
    pushes.fill("120")
    pushes.press("Tab")
    start.click()
    expect(page.locator(".pslab-runs")).to_contain_text("finished", timeout=LIMIT_MS)
    (finished,) = lab.results.glob("runs/[!.]*")
    run = load(finished).run
    assert (run.sync, run.pushes, run.learning_rate, run.evaluate) == ("asp", 120, 0.2, "beside")
    page.locator(".pslab-live").screenshot(path=str(tmp_path / "live.png"))
    assert browser.complaints == []
