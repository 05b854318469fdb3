"""Losses and metrics of a user: means over the examples, or told apart on examples; evaluated as torch does it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import finished, tiny
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from pslab.errors import ConfigError
from pslab.lab.runs.resolve import resolve
from pslab.lab.runs.run import sweep
from pslab.tensors.workload.example_check import check_objective, relation

DRAW = torch.Generator().manual_seed(3)
SCORES, NUMBER = torch.randn(2, 5, generator=DRAW), torch.randn(2, 1, generator=DRAW)
LABELS, TARGETS = torch.randint(5, (64,), generator=DRAW), torch.randn(64, 1, generator=DRAW)
TRUTHS, IGNORED = (TARGETS > 0).float(), LABELS.where(torch.arange(64) % 7 > 0, -100)
WEIGHTS = torch.arange(1.0, 6)


def contrastive(output: Tensor, target: Tensor) -> Tensor:
    unit = functional.normalize(output, dim=1)
    return functional.cross_entropy(unit @ unit.T / 0.1, torch.arange(len(output)))


def squared(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).pow(2).mean()


def rmse(output: Tensor, target: Tensor) -> Tensor:
    return squared(output, target).sqrt()


rmse.lower_is_better = True  # type: ignore[attr-defined]


def noisy(output: Tensor, target: Tensor) -> Tensor:
    return squared(output + torch.randn_like(output), target)


RELATIONS: dict[str, tuple[str, Any, Any, Tensor]] = {
    "cross entropy": ("mean", nn.CrossEntropyLoss(), SCORES, LABELS),
    "smoothed": ("mean", nn.CrossEntropyLoss(label_smoothing=0.1), SCORES, LABELS),
    "of probabilities": ("mean", nn.BCELoss(), NUMBER.sigmoid(), TRUTHS),
    "weight of positives": ("mean", nn.BCEWithLogitsLoss(pos_weight=torch.tensor([3.0])), NUMBER, TRUTHS),
    "tuple": ("mean", lambda output, target: squared(output[0], target) + output[1].mean(), (NUMBER, SCORES), TARGETS),
    "dictionary": ("mean", lambda output, target: squared(output["y"], target), {"y": NUMBER, "z": 3}, TARGETS),
    "hits": ("mean", lambda output, target: output.argmax(1) == target, SCORES, LABELS),
    "sum": ("sum", nn.MSELoss(reduction="sum"), NUMBER, TARGETS),
    "divided sum": ("sum", lambda output, target: (output - target).abs().sum() / 64, NUMBER, TARGETS),
    "column and row": ("broadcast", squared, NUMBER, TARGETS[:, 0]),
    "row and column": ("broadcast", squared, NUMBER[:, 0], TARGETS),
    "zeros and row": ("broadcast", squared, torch.zeros(2, 1), TARGETS[:, 0]),
    "classes": ("weighted", nn.CrossEntropyLoss(weight=WEIGHTS), SCORES, LABELS),
    "ignored labels": ("weighted", nn.CrossEntropyLoss(), SCORES, IGNORED),
    "root": ("other", rmse, NUMBER, TARGETS),
    "contrastive": ("other", contrastive, SCORES, LABELS),
    "draws": ("unknown", noisy, NUMBER, TARGETS),
    "raises": ("unknown", lambda output, target: output @ WEIGHTS, NUMBER, TARGETS),
}


@pytest.mark.parametrize("kind", RELATIONS)
def test_how_a_function_relates_to_its_examples(kind: str):
    wanted, function, output, target = RELATIONS[kind]
    assert relation(function, output, target) == wanted


@pytest.mark.parametrize(("kind", "problem"), [
    ("sum", "is a sum over the examples: .* return their mean, as reduction='mean' does"),
    ("column and row", r"broadcasts outputs \[2, 1\] of torch.float32 with targets \[2\] .*output.squeeze\(-1\)"),
])  # fmt: skip
def test_sums_and_broadcasts_are_refused(kind: str, problem: str):
    _, loss, _, target = RELATIONS[kind]
    with pytest.raises(ConfigError, match=problem) as caught:
        check_objective(nn.Linear(3, 1), torch.ones(2, 3), target, 8, loss, None)
    assert caught.value.field == "loss"


def test_outputs_that_are_too_large_for_a_metric_that_is_no_mean_are_refused():
    model, x = nn.Linear(3, 1), torch.ones(2, 3)
    assert check_objective(model, x, TARGETS, 2**26, None, rmse).whole == (False, True)
    assert check_objective(model, x, TARGETS, 2**27, None, squared).whole == (False, False)
    with pytest.raises(ConfigError, match=r"rmse.*is no mean over the examples, .* 512 MiB, at most 256: test on"):
        check_objective(model, x, TARGETS, 2**27, None, rmse)


X, Y = torch.randn(1500, 4, generator=DRAW), torch.randint(3, (1500,), generator=DRAW).sort().values
WEIGHTED = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 25.0]))
FAR = torch.cat([torch.zeros(1000, 1), torch.full((500, 1), 10.0)])


def stored() -> Any:
    return X, FAR, X, FAR


def streamed() -> Any:
    dataset = TensorDataset(X, FAR)
    return DataLoader(dataset), DataLoader(dataset)


@pytest.mark.parametrize("data", [stored, streamed])
def test_a_metric_is_computed_of_the_whole_test_set(data: Any):
    found = finished(tiny(model=nn.Linear(4, 1), data=data, loss="mse", metric=rmse, pushes=4, learning_rate=0.01,
                          engine="virtual", cluster="lab"))  # fmt: skip
    weights = torch.from_numpy(found.weights.copy())
    assert found.accuracy[-1][2] == pytest.approx(float(rmse(X @ weights[:4, None] + weights[4], FAR)), rel=1e-6)


def several(output: Tensor, target: Tensor) -> dict[str, Any]:
    return {"error": rmse(output, target), "worst": (output - target).abs().amax(1), "bias": (output - target).mean()}


several.lower_is_better = True  # type: ignore[attr-defined]


def test_a_metric_may_return_several_values_of_which_goals_go_by_the_first(tmp_path: Path):
    one = tiny(model=nn.Linear(4, 1), data=stored, loss="mse", metric=several, pushes=4, learning_rate=0.01,
               engine="virtual", cluster="lab", target_accuracy=100.0)  # fmt: skip
    result, other = sweep([one, one.but(seed=1)], results=tmp_path)
    assert [*other.accuracy] == [*result.accuracy]
    assert result.manifest["outcome"] == "target"
    wanted, last = several(result.model()(X).detach(), FAR), result.accuracy.iloc[-1]
    assert (result.final, result.run.reaches_target([last.accuracy])) == (last.accuracy, True)
    assert (last.accuracy, last.worst, last.bias) == pytest.approx([float(each.mean()) for each in wanted.values()])


@pytest.mark.parametrize(("metric", "problem"), [
    (lambda output, target: {"a": rmse(output, target), "loss": 1.0}, "names a value 'loss'"),
    (lambda output, target: {"a": 1.0, "b": "good"}, "returned str: must return a value for each of the 64"),
    (lambda output, target: {}, "returned tuple"),
])  # fmt: skip
def test_several_values_that_no_record_can_have_are_refused(metric: Any, problem: str):
    with pytest.raises(ConfigError, match=problem):
        check_objective(nn.Linear(3, 1), torch.ones(2, 3), TARGETS, 8, None, metric)


def test_a_weighted_loss_is_evaluated_as_torch_does_and_a_warning_says_what_workers_compute():
    weighted = tiny(model=nn.Linear(4, 3), data=lambda: (X, Y, X, Y), loss=WEIGHTED, pushes=4, engine="virtual",
               cluster="lab")  # fmt: skip
    with pytest.warns(UserWarning, match="several workers compute another mean than one process, as in torch's DDP"):
        experiment = resolve(weighted)
    found = finished(experiment)
    weights = torch.from_numpy(found.weights.copy())
    assert found.accuracy[-1][3] == pytest.approx(float(WEIGHTED(X @ weights[:12].view(3, 4).T + weights[12:], Y)))


class Counting:
    """A loss whose weight grows with its calls in training, or one that draws from a generator of its own."""

    def __init__(self, counts: bool) -> None:
        self.counts, self.steps, self.draw = counts, 0, torch.Generator()

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        self.steps += torch.is_grad_enabled()
        factor = 1 + self.steps if self.counts else torch.rand((), generator=self.draw)
        return factor * squared(output, target)


@pytest.mark.parametrize(("loss", "remark"), [(Counting(True), "another value when it is computed again"),
                                              (Counting(False), ""), (squared, ""), (nn.MSELoss(), "")])  # fmt: skip
def test_a_loss_that_remembers_its_calls_is_remarked_on(loss: Any, remark: str):
    given = check_objective(nn.Linear(5, 1), SCORES, TARGETS, 10, loss, None).remark(1)
    assert (remark in given, bool(given)) == (True, bool(remark))
