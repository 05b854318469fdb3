"""A worker's own steps between two exchanges, and the means of what workers push."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from pslab.policies.methods.local_sgd import LocalSGD
from pslab.policies.sync.asp import ASP
from pslab.tensors.entries import Entries
from pslab.tensors.update.changes import over_users
from pslab.tensors.update.inner import InnerSteps, resolve_inner
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


def inner_steps(text: str) -> InnerSteps:
    inner = resolve_inner(text, fresh=False)
    kept = {name: memory.zeros("cpu") for name, memory in inner.memories(3, torch.float64).items()}
    return InnerSteps(inner, kept, torch.float64)


def moved(worker: InnerSteps, iteration: int, at: torch.Tensor) -> torch.Tensor:
    """By how much two steps of an iteration move weights of 0, whose gradient is `at`, and then twice that."""
    weights, gradient = torch.zeros(3, dtype=torch.float64), torch.empty(3, dtype=torch.float64)

    def loss(batch: int) -> float:
        gradient.copy_(at * (1 + batch % 2))
        return 0.0

    made = Iteration([2 * iteration, 2 * iteration + 1], [0.1, 0.1], loss, weights, gradient, True, True,
                     number=iteration)  # fmt: skip
    worker.run(made)
    worker.commit(made)
    return gradient


@pytest.mark.parametrize(("text", "make", "options"), [
    ("adamw:betas=(0.9;0.95)", torch.optim.AdamW, {"betas": (0.9, 0.95)}), ("sgd:clip=1", torch.optim.SGD, {}),
    ("sgd:momentum=0.9,clip=2", torch.optim.SGD, {"momentum": 0.9})])  # fmt: skip
@pytest.mark.parametrize("norm", [0.0, 1 - 5e-7, 3.0])
def test_steps_are_torchs_whose_state_goes_on_to_the_next_iteration_and_is_new_after_an_absence(
    text: str, make: type[torch.optim.Optimizer], options: dict[str, object], norm: float
):
    worker, at = inner_steps(text), norm * torch.tensor([1.0, 2.0, 2.0], dtype=torch.float64) / 3
    clip = float(text.partition("clip=")[2] or "inf")
    for begin in (4, 7):  # the worker is away in iteration 6
        parameters = [torch.zeros(n, dtype=torch.float64, requires_grad=True) for n in (1, 2)]
        optimizer = make(parameters, lr=0.1, **options)  # type: ignore[call-arg]
        for iteration in (begin, begin + 1):
            for parameter in parameters:
                parameter.data.zero_()
            for batch in range(2):
                for parameter, own in zip(parameters, (at * (1 + batch)).split([1, 2]), strict=True):
                    parameter.grad = own.clone()
                nn.utils.clip_grad_norm_(parameters, clip)
                optimizer.step()
            wanted = -torch.cat([parameter.detach() for parameter in parameters])
            torch.testing.assert_close(moved(worker, iteration, at), wanted, rtol=1e-12, atol=1e-15)


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
