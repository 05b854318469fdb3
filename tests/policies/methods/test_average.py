"""Parallel SGD: it is local SGD whose period is given in passes, or is the whole budget."""

from __future__ import annotations

import pytest
from scalar import ROUNDS, Targets, scalar, traced

from pslab.errors import ConfigError
from pslab.policies.methods.average import Average
from pslab.policies.methods.local_sgd import LocalSGD
from pslab.protocol.traits import Lengths
from pslab.tensors.random_streams import numpy_generator


class TwoEach:
    """Worker 0 sees 2 and 2, worker 1 sees 0 and 4."""

    def __call__(self):
        x, y, _, _ = Targets(2.0, 0.0)()
        x[int(numpy_generator(0, "epoch", 0).permutation(len(x))[3]), 0] = 4.0  # the second batch of worker 1
        return x, y, x[:2], y[:2]


def test_averaging_once_at_the_end_is_the_mean_of_what_workers_found(monkeypatch):
    steps, outcome = traced(monkeypatch, scalar("average", 2.0, 0.0, data=TwoEach(), pushes=4))
    assert [step[-1] for step in steps] == [1.75, 1.75]  # of 1.5 and 2
    assert outcome.facts["pass_iterations"] == ROUNDS
    assert outcome.facts["outcome"] == "budget"


@pytest.mark.parametrize(("passes", "period"), [(1, 16), (2, 32), (0.5, 8), (0.01, 1)])
def test_a_period_in_passes(passes, period):
    assert Average(passes).sized(Lengths(16, 100)) == LocalSGD(period)


def test_averaging_once_needs_a_budget():
    assert Average().sized(Lengths(16, 100)) == LocalSGD(100)
    with pytest.raises(ConfigError, match="needs a budget"):
        Average().sized(Lengths(16, None))
