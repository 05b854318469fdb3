"""Losses and metrics: their values, how a function relates to its examples, and what a process has of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pslab.tensors.workload.example_check import check_objective, relation
from pslab.tensors.workload.models import check_model
from pslab.tensors.workload.objective import (
    accuracy,
    cross_entropy,
    l1,
    loss_sum,
    metric_sums,
    mse,
    placed,
    resolve_loss,
    resolve_metric,
)

ZEROS, DRAW = torch.zeros(4, 2), torch.Generator().manual_seed(3)
SCORES, NUMBER = torch.randn(2, 5, generator=DRAW), torch.randn(2, 1, generator=DRAW)
LABELS, TARGETS = torch.randint(5, (64,), generator=DRAW), torch.randn(64, 1, generator=DRAW)
TRUTHS, IGNORED = (TARGETS > 0).float(), LABELS.where(torch.arange(64) % 7 > 0, -100)
WEIGHTS = torch.arange(1.0, 6)


def test_an_evaluation_in_batches_is_the_mean_over_all_examples_and_named_losses_are_those_of_torch():
    output, scores, words = torch.randn(4, 2), torch.randn(4, 5, 7), torch.randint(5, (4, 7))
    assert torch.equal(accuracy(scores, words), scores.argmax(1) == words)
    for loss, theirs, metric, given, target in (
        (cross_entropy, functional.cross_entropy, accuracy, scores, words),
        (mse, functional.mse_loss, l1, output, ZEROS), (l1, functional.l1_loss, mse, output, ZEROS),
    ):  # fmt: skip
        sums = [[loss_sum(loss, given[part], target[part]), *metric_sums(metric, given[part], target[part])]
                for part in (slice(0, 3), slice(3, 4))]  # fmt: skip
        found = [sum(each) / 4 for each in zip(*sums, strict=True)]
        assert found == pytest.approx([float(theirs(given, target)), float(metric(given, target).double().mean())])


def test_a_metric_may_give_a_value_for_each_example_their_mean_or_a_number_of_torch_or_numpy():
    each = torch.tensor([1.0, 2.0, 3.0, 6.0])
    for value in (each, each.mean(), 3.0, each[:, None], each.numpy(), np.float32(3.0)):
        assert metric_sums(lambda output, target, value=value: value, None, torch.zeros(4)) == [12.0]
    check_model(nn.Linear(3, 2), torch.ones(4, 3), ZEROS, mse, lambda output, target: np.abs(output.numpy()).mean())


def contrastive(output: Tensor, target: Tensor) -> Tensor:
    unit = functional.normalize(output, dim=1)
    return functional.cross_entropy(unit @ unit.T / 0.1, torch.arange(len(output)))


def squared(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).pow(2).mean()


def noisy(output: Tensor, target: Tensor) -> Tensor:
    return squared(output + torch.randn_like(output), target)


RELATIONS: list[tuple[str, Any, Any, Tensor]] = [
    ("mean", nn.BCELoss(), NUMBER.sigmoid(), TRUTHS), ("mean", nn.CrossEntropyLoss(), SCORES, LABELS),
    ("mean", lambda output, target: squared(output[0], target) + output[1].mean(), (NUMBER, SCORES), TARGETS),
    ("mean", lambda output, target: squared(output["y"], target), {"y": NUMBER, "z": 3}, TARGETS),
    ("mean", lambda output, target: output.argmax(1) == target, SCORES, LABELS),
    ("sum", nn.MSELoss(reduction="sum"), NUMBER, TARGETS),
    ("sum", lambda output, target: (output - target).abs().sum() / 64, NUMBER, TARGETS),
    ("broadcast", squared, torch.zeros(2, 1), TARGETS[:, 0]), ("broadcast", squared, NUMBER[:, 0], TARGETS),
    ("weighted", nn.CrossEntropyLoss(weight=WEIGHTS), SCORES, LABELS),
    ("weighted", nn.CrossEntropyLoss(), SCORES, IGNORED),
    ("other", lambda output, target: squared(output, target).sqrt(), NUMBER, TARGETS),
    ("other", contrastive, SCORES, LABELS), ("unknown", noisy, NUMBER, TARGETS),
    ("unknown", lambda output, target: output @ WEIGHTS, NUMBER, TARGETS),
]  # fmt: skip


def test_how_a_function_relates_to_its_examples():
    for number, (wanted, function, output, target) in enumerate(RELATIONS):
        assert relation(function, output, target) == wanted, f"row {number}"


class Counting:
    """A loss whose weight grows with its calls in training, or one that draws from a generator of its own."""

    def __init__(self, counts: bool) -> None:
        self.counts, self.steps, self.draw = counts, 0, torch.Generator()

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        self.steps += torch.is_grad_enabled()
        factor = self.steps if self.counts else torch.rand((), generator=self.draw)
        return factor * squared(output, target)


def test_each_process_has_a_loss_of_its_own_on_its_device():
    weighted, counting = nn.CrossEntropyLoss(weight=torch.ones(2)), Counting(True)
    assert (resolve_loss(weighted, torch.float64).weight.dtype, weighted.weight.dtype) == (torch.float64, torch.float32)
    assert resolve_metric("loss", torch.float32) is None
    assert placed(weighted, torch.device("meta")).weight.is_meta
    assert not weighted.weight.is_meta
    one, other = (placed(counting, torch.device("cpu")) for _ in range(2))
    assert [float(each(ZEROS + 1, ZEROS)) for each in (one, one, other)] == [1.0, 2.0, 1.0]
    assert counting.steps == 0
    assert placed(cross_entropy, torch.device("meta")) is cross_entropy  # a name stays what it is


def test_a_loss_that_remembers_its_calls_is_remarked_on():
    for loss, remark in ((Counting(True), "another value when it is called again"), (Counting(False), ""),
                         (nn.MSELoss(), "")):  # fmt: skip
        given = check_objective(nn.Linear(5, 1), SCORES, TARGETS, 10, loss, None).remark(1)
        assert (remark in given, bool(given)) == (True, bool(remark))
