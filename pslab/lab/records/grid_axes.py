"""Runs and results at their points of a grid.

A point has a value on each axis. A column is an axis of the grid, a name that `assign` gave, or a field of Run. A run
may stand at several points: a run with dense gradients belongs to the row of every pruning family.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Generic, Self, TypeVar, overload

from pslab.config.parameters import plain
from pslab.config.run import FIELDS, Run
from pslab.errors import ConfigError, nearest
from pslab.lab.records.record import Result

GridPoint = Mapping[str, Any]
T = TypeVar("T", bound=Run | Result)
CHOICE = "choice"  # where `best` notes, at a point, what it chose among; no column
HIDDEN = ("seed", CHOICE)


class Placed(Sequence[T], Generic[T]):
    """A sequence whose items stand at points of a grid.

    `columns[i]` are the points of item i; `orders` has all values of each column, in the grid's order.
    """

    of: type = object  #: what the items are

    def __init__(
        self,
        items: Iterable[T] | T,
        columns: Iterable[Iterable[GridPoint]] | None = None,
        orders: Mapping[str, Iterable[Any]] | None = None,
    ) -> None:
        self._items: tuple[T, ...] = (items,) if isinstance(items, (Run, Result)) else tuple(items)
        for item in self._items:
            if not isinstance(item, self.of):
                way = "is executed by run(it), which gives its result" if isinstance(item, Run) else "is none"
                raise ConfigError(type(self).__name__.lower(), item, f"must be a {self.of.__name__}, and this {way}")
        self.columns: tuple[tuple[GridPoint, ...], ...] = tuple(map(tuple, columns or [[{}]] * len(self._items)))
        self.orders: dict[str, list[Any]] = {name: list(values) for name, values in (orders or {}).items()}
        for _, run, point in self.rows():
            for name in (*point, *FIELDS):
                if name != CHOICE:
                    known, value = self.orders.setdefault(name, []), value_of(run, point, name)
                    known += [value] if value not in known else []

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> T | Self:
        if isinstance(index, int):
            return self._items[index]
        return type(self)(self._items[index], self.columns[index], self.orders)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def __add__(self, other: Iterable[T]) -> Self:
        """Both, each run once, with the points that it has in either."""
        second = other if isinstance(other, type(self)) else type(self)(other)
        levels = dict(self.orders)
        for name, values in second.orders.items():
            levels[name] = list(dict.fromkeys([*levels.get(name, []), *values]))
        pairs = [*zip(self._items, self.columns, strict=True), *zip(second._items, second.columns, strict=True)]
        return type(self)(*merged(pairs), levels)

    def __repr__(self) -> str:
        varying = [f"{name}: {', '.join(map(str, values))}" for name, values in self._varying().items()]
        return "\n".join([self._many(), *varying])

    def _many(self) -> str:
        """``"3 results"``."""
        name = type(self).__name__.lower()
        return f"{len(self)} {name.removesuffix('s') if len(self) == 1 else name}"

    def _repr_html_(self) -> str:
        head, cell = "<tr><th style='text-align:left'>", "</th><td style='text-align:left'>"
        values = {name: html.escape(", ".join(map(str, found))) for name, found in self._varying().items()}
        rows = "".join(f"{head}{name}{cell}{text}</td></tr>" for name, text in values.items())
        return f"<table><caption style='text-align:left;white-space:nowrap'>{self._many()}</caption>{rows}</table>"

    def where(self, **wanted: Any) -> Self:
        """Those whose columns have these values; a list admits any of its entries.

        Raises:
            ConfigError: an unknown column, or a value that no run has.
        """
        admitted = {}
        for name, value in wanted.items():
            known = self.levels(name)
            entries = value if isinstance(value, (list, tuple, set, frozenset)) else [value]
            admitted[name] = [plain(entry) for entry in entries]
            for entry in admitted[name]:
                if entry not in known:
                    raise ConfigError(name, entry, f"no run has this value; {nearest(str(entry), map(str, known))}")
        return self.keep(lambda run, point: all(value_of(run, point, name) in entries
                                                for name, entries in admitted.items()))  # fmt: skip

    def keep(self, test: Callable[[Run, GridPoint], bool]) -> Self:
        """The points for which `test(run, point)` holds, and the items that stand there."""
        return self.at((index, point) for index, run, point in self.rows() if test(run, point))

    def at(self, points: Iterable[tuple[int, GridPoint]], orders: Mapping[str, Iterable[Any]] | None = None) -> Self:
        """The items of these indices, each once, at these points alone."""
        chosen: dict[int, list[GridPoint]] = {}
        for index, point in points:
            chosen.setdefault(index, []).append(point)
        return type(self)([self._items[index] for index in chosen], chosen.values(), orders or self.orders)

    def rows(self) -> Iterator[tuple[int, Run, GridPoint]]:
        """Each point of each item, with the item's index and its run."""
        for index, (item, points) in enumerate(zip(self._items, self.columns, strict=True)):
            for point in points:
                yield index, run_of(item), point

    def placed(self) -> Iterator[tuple[dict[str, Any], T]]:
        """Each item at each of its points, as values of the axes by name."""
        for index, _, point in self.rows():
            yield {name: value for name, value in point.items() if name != CHOICE}, self._items[index]

    def assign(self, **columns: Any) -> Self:
        """The same with more columns: a function of an item, or one value for all."""
        points = [[{**point, **{name: plain(each(item) if callable(each) else each) for name, each in columns.items()}}
                   for point in own] for item, own in zip(self._items, self.columns, strict=True)]  # fmt: skip
        levels = {name: values for name, values in self.orders.items() if name not in columns}
        return type(self)(self._items, points, levels)

    def levels(self, name: str) -> list[Any]:
        """The values of a column, in the grid's order.

        Raises:
            ConfigError: an unknown column.
        """
        if name not in self.orders and name in FIELDS:  # of no items
            return []
        if name not in self.orders:
            known = nearest(name, [*FIELDS, *self._varying()])
            raise ConfigError("column", name, f"no axis and no field of Run; {known}")
        present = [value_of(run, point, name) for _, run, point in self.rows() if name in point or name in FIELDS]
        return [value for value in self.orders[name] if value in present]

    def differing(self) -> list[str]:
        """The columns, but for the seed, that together tell these runs apart, as few as the axes and fields allow."""
        rows = [(run, point) for _, run, point in self.rows()]
        digests = [run.but(seed=0).digest for run, _ in rows]

        def keys(names: Sequence[str]) -> list[tuple[Any, ...]]:
            return [key_of(run, point, names) for run, point in rows]

        chosen = [name for name in self.axes() if name not in HIDDEN and len({*keys([name])}) > 1]
        for name in FIELDS:
            if name not in HIDDEN and len({*keys([*chosen, name])}) > len({*keys(chosen)}):
                chosen.append(name)
        for name in reversed(chosen):
            others = [other for other in chosen if other != name]
            if len({*keys(others)}) == len({*zip(keys(others), digests, strict=True)}):  # they do without this one
                chosen = others
        return chosen

    def axes(self) -> list[str]:
        """The names of the axes on which these items have values."""
        return list(dict.fromkeys(name for _, _, point in self.rows() for name in point if name != CHOICE))

    def _varying(self) -> dict[str, list[Any]]:
        """The columns that have several values, with these."""
        found = {name: self.levels(name) for name in dict.fromkeys([*self.axes(), *FIELDS])}
        return {name: values for name, values in found.items() if len(values) > 1}



def run_of(item: Run | Result) -> Run:
    """The run of a run or of a result."""
    return item if isinstance(item, Run) else item.run


def value_of(run: Run, point: GridPoint, name: str) -> Any:
    """The value of a column: the point's, or else the field's."""
    if name in point:
        return point[name]
    if name not in FIELDS:
        return None  # an axis on which this run has no value
    return plain(getattr(run, name))


def key_of(run: Run, point: GridPoint, names: Iterable[str]) -> tuple[Any, ...]:
    """The values of some columns."""
    return tuple(value_of(run, point, name) for name in names)


def merged(pairs: Iterable[tuple[T, Iterable[GridPoint]]]) -> tuple[list[T], list[list[GridPoint]]]:
    """Each item once, with all its points; without the empty point if it has another one.

    A run that its digest does not name completely is equal to no other.
    """
    items: dict[str, T] = {}
    columns: dict[str, list[GridPoint]] = {}
    for item, points in pairs:
        run = run_of(item)
        name = f"{run.digest}-{id(item)}" if run.unknown else run.digest
        items.setdefault(name, item)
        own = columns.setdefault(name, [])
        own += [point for point in points if point not in own]
    return list(items.values()), [[point for point in own if point] or own[:1] for own in columns.values()]


def combinations(axes: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Each combination of the axes' values; the last axis changes fastest."""
    for values in product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def listed(value: Any) -> list[Any]:
    """A list as it is; one value as a list."""
    return list(value) if isinstance(value, (list, tuple)) else [value]
