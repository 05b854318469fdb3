"""The part of a live view that runs in the page: it draws the figures, and says what only a page knows."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import anywidget
import ipywidgets as widgets
import traitlets
from plotly.offline import get_plotlyjs

HERE = Path(__file__).parent


class Library(widgets.Widget):  # type: ignore[misc]
    """plotly.js; a kernel sends it to a page once."""

    source = traitlets.Bytes().tag(sync=True)


class PageState(widgets.Widget):  # type: ignore[misc]
    """The figures that a page is to draw, and the state that the page reports.

    A figure is here as a whole, so that a page draws it whenever it comes: late, or once more after a reload. This is a
    plain model and no part of `Front`, because anywidget drops all messages to a model whose module took more than two
    seconds to load.
    """

    curves = traitlets.Unicode().tag(sync=True)  #: a figure as JSON
    strips = traitlets.Unicode().tag(sync=True)  #: the same; "" if there is nothing to show
    dark = traitlets.Bool(False).tag(sync=True)
    shown = traitlets.Bool(True).tag(sync=True)  #: False once the last page that showed it has removed it


@cache
def library() -> Library:
    """The one of this process."""
    return Library(source=get_plotlyjs().encode())


class Front(anywidget.AnyWidget):
    """The figures of a view, drawn in the page by front.js; it also tells readers who do not see the buttons which of
    them are pressed."""

    _esm = HERE / "front.js"
    _css = HERE / "front.css"
    page = traitlets.Instance(PageState).tag(sync=True, **widgets.widget_serialization)
    library = traitlets.Instance(Library).tag(sync=True, **widgets.widget_serialization)

    def __init__(self) -> None:
        super().__init__(page=PageState(), library=library())
