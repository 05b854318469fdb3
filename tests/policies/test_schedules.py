"""Learning-rate schedules."""

from __future__ import annotations

import pytest

from pslab.config.spec import build
from pslab.errors import ConfigError


@pytest.mark.parametrize(("text", "factors"), [
    ("constant", [1, 1, 1, 1, 1]), ("linear", [1, 0.75, 0.5, 0.25, 0]),
    ("steps:0.1,at=0.5/0.75", pytest.approx([1, 1, 0.1, 0.01, 0.01])),
])  # fmt: skip
def test_factors_over_the_budget(text, factors):
    schedule = build("schedule", text)
    assert [schedule.factor(progress) for progress in (0, 0.25, 0.5, 0.75, 1)] == factors
    assert schedule.needs_budget is (text != "constant")


@pytest.mark.parametrize("text", ["steps:0", "steps:1.5", "steps:at=0.5/1", "steps:at="])
def test_invalid_steps_are_refused(text):
    with pytest.raises(ConfigError):
        build("schedule", text)
