"""Parameters that no loss reaches: they stay as they are, as in torch, whatever optimizer or codes a run has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny import finished, tiny
from torch import Tensor, nn

from pslab.errors import WorkerFailed
from pslab.lab.runs.resolve import resolve
from pslab.tensors.workload.models import build_model

X, Y = torch.linspace(-1, 2, 128).view(32, 4), torch.linspace(0, 1, 64).view(32, 2)
UNREACHED = r"no loss reaches spare, first.weight, first.bias of the model"


class Spare(nn.Module):
    """Two of its parts are not used, before and behind the one that is."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(6, 3), nn.Linear(4, 2)
        self.spare = nn.Parameter(torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)


class Late(Spare):
    """One example alone, on which no model is tried, reaches a spare part."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x) + (self.spare.sum() if bool((x == X[-5]).all(1).any()) else 0.0)


def given(**fields: Any) -> dict[str, Any]:
    return {"model": Spare, "data": lambda: (X, Y, X, Y), "loss": "mse", "metric": "loss", "workers": 1,
            "batch_size": 32, "pushes": 6, "engine": "virtual", "cluster": "lab",
            "dtype": "float64", **fields}  # fmt: skip


def test_weights_are_those_of_torch():
    run = tiny(**given(optimizer="sgd:weight_decay=0.1,momentum=0.9", learning_rate=0.01))
    model = build_model(Spare, run.seed).double()
    steps = torch.optim.SGD(model.parameters(), lr=run.learning_rate, weight_decay=0.1, momentum=0.9)
    for _ in range(6):
        steps.zero_grad()
        nn.functional.mse_loss(model(X.double()), Y.double()).backward()
        steps.step()
    with pytest.warns(UserWarning, match=UNREACHED):
        found = finished(run).weights
    wanted = nn.utils.parameters_to_vector(model.parameters())
    torch.testing.assert_close(torch.from_numpy(found.copy()), wanted.detach())


def test_signs_do_not_move_them():
    with pytest.warns(UserWarning, match=UNREACHED):
        experiment = resolve(tiny(**given(quantize="sign", pushes=5)))
    assert experiment.keyspace.size == 10
    before, after = experiment.to_record(experiment.weights.numpy()), finished(experiment).weights
    assert (before != after).nonzero()[0].tolist() == [*range(26, 36)]  # spare, first and head, in this order


def test_a_gradient_that_comes_later_ends_the_run_with_its_name():
    problem = "parameter spare got no gradient when the model was tried"
    with pytest.warns(UserWarning, match=UNREACHED), pytest.raises(WorkerFailed, match=problem):
        finished(tiny(**given(model=Late, batch_size=4, pushes=40)))
