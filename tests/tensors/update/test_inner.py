"""A worker's own optimizer: its state goes on from one iteration to the next, and begins anew after an absence."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pslab.tensors.update.inner import InnerSteps, resolve_inner
from pslab.tensors.update.steps import Course


def steps() -> InnerSteps:
    inner = resolve_inner("adamw:betas=(0.9;0.95)", fresh=False)
    kept = {name: memory.zeros("cpu") for name, memory in inner.memories(3, torch.float64).items()}
    return InnerSteps(inner, kept, torch.float64)


def moved(worker: InnerSteps, iteration: int) -> list[float]:
    """By how much two steps of an iteration move weights of 0, whose gradient is 1, 2 and 3."""
    weights, gradient = torch.zeros(3, dtype=torch.float64), torch.empty(3, dtype=torch.float64)

    def at(batch: int) -> float:
        gradient.copy_(torch.tensor([1.0, 2.0, 3.0]) * (1 + batch))
        return 0.0

    course = Course([2 * iteration, 2 * iteration + 1], [0.1, 0.1], at, weights, gradient, True, True,
                    iteration=iteration)  # fmt: skip
    worker.run(course)
    found: list[float] = gradient.tolist()
    worker.commit(course)
    return found


@pytest.mark.parametrize("norm", [0.0, 0.5, 1 - 5e-7, 1.0, 3.0])
def test_a_gradient_is_clipped_as_torch_clips_it(norm: float):
    gradient, direction = torch.empty(3, dtype=torch.float64), torch.tensor([1.0, 2.0, 2.0], dtype=torch.float64) / 3
    parameters = [torch.zeros(n, dtype=torch.float64, requires_grad=True) for n in (1, 2)]
    for parameter, own in zip(parameters, (norm * direction).split([1, 2]), strict=True):
        parameter.grad = own.clone()
    nn.utils.clip_grad_norm_(parameters, 1.0)

    def at(batch: int) -> float:
        gradient.copy_(norm * direction)
        return 0.0

    InnerSteps(resolve_inner("sgd:clip=1", fresh=False), {}, torch.float64).run(
        Course([0], [1.0], at, torch.zeros(3, dtype=torch.float64), gradient, True, True, iteration=0))  # fmt: skip
    wanted = torch.cat([parameter.grad for parameter in parameters if parameter.grad is not None])
    torch.testing.assert_close(gradient, wanted, rtol=1e-15, atol=0)


def test_the_state_of_the_iteration_before_goes_on():
    worker = steps()
    moved(worker, 4)
    assert moved(worker, 5) != moved(steps(), 5)


def test_a_worker_that_was_away_begins_with_a_new_optimizer():
    worker = steps()
    moved(worker, 4)
    assert moved(worker, 7) == moved(steps(), 7)
