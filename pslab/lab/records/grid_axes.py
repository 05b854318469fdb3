"""Runs and results in their places on the axes of a grid.

A column is an axis of the grid, a name that `assign` gave, or a field of Run. A run may stand in several places: dense
gradients belong to the row of every pruning family.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar, overload

from pslab.config.parameters import plain
from pslab.config.run import FIELDS, Run
from pslab.errors import ConfigError, nearest
from pslab.lab.records.record import Result

Place = Mapping[str, Any]
T = TypeVar("T", bound=Run | Result)
CHOICE = "choice"  # where `best` notes, in a place, what it chose among; no column
HIDDEN = ("seed", CHOICE)


class Placed(Sequence[T], Generic[T]):
    """A sequence whose items have places on named axes.

    `columns[i]` are the places of item i; `orders` has all values of each column, in the grid's order.
    """

    def __init__(
        self,
        items: Iterable[T] | T,
        columns: Iterable[Iterable[Place]] | None = None,
        orders: Mapping[str, Iterable[Any]] | None = None,
    ) -> None:
        self._items: tuple[T, ...] = (items,) if isinstance(items, (Run, Result)) else tuple(items)
        self.columns: tuple[tuple[Place, ...], ...] = tuple(map(tuple, columns or [[{}]] * len(self._items)))
        self.orders: dict[str, list[Any]] = {name: list(values) for name, values in (orders or {}).items()}
        for run, place in self._places():
            for name in (*place, *FIELDS):
                if name != CHOICE:
                    known, value = self.orders.setdefault(name, []), value_of(run, place, name)
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
        """Both, each run once, with the places that it has in either."""
        second = other if isinstance(other, type(self)) else type(self)(other)
        levels = dict(self.orders)
        for name, values in second.orders.items():
            levels[name] = list(dict.fromkeys([*levels.get(name, []), *values]))
        pairs = [*zip(self._items, self.columns, strict=True), *zip(second._items, second.columns, strict=True)]
        return type(self)(*merged(pairs), levels)

    def __repr__(self) -> str:
        varying = [f"{name}: {', '.join(map(str, values))}" for name, values in self._axes().items()]
        return "\n".join([self._many(), *varying])

    def _many(self) -> str:
        """``"3 results"``."""
        name = type(self).__name__.lower()
        return f"{len(self)} {name.removesuffix('s') if len(self) == 1 else name}"

    def _repr_html_(self) -> str:
        head, cell = "<tr><th style='text-align:left'>", "</th><td style='text-align:left'>"
        values = {name: html.escape(", ".join(map(str, found))) for name, found in self._axes().items()}
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
        return self.keep(lambda run, place: all(value_of(run, place, name) in entries
                                                for name, entries in admitted.items()))  # fmt: skip

    def keep(self, test: Callable[[Run, Place], bool]) -> Self:
        """The places for which `test(run, place)` holds, and the items that have one."""
        kept = [(item, [place for place in places if test(run_of(item), place)])
                for item, places in zip(self._items, self.columns, strict=True)]  # fmt: skip
        kept = [(item, places) for item, places in kept if places]
        return type(self)([item for item, _ in kept], [places for _, places in kept], self.orders)

    def placed(self) -> Iterator[tuple[dict[str, Any], T]]:
        """Each item in each of its places, as values of the axes by name."""
        for item, places in zip(self._items, self.columns, strict=True):
            for place in places:
                yield {name: value for name, value in place.items() if name != CHOICE}, item

    def assign(self, **columns: Any) -> Self:
        """The same with more columns: a function of an item, or one value for all."""
        places = [[{**place, **{name: plain(each(item) if callable(each) else each) for name, each in columns.items()}}
                   for place in own] for item, own in zip(self._items, self.columns, strict=True)]  # fmt: skip
        levels = {name: values for name, values in self.orders.items() if name not in columns}
        return type(self)(self._items, places, levels)

    def levels(self, name: str) -> list[Any]:
        """The values of a column, in the grid's order.

        Raises:
            ConfigError: an unknown column.
        """
        if name not in self.orders:
            raise ConfigError("column", name, f"no axis and no field of Run; {nearest(name, [*FIELDS, *self._axes()])}")
        present = [value_of(run, place, name) for run, place in self._places() if name in place or name in FIELDS]
        return [value for value in self.orders[name] if value in present]

    def differing(self) -> list[str]:
        """The columns, but for the seed, that together tell these runs apart, as few as the axes and fields allow."""
        rows = list(self._places())
        axes = [name for name in dict.fromkeys(name for _, place in rows for name in place) if name not in HIDDEN]
        chosen = [name for name in axes if len(self._distinct(rows, [name])) > 1]
        for name in FIELDS:
            if name not in chosen and name not in HIDDEN:
                grouped = self._distinct(rows, chosen)
                if len(self._distinct(rows, [*chosen, name])) > len(grouped):
                    chosen.append(name)
        for name in reversed(chosen):
            others = [other for other in chosen if other != name]
            if self._tells_apart(rows, others):
                chosen = others
        return chosen

    def _tells_apart(self, rows: Sequence[tuple[Run, Place]], names: Sequence[str]) -> bool:
        """Whether these columns separate all runs that differ in more than the seed."""
        groups: dict[tuple[Any, ...], set[str]] = {}
        for run, place in rows:
            groups.setdefault(key_of(run, place, names), set()).add(run.but(seed=0).digest)
        return all(len(found) == 1 for found in groups.values())

    def _distinct(self, rows: Sequence[tuple[Run, Place]], names: Sequence[str]) -> set[tuple[Any, ...]]:
        return {key_of(run, place, names) for run, place in rows}

    def _places(self) -> Iterator[tuple[Run, Place]]:
        for item, places in zip(self._items, self.columns, strict=True):
            for place in places:
                yield run_of(item), place

    def _axes(self) -> dict[str, list[Any]]:
        """What varies, with its values."""
        names = dict.fromkeys([*(name for _, place in self._places() for name in place if name != CHOICE), *FIELDS])
        found = {name: self.levels(name) for name in names}
        return {name: values for name, values in found.items() if len(values) > 1}



def run_of(item: Run | Result) -> Run:
    """The run of a run or of a result."""
    return item if isinstance(item, Run) else item.run


def value_of(run: Run, place: Place, name: str) -> Any:
    """A column's value: the place's, else the field's."""
    if name in place:
        return place[name]
    if name not in FIELDS:
        return None  # an axis on which this run has no place
    return plain(getattr(run, name))


def key_of(run: Run, place: Place, names: Iterable[str]) -> tuple[Any, ...]:
    """The values of some columns."""
    return tuple(value_of(run, place, name) for name in names)


def identity(item: Run | Result) -> str:
    """What two equal runs share; a run that its digest does not name completely is like no other."""
    run = run_of(item)
    return f"{run.digest}-{id(item)}" if run.unknown else run.digest


def merged(pairs: Iterable[tuple[T, Iterable[Place]]]) -> tuple[list[T], list[list[Place]]]:
    """Each item once, with all its places."""
    items: dict[str, T] = {}
    columns: dict[str, list[Place]] = {}
    for item, places in pairs:
        name = identity(item)
        items.setdefault(name, item)
        own = columns.setdefault(name, [])
        own += [place for place in places if place not in own]
    return list(items.values()), [_proper(own) for own in columns.values()]


def _proper(places: list[Place]) -> list[Place]:
    """Without the empty place if there is another one."""
    return [place for place in places if place] or places[:1]


def combinations(axes: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Each combination of the axes' values; the last axis changes fastest."""
    if not axes:
        yield {}
        return
    *names, last = axes
    for chosen in combinations({name: axes[name] for name in names}):
        for value in axes[last]:
            yield {**chosen, last: value}


def listed(value: Any) -> list[Any]:
    """A list as it is; one value as a list."""
    return list(value) if isinstance(value, (list, tuple)) else [value]
