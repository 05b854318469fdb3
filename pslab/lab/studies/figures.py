"""save(name, figure): writes a notebook's figure to results/figures, named after the notebook and its variant."""

from __future__ import annotations

import html
import os
import re
from typing import TYPE_CHECKING, Any

from pslab.errors import ConfigError
from pslab.lab.records import journal
from pslab.lab.records.record import default_results
from pslab.lab.studies.parameters import current, kernel

if TYPE_CHECKING:
    import plotly.graph_objects as go

VARIANT = "PSLAB_VARIANT"  # the variant of the batch's entry that is executed
NO_IMAGES = "PSLAB_NO_IMAGES"  # if set, `save` writes no PNG, SVG and PDF


def stem(notebook: str, variant: str = "") -> str:
    """Return the name with which a notebook's files begin, such as ``"20_sync_policies-best-rates"``."""
    return f"{notebook}-{variant}" if variant else notebook


def save(name: str, figure: go.Figure, *, images: bool | None = None) -> None:
    """Write a figure to the files <notebook>-<name> (HTML, JSON, PNG, SVG, PDF), and show it in the notebook.

    Args:
        images: whether to write PNG, SVG and PDF; None: yes, unless `pslab figures` executes the notebook and writes
            them afterwards.

    Raises:
        ConfigError: the name has other characters than file names should have, or `parameters` was not called.
        ExportError: the files cannot be written.
    """
    from pslab.lab.plots import export

    if not re.fullmatch(r"[a-z0-9][a-z0-9_.-]*", name):
        raise ConfigError("name", name, "must have only small letters, digits, - and _, such as 'accuracy'")
    if not current():
        raise ConfigError("name", name, "a figure is named after its notebook: call parameters('10_pruning') first, or "
                          "use plots.write(figure, 'folder/accuracy') in a script")  # fmt: skip
    full = f"{stem(current(), os.environ.get(VARIANT, ''))}-{name}"
    pictures = NO_IMAGES not in os.environ if images is None else images
    export.write_all(figure, full, default_results() / "figures", pictures)
    journal.note(figure=full)
    if kernel() is not None:
        _show(full, figure)


def _show(name: str, figure: go.Figure) -> None:
    from IPython import display

    from pslab.lab.plots import caption_of

    shown: Any = display  # IPython's functions have no types
    lines = "<br>".join(map(html.escape, caption_of(figure)))
    shown.display(figure, shown.HTML(f"<p id='{name}' style='max-width:687px;font-size:small;opacity:.7'>{lines}</p>"))
