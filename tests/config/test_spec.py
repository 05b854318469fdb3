"""Policy strings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest

from pslab.config.spec import build, describe, split
from pslab.errors import ConfigError


@dataclass(frozen=True)
class Rule:
    share: float
    times: int = 3
    keep: bool = True
    mode: Literal["one", "two"] = "one"
    cap: float | None = None

    def __post_init__(self) -> None:
        if self.share <= 0:
            raise ValueError("share must be above 0")


TABLE = {"rule": Rule, "other": Rule}


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
def test_read(text, rule):
    assert build("field", text, TABLE) == rule


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rul:1", "did you mean 'rule'"),
        ("rule", "needs share"),
        ("rule:x", "share='x' cannot be read"),
        ("rule:1,2,on,one,1,9", "got 6 values"),
        ("rule:1,keep=perhaps", "keep='perhaps'"),
        ("rule:1,mode=three", "allowed: one, two"),
        ("rule:1,speed=2", "no parameter 'speed'"),
        ("rule:-1", "above 0"),
    ],
)
def test_refused(text, words):
    with pytest.raises(ConfigError, match=words.replace("(", r"\(")) as error:
        build("field", text, TABLE)
    assert error.value.field == "field"


def test_split_and_describe():
    assert split("a:b,c=d") == ("a", ["b"], {"c": "d"})
    assert split("a") == ("a", [], {})
    assert describe(Rule).startswith("share, times=3, keep=True")
