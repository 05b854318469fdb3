"""Models by name and by object: the networks, their first weights, the costs of their layers, and torchvision's."""

from __future__ import annotations

import math
import subprocess
import sys

import cloudpickle
import pytest
import torch
from tiny import Noisy, global_states
from torch import Tensor, nn
from torch.nn import functional

from pslab.tensors.random_streams import generator, seed_of
from pslab.tensors.workload.keyspace import Keyspace
from pslab.tensors.workload.layer_costs import shares
from pslab.tensors.workload.models import CNN, MLP, build_model, check_model, resolve_model
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


def test_checking_a_model_changes_neither_it_nor_the_global_generator():
    for model in (build_model("cnn", 0), nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(784, 99))):
        state, before = {name: value.clone() for name, value in model.state_dict().items()}, global_states()
        check_model(model, X, Y)
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
        assert all(p.grad is None for p in model.parameters())
        assert global_states() == before


class Attention(nn.Module):
    """The forward of its output projection is never called, since the attention uses the parameters itself."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.output = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output(self.attention(x, x, x, need_weights=False)[0].mean(1))


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
    got = costs(attention := Attention(), torch.zeros(2, 5, 16))
    assert len(got) == 3
    assert got[0][0] / got[1][0] == pytest.approx(3, rel=0.01)  # three projections in, one out
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
        # a submodule left behind by a failed import would be loaded, but would not be an attribute of the package
        "package = sys.modules['torchvision']\n"
        "parts = [name.split('.') for name in sys.modules if name.startswith('torchvision.')]\n"
        "assert all(hasattr(package, part[1]) for part in parts)\n"
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
