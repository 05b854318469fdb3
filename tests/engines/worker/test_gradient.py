"""Gradients are those of plain torch, whatever a forward pass or a loss does on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny import finished, tiny
from torch import Tensor, nn

from pslab.errors import ConfigError, WorkerFailed
from pslab.tensors.workload.models import check_model

X, Y = torch.linspace(-2, 2, 96).view(12, 1, 8).sin(), torch.linspace(0, 1, 72).view(12, 1, 6).cos()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 1, 3, bias=False)
        nn.init.constant_(self.conv.weight, 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)  # type: ignore[no-any-return]


class Adversarial(Net):
    """Takes a backward pass for the gradient of its inputs, and leaves those of its weights, or takes them away."""

    def __init__(self, zero: bool = True) -> None:
        super().__init__()
        self.zero = zero

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            x = x.clone().requires_grad_()
            self.conv(x).pow(2).mean().backward()
            x = (x + 0.1 * x.grad.sign()).detach()  # type: ignore[union-attr]
            if self.zero:
                self.zero_grad()
        return super().forward(x)


class Annealed(nn.Module):
    """A loss that counts its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.tensor(0.0))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        self.steps += 1
        return self.steps.clamp(max=10) / 10 * nn.functional.mse_loss(output, target)


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "zero_grad in forward": (Adversarial, lambda: nn.functional.mse_loss),
    "backward in forward": (lambda: Adversarial(zero=False), lambda: nn.functional.mse_loss),
    "a loss that counts": (Net, Annealed)}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_torch(case: str):
    factory, loss = CASES[case]
    plain, criterion = factory(), loss()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.3)
    for _ in range(5):
        optimizer.zero_grad()
        criterion(plain(X), Y).backward()
        optimizer.step()
    run = tiny(model=factory, data=lambda: (X, Y, X, Y), loss=loss(), metric=nn.L1Loss(), workers=1,
               batch_size=12, pushes=5, learning_rate=0.3, engine="virtual", cluster="lab")  # fmt: skip
    found = torch.from_numpy(finished(run).weights.copy())
    torch.testing.assert_close(found, plain.conv.weight.detach().flatten())


class Unfreezing(Net):
    """A parameter that trains from a later pass on."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.gain, self.left = nn.Parameter(torch.ones(()), requires_grad=False), after

    def forward(self, x: Tensor) -> Tensor:
        self.left -= self.training
        self.gain.requires_grad_(self.left < 0)
        return self.gain * super().forward(x)


def test_a_parameter_that_begins_to_train_is_named():
    problem = "requires_grad of parameter gain to True, .*use parameter.detach"
    with pytest.raises(ConfigError, match=problem):
        check_model(Unfreezing(0), X, Y, nn.functional.mse_loss, None)
    with pytest.raises(WorkerFailed, match=problem):
        finished(tiny(model=lambda: Unfreezing(2), data=lambda: (X, Y, X, Y), loss="mse", metric="loss", workers=1,
                      batch_size=12, pushes=5, engine="virtual", cluster="lab"))  # fmt: skip
