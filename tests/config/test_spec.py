"""Policy strings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest

from pslab.config.parameters import Bounds, OneOf, check, parameters
from pslab.config.spec import build, describe, import_named, make, resolve, split
from pslab.config.table import ROWS
from pslab.errors import ConfigError
from pslab.policies.sync.ssp import SSP


@dataclass(frozen=True)
class Rule:
    share: Annotated[float, Bounds(above=0)]
    times: int = 3
    keep: bool = True
    mode: Annotated[str, OneOf("one", "two")] = "one"
    cap: float | None = None

    def __post_init__(self) -> None:
        check(self)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("rule:0.5", Rule(0.5)),
        ("RULE: 1% , 2 ", Rule(0.01, 2)),
        ("rule:1%,keep=off,mode=two", Rule(0.01, keep=False, mode="two")),
        ("rule:share=2,cap=none", Rule(2.0)),
        ("rule:2,cap=7", Rule(2.0, cap=7.0)),
    ],
)
def test_values_are_read_in_order_or_by_name(text, rule):
    assert make("field", text, Rule) == rule


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rule", "needs share"),
        ("rule:x", "share='x' cannot be read"),
        ("rule:1,2,on,one,1,9", "got 6 values"),
        ("rule:1,keep=perhaps", "keep='perhaps'"),
        ("rule:1,mode=three", "allowed: one, two"),
        ("rule:1,speed=2", "no parameter 'speed'"),
        ("rule:1,share=0.5", "share is given twice: as '1' and as '0.5'"),
        ("rule:-1", "above 0"),
    ],
)
def test_a_bad_string_is_refused(text, words):
    with pytest.raises(ConfigError, match=words.replace("(", r"\(")) as error:
        make("field", text, Rule)
    assert error.value.field == "field"


NEEDY = [row for rows in ROWS.values() for row in rows.values()
         if any(not p.shown for p in parameters(row.load()).values())]  # fmt: skip


@pytest.mark.parametrize("row", NEEDY, ids=[f"{row.kind}-{row.name}" for row in NEEDY])
def test_a_missing_parameter_is_shown_by_an_example_that_can_be_built(row):
    with pytest.raises(ConfigError, match="needs") as error:
        build(row.kind, row.name)
    example = error.value.problem.rpartition("as in '")[2].rstrip("'")
    assert example == row.example
    assert build(row.kind, example)


@pytest.mark.parametrize(
    ("kind", "text"),
    [("prune", "static:100%"), ("prune", "static:1.0"), ("prune", "static:0.5"), ("schedule", "steps:1"),
     ("sync", "elastic:15,weight=1")],
)  # fmt: skip
def test_a_share_in_per_cent_and_other_numbers_up_to_one_are_read(kind, text):
    assert build(kind, text)


@pytest.mark.parametrize(
    ("kind", "text", "near"),
    [("model", "mpl:8", "mlp:8"), ("model", "mpl:net", "mlp:net"), ("data", "minst:train=9", "mnist:train=9"),
     ("data", "fodler:/pictures", "folder:/pictures")],
)  # fmt: skip
def test_a_misspelt_name_before_a_colon_is_taken_for_no_package_of_the_users(kind, text, near):
    with pytest.raises(ConfigError, match=f"did you mean '{near}'"):
        import_named(kind, text)


def test_split_and_describe():
    assert split("a:b,c=d") == ("a", ["b"], {"c": "d"})
    assert split("a") == ("a", [], {})
    assert describe(Rule).startswith("share, times=3, keep=on")


def test_build_reads_the_table_and_names_the_nearest():
    assert build("sync", "SSP:3") == SSP(3)
    with pytest.raises(ConfigError, match=r"'spp:3': unknown name 'spp'; did you mean 'ssp'\? all") as error:
        build("sync", "spp:3")
    assert error.value.field == "sync"
    with pytest.raises(ConfigError, match="torchvision:NAME"):
        build("model", "resnet")
    with pytest.raises(ConfigError, match="rules='x': unknown name") as error:
        build("prune", "x", "rules")
    with pytest.raises(ConfigError, match="cnn takes no parameters"):
        build("model", "cnn:3")


def test_resolve_takes_an_object_that_can_do_what_its_kind_must():
    policy = SSP(2)
    assert resolve("sync", policy) is policy
    assert resolve("sync", "ssp:2") == policy
    with pytest.raises(ConfigError, match="is a class: give an object of it; an object for sync needs window, init"):
        resolve("sync", SSP)
    with pytest.raises(ConfigError, match="has no cut, layered; an object for ranges needs cut, layered"):
        resolve("ranges", policy)
