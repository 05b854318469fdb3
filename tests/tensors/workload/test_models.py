"""Models, losses and metrics, the costs of layers, running statistics, and torchvision's models."""

from __future__ import annotations

import copy
import math
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from tiny import Attention, Noisy, global_states
from torch import Tensor, nn
from torch.nn import functional

from pslab.tensors.random_streams import generator, seed_of
from pslab.tensors.workload.example_check import check_objective, relation
from pslab.tensors.workload.keyspace import Keyspace
from pslab.tensors.workload.layer_costs import shares
from pslab.tensors.workload.models import CNN, MLP, build_model, check_model, resolve_model, running_norms
from pslab.tensors.workload.objective import cross_entropy, metric_sums, mse, placed, resolve_loss, resolve_metric
from pslab.tensors.workload.running_statistics import recompute
from pslab.tensors.workload.torchvision_ops import torchvision, with_operators

X, Y = torch.randn(5, 1, 28, 28, generator=generator(0, "x")), torch.tensor([0, 3, 1, 9, 2])


def gpt(model: nn.Module, x: Tensor) -> Tensor:
    """[B, T] -> [B, 256, T], by torch's functions alone."""
    weights = dict(model.named_parameters())
    stream = weights["bytes.weight"][x] + weights["places.weight"][: x.shape[1]]
    for number in range(len(model.blocks)):
        own = {name.removeprefix(f"blocks.{number}."): each for name, each in weights.items()}
        normal = functional.layer_norm(stream, stream.shape[-1:], own["norm1.weight"])
        heads = [part.unflatten(2, (4, -1)) for part in (normal @ own["attend.weight"].T).chunk(3, 2)]
        query, key, value = (each.transpose(1, 2) for each in heads)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        stream = stream + mixed.transpose(1, 2).flatten(2) @ own["attended.weight"].T
        wide = functional.layer_norm(stream, stream.shape[-1:], own["norm2.weight"]) @ own["widen.weight"].T
        stream = stream + functional.gelu(wide) @ own["narrow.weight"].T
    scores = functional.layer_norm(stream, stream.shape[-1:], weights["norm.weight"]) @ weights["bytes.weight"].T
    return scores.transpose(1, 2)


def mlp(model: nn.Module, x: Tensor) -> Tensor:
    x = x.reshape(len(x), 784)
    for layer in (model.hidden1, model.hidden2, model.hidden3):
        x = (x @ layer.weight.T + layer.bias).clamp(min=0)
    return x @ model.output.weight.T + model.output.bias


def cnn(model: nn.Module, x: Tensor) -> Tensor:
    return nn.Sequential(model.conv1, model.norm1, nn.ReLU(), nn.MaxPool2d(2), model.conv2, model.norm2, nn.ReLU(),
                         nn.MaxPool2d(2), nn.Flatten(), model.output)(x)  # fmt: skip


@pytest.mark.parametrize(("text", "reference", "count"), [
    ("mlp", mlp, 932_362), ("mlp:64", mlp, 59_210), ("cnn", cnn, 16_186), ("gpt", gpt, 119_104), ("gpt:16", gpt, None),
    ("gpt:128,layers=4", gpt, 828_544),
])  # fmt: skip
def test_a_named_network_computes_what_its_reference_does(text: str, reference, count: int | None):
    model = build_model(text, 3).double()
    assert count in (None, sum(parameter.numel() for parameter in model.parameters()))
    x = torch.randint(256, (2, 9), generator=generator(0, "bytes")) if reference is gpt else X.double()
    with torch.no_grad():
        for parameter in model.parameters() if reference is gpt else ():  # so that blocks matter
            parameter.mul_(10)
        torch.testing.assert_close(model(x), reference(model, x), rtol=1e-10, atol=1e-11)


def test_first_weights_of_the_language_model_are_normal_and_smaller_where_blocks_add_to_the_stream():
    for name, weight in build_model("gpt:64,layers=3", 0).named_parameters():
        assert name.endswith(".weight")  # there are no biases
        if weight.ndim == 1:
            assert torch.equal(weight, torch.ones(64)), name
            continue
        deviation = 0.02 / (math.sqrt(6) if name.endswith(("attended.weight", "narrow.weight")) else 1)
        assert float(weight.detach().std()) == pytest.approx(deviation, rel=0.05), name


def test_the_initial_model_is_the_users_or_depends_on_the_seed_alone():
    given, states = nn.Linear(2, 2), global_states()
    for copy_of in (resolve_model(given)(), build_model(given, 5)):
        assert torch.equal(copy_of.weight, given.weight)
        assert copy_of.weight.data_ptr() != given.weight.data_ptr()
    (one, same), other = (build_model(Noisy, 3).bias for _ in range(2)), build_model(Noisy, 4).bias
    assert torch.equal(one, same)
    assert not (one == other).any()
    assert global_states() == states
    with torch.random.fork_rng([]):
        torch.manual_seed(seed_of(3, "init"))
        wanted = MLP().state_dict()
    assert all(map(torch.equal, build_model("mlp", 3).state_dict().values(), wanted.values()))


def test_trying_a_model_changes_neither_it_nor_the_global_generators():
    for model in (build_model("cnn", 0), nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(784, 99))):
        for attempt in (lambda model: check_model(model, X, Y), lambda model: running_norms(model, X)):
            before, states = copy.deepcopy(model), global_states()
            attempt(model)
            assert all(map(torch.equal, model.state_dict().values(), before.state_dict().values()))
            assert [each.training for each in model.modules()] == [each.training for each in before.modules()]
            assert all(parameter.grad is None for parameter in model.parameters())
            assert global_states() == states


def test_layers_cost_their_operations():
    def costs(module: nn.Module, x: torch.Tensor) -> tuple[tuple[float, float], ...]:
        return shares(module, Keyspace.of(module), x)

    got, sizes = costs(MLP(784, 64, 10), X), [784 * 64, 64 * 64, 64 * 64, 640]
    assert sum(map(sum, got)) == pytest.approx(1)
    assert [forward / got[0][0] for forward, _ in got] == pytest.approx([n / sizes[0] for n in sizes], rel=0.05)
    assert [backward / forward for forward, backward in got] == pytest.approx([1, 2, 2, 2])
    got = costs(CNN(), X)
    assert max(range(5), key=lambda layer: got[layer][0]) == 2  # conv2
    assert 0 < got[1][0] < 0.001  # a normalization
    assert got[4][0] < 0.01 < 2890 / 16186  # the last layer has many parameters and few operations
    got = costs(attention := Attention(), torch.zeros(2, 1, 7, 7))  # the forward of its output projection is not called
    assert len(got) == 4
    assert got[1][0] / got[2][0] == pytest.approx(3, rel=0.01)  # three projections in, one out
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in attention.modules())
    with torch.device("meta"):
        got = costs(with_operators(lambda: torchvision().models.vgg16(weights=None)), torch.empty(1, 3, 224, 224))
    assert (len(got), sum(map(sum, got[:13])) > 0.98) == (16, True)  # of the operations; 11 % of the parameters


def test_a_fresh_process_unpickles_a_model_of_torchvision_which_it_imports_late_as_numba():
    resnet = torchvision().models.resnet18(weights=None)
    keyspace = Keyspace.of(resnet)
    sent = cloudpickle.dumps((keyspace, keyspace.shell(resnet), float(keyspace.flatten(resnet).sum())))
    assert len(sent) < keyspace.size // 100
    child = (
        "import sys, functools, torch, cloudpickle\n"
        "import pslab.tensors.compression, pslab.tensors.workload.data, pslab.tensors.workload.models\n"
        "assert not {'numba', 'torchvision'} & sys.modules.keys()\n"
        "from pslab.tensors.workload.torchvision_ops import with_operators\n"
        "keyspace, shell, _ = with_operators(functools.partial(cloudpickle.loads, sys.stdin.buffer.read()))\n"
        "keyspace.bind(shell, torch.zeros(keyspace.size))\n"
        "assert shell(torch.zeros(2, 3, 32, 32)).abs().sum() == 0\n"
    )
    assert subprocess.run([sys.executable, "-c", child], input=sent, check=False).returncode == 0


def test_a_missing_operator_is_declared_and_the_import_tried_again_and_other_errors_are_raised():
    modules = {n: m for n, m in sys.modules.items() if n.partition(".")[0] == "torchvision"}  # which are imported anew

    def load() -> str:
        for name in ("pslab_test_a", "pslab_test_b"):
            if not hasattr(torch.ops.torchvision, name):
                raise RuntimeError(f"operator torchvision::{name} does not exist")
        return "loaded"

    def fail(words: str) -> None:
        raise RuntimeError(words)

    try:
        assert with_operators(load) == "loaded"
        for words in ("something else", "operator other::nms does not exist"):
            with pytest.raises(RuntimeError, match=words):
                with_operators(lambda words=words: fail(words))
    finally:
        sys.modules.update(modules)


BATCHES = [3 + 2 * torch.randn(16, 4, 6, generator=generator(0, "x", i)) for i in range(8)]
SAMPLE = BATCHES[0][:2]


class Frozen(nn.Sequential):
    """A module that keeps its BatchNorm in evaluation mode, as one does with weights that were trained before."""

    def train(self, mode: bool = True) -> Frozen:
        super().train(mode)
        self[0].eval()
        return self


def renewed(module: nn.Module) -> nn.Module:
    recompute(module, running_norms(module, SAMPLE), lambda: iter(BATCHES))
    assert not any(each.training for each in module.modules())
    return module


def test_instance_norm_gets_the_plain_mean_over_the_batches():
    module = renewed(nn.InstanceNorm1d(4, track_running_stats=True))
    torch.testing.assert_close(module.running_mean, torch.stack([x.mean((0, 2)) for x in BATCHES]).mean(0))
    torch.testing.assert_close(module.running_var, torch.stack([x.var(2).mean(0) for x in BATCHES]).mean(0))


def test_norms_that_training_leaves_as_they_are_stay_as_they_are():
    for model, norm in ((Frozen, nn.BatchNorm1d(4)), (nn.Sequential, nn.BatchNorm1d(4, momentum=0.0))):
        module = model(norm, nn.BatchNorm1d(4))
        module[0].running_mean += 7
        assert running_norms(module, SAMPLE) == ("1",)
        assert (renewed(module)[0].running_mean == 7).all()


def test_a_model_without_statistics_is_not_passed_through():
    def batches() -> Iterator[Tensor]:
        raise AssertionError("passed through")

    for module in (nn.LayerNorm(6), nn.InstanceNorm1d(4), nn.BatchNorm1d(4, track_running_stats=False)):
        assert running_norms(module, SAMPLE) == ()
        recompute(module, (), batches)


ZEROS, DRAW = torch.zeros(4, 2), torch.Generator().manual_seed(3)
SCORES, NUMBER = torch.randn(2, 5, generator=DRAW), torch.randn(2, 1, generator=DRAW)
LABELS, TARGETS = torch.randint(5, (64,), generator=DRAW), torch.randn(64, 1, generator=DRAW)
TRUTHS, IGNORED = (TARGETS > 0).float(), LABELS.where(torch.arange(64) % 7 > 0, -100)
WEIGHTS = torch.arange(1.0, 6)


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
    ("other", lambda output, target: (-output.log().mean()).sqrt(), torch.full((2, 1), 0.99), TARGETS),
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


def test_probabilities_are_warned_about_where_logits_are_due():
    for last, warned in ((nn.Softmax(1), 1), (nn.Sigmoid(), 0), (nn.LogSoftmax(1), 0), (nn.Identity(), 0)):
        for loss, due in ((cross_entropy, warned), (nn.CrossEntropyLoss(), warned), (nn.NLLLoss(), 0)):
            with warnings.catch_warnings(record=True) as given:
                warnings.simplefilter("always")
                check_model(nn.Sequential(nn.Linear(5, 3), last), torch.randn(2, 5), torch.tensor([0, 2]), loss)
            assert ["leave out the last softmax" in str(each.message) for each in given] == [True] * due, (last, loss)


def test_a_loss_derived_from_cross_entropy_may_take_any_output():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.layer(x), self.layer(-x)

    class OfBoth(nn.CrossEntropyLoss):
        def forward(self, output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
            return super().forward(output[0] + output[1], target)

    assert check_model(Twice(), torch.randn(2, 5), torch.tensor([0, 2]), OfBoth(), None) == ()


def test_a_loss_that_remembers_its_calls_is_remarked_on():
    for loss, remark in ((Counting(True), "another value when it is called again"), (Counting(False), ""),
                         (nn.MSELoss(), "")):  # fmt: skip
        given = check_objective(nn.Linear(5, 1), SCORES, TARGETS, 10, loss, None).remark(1)
        assert (remark in given, bool(given)) == (True, bool(remark))
