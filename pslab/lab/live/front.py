"""What only the page knows of a live view, and what only the page can do for it."""

from __future__ import annotations

from pathlib import Path

import anywidget
import traitlets

HERE = Path(__file__).parent


class Front(anywidget.AnyWidget):
    """An invisible part of a view, whose code runs in the page.

    It tells whether the page is dark, says which buttons are pressed to those who cannot see it, and lets the figures
    follow the width of their cell.
    """

    _esm = HERE / "front.js"
    _css = HERE / "front.css"
    dark = traitlets.Bool(False).tag(sync=True)
    shown = traitlets.Bool(True).tag(sync=True)  # False until a page has its figures: what they are sent before is lost
