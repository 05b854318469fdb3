"""Summaries with words and units: the tables that charts draw, and `show`, a table for readers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd

from pslab.config.metric import ACCURACY, Metric
from pslab.errors import ConfigError, nearest
from pslab.lab.plots.charts.prelude import Names, is_table, listed, separated
from pslab.lab.plots.labels import absent, column_title, heads_of, name, under
from pslab.lab.records.frames import ORDERS, Given, columns_of, levels
from pslab.lab.records.summary import (
    LARGEST,
    MEASURES,
    METRIC,
    METRICS,
    asked,
    cell,
    facts_of,
    largest,
    metric_among,
    over_seeds,
    reduced,
    unit_of,
)
from pslab.lab.records.units import DASH, SPACE, digits, plain

if TYPE_CHECKING:
    from pandas.io.formats.style import Styler

BOOKED = ("seeds", "reached", "held", "diverged", "emulation_ok", "dilation", "recovered")  # columns of a summary
Titled = Names | Mapping[str, str]  # columns, or {column: title}


def title_of(column: str, goal: float | None, metric: Metric = ACCURACY) -> str:
    """Return the title of a column, as in ``"time to 97 % (s)"``."""
    measure = MEASURES.get(column)
    if measure is None:
        return column_title(column)
    aim = f" to {metric.goal(goal, SPACE)}" if measure.to_goal and goal is not None else ""
    words = measure.words.replace(ACCURACY.name, metric.name) if column in METRICS else measure.words
    return f"{words}{aim}{unit_of(column, metric).title}"


def bare(title: str) -> str:
    """Return a title without its unit."""
    return title.partition(" (")[0]


# -- for charts ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """The points of a chart, a row each: the columns that identify a point, and for each value m, m_low and m_high."""

    frame: pd.DataFrame
    names: Sequence[str]  #: the columns in which points of one panel differ
    words: Mapping[str, Mapping[str, str]]  #: column -> repr of a value -> its name
    goal: float | None
    caption: Sequence[str]
    orders: Mapping[str, Sequence[Any]]  #: column -> all of its possible values, which determine their looks
    metric: Metric = ACCURACY
    largest: Mapping[str, float] = field(default_factory=dict)  #: measure -> its largest value in all panels
    crowd: pd.DataFrame | None = None  #: the results behind the table; None for a given table

    def levels(self, column: str | None) -> list[Any]:
        """Return the distinct values of a column in the order of the frame; [] for None."""
        return list(dict.fromkeys(self.frame[column].tolist())) if column is not None else []

    def word(self, column: str, value: Any) -> str:
        """Return the name of a value of a column."""
        return self.words.get(column, {}).get(repr(value), plain(value))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A dictionary for each row, with the metric and the largest values."""
        return [{METRIC: self.metric, LARGEST: self.largest, **{str(column): value for column, value in row.items()}}
                for row in self.frame.to_dict("records")]  # fmt: skip

    def where(self, **values: Any) -> Table:
        """Return the table of the rows with these values; None selects missing values."""
        frame = self.frame
        for column, value in values.items():
            cells = frame[column]
            frame = frame[cells.isna() if value is None else cells == value]
        return dataclasses.replace(self, frame=frame)

    def parts(self, column: str | None) -> list[Table]:
        """Return a table for each value of a column; only this table if the column is None."""
        return [self.where(**{column: value}) for value in self.levels(column)] if column is not None else [self]

    def heads(self, column: str | None) -> list[str]:
        """Return the names of a column's values; [] for None."""
        return [self.word(column, value) for value in self.levels(column)] if column is not None else []

    def places(self, column: str) -> list[Any]:
        """Return a column's values in their order on an axis: None, then numbers by size; names in the grid's order."""
        values = self.levels(column)
        known = [value for value in values if value is not None]
        return [*[None] * (len(known) < len(values)), *sorted(known)] if numeric(known) else values

    def place_names(self, column: str) -> list[str]:
        """Return the texts of `places` on an axis. A number is written without words, because the axis has a title."""
        values = self.places(column)
        return [plain(value) if numeric([value]) else self.word(column, value) for value in values]

    def label(self, row: Mapping[Any, Any], names: Sequence[str] | None = None) -> str:
        """Return the label of a point's curve or bar, from these columns; None: from all in which points differ."""
        names = self.names if names is None else names
        return ", ".join(filter(None, (self.word(column, row[column]) for column in names)))

    def titled(self, columns: Titled) -> dict[str, str]:
        """Return the titles of axes, by column."""
        if isinstance(columns, Mapping):
            return dict(columns)
        return {column: title_of(column, self.goal, self.metric) for column in listed(columns)}


def tabled(data: Given, by: Names, places: Iterable[str | None], values: Sequence[str], goal: float | None) -> Table:
    """Return the points of a chart: results summarized over seeds by these columns, or a given table.

    A given table may have m_low and m_high beside a value m, or a column `seed`, over which it is summarized, too. The
    categories of a categorical column determine the looks of its values. Single machines among results are left out.

    Raises:
        ConfigError: an unknown column; rows that differ in more than the seed.
    """
    sides = [*filter(None, places)]
    if is_table(data):
        return _given(data, by, sides, values, goal)
    crowd, _ = separated(data)
    metric = metric_among(data, values)
    names = [name for name in columns_of(crowd, by) if name not in sides or name in listed(by)]
    columns = list(dict.fromkeys([*names, *sides]))
    for twice in {*columns} & {*values}:
        raise ConfigError("column", twice, "must not be both a drawn quantity and an axis: give the axis another "
                                           f"name, as in grid(base, my_{twice}={{name: fields}})")  # fmt: skip
    known = {column: levels(crowd, column) for column in columns}
    at = {tuple(map(list.index, known.values(), key)): row for key, row in reduced(crowd, columns, goal, list(values))}
    rows = [{**dict(zip(columns, map(list.__getitem__, known.values(), key), strict=True)), **at[key]}
            for key in sorted(at)]  # fmt: skip
    frame = _keyed(pd.DataFrame(rows, columns=None if rows else [*columns, *values]), columns, rows)
    words = {column: dict(zip(map(repr, known[column]), heads_of(column, known[column], crowd), strict=True))
             for column in columns}  # fmt: skip
    return Table(frame, names, words, goal, under(crowd, columns), crowd.attrs.get(ORDERS, {}), metric,
                 largest(frame, values), crowd)  # fmt: skip


def numeric(values: Iterable[Any]) -> bool:
    """Whether all values are numbers."""
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)


def _keyed(frame: pd.DataFrame, columns: Sequence[str], rows: Sequence[Mapping[Any, Any]]) -> pd.DataFrame:
    """Return the frame with these columns as objects, so that None does not become NaN in a column of numbers."""
    return frame.assign(**{column: pd.Series([None if absent(row[column]) else row[column] for row in rows],
                                             dtype=object, index=frame.index) for column in columns})  # fmt: skip


def _given(data: pd.DataFrame, by: Names, places: Sequence[str], values: Sequence[str], goal: float | None) -> Table:
    frame = data.reset_index() if any(data.index.names) else data
    names = [] if by == "label" and "label" not in frame else listed(by)
    columns = list(dict.fromkeys([*names, *places]))
    for column in (*columns, *values):
        if column not in frame:
            known = nearest(str(column), map(str, frame.columns))
            raise ConfigError("column", column, f"must be a column of the table; {known}")
    if "seed" in frame and "seed" not in columns:
        frame = _over_seeds(frame, columns, values)
    elif len(columns) and frame.duplicated(columns).any():
        row = frame[frame.duplicated(columns)].to_dict("records")[0]
        same = ", ".join(f"{column}={row[column]!r}" for column in columns)
        raise ConfigError("by", columns, f"several rows have {same}: add a column in which they differ, such as seed")
    orders = {column: [*frame[column].cat.categories] for column in columns if hasattr(frame[column], "cat")}
    frame = _keyed(frame, columns, frame[columns].to_dict("records"))
    words = {column: {repr(value): name(column, value) for value in frame[column].tolist()} for column in columns}
    goal = data.attrs.get("goal") if goal is None else goal
    return Table(frame, names, words, goal, list(data.attrs.get("caption", ())), orders,
                 data.attrs.get("metric", ACCURACY), largest(frame, values))  # fmt: skip


def _over_seeds(frame: pd.DataFrame, columns: Sequence[str], values: Sequence[str]) -> pd.DataFrame:
    rows = []
    for _, group in frame.groupby(list(columns), sort=False, dropna=False) if columns else [((), frame)]:
        row = {column: group[column].iloc[0] for column in columns} | {"seeds": group.seed.nunique()}
        for value in values:
            row |= dict(zip((value, f"{value}_low", f"{value}_high"), over_seeds(group[value]), strict=True))
        rows.append(row)
    return pd.DataFrame(rows)


# -- for people ------------------------------------------------------------------------------------


def show(table: pd.DataFrame, caption: str | None = None) -> Styler:
    """Style a table for a notebook: a summary with titles, units, ranges over seeds, and "not reached" for a missed
    goal; any other table with three digits."""
    if not asked(table):
        return _styled(table, caption)
    words, seeds = shown(table)
    return _styled(words, caption or seeds)


def shown(table: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return the cells of a summary in words, and a caption that says how many seeds it summarizes."""
    goal, metric, rows = table.attrs.get("goal"), table.attrs.get("metric", ACCURACY), facts_of(table)
    measures = asked(table)
    words = pd.DataFrame({bare(title_of(column, goal, metric)): [cell(row, column) for row in rows]
                          for column in measures}, index=_named(table))  # fmt: skip
    for column in table.columns:  # columns that the user has added
        if str(column).removesuffix("_low").removesuffix("_high") not in {*measures, *BOOKED}:
            words[column] = [_text(value) for value in table[column].tolist()]
    for column, title in (("diverged", "diverged"), ("emulation_ok", "machine fast enough")):
        if column in table and table[column].nunique() > 1:
            words[title] = [_text(value) for value in table[column].tolist()]
    if "dilation" in table and table.dilation.max() > 1:
        words["time dilated"] = [f"×{plain(value)}" for value in table.dilation.tolist()]
    if "recovered" in table:
        words["recovered"] = [str(count) for count in table.recovered.tolist()]
    seeds = sorted({*table.get("seeds", [])})
    ranges = f"median and range of {' or '.join(map(str, seeds))} seeds" if seeds and seeds[-1] > 1 else "one seed"
    return words, ranges


def _named(table: pd.DataFrame) -> pd.Index[Any]:
    columns = [str(column or "") for column in table.index.names]
    rows = [key if isinstance(key, tuple) else (key,) for key in table.index]
    words = [tuple(name(column, value) for column, value in zip(columns, key, strict=True)) for key in rows]
    return pd.MultiIndex.from_tuples(words, names=[*map(column_title, columns)]) if len(columns) > 1 else pd.Index(
        [word for word, *_ in words], name=column_title(columns[0]))  # fmt: skip


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return digits(value) if isinstance(value, float) else plain(value)


def _styled(table: pd.DataFrame, caption: str | None) -> Styler:
    styler = table.style.format(_text, na_rep=DASH)
    sides = {"th, caption": "left", "td": "right"}.items()
    styler = styler.set_table_styles([{"selector": part, "props": f"text-align: {side}"} for part, side in sides])
    return styler.set_caption(caption) if caption else styler
