"""A worker's own steps: where they are taken, what is pushed, and what is kept."""

from __future__ import annotations

import pytest
import torch

from pslab.tensors.update.steps import Course, Steps


class Worker:
    """A worker whose gradient is 1 everywhere; where it was computed is written down."""

    def __init__(self, steps: Steps) -> None:
        self.steps, self.seen = steps, list[float]()
        self.weights, self.gradient = torch.zeros(1), torch.empty(1)

    def at(self, batch: int) -> float:
        self.seen.append(float(self.weights))
        self.gradient.fill_(1.0)
        return float(batch)

    def course(self, count: int, *, fetched: bool, pushed: bool, rate: float = 0.5) -> Course:
        return Course(range(count), [rate] * count, self.at, self.weights, self.gradient, fetched, pushed)

    def run(self, count: int, **how: bool) -> float:
        course = self.course(count, **how)
        self.steps.run(course)
        self.steps.commit(course)
        return float(self.gradient)


def replica(*, literal: bool) -> Worker:
    return Worker(Steps(1.0, torch.zeros(1), torch.zeros(1), literal))


@pytest.mark.parametrize(("literal", "positions"), [(False, [0, -0.5, -1, -1.5]), (True, [0, -0.5, 0, -0.5])])
def test_fetching_twice_as_often_as_pushing(literal, positions):
    """n_fetch 2, n_push 4: the server has nothing new at the second fetch, and all four gradients at the third."""
    worker = replica(literal=literal)
    worker.run(2, fetched=True, pushed=False)
    assert worker.run(2, fetched=True, pushed=True) == 4
    assert worker.seen == positions
    worker.weights.fill_(-2.0)  # the server's, with what was pushed
    worker.run(1, fetched=True, pushed=False)
    assert worker.seen[-1] == -2


def test_pushing_twice_as_often_as_fetching():
    worker = replica(literal=False)
    assert [worker.run(1, fetched=fetched, pushed=True) for fetched in (True, False)] == [1, 1]
    assert worker.seen == [0, -0.5]
    worker.weights.fill_(-0.75)  # what the server made of it
    worker.run(1, fetched=True, pushed=True)
    assert worker.seen[-1] == -0.75


def test_nothing_is_kept_before_it_is_committed():
    worker = replica(literal=False)
    course = worker.course(2, fetched=True, pushed=False)
    for _ in range(2):  # the gradient was not finite, say: the iteration is computed again
        assert worker.steps.run(course) == 0.5
        assert worker.weights == 0
    assert worker.seen == [0, -0.5, 0, -0.5]
    worker.steps.commit(course)
    assert worker.run(2, fetched=False, pushed=True) == 4
    assert worker.seen[-2:] == [-1, -1.5]


def test_several_rates_make_one_gradient_of_the_first():
    worker = Worker(Steps())
    worker.steps.run(Course(range(3), [0.5, 0.25, 0.0], worker.at, worker.weights, worker.gradient, True, True))
    assert worker.gradient == 1.5
    assert worker.seen == [0, -0.5, -0.75]
    worker.steps.run(Course(range(2), [0.0, 0.0], worker.at, worker.weights, worker.gradient, True, True))
    assert worker.seen[-2:] == [0, 0]  # at the end of its schedule
