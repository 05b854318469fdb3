"""Which panel shows what: curves by their columns, over facets and rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import pandas as pd

from pslab.errors import ConfigError
from pslab.lab.plots.charts.prelude import Facets
from pslab.lab.plots.page.axes import Axis
from pslab.lab.plots.page.page import Line, Page
from pslab.lab.plots.page.theme import Look

T = TypeVar("T")
WRAP = 4  # facets side by side; more take several rows where there is no column for rows


class Cell(NamedTuple):
    """What a panel shows."""

    facet: Any
    row: Any
    x: str
    y: str


@dataclass(frozen=True)
class Curve:
    """One curve. It stands in every panel of a column of which its key has no value."""

    label: str
    look: Look
    key: Mapping[str, Any]  #: the values of its columns
    behind: bool = False
    sign: str = ""
    frames: Mapping[tuple[str, str], pd.DataFrame] = field(default_factory=dict)  #: (x, y) -> x, y, low, high, hover
    crosses: Mapping[tuple[str, str], Sequence[tuple[float, float]]] = field(default_factory=dict)
    how: Mapping[str, Any] = field(default_factory=dict)  #: more fields of its Line

    def stands_in(self, column: str | None, value: Any) -> bool:
        """Whether a panel of this value of a column has this curve."""
        return column is None or self.key.get(column, value) == value


def compose(
    drawn: Sequence[Curve], across: Facets, down: Facets, x_axes: Mapping[str, Axis], y_axes: Mapping[str, Axis],
    width: str, everywhere: Any = None,
) -> Page:  # fmt: skip
    """A page with each curve in its panels, those that stand behind first.

    Args:
        everywhere: a value of the panels side by side that has none of its own: its curve stands in all of them.

    Raises:
        ConfigError: no direction is left for several x or y.
    """
    shown = [pair for pair in zip(across.values, across.heads, strict=True) if everywhere is None or
             pair[0] != everywhere]  # fmt: skip
    grid = _cells([value for value, _ in shown], down.values, [*x_axes], [*y_axes])
    ordered = sorted(drawn, key=lambda curve: not curve.behind)
    placed = [(row, column, cell, each) for row, line in enumerate(grid) for column, cell in enumerate(line)
              for each in ordered
              if each.stands_in(across.column, cell.facet) and each.stands_in(down.column, cell.row)]  # fmt: skip
    xs, ys = [[x_axes[cell.x] for cell in line] for line in grid], [[y_axes[cell.y] for cell in line] for line in grid]
    page = Page(xs, ys, [head for _, head in shown], down.heads, width, order=[each.label for each in ordered])
    for row, column, cell, each in placed:
        frame = each.frames.get((cell.x, cell.y), pd.DataFrame())
        if not len(frame):
            continue
        if x_axes[cell.x].log:  # plotly would draw a line to what has no place there
            frame = frame[frame.x > 0]
        lowest = y_axes[cell.y].low
        crosses = [(x, max(lowest, y)) for x, y in each.crosses.get((cell.x, cell.y), ())]
        page.add(row, column, Line(
            each.label, each.look, list(frame.x), list(frame.y), list(frame.low), list(frame.high), list(frame.hover),
            crosses, each.sign, **each.how))  # fmt: skip
    return page


def _cells(facets: Sequence[Any], rows: Sequence[Any], xs: Sequence[str], ys: Sequence[str]) -> list[list[Cell]]:
    """The panels: facets, or several x or y, side by side; rows, or what is left of those, one under the other.

    Many facets alone take several rows, of which the last may be shorter.
    """
    several = [name for name, values in (("x", xs), ("y", ys)) if len(values) > 1]
    across = "facet" if facets else several.pop(0) if several else ""
    down = "row" if rows else several.pop(0) if several else ""
    if several:
        names = [*xs] if several[0] == "x" else [*ys]
        raise ConfigError(several[0], names, "facet and row leave no place for a panel each: draw a figure for each")
    values: dict[str, Sequence[Any]] = {"facet": facets, "row": rows, "x": xs, "y": ys, "": [None]}
    first = Cell(None, None, xs[0], ys[0])
    found = [[first._replace(**{name: value for name, value in ((down, below), (across, beside)) if name})
              for beside in values[across]] for below in values[down]]  # fmt: skip
    return in_rows(found[0], WRAP) if across == "facet" and not down else found


def in_rows(values: Sequence[T], most: int) -> list[list[T]]:
    """In rows of at most so many, about equally long."""
    side_by_side = math.ceil(len(values) / math.ceil(len(values) / most))
    return [list(values[first : first + side_by_side]) for first in range(0, len(values), side_by_side)]


def grey(drawn: Iterable[Curve]) -> list[str]:
    """The name of the curve that stands behind the others, where no label does."""
    found = dict.fromkeys(curve.label for curve in drawn if curve.behind)
    return [f"grey: {', '.join(found)}"] if found else []
