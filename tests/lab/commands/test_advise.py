"""pslab advise: its options are the question, and what cannot be asked is refused."""

from __future__ import annotations

from typing import Any

import pytest

from pslab.__main__ import main
from pslab.lab.advise import search

ASK = ["advise", "--target", "0.9", "--cluster", "lab"]


def test_options_become_the_question(monkeypatch: pytest.MonkeyPatch):
    asked: dict[str, Any] = {}

    def advise(base: Any, **question: Any) -> None:
        asked.update(question, cluster=base.cluster)
        raise search.Unreached("nothing is run here")

    monkeypatch.setattr(search, "advise", advise)
    assert main([*ASK, "--merit", "bytes", "--limit", "seconds=60", "--limit", "accuracy=0.9", "--seeds", "3"]) == 1
    assert asked == {"target": 0.9, "minutes": 5.0, "seeds": range(3), "merit": "bytes", "results": None,
                     "limits": {"seconds": 60.0, "accuracy": 0.9}, "cluster": "lab"}  # fmt: skip


@pytest.mark.parametrize(("option", "words"), [
    (["--limit", "byte=1e9"], "did you mean 'bytes'"), (["--limit", "bytes"], "must be a number"),
    (["--limit", "bytes=1 GB"], "must be a number"), (["--merit", "byte"], "did you mean 'bytes'"),
])  # fmt: skip
def test_what_cannot_be_asked_is_refused(option: list[str], words: str, capsys: pytest.CaptureFixture):
    assert main([*ASK, *option]) == 2
    assert words in capsys.readouterr().err
