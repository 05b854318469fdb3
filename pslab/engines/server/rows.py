"""A table that grows row by row, in memory that others may map: what is written outlives its writer's process."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from pslab.engines.experiment.shared_memory import ALIGNMENT, Arena

FIRST = 1024  # rows for which there is room; then twice as many each time
BATCH = 256  # rows that are written at once
COUNT = struct.Struct("<Q")
NUMBER_BYTES = 8
Changes = tuple[int, np.ndarray]  # the number of the first row, and the rows from there on


class Rows:
    """Rows of float64, behind their number. Without an arena they are this process's own, and are written in batches:
    that takes half as long."""

    def __init__(self, columns: int, arena: Arena | None = None) -> None:
        self._prepare(columns, arena)
        COUNT.pack_into(self._memory, 0, 0)

    def _prepare(self, columns: int, arena: Arena | None) -> None:
        self._columns, self._arena = columns, arena
        self._row, self._room = struct.Struct(f"<{columns}d"), 0
        self._memory: memoryview = memoryview(bytearray(ALIGNMENT))
        self._late: list[float] = []  # the last rows, one behind the other, which are not yet written
        self.count, self._changed = 0, 0  # rows; the first one that has changed since `take_changes`
        self._grow()

    def append(self, row: Sequence[float]) -> None:
        """Add a row, and only then count it."""
        if self._arena is None:
            self._late += row
            self.count += 1
            if self.count % BATCH == 0:
                self._write()
            return
        if self.count == self._room:
            self._grow()
        self._row.pack_into(self._memory, ALIGNMENT + self.count * self._row.size, *row)
        self.count += 1
        COUNT.pack_into(self._memory, 0, self.count)

    def put(self, row: int, column: int, values: Sequence[float]) -> None:
        """Change a row from this column on."""
        late = (row - self.count) * self._columns + len(self._late)  # where it lies among those
        self._changed = min(row, self._changed)
        if late >= 0 and self._arena is None:
            self._late[late + column : late + column + len(values)] = values
            return
        at = ALIGNMENT + row * self._row.size + column * NUMBER_BYTES
        struct.pack_into(f"<{len(values)}d", self._memory, at, *values)

    def sort(self, by: int, number: int) -> None:
        """Order the rows by a column, and number them again, from 1, in another."""
        rows = self.table()
        rows = rows[np.argsort(rows[:, by], kind="stable")]
        rows[:, number] = np.arange(1, len(rows) + 1)
        self._memory[ALIGNMENT : ALIGNMENT + rows.nbytes] = rows.tobytes()
        self._changed = 0

    def table(self) -> np.ndarray:
        """All rows, as a copy: float64 [rows, columns]."""
        self._write()
        return _table(self._memory, self._columns, self.count)

    def take_changes(self) -> Changes:
        """The rows that are new or changed since this was last asked, as a copy."""
        self._write()
        first, self._changed = min(self._changed, self.count), self.count
        return first, _table(self._memory, self._columns, self.count, first)

    @classmethod
    def of(cls, table: np.ndarray, arena: Arena) -> Rows:
        """Return rows in an arena that are those of a table [rows, columns]; any others there are forgotten. Where the
        arena has these rows already, it has them at any time meanwhile."""
        made = cls.__new__(cls)
        made._prepare(table.shape[1], arena)
        made.count = len(table)
        while made.count > made._room:
            made._grow()
        made._memory[ALIGNMENT : ALIGNMENT + table.nbytes] = table.astype("<f8").tobytes()
        COUNT.pack_into(made._memory, 0, made.count)
        return made

    def _write(self) -> None:
        """Write the rows that are not yet written."""
        late, self._late = self._late, []
        while self.count > self._room:
            self._grow()
        if late:
            at = ALIGNMENT + self.count * self._row.size - len(late) * NUMBER_BYTES
            struct.pack_into(f"<{len(late)}d", self._memory, at, *late)
            COUNT.pack_into(self._memory, 0, self.count)

    def _grow(self) -> None:
        self._room = 2 * self._room or FIRST
        end = ALIGNMENT + self._room * self._row.size
        if self._arena is None:
            larger = bytearray(end)
            larger[: len(self._memory)] = self._memory
            self._memory = memoryview(larger)
        else:
            self._arena.reserve(end)  # what is not touched takes no memory
            self._memory = self._arena.bytes(0, end)


def rows_in(arena: Arena, columns: int) -> np.ndarray:
    """The rows that another process has left in an arena, as a copy; what it adds meanwhile is not among them."""
    (count,) = COUNT.unpack_from(arena.bytes(0, COUNT.size))
    return _table(arena.bytes(0, ALIGNMENT + count * columns * NUMBER_BYTES), columns, count)


def _table(memory: memoryview, columns: int, count: int, first: int = 0) -> np.ndarray:
    at = ALIGNMENT + first * columns * NUMBER_BYTES
    found = np.frombuffer(memory, dtype="<f8", count=(count - first) * columns, offset=at)
    return found.reshape(-1, columns).copy()
