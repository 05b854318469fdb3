"""A table that grows row by row, in memory that other processes may map, so that rows outlive their writer."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from pslab.engines.experiment.shared_memory import ALIGNMENT, Arena

FIRST = 1024  # the first capacity in rows; a full table doubles its capacity
BATCH = 256  # rows written at a time
COUNT = struct.Struct("<Q")
NUMBER_BYTES = 8
Changes = tuple[int, np.ndarray]  # the number of the first row, and the rows from there on


class Rows:
    """Rows of float64, after their count. Without an arena, their memory belongs to this process alone, and they are
    written in batches, which takes half as long."""

    def __init__(self, columns: int, arena: Arena | None = None) -> None:
        self._prepare(columns, arena)
        # `of` does not do this: its readers must see the arena's rows at every instant
        COUNT.pack_into(self._memory, 0, 0)

    def _prepare(self, columns: int, arena: Arena | None) -> None:
        self._columns, self._arena = columns, arena
        self._row, self._room = struct.Struct(f"<{columns}d"), 0
        self._memory: memoryview = memoryview(bytearray(ALIGNMENT))
        self._late: list[float] = []  # the values of the last rows, which are not written yet
        self.count, self._changed = 0, 0  # number of rows; the first row changed since `take_changes`
        self._grow()

    def append(self, row: Sequence[float]) -> None:
        """Append a row. In an arena, it is written before it is counted, so that readers never see part of it."""
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
        """Change the values of a row from this column on."""
        late = (row - self.count) * self._columns + len(self._late)  # its offset in `_late`; negative if it is written
        self._changed = min(row, self._changed)
        if late >= 0 and self._arena is None:
            self._late[late + column : late + column + len(values)] = values
            return
        # readers may see the old or the new values; the record is written when the writer is done
        at = ALIGNMENT + row * self._row.size + column * NUMBER_BYTES
        struct.pack_into(f"<{len(values)}d", self._memory, at, *values)

    def sort(self, by: int, number: int) -> None:
        """Sort the rows by the column `by`, and number them from 1 in the column `number`."""
        rows = self.table()
        rows = rows[np.argsort(rows[:, by], kind="stable")]
        rows[:, number] = np.arange(1, len(rows) + 1)
        self._memory[ALIGNMENT : ALIGNMENT + rows.nbytes] = rows.tobytes()
        self._changed = 0  # every row has moved

    def table(self) -> np.ndarray:
        """Return a copy of all rows: float64 [rows, columns]."""
        self._write()
        return _table(self._memory, self._columns, self.count)

    def take_changes(self) -> Changes:
        """Return the first row that is new or changed since the last call, and a copy of all rows from there on."""
        self._write()
        first, self._changed = min(self._changed, self.count), self.count
        return first, _table(self._memory, self._columns, self.count, first)

    @classmethod
    def of(cls, table: np.ndarray, arena: Arena) -> Rows:
        """Write a table [rows, columns] into an arena, in place of the arena's rows, and return it as Rows. If the
        arena has these rows already, readers see them at every instant."""
        made = cls.__new__(cls)
        made._prepare(table.shape[1], arena)
        made.count = len(table)
        while made.count > made._room:
            made._grow()
        made._memory[ALIGNMENT : ALIGNMENT + table.nbytes] = table.astype("<f8").tobytes()
        COUNT.pack_into(made._memory, 0, made.count)
        return made

    def _write(self) -> None:
        late, self._late = self._late, []
        while self.count > self._room:
            self._grow()
        if late:
            at = ALIGNMENT + self.count * self._row.size - len(late) * NUMBER_BYTES
            struct.pack_into(f"<{len(late)}d", self._memory, at, *late)
            COUNT.pack_into(self._memory, 0, self.count)  # after the rows, as in `append`

    def _grow(self) -> None:
        self._room = 2 * self._room or FIRST
        end = ALIGNMENT + self._room * self._row.size
        if self._arena is None:
            larger = bytearray(end)
            larger[: len(self._memory)] = self._memory
            self._memory = memoryview(larger)
        else:
            self._arena.reserve(end)  # pages that are not touched take no memory
            self._memory = self._arena.bytes(0, end)


def rows_in(arena: Arena, columns: int) -> np.ndarray:
    """Return a copy of the rows that another process has written into an arena so far."""
    # the count first: rows up to it are complete, even if the writer goes on or was killed
    (count,) = COUNT.unpack_from(arena.bytes(0, COUNT.size))
    return _table(arena.bytes(0, ALIGNMENT + count * columns * NUMBER_BYTES), columns, count)


def _table(memory: memoryview, columns: int, count: int, first: int = 0) -> np.ndarray:
    at = ALIGNMENT + first * columns * NUMBER_BYTES
    numbers = np.frombuffer(memory, dtype="<f8", count=(count - first) * columns, offset=at)
    return numbers.reshape(-1, columns).copy()
