"""Keyspaces: each element has one key, key ranges tile the flat vector, and autograd works in it."""

from __future__ import annotations

import copy
import itertools
import pickle
import sys
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pslab.errors import ConfigError
from pslab.tensors.workload.keyspace import KeyRange, Keyspace
from pslab.tensors.workload.models import CNN, MLP


class Parts(nn.Module):
    """Named modules and parameters, and a forward pass of them."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self._forward = forward

    def forward(self, x: Tensor) -> Tensor:
        return self._forward(self, x)


def tied() -> nn.Module:
    """A small language model whose output layer is its embedding."""
    module = Parts(lambda m, x: m.output(m.hidden(m.embedding(x))), embedding=nn.Embedding(7, 4),
                   hidden=nn.Linear(4, 4), output=nn.Linear(4, 7))  # fmt: skip
    module.output.weight = module.embedding.weight
    return module


def scalars() -> nn.Module:
    """Parameters without dimensions, and of one element, in the root module itself."""
    return Parts(lambda m, x: m.linear(x) * m.scale + m.shift, scale=nn.Parameter(torch.tensor(2.0)),
                 shift=nn.Parameter(torch.tensor([1.0])), linear=nn.Linear(3, 2))  # fmt: skip


def lstm() -> nn.Module:
    return Parts(lambda m, x: m.lstm(x)[0], lstm=nn.LSTM(3, 4, num_layers=2, proj_size=2, batch_first=True))


def attention() -> nn.Module:
    heads = nn.MultiheadAttention(4, 2, add_bias_kv=True, batch_first=True)
    return Parts(lambda m, x: m.attention(x, x, x)[0], attention=heads)


def frozen() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    module[2].requires_grad_(False)
    module[4].bias.requires_grad_(False)
    return module


MODULES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "mlp": (lambda: MLP(12, 5, 3), lambda: torch.randn(4, 3, 4)),
    "cnn": (CNN, lambda: torch.randn(2, 1, 28, 28)),
    "linear": (lambda: nn.Linear(3, 2), lambda: torch.randn(2, 3)),
    "no bias": (lambda: nn.Linear(3, 2, bias=False), lambda: torch.randn(2, 3)),
    "tied": (tied, lambda: torch.tensor([[0, 3], [6, 3]])),
    "shared module": (lambda: nn.Sequential(*[nn.Linear(3, 3)] * 2, nn.Linear(3, 2)), lambda: torch.randn(2, 3)),
    "lstm": (lstm, lambda: torch.randn(2, 5, 3)),
    "attention": (attention, lambda: torch.randn(2, 5, 4)),
    "frozen": (frozen, lambda: torch.randn(2, 3)),
    "transposed": (lambda: nn.ConvTranspose2d(2, 5, 3), lambda: torch.randn(2, 2, 4, 4)),
    "scalars": (scalars, lambda: torch.randn(2, 3)),
    "sparse gradients": (lambda: nn.Sequential(nn.Embedding(6, 3, sparse=True), nn.Linear(3, 2)),
                         lambda: torch.tensor([[0, 3], [5, 3]])),
}  # fmt: skip
each_module = pytest.mark.parametrize("name", MODULES)


def made(name: str, seed: int = 0) -> tuple[nn.Module, Tensor]:
    """A module of MODULES in float64, and an input for it."""
    torch.manual_seed(seed)
    factory, sample = MODULES[name]
    module, x = factory().double(), sample()
    return module, x.double() if x.is_floating_point() else x


def loss_of(module: nn.Module, x: Tensor) -> Tensor:
    y = module(x)
    return (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)).square().sum()


def trainable(module: nn.Module) -> list[nn.Parameter]:
    return [p for p in module.parameters() if p.requires_grad]


# --- layout ---------------------------------------------------------------------------------------------------------


def test_the_keyspace_of_the_mlp() -> None:
    keyspace = Keyspace.of(MLP())
    assert (keyspace.size, keyspace.keys, keyspace.dtype) == (932_362, 1546, torch.float32)
    assert [layer.name for layer in keyspace.layers] == ["hidden1", "hidden2", "hidden3", "output"]
    bounds = itertools.pairwise((0, 512, 1024, 1536, 1546))
    assert [layer.keys for layer in keyspace.layers] == [KeyRange(*pair) for pair in bounds]
    assert keyspace.layers[1].flat == slice(401_920, 664_576)


@pytest.mark.parametrize(
    ("name", "layers"),
    [("linear", [("Linear", 2)]), ("tied", [("embedding", 7), ("hidden", 4), ("output", 7)]),
     ("shared module", [("0", 3), ("2", 2)]), ("transposed", [("weight", 2), ("bias", 5)]),
     ("lstm", [("lstm.weight_ih_l0", 16), ("lstm.weight_hr_l0", 2), ("lstm.weight_ih_l1", 16),
               ("lstm.weight_hr_l1", 2)]),
     ("attention", [("attention.in_proj_weight", 12), ("attention.bias_k", 1), ("attention.out_proj", 4)]),
     ("frozen", [("0", 4), ("4", 2)]), ("scalars", [("Parts", 1), ("linear", 2)])],
)  # fmt: skip
def test_a_layer_has_parameters_with_one_number_of_rows(name: str, layers: list[tuple[str, int]]) -> None:
    assert [(layer.name, len(layer.keys)) for layer in Keyspace.of(made(name)[0]).layers] == layers


def test_a_key_is_a_neuron_with_its_incoming_weights_and_its_bias() -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    keyspace = Keyspace.of(module)
    flat = keyspace.flatten(module)
    value = torch.cat([flat[part] for part in keyspace.slices(KeyRange(3, 4))])
    assert value.tolist() == [*module[1].weight[1].tolist(), module[1].bias[1].item()]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(MODULES)), st.data())
def test_slices_of_a_partition_tile_the_vector(name: str, data: st.DataObject) -> None:
    keyspace = KEYSPACES[name]
    cuts = data.draw(st.sets(st.integers(1, keyspace.keys - 1), max_size=6)) if keyspace.keys > 1 else set()
    seen = torch.zeros(keyspace.size, dtype=torch.int64)
    for start, stop in itertools.pairwise([0, *sorted(cuts), keyspace.keys]):
        parts = keyspace.slices(KeyRange(start, stop))
        assert all(a.stop < b.start for a, b in itertools.pairwise(parts)), "ascending, and merged where adjacent"
        single = [p for key in range(start, stop) for p in keyspace.slices(KeyRange(key, key + 1))]
        assert sum(p.stop - p.start for p in parts) == sum(p.stop - p.start for p in single)
        for part in parts:
            seen[part] += 1
    assert bool((seen == 1).all())


KEYSPACES = {name: Keyspace.of(made(name)[0]) for name in MODULES}


def test_a_keyspace_is_plain_data() -> None:
    keyspace = Keyspace.of(MLP())
    assert pickle.loads(pickle.dumps(keyspace)) == keyspace
    assert len(pickle.dumps(keyspace)) < 2000
    assert hash(keyspace) == hash(Keyspace.of(MLP()))


# --- living in flat vectors -----------------------------------------------------------------------------------------


@each_module
def test_bound_gradients_equal_those_of_an_unbound_copy(name: str) -> None:
    module, x = made(name)
    reference = copy.deepcopy(module)
    keyspace = Keyspace.of(module)
    weights, gradient = keyspace.flatten(module), torch.zeros(keyspace.size, dtype=torch.float64)
    keyspace.bind(module, weights, gradient)
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):  # the views must outlive zero_() and backward()
        step = torch.randn(keyspace.size, generator=generator, dtype=torch.float64) / 10
        weights += step
        with torch.no_grad():
            for p, change in zip(trainable(reference), step.split([s.size for s in keyspace.parameters]), strict=True):
                p += change.view(p.shape)
        gradient.zero_()
        loss_of(module, x).backward()
        wanted = torch.autograd.grad(loss_of(reference, x), trainable(reference))
        dense = [g.to_dense().reshape(-1) for g in wanted]
        torch.testing.assert_close(gradient, torch.cat(dense), rtol=1e-10, atol=1e-10)
        assert gradient.abs().sum() > 0
    for p, slot in zip(trainable(module), keyspace.parameters, strict=True):
        assert p.data_ptr() == weights.data_ptr() + slot.offset * 8
        assert p.grad is not None
        assert p.grad.data_ptr() == gradient.data_ptr() + slot.offset * 8


# --- shells ---------------------------------------------------------------------------------------------------------


@each_module
def test_a_pickled_shell_becomes_the_module_again(name: str) -> None:
    module, x = made(name)
    keyspace = Keyspace.of(module)
    shell = keyspace.shell(module)
    assert sum(p.numel() for p in trainable(shell)) == 0
    shell, keyspace = cloudpickle.loads(cloudpickle.dumps((shell, keyspace)))
    weights, gradient = keyspace.flatten(module), torch.zeros(keyspace.size, dtype=torch.float64)
    keyspace.bind(shell, weights, gradient)
    assert torch.equal(shell(x), module(x))
    loss_of(shell, x).backward()
    loss_of(module, x).backward()
    wanted = [p.grad.to_dense().reshape(-1) for p in trainable(module) if p.grad is not None]
    torch.testing.assert_close(gradient, torch.cat(wanted))
    assert {n: p.requires_grad for n, p in shell.named_parameters()} == {
        n: p.requires_grad for n, p in module.named_parameters()
    }


def test_a_shell_is_small_copies_buffers_and_leaves_the_module() -> None:
    module, x = made("cnn")
    module(x)
    keyspace = Keyspace.of(module)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    shell = keyspace.shell(module)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert torch.equal(shell.norm1.running_mean, module.norm1.running_mean)
    assert shell.norm1.running_mean.data_ptr() != module.norm1.running_mean.data_ptr()
    mlp = MLP()
    assert len(cloudpickle.dumps(Keyspace.of(mlp).shell(mlp))) < 932_362 * 4 // 500


def test_a_module_that_cannot_be_copied_is_refused() -> None:
    module = nn.Linear(2, 2)
    module.stream = sys.stdout
    with pytest.raises(ConfigError, match="cannot be copied to the workers"):
        Keyspace.of(module).shell(module)


# --- refused models -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "problem"),
    [(nn.ReLU(), "no trainable parameters"), (nn.Linear(2, 2).requires_grad_(False), "requires_grad=True"),
     (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()), "0.weight is torch.float32, 1.weight is torch.float64"),
     (nn.ParameterList([torch.zeros(2, dtype=torch.complex64)]), "0 is complex"),
     (nn.ParameterList([torch.zeros(2, 2).to_sparse()]), "0 is sparse"),
     (nn.ParameterList([torch.zeros(0, 2)]), "0 has no elements"), (nn.LazyLinear(2), "weight is lazy")],
)  # fmt: skip
def test_models_without_a_keyspace_are_refused(module: nn.Module, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        Keyspace.of(module)
    assert caught.value.field == "model"


def test_frozen_parameters_may_have_any_dtype() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double().requires_grad_(False))
    assert Keyspace.of(module).dtype == torch.float32
