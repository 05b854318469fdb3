"""L-BFGS with a budget."""

from __future__ import annotations

import pytest
import torch

from pslab.tensors.update.minimize import minimized


def quadratic(seed: int = 0, size: int = 30):
    """A badly scaled one, and how often it was evaluated."""
    generator = torch.Generator().manual_seed(seed)
    scales = torch.logspace(-1, 2, size, dtype=torch.float64)
    target = torch.randn(size, generator=generator, dtype=torch.float64)
    count = [0]

    def objective(x):
        count[0] += 1
        return float((scales * (x - target) ** 2).sum() / 2), scales * (x - target)

    return objective, target, count


@pytest.mark.parametrize("evaluations", [1, 2, 10, 200])
def test_it_keeps_to_its_budget_and_never_gets_worse(evaluations):
    objective, target, count = quadratic()
    begin = torch.zeros_like(target)
    found = minimized(objective, begin, evaluations)
    assert count[0] <= evaluations
    assert objective(found)[0] <= objective(begin)[0]
    assert torch.equal(begin, torch.zeros_like(target))


def test_it_finds_the_minimum_of_a_badly_scaled_quadratic():
    objective, target, _ = quadratic()
    assert torch.allclose(minimized(objective, torch.zeros_like(target), 200), target, atol=1e-3)


def test_it_is_far_better_than_gradient_descent():
    objective, target, _ = quadratic()
    x = torch.zeros_like(target)
    for _ in range(60):
        x = x - 0.015 * objective(x)[1]  # at twice this rate it diverges
    assert objective(minimized(objective, torch.zeros_like(target), 60))[0] < objective(x)[0] / 100


def test_at_the_minimum_it_stops():
    objective, target, count = quadratic()
    assert torch.equal(minimized(objective, target, 50), target)
    assert count[0] == 1


def test_rosenbrock():
    def objective(x):
        a, b = x
        value = 100 * (b - a**2) ** 2 + (1 - a) ** 2
        return float(value), torch.stack([-400 * a * (b - a**2) - 2 * (1 - a), 200 * (b - a**2)])

    found = minimized(objective, torch.tensor([-1.2, 1.0], dtype=torch.float64), 200)
    assert torch.allclose(found, torch.ones(2, dtype=torch.float64), atol=1e-4)
