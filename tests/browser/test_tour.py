"""The tour from top to bottom in JupyterLab, as a reader runs it, but for shorter runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow]

LIMIT_MS = 420_000
TOUR = Path(__file__).parents[2] / "notebooks" / "00_tour.ipynb"
SHORTER = {"pushes = 320": "pushes = 64", '\\"pushes\\": 1250': '\\"pushes\\": 128'}
FIGURES = 4  # that it shows, besides that of the live view, whose strips come with a run under way


def test_the_tour_runs_to_its_end_and_shows_what_it_says(lab: Any, browser: Any):
    from playwright.sync_api import expect

    expect.set_options(timeout=60_000)
    text = TOUR.read_text()
    short = text
    for long, words in SHORTER.items():
        assert text.count(long) == 1
        short = short.replace(long, words)
    (lab.notebooks / TOUR.name).write_text(short)
    codes = [cell for cell in nbformat.reads(text, 4).cells if cell.cell_type == "code"]
    browser.open(lab, TOUR.name)
    browser.run_all_cells()
    page = browser.page
    prompts = page.locator(".jp-CodeCell .jp-InputPrompt")
    expect(prompts).to_have_count(len(codes))
    failed = page.locator(".jp-OutputArea-output[data-mime-type='application/vnd.jupyter.error']")
    live = page.locator(".pslab-live")
    expect(live.or_(failed).first).to_be_visible(timeout=LIMIT_MS)
    assert failed.all_inner_texts() == []
    expect(prompts).to_have_text([f"[{place}]:" for place in range(1, len(codes) + 1)])
    figures = page.locator(".js-plotly-plot:not(.pslab-live .js-plotly-plot)")
    expect(figures).to_have_count(FIGURES)
    for place in range(FIGURES):
        assert figures.nth(place).locator("path.js-line, .bars path").count() > 3, f"figure {place} is empty"
    expect(live.get_by_role("button", name="Start", exact=True)).to_be_enabled()
    expect(live.locator(".js-plotly-plot")).to_have_count(1)
    chosen = ["BSP", "SSP, s\u00a0=\u00a03", "ASP", "static 1\u00a0%"]
    expect(live.get_by_role("button", pressed=True)).to_have_text(chosen)
    assert len(list(lab.results.glob("runs/[!.]*"))) >= 4
    assert browser.complaints == []
