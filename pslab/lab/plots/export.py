"""Write figures to disk: HTML beside one plotly.min.js, JSON, the caption; and PNG, SVG and PDF.

The PDF is for a paper and has no title: the title is the first line of the caption.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import plotly.io as pio
from plotly.offline import get_plotlyjs

from pslab.errors import ExportError
from pslab.lab.plots.arrange import caption_of, heading_of
from pslab.lab.plots.theme import FONT, PALE
from pslab.lab.records.disk import write_file

FORMATS = ("png", "svg", "pdf")
CONFIG: Mapping[str, Any] = {"displaylogo": False, "responsive": True, "toImageButtonOptions": {"format": "svg"}}


def write(fig: go.Figure, path: Path | str) -> list[Path]:
    """Write a figure to `path` as PNG, SVG and PDF, or only as the one whose suffix the path has; return the paths.

    A figure that cannot be drawn is reported on stderr.

    Raises:
        ExportError: a file cannot be written.
    """
    stem, _, suffix = str(path).rpartition(".")
    return write_images([(fig, Path(stem))], [suffix]) if suffix in FORMATS else write_images([(fig, Path(path))])


def write_all(fig: go.Figure, name: str, directory: Path | str, images: bool = False) -> list[Path]:
    """Write a figure as .json and .html, its caption (if any) as .txt, and with `images` pictures; return the paths.

    Equal figures give equal bytes, and a file that is equal already is not touched.

    Raises:
        ExportError: the directory cannot be written to.
    """
    folder = Path(directory)
    write_file(folder / "plotly.min.js", get_plotlyjs().encode())
    written = [write_file(folder / f"{name}.json", plain(fig).encode()),
               write_file(folder / f"{name}.html", page(fig, name, "directory").encode())]  # fmt: skip
    if lines := caption_of(fig):
        words = [*filter(None, [heading_of(fig)]), *lines]
        written.append(write_file(folder / f"{name}.txt", ("\n".join(words) + "\n").encode()))
    return [*written, *(write_images([(fig, folder / name)]) if images else ())]


def plain(fig: go.Figure) -> str:
    """Return the figure as JSON; equal figures give equal text, however they were built."""
    return json.dumps(json.loads(fig.to_json()), sort_keys=True, separators=(",", ":"))


def page(fig: go.Figure, name: str, script: bool | str = True) -> str:
    """Return an HTML page that needs no network and fills its window, with the caption below the figure.

    `script` True puts plotly.min.js (4.8 MB) into the page; "directory" expects it in the page's folder.
    """
    text: str = pio.to_html(pio.from_json(plain(fig)), config=dict(CONFIG), include_plotlyjs=script,
                            div_id=f"figure-{sha256(name.encode()).hexdigest()[:6]}",
                            default_height=fig.layout.height or 450)  # fmt: skip
    lines = "".join(f"<p>{escape(line)}</p>" for line in caption_of(fig))
    caption = f'<div style="font: 13px {FONT}; color: {PALE}">{lines}</div></body>' if lines else "</body>"
    headline = escape(heading_of(fig) or name)
    return text.replace("<head>", f"<head><title>{headline}</title>", 1).replace("</body>", caption)


def write_images(pairs: Iterable[tuple[go.Figure | Path, Path]], formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write images of (figure or its JSON file, path without suffix); return the written paths.

    A figure that cannot be drawn is reported on stderr, and the others are still written.

    Raises:
        ExportError: a file cannot be written.
    """
    written = []
    for source, stem in pairs:
        try:
            from pslab.lab.plots.sheet import images

            fig = pio.from_json(source.read_text()) if isinstance(source, Path) else source
            files = images(fig, formats)
            written += [write_file(stem.with_name(f"{stem.name}.{kind}"), files[kind]) for kind in formats]
        except ExportError:
            raise
        except Exception as error:  # a browser may raise any exception
            print(f"{stem.name}: no {', '.join(formats).upper()}: {' '.join(str(error).split())}", file=sys.stderr)
    return written
