"""What a notebook does while the batch executes it: one line of JSON each, in the file that PSLAB_JOURNAL names.

    {"asked": [digests], "missing": n}        a sweep starts
    {"progress": {"done", "of", "left_s"}}    ... and how far it is
    {"swept_s": s}                            ... and what it took
    {"read": folder}                          a record was read or written: its folder, relative to results/
    {"figure": name}                          a figure was saved
    {"claim": {"text", "value", "holds", "why"}}

Outside of the batch nothing is written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

JOURNAL = "PSLAB_JOURNAL"


def active() -> bool:
    """Whether somebody reads a journal of this process."""
    return JOURNAL in os.environ


def note(**entry: Any) -> None:
    """Add a line."""
    if active():
        with Path(os.environ[JOURNAL]).open("a") as file:
            file.write(json.dumps(entry) + "\n")


def entries(journal: Path) -> list[dict[str, Any]]:
    """Its whole lines; none if there is no journal yet."""
    try:
        lines = journal.read_bytes().splitlines(keepends=True)
    except OSError:
        return []
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


def collected(found: Sequence[dict[str, Any]], kind: str) -> list[Any]:
    """What all entries of a kind say, lists joined, each once."""
    values = [entry[kind] for entry in found if kind in entry]
    flat = [item for value in values for item in (value if isinstance(value, list) else [value])]
    return [item for place, item in enumerate(flat) if item not in flat[:place]]
