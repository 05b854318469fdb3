"""Rates in whole runs: weights by hand in virtual time, and runs that are one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ownpolicies import Doubled
from scalar import scalar, traced
from tiny import tiny
from tools.chaos.replay import pushes_of, replay
from whole import in_process

from pslab.lab.runs.resolve import resolve
from pslab.policies.rates import AdaGrad

UNEVEN = {"preset": "lab", "slow": {0: 3.0}}


@pytest.mark.parametrize(("rate", "weights"), [
    ("constant", [1, 1.75, 2.3125, 3.8125, 4.359375]), ("dynsgd", [2, 3, 3.5, 4, 5]),
    ("dynsgd:inverse", [2, 3, 3.5, 4.25, 5.125]),
    # the second worker's weights are one step older with every push of the first, then it pulls
    ("dynsgd:stalest", [2, 2.5, 2.75, 3.5, 4.125]),
])  # fmt: skip
def test_weights_move_as_computed_by_hand(rate: str, weights: list[float]):
    """One worker pushes at 1, 2 and 3 s, toward 4; the other, toward 6, at 3.5 s, by the first weights, and 3.75 s."""
    cluster = {"compute_s": 1.0, "trace": {0: [1.0, 1.0, 1.0, 50.0], 1: [3.5, 0.25]}}
    assert traced(scalar("asp", 4.0, 6.0, rate=rate, cluster=cluster, pushes=5))[0] == weights


def test_the_pushes_alone_leave_the_weights_at_each_rate():
    for rate in ("constant", "dynsgd", "modulated", "adagrad", "adagrad:server", "split", "split:equal", "split:speed"):
        run = tiny(engine="virtual", sync="asp", cluster=UNEVEN, rate=rate)
        outcome = in_process(run)
        assert np.array_equal(replay(resolve(run), pushes_of(outcome)), outcome.weights), rate


#: Two runs that are one, and by how much their weights may differ.
DOUBLE = {"sync": "asp", "cluster": UNEVEN, "dtype": "float64", "learning_rate": 0.05}
ONE_WORKER = {**DOUBLE, "cluster": "steady", "workers": 1}
EQUAL: dict[str, tuple[dict[str, Any], dict[str, Any], float]] = {
    "a push weight is a learning rate": (
        {"sync": "asp", "cluster": UNEVEN, "learning_rate": 0.4},
        {"sync": "asp", "cluster": UNEVEN, "learning_rate": 0.1, "push_weight": 1.0}, 0.0),
    **{f"under a barrier {rate} is averaging": ({"cluster": "lab"}, {"cluster": "lab", "rate": rate}, 0.0)
       for rate in ("dynsgd", "dynsgd:stalest", "split:identity", "modulated")},
    "sums at the server are torch's adagrad": (
        {**DOUBLE, "rate": "adagrad:server"}, {**DOUBLE, "optimizer": "adagrad", "push_weight": 1.0}, 1e-10),
    "sums at one worker are torch's adagrad": (
        {**ONE_WORKER, "rate": AdaGrad()}, {**ONE_WORKER, "optimizer": "adagrad"}, 1e-10),
    "a rate of the user's is a factor and no more": (
        {"sync": "asp", "cluster": UNEVEN, "rate": Doubled(), "learning_rate": 0.1},
        {"sync": "asp", "cluster": UNEVEN, "learning_rate": 0.2}, 1e-6),
}  # fmt: skip


@pytest.mark.parametrize("rule", EQUAL)
def test_two_runs_that_are_one_end_with_the_same_weights(rule: str):
    one, other, differ = EQUAL[rule]
    here, there = (in_process(tiny(engine="virtual", **fields)).weights for fields in (one, other))
    assert np.allclose(here, there, rtol=differ, atol=1e-3 * differ)
