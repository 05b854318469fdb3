"""What an advised policy has to keep: which way a limit goes, on what part of a run, and in what words."""

from __future__ import annotations

from typing import Any

import handmade
import pytest

from pslab.config.metric import ACCURACY, Metric
from pslab.config.run import Run
from pslab.errors import ConfigError
from pslab.lab.advise.limits import Limits

BASE = Run(pushes=10, workers=2)
LEARNS = [0.1, 0.5, 0.8, 1.0, 1.0, 0.95]  # 0.9 is held after 5 pushes, 2.5 s


@pytest.mark.parametrize(("limits", "words"), [
    ({}, ""), ({"bytes": 650.0}, ""), ({"bytes": 649.0}, "breaks bytes ≤ 649 B: 650 B"),
    ({"seconds": 2.0}, "breaks seconds ≤ 2 s: 2.50 s"),
    ({"gradients": 4}, "breaks gradients ≤ 4 gradients: 5 gradients"),
    ({"accuracy": 0.95}, ""), ({"accuracy": 0.96}, "breaks accuracy ≥ 96.00 %: 95.00 %"),
    ({"staleness": 1.0}, "breaks staleness ≤ 1: 1.50"),
    ({"bytes_up_to_goal": 599.0, "bytes": 1e3}, "breaks bytes_up_to_goal ≤ 599 B: 600 B"),
    ({"seconds": 2.0, "bytes": 600}, "breaks seconds ≤ 2 s: 2.50 s, bytes ≤ 600 B: 650 B"),
])  # fmt: skip
def test_a_limit_is_at_most_or_at_least_where_more_is_better(limits: dict[str, float], words: str):
    found = Limits(limits, ACCURACY).broken(handmade.curve(None, BASE, LEARNS), 0.9)
    assert found.replace("\u00a0", " ") == words


def test_a_loss_is_at_most_so_much():
    losses = handmade.curve(None, BASE.but(metric="loss"), [2.0, 1.5, 0.4, 0.2, 0.2, 0.3])
    loss = Metric("loss", lower=True, share=False)
    assert Limits({"accuracy": 0.3}, loss).broken(losses, 0.5) == ""
    assert Limits({"accuracy": 0.2}, loss).broken(losses, 0.5) == "breaks accuracy ≤ 0.200: 0.300"


def test_what_does_not_hold_the_target_breaks_nothing():
    assert Limits({"bytes": 1.0}, ACCURACY).broken(handmade.curve(None, BASE, [0.1] * 5), 0.9) == ""


@pytest.mark.parametrize(
    ("limits", "whole"),
    [
        ({}, False),
        ({"bytes": 1.0, "pushes_to_goal": 1.0}, False),
        ({"accuracy": 0.9}, True),
        ({"bytes": 1.0, "staleness": 2}, True),
    ],
)
def test_limits_on_what_is_measured_over_a_run_ask_for_whole_ones(limits: dict[str, float], whole: bool):
    assert Limits(limits, ACCURACY).whole == whole


@pytest.mark.parametrize(("given", "words"), [
    ({"byte": 1}, "did you mean 'bytes'"), ({"acuracy": 1}, "did you mean 'accuracy'"),
    ({"bytes": "1 GB"}, "must be a number"), ({"bytes": True}, "must be a number"),
    ({"bytes": float("nan")}, "must be a number"), ("bytes < 1 GB", "must map measures to numbers"),
])  # fmt: skip
def test_what_is_no_limit_is_refused(given: Any, words: str):
    with pytest.raises(ConfigError, match=f"limits=.*{words}"):
        Limits(given, ACCURACY)
