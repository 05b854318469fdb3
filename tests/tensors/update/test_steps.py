"""A worker's own steps between two exchanges, and the means of what workers push."""

from __future__ import annotations

import numpy as np
import torch

from pslab.policies.methods.local_sgd import LocalSGD
from pslab.policies.sync.asp import ASP
from pslab.tensors.entries import Entries
from pslab.tensors.update.changes import over_users
from pslab.tensors.update.part import Part
from pslab.tensors.update.steps import Iteration, LocalSteps
from pslab.tensors.update.vectors import mean_over_users, radial_directional


class Worker:
    """A worker whose gradient is 1 everywhere; it writes down where each was computed."""

    def __init__(self, steps: LocalSteps) -> None:
        self.steps, self.seen = steps, list[float]()
        self.weights, self.gradient = torch.zeros(1), torch.empty(1)

    def at(self, batch: int) -> float:
        self.seen.append(float(self.weights))
        self.gradient.fill_(1.0)
        return float(batch)

    def iteration(self, *rates: float, fetched: bool = True, pushed: bool = True) -> Iteration:
        return Iteration(range(len(rates)), rates, self.at, self.weights, self.gradient, fetched, pushed)


def test_nothing_is_kept_before_it_is_committed():
    worker = Worker(LocalSteps(1.0, torch.zeros(1), torch.zeros(1), False))
    made = worker.iteration(0.5, 0.5, pushed=False)
    for _ in range(2):  # the gradient was not finite, say: the iteration is computed again
        assert worker.steps.run(made) == 0.5
        assert worker.weights == 0
    assert worker.seen == [0, -0.5, 0, -0.5]
    worker.steps.commit(made)
    worker.steps.run(worker.iteration(0.5, 0.5, fetched=False))
    assert (worker.gradient, worker.seen[-2:]) == (4, [-1, -1.5])


def test_several_rates_make_one_gradient_of_the_first():
    worker = Worker(LocalSteps())
    worker.steps.run(worker.iteration(0.5, 0.25, 0.0))
    assert (worker.gradient, worker.seen) == (1.5, [0, -0.5, -0.75])
    worker.steps.run(worker.iteration(0.0, 0.0))
    assert worker.seen[-2:] == [0, 0]  # at the end of its schedule


ONE, OTHER = Entries(3, np.array([0, 1]), np.array([1.0, 2.0])), Entries(3, np.array([0]), np.array([3.0]))


def test_a_mean_is_over_the_vectors_that_hold_an_entry_where_the_policy_averages():
    for vectors, mean, users in (
        ([ONE, OTHER], [2, 2], [2, 1]), ([torch.tensor([1.0, 2.0]), torch.tensor([3.0, 0.0])], [2, 1], [2, 2]),
        ([torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64), OTHER], [2, 2, 3], [2, 1, 1]),
    ):  # fmt: skip
        found, counts = mean_over_users(vectors)
        assert (found.tolist() if isinstance(found, torch.Tensor) else found.values.tolist()) == mean
        assert counts.tolist() == users
    (found,) = over_users(LocalSGD(2), Part((slice(0, 3),)), [ONE, OTHER])
    assert (found.indices.tolist(), found.values.tolist()) == ([0, 1], [2, 2])
    assert over_users(ASP(), Part((slice(0, 3),)), [ONE, OTHER]) == [ONE, OTHER]


def test_a_radial_directional_mean_by_hand():
    for vectors, weights, wanted in (
        (((3.0, 0.0), (0.0, 4.0)), (1.0, 1.0), (2.47487373, 2.47487373)),
        (((3.0, 0.0), (0.0, 4.0)), (3.0, 1.0), (3.08322072, 1.02774024)),
        (((2.0, 0.0), (-2.0, 0.0)), (1.0, 1.0), (0, 0)), (((3.0, 0.0), (-1.0, 0.0)), (1.0, 1.0), (1, 0)),  # the mean
        (((0.0, 0.0), (0.0, 0.0)), (1.0, 1.0), (0, 0)),
    ):  # fmt: skip
        found = radial_directional([torch.tensor(vector) for vector in vectors], weights).tolist()
        np.testing.assert_allclose(found, wanted, atol=1e-7)
    three = [
        torch.tensor(vector, dtype=torch.float64) for vector in ((1.0, 2.0, 2.0), (0.3, 0.1, 0.2), (4.0, 0.0, 3.0))
    ]
    found = radial_directional(three, [2, 1, 5])  # as long as the vectors are in the mean
    np.testing.assert_allclose(float(found.norm()), (2 * 3 + 0.14**0.5 + 5 * 5) / 8, rtol=1e-12)
    np.testing.assert_allclose(radial_directional(three[:1] * 3, [2, 1, 5]), three[0], rtol=1e-12)
