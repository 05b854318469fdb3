"""Figures on disk: HTML beside one plotly.min.js, JSON, the caption; PNG, SVG and PDF where there is a browser.

The PDF is for a paper: without the title, which is the first line of the caption.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import plotly.io as pio
from plotly.offline import get_plotlyjs

from pslab.lab.plots.page.paper import SCREEN, caption_of, heading_of, paper, screen
from pslab.lab.plots.page.theme import FONT, PALE
from pslab.lab.records.disk import write_file

FORMATS = ("png", "svg", "pdf")
PNG_SCALE = 2
ANSWER_LIMIT_S = 30.0
CONFIG: Mapping[str, Any] = {"displaylogo": False, "responsive": True, "toImageButtonOptions": {"format": "svg"}}

#: In a page: the graph fills its width, its type grows a little in a wide one, and in a narrow one all of it shrinks.
FIT = """
const graph = document.getElementById('{plot_id}'), box = graph.parentElement;
const fit = () => {
  const times = Math.min(1.2, box.clientWidth / LEAST);
  graph.style.transformOrigin = '0 0';
  graph.style.transform = 'scale(' + times + ')';
  graph.style.width = box.clientWidth / times + 'px';
  graph.style.height = 'HIGHpx';
  box.style.height = times * HIGH + 'px';
  Plotly.Plots.resize(graph);
};
addEventListener('resize', fit);
fit();
"""


def write(fig: go.Figure, name: str, directory: Path | str, images: bool = False) -> list[Path]:
    """Write `name`.json, .html and, if it has a caption, .txt; the images if asked and possible; the written paths.

    Equal figures give equal bytes, and a file that is equal already is not touched.

    Raises:
        ExportError: the directory cannot be written to. A missing browser is one line on stderr, no error.
    """
    return write_all({name: fig}, directory, images)


def write_all(figures: Mapping[str, go.Figure], directory: Path | str, images: bool = False) -> list[Path]:
    """`write` for several figures, with one browser for all their images."""
    folder = Path(directory)
    written = []
    if figures:
        write_file(folder / "plotly.min.js", get_plotlyjs().encode())
    for name, fig in figures.items():
        written += [write_file(folder / f"{name}.json", plain(fig).encode()),
                    write_file(folder / f"{name}.html", page(fig, name, "directory").encode())]  # fmt: skip
        if lines := caption_of(fig):
            words = [*filter(None, [heading_of(fig)]), *lines]
            written.append(write_file(folder / f"{name}.txt", ("\n".join(words) + "\n").encode()))
    if images:
        written += write_images((fig, folder / name) for name, fig in figures.items())
    return written


def plain(fig: go.Figure) -> str:
    """The figure as JSON: equal figures, however they were built, give equal text."""
    return json.dumps(json.loads(fig.to_json()), sort_keys=True, separators=(",", ":"))


def page(fig: go.Figure, name: str, script: bool | str = True) -> str:
    """One HTML page that needs no network, with the caption under the figure.

    `script` "directory": plotly.min.js (4.8 MB) lies beside the page, and is not part of it.
    """
    steady = screen(pio.from_json(plain(fig)))
    width, high = fig.layout.width or 700, steady.layout.height or 450
    text: str = pio.to_html(steady, config=dict(CONFIG), include_plotlyjs=script, div_id=_identifier(name),
                            post_script=FIT.replace("LEAST", f"{SCREEN * width:.0f}").replace("HIGH", str(high)))
    headline = escape(heading_of(fig) or name)
    lines = "".join(f"<p>{escape(line)}</p>" for line in caption_of(fig))
    style = f"font: 13px {FONT}; max-width: {1.2 * width:.0f}px; color: {PALE}"
    caption = f'<div style="{style}">{lines}</div></body>' if lines else "</body>"
    return text.replace("<head>", f"<head><title>{headline}</title>", 1).replace("</body>", caption)


def browser() -> str:
    """The path of the browser that draws PNG, SVG and PDF; "" if there is none."""
    from choreographer.browsers.chromium import Chromium

    return Chromium.find_browser(skip_local=False) or ""


def write_images(pairs: Iterable[tuple[go.Figure | Path, Path]], formats: Sequence[str] = FORMATS) -> list[Path]:
    """Images of (figure or its JSON file, path without suffix), all by one browser; the paths that were written.

    Anything that goes wrong is one line on stderr: a figure that cannot be exported never ends a run.
    """
    wanted = list(pairs)
    if not wanted:
        return []
    try:
        if path := browser():  # kaleido would wait for ever for one that does not answer
            subprocess.run([path, "--version"], capture_output=True, timeout=ANSWER_LIMIT_S, check=True)
        with _quiet():
            return _write_images(wanted, formats)
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
        late = isinstance(error, subprocess.TimeoutExpired)
        why = f"does not answer within {ANSWER_LIMIT_S:g} s" if late else "fails"
        print(f"no PNG, SVG or PDF: `{path} --version` {why}; HTML and JSON are written", file=sys.stderr)
        return []
    except Exception as error:  # kaleido and the browser raise of every kind
        print(f"no PNG, SVG or PDF: {_reason(error)}", file=sys.stderr)
        return []


def _write_images(wanted: Sequence[tuple[go.Figure | Path, Path]], formats: Sequence[str]) -> list[Path]:
    import kaleido

    figures = [_named(source.read_text() if isinstance(source, Path) else plain(source)) for source, _ in wanted]
    jobs = [(paper(fig) if kind == "pdf" else fig, stem, kind)
            for fig, (_, stem) in zip(figures, wanted, strict=True) for kind in formats]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="pslab-images-") as draft:
        files = [Path(draft) / f"{place}.{kind}" for place, (_, _, kind) in enumerate(jobs)]
        # without sizes the browser takes its own, not the figure's; MathJax would be fetched, also where nothing can be
        specs = [{"fig": fig.to_dict(), "path": file, "opts": {
                    "format": kind, "width": fig.layout.width, "height": fig.layout.height,
                    "scale": PNG_SCALE if kind == "png" else 1}}
                 for file, (fig, _, kind) in zip(files, jobs, strict=True)]  # fmt: skip
        kaleido.write_fig_from_object_sync(specs, kopts={"mathjax": False})
        return [
            write_file(stem.with_name(f"{stem.name}.{kind}"), _steady(file.read_bytes(), kind, stem.name))
            for file, (_, stem, kind) in zip(files, jobs, strict=True)
        ]


def _named(text: str) -> go.Figure:
    """The figure of this JSON. Traces without a name of their own would get a random one, which an SVG repeats."""
    fig = pio.from_json(text)
    for place, trace in enumerate(fig.data):
        trace.uid = f"{place:06d}"
    return fig


def _steady(content: bytes, kind: str, name: str) -> bytes:
    """An SVG whose random identifiers are the same each time, and another figure's are not the same in one page."""
    found = re.search(rb'id="(?:topdefs|defs)-([0-9a-f]{6})"', content) if kind == "svg" else None
    return content.replace(found[1], _identifier(name).encode()[-6:]) if found else content


def _identifier(name: str) -> str:
    return "figure-" + hashlib.sha256(name.encode()).hexdigest()[:6]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The browser's driver logs what it is about to raise, several times."""
    loggers = [logging.getLogger(name) for name in ("kaleido", "choreographer", "logistro")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    if "Chrome" in text or "browser" in text.lower():
        return "no Chrome or Chromium was found (install one, or name it in BROWSER_PATH); HTML and JSON are written"
    return f"{type(error).__name__}: {text[:200]}; HTML and JSON are written"
