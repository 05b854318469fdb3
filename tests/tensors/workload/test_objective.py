"""Losses and metrics by name and of a user: their values, and what is refused before a process starts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pslab.errors import ConfigError
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

X, NUMBERS, LABELS = torch.ones(4, 3), torch.zeros(4, 2), torch.tensor([0, 1, 2, 1])
SCORES, WORDS = torch.randn(4, 5, 7), torch.randint(5, (4, 7))


def test_named_losses_are_those_of_torch():
    output = torch.randn(4, 2)
    assert torch.equal(mse(output, NUMBERS), functional.mse_loss(output, NUMBERS))
    assert torch.equal(l1(output, NUMBERS), functional.l1_loss(output, NUMBERS))
    assert torch.equal(cross_entropy(SCORES, WORDS), functional.cross_entropy(SCORES, WORDS))
    assert torch.equal(accuracy(SCORES, WORDS), SCORES.argmax(1) == WORDS)


def test_an_evaluation_in_batches_is_the_mean_over_all_examples():
    cases = (cross_entropy, accuracy, SCORES, WORDS), (mse, l1, torch.randn(4, 2), NUMBERS)
    for loss, metric, output, target in cases:
        sums = [[loss_sum(loss, output[part], target[part]), *metric_sums(metric, output[part], target[part])]
                for part in (slice(0, 3), slice(3, 4))]  # fmt: skip
        found = [sum(each) / 4 for each in zip(*sums, strict=True)]
        assert found == pytest.approx([float(loss(output, target)), float(metric(output, target).double().mean())])


def test_a_metric_may_give_a_value_for_each_example_their_mean_or_a_number():
    each = torch.tensor([1.0, 2.0, 3.0, 6.0])
    for value in (each, each.mean(), 3.0, each[:, None]):
        assert metric_sums(lambda output, target, value=value: value, None, LABELS) == [12.0]


@pytest.mark.parametrize(
    ("loss", "output", "target", "problem"),
    [(mse, torch.zeros(4, 1), torch.zeros(4), r"one shape, not \[4, 1\] .*give output.squeeze\(-1\)"),
     (l1, torch.zeros(4), torch.zeros(4, 1), "one shape"),
     (mse, (1, 2), torch.zeros(4), "not tuple"),
     (cross_entropy, SCORES.transpose(1, 2), WORDS, r"give output.transpose\(1, -1\)"),
     (cross_entropy, NUMBERS, NUMBERS, "use loss='mse'"),
     (accuracy, NUMBERS, NUMBERS, "metric='loss'")],
    ids=["column", "row", "tuple", "classes last", "numbers", "accuracy of numbers"],
)  # fmt: skip
def test_shapes_that_torch_would_broadcast_or_cannot_use_are_refused(loss, output, target, problem):
    with pytest.raises(ValueError, match=problem):
        loss(output, target)


class Learned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return self.scale * (output - target).pow(2).mean()


@pytest.mark.parametrize(
    ("value", "problem"),
    [("msee", "did you mean 'mse'"), ("mse:2", "takes no parameters"),
     (3, "must be one of cross_entropy, mse, l1, package.module:name, or a"),
     (nn.MSELoss, r"is a class: give an object of it, such as MSELoss\(\)"), (Learned(), "has parameters .scale.")],
    ids=["misspelt", "parameter", "number", "class", "parameters of its own"],
)  # fmt: skip
def test_what_is_no_loss_is_refused(value, problem):
    with pytest.raises(ConfigError, match=problem) as caught:
        resolve_loss(value, torch.float32)
    assert caught.value.field == "loss"


def test_the_numbers_of_a_module_are_in_the_dtype_of_the_run():
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0]))
    assert resolve_loss(weighted, torch.float64).weight.dtype == torch.float64
    assert weighted.weight.dtype == torch.float32
    assert resolve_metric("loss", torch.float32) is None


class Counting:
    """A loss that remembers how often it was called."""

    calls = 0

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        self.calls += 1
        return mse(output, target) * self.calls


def test_each_process_has_a_loss_of_its_own_on_its_device():
    weighted, counting = nn.CrossEntropyLoss(weight=torch.ones(2)), Counting()
    assert placed(weighted, torch.device("meta")).weight.is_meta
    assert not weighted.weight.is_meta
    one, other = (placed(counting, torch.device("cpu")) for _ in range(2))
    assert [float(each(NUMBERS + 1, NUMBERS)) for each in (one, one, other)] == [1.0, 2.0, 1.0]
    assert counting.calls == 0
    assert placed(cross_entropy, torch.device("meta")) is cross_entropy  # a name stays what it is


def broadcast(output: Tensor, target: Tensor) -> Tensor:
    return functional.mse_loss(output, target[:, 0])


def steep(output: Tensor, target: Tensor) -> Tensor:
    loss = mse(output, target)
    return loss + torch.autograd.grad(loss, output, create_graph=True)[0].square().mean()


BAD = {
    "no scalar": ("loss", lambda output, target: (output - target) ** 2, r"returned \[2, 2\] of torch.float32"),
    "number": ("loss", lambda output, target: 1.0, "returned float: must return one"),
    "constant": ("loss", lambda output, target: torch.zeros(()), "has no gradient"),
    "detached": ("loss", lambda output, target: (output.detach() - target).mean(), "has no gradient"),
    "of no weight": ("loss", lambda output, target: torch.zeros((), requires_grad=True) * 2, "gradient with respect"),
    "broadcast": ("loss", broadcast, "Using a target size"),
    "raises": ("loss", lambda output, target: output @ X, "cannot be computed of outputs .* targets .*RuntimeError"),
    "steep": ("loss", steep, "an evaluation has no gradients: leave out there what needs them"),
    "named": ("loss", cross_entropy, "cross_entropy needs scores"),
    "metric raises": ("metric", lambda output, target: output[5], "cannot be computed of outputs .*IndexError"),
    "metric of text": ("metric", lambda output, target: "good", "returned str: must return a value for each of the 2"),
    "metric of classes": ("metric", lambda output, target: torch.zeros(3), r"returned \[3\] of torch.float32"),
    "accuracy": ("metric", accuracy, "accuracy needs scores .*: use loss='mse' and metric='loss'"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_loss_or_metric_that_cannot_be_computed_is_refused_with_shapes(kind):
    field, function, problem = BAD[kind]
    given = {"loss": mse, "metric": None, field: function}
    with pytest.raises(ConfigError, match=problem) as caught:
        check_model(nn.Linear(3, 2), X, NUMBERS, given["loss"], given["metric"])
    assert caught.value.field == field


def test_a_metric_may_compute_with_numpy_as_evaluations_have_no_gradients():
    for metric in (lambda output, target: np.abs(output.numpy() - target.numpy()).mean(),  # a number of float32
                   lambda output, target: np.abs(output.numpy() - target.numpy())):  # fmt: skip
        check_model(nn.Linear(3, 2), X, NUMBERS, mse, metric)
        assert metric_sums(metric, torch.ones(4, 2), NUMBERS)[0] == 4.0


def test_all_classes_of_a_dataset_need_a_score_not_only_those_of_the_sample():
    check_model(nn.Linear(3, 3), X, LABELS, cross_entropy, accuracy, 3)
    with pytest.raises(ConfigError, match="with at least 5 classes"):
        check_model(nn.Linear(3, 3), X, LABELS, cross_entropy, accuracy, 5)


def test_scores_with_the_classes_last_are_refused_with_advice():
    with pytest.raises(ConfigError, match=r"logits \[2, classes, 7\], .*dimension 1, as in torch: transpose"):
        check_model(nn.Sequential(nn.Linear(3, 35), nn.Unflatten(1, (7, 5))), X, WORDS)
