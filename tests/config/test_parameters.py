"""Annotated fields: what they refuse, how they say it, and how they are read."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest

from pslab.config.parameters import Bounds, OneOf, check, parameters
from pslab.config.table import ROWS
from pslab.errors import ConfigError


@dataclass(frozen=True)
class Some:
    share: Annotated[float, Bounds(above=0, at_most=1), "of the whole"] = 0.5
    count: Annotated[int | None, Bounds(at_least=1)] = None
    size: Annotated[int | str, OneOf("fit"), Bounds(at_least=1)] = "fit"
    mode: Annotated[str, OneOf("each", "frozen")] = "each"
    masked: bool = True
    percent: Annotated[float, Bounds(at_least=0, below=100.0)] = 0.0
    grid: Annotated[int, Bounds(at_least=-1, at_most=9)] = 3
    other: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self, "some.")


@pytest.mark.parametrize(
    ("fields", "problem"),
    [({"share": 0}, "must be a number above 0 and at most 1"), ({"share": 1.5}, "above 0 and at most 1"),
     ({"share": math.nan}, "must be a number above"), ({"share": "1"}, "must be a number above"),
     ({"share": True}, "must be a number above"), ({"share": None}, "must be a number above"),
     ({"count": 0}, "must be a whole number of at least 1, or None"), ({"count": 2.0}, "must be a whole number"),
     ({"size": 0}, "must be a whole number of at least 1, or fit"), ({"size": "fitt"}, "at least 1, or fit"),
     ({"mode": "eech"}, "did you mean 'each'? allowed: each, frozen"), ({"mode": 3}, "allowed: each, frozen"),
     ({"masked": 1}, "must be on (True) or off (False)"), ({"percent": 100}, "of at least 0 and below 100"),
     ({"percent": math.inf}, "must be a number of"), ({"grid": 10}, "must be a whole number from -1 to 9"),
     ({"grid": 10**400}, "must be a whole number from -1 to 9"), ({"share": 10**400}, "must be a number above 0"),
     ({"share": -(10**5000)}, "must be a number above 0")],
)  # fmt: skip
def test_a_value_out_of_type_or_bounds_is_refused(fields: dict[str, Any], problem: str):
    with pytest.raises(ConfigError) as error:
        Some(**fields)
    assert error.value.field == f"some.{next(iter(fields))}"
    assert problem in error.value.problem


def test_values_within_are_kept_and_integers_become_floats():
    some = Some(share=1, count=7, size=3, mode="frozen", masked=False, other={"a": 1})
    assert (some.share, type(some.share)) == (1.0, float)
    assert dataclasses.asdict(some) == {"share": 1.0, "count": 7, "size": 3, "mode": "frozen", "masked": False,
                                        "percent": 0.0, "grid": 3, "other": {"a": 1}}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [("share", "1%", 0.01), ("share", "2", 2.0), ("count", "none", None), ("count", "3", 3), ("size", "fit", "fit"),
     ("size", "12", 12), ("mode", "each", "each"), ("masked", "OFF", False), ("masked", "1", True)],
)  # fmt: skip
def test_text_is_read_by_the_type(name: str, text: str, value: object):
    assert parameters(Some)[name].read(text) == value


@pytest.mark.parametrize(("name", "text"), [("share", "x"), ("count", "2.5"), ("size", "big"), ("mode", "all"),
                                            ("masked", "perhaps")])  # fmt: skip
def test_text_of_no_type_is_refused(name: str, text: str):
    with pytest.raises(ValueError, match=r".+"):
        parameters(Some)[name].read(text)


def test_a_parameter_says_what_it_is():
    found = parameters(Some)
    assert list(found) == [f.name for f in dataclasses.fields(Some)]
    assert (found["share"].doc, found["share"].shown, found["masked"].shown) == ("of the whole", "0.5", "on")
    assert parameters(len) == {}


@pytest.mark.parametrize("kind", ROWS)
def test_every_parameter_of_the_table_is_explained(kind: str):
    for row in ROWS[kind].values():
        assert all(parameter.doc for parameter in parameters(row.load()).values()), row.name
