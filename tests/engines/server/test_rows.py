"""A table in shared memory: whoever maps it reads what was written."""

from __future__ import annotations

import numpy as np
import pytest

from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.server.rows import FIRST, Rows, rows_in


@pytest.mark.parametrize("count", [0, 1, FIRST, FIRST + 1, 5 * FIRST])
@pytest.mark.parametrize("shared", [True, False])
def test_rows_are_read_as_they_were_written(count: int, shared: bool):
    arena = Arena() if shared else None
    rows = Rows(3, arena)
    for number in range(count):
        rows.append((number, 2 * number, 0.5))
    for number in range(0, count, 7):
        rows.put(number, 1, (-1, -2))
    wanted = np.array([(n, -1, -2) if n % 7 == 0 else (n, 2 * n, 0.5) for n in range(count)]).reshape(-1, 3)
    assert np.array_equal(rows.table(), wanted)
    if arena is not None:
        assert np.array_equal(rows_in(arena, 3), wanted)
        arena.close()


def test_a_new_table_begins_empty_where_another_was():
    arena = Arena()
    Rows(2, arena).append((1, 2))
    Rows(2, arena)
    assert rows_in(arena, 2).shape == (0, 2)
    arena.close()


def test_rows_are_read_whole_while_their_writer_adds_more(monkeypatch):
    arena = Arena()
    rows, read = Rows(2, arena), arena.bytes
    rows.append((1, 2))

    def written_meanwhile(start: int, size: int) -> memoryview:
        found = read(start, size)
        rows.append((3, 4))
        return found

    monkeypatch.setattr(arena, "bytes", written_meanwhile)
    found = rows_in(arena, 2)
    monkeypatch.undo()
    assert found.tolist() == [[1, 2], [3, 4]]  # a third was added when their number had been read
    arena.close()


def test_a_table_that_was_taken_does_not_change():
    rows = Rows(1)
    rows.append((1,))
    taken = rows.table()
    rows.put(0, 0, (2,))
    assert taken.tolist() == [[1.0]]


@pytest.mark.parametrize("count", [0, 1, 2 * FIRST + 1])
def test_rows_that_begin_with_a_table_have_its_rows_and_forget_others(count: int):
    arena, before = Arena(), Rows(2)
    for number in range(count):
        before.append((number, 0.5))
    others = Rows(2, arena)
    for _ in range(3 * FIRST):
        others.append((-1, -1))
    rows = Rows.of(before.table(), arena)
    assert np.array_equal(rows.table(), before.table())
    rows.append((7, 8))
    assert np.array_equal(rows_in(arena, 2), [*before.table().tolist(), [7, 8]])
    arena.close()
