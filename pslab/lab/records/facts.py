"""The types of a manifest's facts and of a record's tables.

A record may be damaged or forged. The code that reads it, such as a card or the judge, relies on these types alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from pslab.errors import shortened

REQUIRED = ("outcome", "seconds", "pushes")
LARGEST = 2**53  # of a whole number: up to here a float has each of them


@dataclass(frozen=True)
class FactType:
    """A type of values: its words, and whether a value is of it."""

    words: str
    has: Callable[[Any], bool]

    def __or__(self, other: FactType) -> FactType:
        return FactType(f"{self.words}, or {other.words}", lambda value: self.has(value) or other.has(value))


def _number(value: Any) -> bool:
    return isinstance(value, (float, np.floating)) or (_whole(value) and -LARGEST < value < LARGEST)


def _whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


NUMBER = FactType("a number", _number)
SECONDS = FactType("a finite number from 0", lambda value: _number(value) and 0 <= value < math.inf)
COUNT = FactType("a whole number from 0", lambda value: _whole(value) and 0 <= value < LARGEST)
FLAG = FactType("true or false", lambda value: isinstance(value, bool))
TEXT = FactType("a text", lambda value: isinstance(value, str))
NOTHING = FactType("null", lambda value: value is None)
ANY = FactType("plain", lambda value: True)


def listed(kind: FactType) -> FactType:
    """A list of values of one type."""
    return FactType(f"a list, each of it {kind.words}",
                lambda value: isinstance(value, (list, tuple)) and all(map(kind.has, value)))  # fmt: skip


def row(*kinds: FactType) -> FactType:
    """A list of as many values, each of its own type."""
    return FactType(f"{len(kinds)} values ({'; '.join(kind.words for kind in kinds)})",
                lambda value: isinstance(value, (list, tuple)) and len(value) == len(kinds)
                and all(kind.has(each) for kind, each in zip(kinds, value, strict=True)))  # fmt: skip


def mapped(kind: FactType) -> FactType:
    """A mapping of texts to values of one type."""
    return FactType(f"a mapping, each value of it {kind.words}",
                lambda value: isinstance(value, Mapping) and all(map(TEXT.has, value))
                and all(map(kind.has, value.values())))  # fmt: skip


def body(**kinds: FactType) -> FactType:
    """A mapping that has at least these names, with values of their types."""
    words = ", ".join(f"{name}: {kind.words}" for name, kind in kinds.items())
    return FactType(f"a mapping with {words}", lambda value: isinstance(value, Mapping) and all(
        name in value and kind.has(value[name]) for name, kind in kinds.items()))  # fmt: skip


_DEATH = {"worker": COUNT, "iteration": COUNT, "seconds": SECONDS, "how": TEXT}
_PART = FactType("a whole number", lambda value: _whole(value) and _number(value))  # -1 is none
_EMULATION = mapped(NUMBER | FLAG)
FACTS: dict[str, FactType] = {
    "digest": TEXT, "weights_sha256": TEXT,
    "sha256": mapped(TEXT), "source": mapped(TEXT), "not_found_again": TEXT,
    "outcome": TEXT, "verdict": TEXT, "violations": listed(TEXT), "unjudged": listed(TEXT), "error": TEXT,
    "seconds": SECONDS, "wall_s": SECONDS, "preparation_s": SECONDS, "turning_s": SECONDS, "server_busy_s": SECONDS,
    "pushes": COUNT, "accepted": COUNT, "refused": COUNT, "dropped": COUNT, "dropped_bytes": COUNT,
    "events": COUNT, "network_bytes": COUNT, "requested_bytes": COUNT, "pass_iterations": COUNT, "ranges": COUNT,
    "checkpoints": COUNT, "checkpoints_s": SECONDS, "clock_bound_s": SECONDS, "inner_s": SECONDS, "dilation": SECONDS,
    "largest_weight": NUMBER | NOTHING,
    "emulation_ok": FLAG, "disturbed": FLAG, "no_checkpoints": TEXT, "fallen_starts": listed(TEXT),
    "diverged": body(worker=COUNT, iteration=COUNT) | NOTHING,
    "deaths": listed(body(**_DEATH)), "phases_lost": listed(COUNT), "ended_late": listed(COUNT),
    "lives": listed(body(**_DEATH)),
    "rewinds": listed(body(seconds=SECONDS, how=TEXT, pushes=COUNT, to_pushes=COUNT, to_seconds=SECONDS)),
    "resumed": listed(body(pushes=COUNT, made=TEXT)),
    "faults": mapped(COUNT), "faulted": listed(row(TEXT, TEXT, COUNT, _PART, _PART, SECONDS)),
    "tensors": listed(listed(COUNT)), "matrices": listed(listed(row(COUNT, COUNT, COUNT))),
    "steps": listed(row(COUNT, COUNT, COUNT)),
    "residuals": listed(listed(NUMBER)), "sweeps": listed(listed(NUMBER)),
    "layers_s": listed(listed(NUMBER) | NUMBER) | NUMBER, "costs": mapped(NUMBER),
    "emulation": _EMULATION, "repeated_after": _EMULATION, "environment": mapped(ANY),
}  # fmt: skip


def wrong_facts(facts: Mapping[str, Any]) -> list[str]:
    """A sentence for each fact that is not of its type; what a manifest does not have is not wrong."""
    return [f"its {name} is {shortened(facts[name])}: it must be {kind.words}"
            for name, kind in FACTS.items() if name in facts and not kind.has(facts[name])]  # fmt: skip


MOST = 1023  # the last worker of the largest run
TEXTS = ("phase", "kind")  # the columns that are no numbers
COLUMNS: dict[str, tuple[str, ...]] = {
    "accuracy": ("pushes", "iteration", "seconds", "accuracy", "loss"),
    "phases": ("worker", "iteration", "phase", "begin_s", "end_s", "waits_for", "range"),
    "pushes": ("push", "worker", "iteration", "range", "version_pulled", "version_applied", "staleness", "seconds",
               "loss", "density", "bytes_up", "bytes_up_raw", "bytes_down", "bytes_down_raw"),
    "arrivals": ("kind", "worker", "range", "iteration", "version", "seconds"),
}  # fmt: skip


def wrong_columns(name: str, table: pd.DataFrame) -> list[str]:
    """A sentence for each column that a table lacks, or whose values are of another type. An empty one has any type."""
    found = [f"it has no column {column}" for column in COLUMNS[name] if column not in table]
    for column in () if found or not len(table) else COLUMNS[name]:
        numbers = is_numeric_dtype(table[column]) and not is_bool_dtype(table[column])
        if numbers == (column in TEXTS):
            found.append(f"its column {column} has values that are {'' if column in TEXTS else 'no '}numbers")
        elif column == "worker" and not table[column].between(0, MOST).all():
            found.append(f"it names a worker that is none of 0 to {MOST}")
    return found
