"""Learning-rate schedules."""

from __future__ import annotations

import math

import pytest
import torch

from pslab.config.spec import build
from pslab.errors import ConfigError
from pslab.policies.schedules import Cosine
from pslab.protocol.traits import Lengths, sized


@pytest.mark.parametrize(("text", "factors"), [
    ("constant", [1, 1, 1, 1, 1]), ("linear", [1, 0.75, 0.5, 0.25, 0]),
    ("steps:0.1,at=0.5/0.75", pytest.approx([1, 1, 0.1, 0.01, 0.01])),
    ("warmup:4,then=linear", [0.25, 0.625 * 0.75, 0.5, 0.25, 0]),
    ("warmup:8,start=0,then=steps:0.1;at=0.5/0.75", pytest.approx([0, 0.25, 0.05, 0.0075, 0.01])),
    ("cosine:end=0.1", pytest.approx([1, 0.55 + 0.45 * math.sqrt(0.5), 0.55, 0.55 - 0.45 * math.sqrt(0.5), 0.1])),
    ("cosine", pytest.approx([1, 0.5 + math.sqrt(0.125), 0.5, 0.5 - math.sqrt(0.125), 0])),
    ("warmup:4,then=cosine:end=1", [0.25, 0.625, 1, 1, 1]),
])  # fmt: skip
def test_factors_over_the_budget(text, factors):
    schedule = build("schedule", text)
    assert [schedule.factor(progress, 8 * progress) for progress in (0, 0.25, 0.5, 0.75, 1)] == factors
    assert schedule.needs_budget is (text != "constant")


def test_the_cosine_is_torchs():
    schedule, weight = build("schedule", "cosine"), torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)
    for step in range(41):
        assert schedule.factor(step / 40, 0.0) == pytest.approx(theirs.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        theirs.step()


def test_a_warm_up_needs_what_comes_after_it():
    assert build("schedule", "warmup:2,then=linear").needs_budget
    assert not build("schedule", "warmup:2").needs_budget


def test_the_cosine_begins_where_the_warm_up_of_so_many_steps_ends():
    schedule = sized(build("schedule", "cosine:warm=20,end=0.1"), Lengths(passed=7, budget=100))
    assert schedule == Cosine(warm=20, end=0.1, steps=100)
    factors = [schedule.factor(step / 100, 0.0) for step in (0, 9, 19, 20, 60, 100)]
    assert factors == pytest.approx([0.05, 0.5, 1, 1, 0.55, 0.1])
    assert schedule.factor(19.75 / 100, 0.0) == 1  # where workers push one by one


def test_a_warm_up_must_be_shorter_than_each_workers_share_of_the_budget():
    schedule = build("schedule", "cosine:warm=20")
    assert sized(schedule, Lengths(passed=7, budget=21)).factor(1.0, 0.0) == 0.0
    with pytest.raises(ConfigError, match="fewer than the 20 steps that each worker's share of the budget has"):
        sized(schedule, Lengths(passed=7, budget=20))
