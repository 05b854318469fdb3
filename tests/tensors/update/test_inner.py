"""A worker's own optimizer: its state goes on from one iteration to the next, and begins anew after an absence."""

from __future__ import annotations

import torch

from pslab.tensors.pruning.pruner import zeros
from pslab.tensors.update.inner import InnerSteps, resolve_inner
from pslab.tensors.update.steps import Course


def steps() -> InnerSteps:
    inner = resolve_inner("adamw:betas=(0.9;0.95)", fresh=False)
    kept = {name: zeros(memory, "cpu") for name, memory in inner.memories(3, torch.float64).items()}
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


def test_the_state_of_the_iteration_before_goes_on():
    worker = steps()
    moved(worker, 4)
    assert moved(worker, 5) != moved(steps(), 5)


def test_a_worker_that_was_away_begins_with_a_new_optimizer():
    worker = steps()
    moved(worker, 4)
    assert moved(worker, 7) == moved(steps(), 7)
