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
    assert main([*ASK, "--merit", "bytes", "--seeds", "3"]) == 1
    assert asked == {"target": 0.9, "minutes": 5.0, "seeds": range(3), "merit": "bytes", "results": None,
                     "cluster": "lab"}  # fmt: skip


def test_what_cannot_be_asked_is_refused(capsys: pytest.CaptureFixture):
    assert main([*ASK, "--merit", "byte"]) == 2
    assert "did you mean 'bytes'" in capsys.readouterr().err
