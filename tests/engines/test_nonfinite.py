"""A gradient that is not finite ends the run, on every engine: it is not pushed, and the record names it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conducted import judged
from tiny import finished, net, tiny
from torch import nn
from whole import in_process

from pslab.engines.server.ledger import PUSH_COLUMNS

SPARSE = {"prune": "static:5%", "pull": "changed"}


class Picky(nn.Module):
    """Its output is not a number for batches whose mean is above a bound: about a third of them."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x) * (float("nan") if self.training and len(x) == 16 and x.mean() > 0.03 else 1.0)


@pytest.mark.parametrize(
    "fields",
    [{}, SPARSE, {"sync": "local:2"}, {"sync": "diloco:2"}, {"sync": "downpour:1,3"},
     {"sync": "asp", "rate": "adagrad"}, {"sync": "eager"}, {"ranges": "layers"}, {"engine": "local"}],
    ids=str,
)  # fmt: skip
def test_a_gradient_that_is_not_finite_is_not_pushed_and_ends_the_run(fields):
    given = tiny(**{"model": Picky, "pushes": 60, "workers": 2, "engine": "virtual",
                    "cluster": {"compute_s": 0.01, "slow": {0: 1.5}}, **fields})  # fmt: skip
    outcome = finished(given) if given.engine == "local" else in_process(given)
    assert judged(given, outcome) == {"verdict": "valid"}
    facts, pushed = outcome.facts, outcome.pushes
    assert (facts["outcome"], facts["pushes"] < 60) == ("diverged", True)
    named = [facts["diverged"]["worker"], facts["diverged"]["iteration"]]
    assert named not in pushed[:, [PUSH_COLUMNS.index("worker"), PUSH_COLUMNS.index("iteration")]].tolist()
    assert np.isfinite(outcome.weights).all()
    assert np.isfinite(pushed[:, PUSH_COLUMNS.index("loss")]).all()
