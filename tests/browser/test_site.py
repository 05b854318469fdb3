"""The documentation as it is built, whose links mkdocs has checked: every page opens without a complaint."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import io
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
NEEDED = ("mkdocs", "material", "mkdocstrings")
SEEN = """() => ({
    broken: [...document.images].filter(each => each.complete && !each.naturalWidth).map(each => each.src),
    words: document.querySelector("article").innerText.trim().length,
    width: document.scrollingElement.scrollWidth,
})"""
SCHEME = "document.body.dataset.mdColorScheme"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Nothing: the test says what is wrong."""


class Site(NamedTuple):
    folder: Path
    url: str

    @property
    def pages(self) -> list[str]:
        return sorted(path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*.html")
                      if path.name != "404.html" and path.parent.name != "figures")  # fmt: skip


def with_figures(results: Path) -> Path:
    """The results of this checkout, and two figures more: one with an image, one with a page alone."""
    for name in ("figures", "notebooks"):
        (results / name).mkdir()
        for path in (ROOT / "results" / name).glob("*"):
            (results / name / path.name).symlink_to(path)
    shutil.copy(ROOT / "docs" / "figure.svg", results / "figures" / "85_many_machines-drawn.svg")
    page = results / "figures" / "85_many_machines-undrawn.html"
    page.write_text("<!doctype html><html><body><p>a figure</p></body></html>")
    page.with_suffix(".json").write_text('{"data": [], "layout": {"height": 240}}')
    return results


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        pytest.skip(f"needs {', '.join(missing)}: pip install --editable '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)], cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1",
             "PSLAB_RESULTS": str(with_figures(tmp_path_factory.mktemp("results")))},
        capture_output=True, text=True, timeout=300, check=False)  # fmt: skip
    assert built.returncode == 0, built.stdout + built.stderr
    serve = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Site(folder, f"http://127.0.0.1:{server.server_address[1]}")
        server.shutdown()


def test_every_page_opens_on_a_dark_and_narrow_screen(site: Site, browser: Any):
    page = browser.page
    page.on("response", lambda answer: answer.status < 400
            or browser.complaints.append(f"{answer.status} {answer.url}"))  # fmt: skip
    page.set_viewport_size({"width": 620, "height": 1000})
    page.emulate_media(color_scheme="dark")
    assert len(site.pages) > 50
    for name in site.pages:
        page.goto(f"{site.url}/{name}", wait_until="load")
        assert page.evaluate(SCHEME) == "slate", name
        found = page.evaluate(SEEN)
        assert found["words"] > 100, name
        assert found["broken"] == [], name
        assert found["width"] <= 620, f"{name} is wider than the window"
        assert browser.complaints == [], name


def test_its_search_finds_a_policy(site: Site, browser: Any, expect: Any):
    browser.page.goto(f"{site.url}/index.html")
    browser.page.get_by_role("textbox", name="Search").click()
    browser.page.keyboard.type("ElasticBSP")
    found = browser.page.locator(".md-search-result__link[href*='policies/sync/elastic.html']").first
    expect(found).to_be_attached()
    assert browser.complaints == []


def test_the_front_figure_is_dark_on_a_dark_page(site: Site, browser: Any):
    from PIL import Image

    for scheme, dark in (("light", False), ("dark", True)):
        browser.page.emulate_media(color_scheme=scheme)
        browser.page.goto(f"{site.url}/index.html")
        browser.page.evaluate("localStorage.clear()")
        browser.page.reload()
        browser.page.wait_for_function(f"{SCHEME} == '{'slate' if dark else 'default'}'")  # set by a script
        browser.page.wait_for_function("document.querySelector('article img').naturalWidth > 0")
        shot = browser.page.locator("article img").first.screenshot()
        grey = Image.open(io.BytesIO(shot)).convert("L")
        background, (least, most) = max(grey.getcolors())[1], grey.getextrema()
        assert (background < 64) == dark, background
        assert most - least > 180, (least, most)  # letters on it
