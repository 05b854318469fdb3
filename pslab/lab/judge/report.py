"""How the judge reads tables, and how it writes what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pandas as pd

REPORTED = 3  # violations of one kind that are written out
SLACK_S = 1e-6  # instants that are derived from others are not equal to the last bit


class Unreadable(Exception):
    """A table from which nothing can be judged; the message says why."""


def report(rows: Iterable[int], words: Callable[[int], str]) -> list[str]:
    """The first violations in words, and the number of the others."""
    found = list(rows)
    more = [f"and {len(found) - REPORTED} more like it"] if len(found) > REPORTED else []
    return [words(int(row)) for row in found[:REPORTED]] + more


def columns(
    table: pd.DataFrame | None, name: str, integers: Sequence[str], floats: Sequence[str], objects: Sequence[str] = (),
    *, may_be_empty: bool = False,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Columns of a table as int64, float64 and object arrays.

    Raises:
        Unreadable: no table, no rows (unless it may be empty), a missing column, or a value that is not of its type.
    """
    if table is None:
        raise Unreadable(f"there is no table of {name}")
    if missing := [column for column in (*integers, *floats, *objects) if column not in table]:
        raise Unreadable(f"the table of {name} has no column {', '.join(missing)}")
    if not len(table) and not may_be_empty:
        raise Unreadable(f"the table of {name} is empty")
    try:
        values = {column: table[column].to_numpy(np.float64) for column in (*integers, *floats)}
    except (TypeError, ValueError) as error:
        raise Unreadable(f"the table of {name} contains a value that is not a number ({error})") from None
    for column in integers:
        if not (np.abs(values[column]) < 2**53).all() or (values[column] % 1).any():
            raise Unreadable(f"the table of {name} contains in {column} a value that is not an integer")
        values[column] = values[column].astype(np.int64)
    return values | {column: table[column].to_numpy(object) for column in objects}


def report_cells(wrong: np.ndarray, words: Callable[..., str]) -> list[str]:
    """`report` for the true cells of a table; `words` gets the place of each."""
    cells = np.argwhere(wrong).tolist()
    return report(range(len(cells)), lambda at: words(*cells[at]))
