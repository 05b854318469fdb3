"""Learning-rate schedules."""

from __future__ import annotations

import pytest

from pslab.config.spec import build


@pytest.mark.parametrize(("text", "factors"), [
    ("constant", [1, 1, 1, 1, 1]), ("linear", [1, 0.75, 0.5, 0.25, 0]),
    ("steps:0.1,at=0.5/0.75", pytest.approx([1, 1, 0.1, 0.01, 0.01])),
    ("warmup:4,then=linear", [0.25, 0.625 * 0.75, 0.5, 0.25, 0]),
    ("warmup:8,start=0,then=steps:0.1;at=0.5/0.75", pytest.approx([0, 0.25, 0.05, 0.0075, 0.01])),
])  # fmt: skip
def test_factors_over_the_budget(text, factors):
    schedule = build("schedule", text)
    assert [schedule.factor(progress, 8 * progress) for progress in (0, 0.25, 0.5, 0.75, 1)] == factors
    assert schedule.needs_budget is (text != "constant")


def test_a_warm_up_needs_what_comes_after_it():
    assert build("schedule", "warmup:2,then=linear").needs_budget
    assert not build("schedule", "warmup:2").needs_budget
