"""A JupyterLab of its own on 127.0.0.1, and the system's Chromium looking at it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
START_LIMIT_S, LIMIT_MS = 90.0, 90_000
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
#: anywidget says so of a module that took two seconds to load, as on a busy machine; the view draws nevertheless
LATE = "[anywidget] Failed to initialize model."
#: no question about news over the page; the theme is what the browser prefers; cells out of sight keep their outputs
SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/apputils-extension:themes": {"adaptive-theme": True},
    "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},
}


def chromium() -> str | None:
    """Where the system's browser is."""
    named = os.environ.get("BROWSER_PATH")
    return named or next(filter(None, map(shutil.which, CHROMIUMS)), None)


class Lab:
    """A running JupyterLab: its address, the folder of its notebooks, and where its kernels' records go."""

    def __init__(self, folder: Path) -> None:
        self.notebooks, self.results = folder / "notebooks", folder / "results"
        self.log = folder / "lab.log"
        for place in (self.notebooks, self.results):
            place.mkdir()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        for name, values in SETTINGS.items():
            extension, plugin = name.split(":")
            place = folder / "settings" / extension / f"{plugin}.jupyterlab-settings"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(json.dumps(values))
        command = [sys.executable, "-m", "jupyter", "lab", "--no-browser", f"--port={port}", "--ip=127.0.0.1",
                   "--port-retries=0", "--IdentityProvider.token=", "--allow-root",
                   "--ServerApp.disable_check_xsrf=True",  # this file asks for kernels too, without a page
                   f"--notebook-dir={self.notebooks}"]  # fmt: skip
        self.process = subprocess.Popen(command, env=self._environment(folder), cwd=self.notebooks,
                                        stdout=self.log.open("wb"), stderr=subprocess.STDOUT)  # fmt: skip

    def _environment(self, folder: Path) -> dict[str, str]:
        own = {f"JUPYTER_{name}_DIR": str(folder / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")}
        own |= {f"JUPYTERLAB_{name}_DIR": str(folder / name.lower()) for name in ("SETTINGS", "WORKSPACES")}
        paths = os.pathsep.join([str(ROOT / "tests" / "support"), str(ROOT)])
        return {**os.environ, **own, "PSLAB_RESULTS": str(self.results), "PYTHONPATH": paths,
                "IPYTHONDIR": str(folder / "ipython")}  # fmt: skip

    def wait(self) -> None:
        """Until it answers."""
        until_s = time.monotonic() + START_LIMIT_S
        while time.monotonic() < until_s and self.process.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/api/status", timeout=5):
                return
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.2)  # its end, which nobody need wait for longer
        pytest.fail(f"JupyterLab did not start:\n{self.log.read_text()[-2000:]}")

    def start_kernel(self, notebook: str) -> None:
        """The session of one notebook, as its page would ask for it."""
        wanted = {"path": notebook, "name": notebook, "type": "notebook", "kernel": {"name": "python3"}}
        request = urllib.request.Request(f"{self.url}/api/sessions", json.dumps(wanted).encode())
        with urllib.request.urlopen(request, timeout=START_LIMIT_S) as answer:
            assert answer.status == 201

    def end_kernel(self, notebook: str) -> None:
        """End the session of a notebook, with its kernel."""
        with urllib.request.urlopen(f"{self.url}/api/sessions", timeout=START_LIMIT_S) as answer:
            (number,) = [each["id"] for each in json.load(answer) if each["path"] == notebook]
        request = urllib.request.Request(f"{self.url}/api/sessions/{number}", method="DELETE")
        with urllib.request.urlopen(request, timeout=START_LIMIT_S) as answer:
            assert answer.status == 204

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    running = Lab(tmp_path_factory.mktemp("lab"))
    try:
        running.wait()
        yield running
    finally:
        running.close()


class Browser:
    """One page, and everything that went wrong on it: not that it was slow."""

    def __init__(self, page: Any) -> None:
        self.page, self.complaints = page, []
        page.on("console", lambda m: self.complaints.append(f"console: {m.text}") if m.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(f"page: {error}") if str(error) != LATE else None)

    def open(self, lab: Lab, name: str) -> None:
        """A notebook in JupyterLab, with its kernel ready.

        The kernel is started before the page asks for one: on a busy machine the page would find no list of
        kernels in time, and put a question over everything.
        """
        from playwright.sync_api import expect

        lab.start_kernel(name)
        self.page.goto(f"{lab.url}/lab/tree/{name}?reset")
        # "idle" alone is also what a page without a kernel says, and running a cell would then ask for one
        expect(self.page.locator(".jp-KernelName").first).to_contain_text("Python 3", timeout=LIMIT_MS)
        idle = self.page.locator(".jp-NotebookPanel-toolbar [data-status=idle]").first
        expect(idle).to_be_visible(timeout=LIMIT_MS)

    def run_all_cells(self) -> None:
        """The menu's entry; in one of ten starts the click is lost."""
        from playwright.sync_api import expect

        for _ in range(5):
            self.page.get_by_role("menuitem", name="Run", exact=True).click()
            self.page.get_by_text("Run All Cells", exact=True).click()
            with contextlib.suppress(AssertionError):
                expect(self.page.locator(".jp-InputPrompt").first).not_to_have_text("[ ]:", timeout=4000)
                return
        pytest.fail("no cell ran")


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the Python package playwright")
    if (path := chromium()) is None:
        pytest.skip("needs a Chrome or Chromium; BROWSER_PATH names one")
    with playwright.sync_playwright() as driver:
        context = driver.chromium.launch_persistent_context(
            str(tmp_path / "profile"), executable_path=path, headless=True, args=FLAGS,
            viewport={"width": 1500, "height": 1250},
        )  # fmt: skip
        try:
            yield Browser(context.pages[0])
        finally:
            context.close()


@pytest.fixture
def expect(browser: Browser) -> Any:
    """What playwright expects of a page, within a time in which a busy machine shows it."""
    from playwright.sync_api import expect

    expect.set_options(timeout=LIMIT_MS)
    return expect
