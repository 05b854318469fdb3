"""The widget of a live view that runs in the browser: it draws the figures, and reports the state of the page."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import anywidget
import ipywidgets as widgets
import traitlets
from plotly.offline import get_plotlyjs

HERE = Path(__file__).parent


class Library(widgets.Widget):  # type: ignore[misc]
    """plotly.js as a widget, so that a kernel sends it to a page only once."""

    source = traitlets.Bytes().tag(sync=True)


class PageState(widgets.Widget):  # type: ignore[misc]
    """The figures for a page to draw, and the state that the page reports.

    Each figure is stored complete, so that a page can draw it at any time, such as after a reload. This model is
    separate from `Front`, because anywidget drops all messages to a model whose module took more than two seconds to
    load.
    """

    curves = traitlets.Unicode().tag(sync=True)  #: a figure as JSON
    strips = traitlets.Unicode().tag(sync=True)  #: a figure as JSON; "" if there is nothing to show
    dark = traitlets.Bool(False).tag(sync=True)
    shown = traitlets.Bool(True).tag(sync=True)  #: False once the last page has removed the view


@cache
def library() -> Library:
    """Return plotly.js as a widget; there is one copy per process."""
    return Library(source=get_plotlyjs().encode())


class Front(anywidget.AnyWidget):
    """The widget of a view. front.js draws its figures and tells screen readers which buttons are pressed."""

    _esm = HERE / "front.js"
    _css = HERE / "front.css"
    page = traitlets.Instance(PageState).tag(sync=True, **widgets.widget_serialization)
    library = traitlets.Instance(Library).tag(sync=True, **widgets.widget_serialization)

    def __init__(self) -> None:
        super().__init__(page=PageState(), library=library())
