"""The methods' halves: a worker's own steps, and means over the workers that hold a weight."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pslab.policies.methods.local_sgd import LocalSGD
from pslab.policies.sync.asp import ASP
from pslab.tensors.entries import Entries
from pslab.tensors.update.changes import over_users
from pslab.tensors.update.part import Part
from pslab.tensors.update.steps import Course, LocalSteps
from pslab.tensors.update.vectors import mean_over_users


class Worker:
    """A worker whose gradient is 1 everywhere; it writes down where each was computed."""

    def __init__(self, steps: LocalSteps) -> None:
        self.steps, self.seen = steps, list[float]()
        self.weights, self.gradient = torch.zeros(1), torch.empty(1)

    def at(self, batch: int) -> float:
        self.seen.append(float(self.weights))
        self.gradient.fill_(1.0)
        return float(batch)

    def course(self, *rates: float, fetched: bool = True, pushed: bool = True) -> Course:
        return Course(range(len(rates)), rates, self.at, self.weights, self.gradient, fetched, pushed)

    def run(self, count: int, **how: bool) -> float:
        course = self.course(*[0.5] * count, **how)
        self.steps.run(course)
        self.steps.commit(course)
        return float(self.gradient)


def replica(*, literal: bool = False) -> Worker:
    return Worker(LocalSteps(1.0, torch.zeros(1), torch.zeros(1), literal))


def test_nothing_is_kept_before_it_is_committed():
    worker = replica()
    course = worker.course(0.5, 0.5, pushed=False)
    for _ in range(2):  # the gradient was not finite, say: the iteration is computed again
        assert worker.steps.run(course) == 0.5
        assert worker.weights == 0
    assert worker.seen == [0, -0.5, 0, -0.5]
    worker.steps.commit(course)
    assert worker.run(2, fetched=False) == 4
    assert worker.seen[-2:] == [-1, -1.5]


def test_several_rates_make_one_gradient_of_the_first():
    worker = Worker(LocalSteps())
    worker.steps.run(worker.course(0.5, 0.25, 0.0))
    assert worker.gradient == 1.5
    assert worker.seen == [0, -0.5, -0.75]
    worker.steps.run(worker.course(0.0, 0.0))
    assert worker.seen[-2:] == [0, 0]  # at the end of its schedule


# --- means over users ---------------------------------------------------------------------------------------------


ONE, OTHER = Entries(3, np.array([0, 1]), np.array([1.0, 2.0])), Entries(3, np.array([0]), np.array([3.0]))


@pytest.mark.parametrize(
    ("vectors", "mean", "users"),
    [([ONE, OTHER], [2, 2], [2, 1]),
     ([torch.tensor([1.0, 2.0]), torch.tensor([3.0, 0.0])], [2, 1], [2, 2]),
     ([torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64), OTHER], [2, 2, 3], [2, 1, 1])],
    ids=["sparse", "dense", "dense among sparse"],
)  # fmt: skip
def test_a_mean_is_over_the_vectors_that_hold_an_entry(vectors, mean, users):
    found, counts = mean_over_users(vectors)
    assert (found.tolist() if isinstance(found, torch.Tensor) else found.values.tolist()) == mean
    assert counts.tolist() == users


def test_the_server_averages_over_users_only_where_the_policy_averages():
    (found,) = over_users(LocalSGD(2), Part((slice(0, 3),)), [ONE, OTHER])
    assert (found.indices.tolist(), found.values.tolist()) == ([0, 1], [2, 2])
    assert over_users(ASP(), Part((slice(0, 3),)), [ONE, OTHER]) == [ONE, OTHER]
