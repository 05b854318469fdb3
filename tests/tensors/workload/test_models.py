"""Models by name and by object; the problems of a model are reported before a process starts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tiny import Noisy, global_states
from torch import Tensor, nn

from pslab.errors import ConfigError
from pslab.tensors.random_streams import generator, seed_of
from pslab.tensors.workload.keyspace import Keyspace
from pslab.tensors.workload.models import MLP, build_model, check_model, resolve_model
from pslab.tensors.workload.torchvision_ops import import_named

SOURCE = """
import torch
from torch import nn

def small(): return nn.Linear(4, 3)
class Deep(nn.Module):
    def __init__(self, width=2):
        super().__init__()
        self.layer = nn.Linear(4, width)
    @classmethod
    def wide(cls): return cls(5)
ready = nn.Linear(4, 3)
number = 3
def broken(): raise OSError('no weights')
def nothing(): return None
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a user's module on the path."""
    (tmp_path / "pslab_test_mine.py").write_text(SOURCE)
    (tmp_path / "pslab_test_broken.py").write_text("import pslab_test_absent")
    (tmp_path / "pslab_test_wrong.py").write_text("def f(:")
    monkeypatch.syspath_prepend(tmp_path)
    yield "pslab_test_mine"
    for name in [n for n in sys.modules if n.startswith("pslab_test_")]:
        del sys.modules[name]


# --- the networks ---------------------------------------------------------------------------------------------------


def test_the_mlp_is_four_matrix_products_with_relu() -> None:
    model = build_model("mlp", 0)
    x = torch.randn(3, 1, 28, 28, generator=generator(0, "x"))
    y = x.reshape(3, 784)
    layers = [model.hidden1, model.hidden2, model.hidden3, model.output]
    for i, layer in enumerate(layers):
        y = y @ layer.weight.T + layer.bias
        y = y.clamp(min=0) if i < 3 else y
    torch.testing.assert_close(model(x), y)
    assert sum(p.numel() for p in model.parameters()) == 932_362


def test_the_cnn_has_the_layers_that_it_names() -> None:
    model = build_model("cnn", 0)
    x = torch.randn(3, 1, 28, 28, generator=generator(0, "x"))
    reference = nn.Sequential(model.conv1, model.norm1, nn.ReLU(), nn.MaxPool2d(2), model.conv2, model.norm2, nn.ReLU(),
                              nn.MaxPool2d(2), nn.Flatten(), model.output)  # fmt: skip
    torch.testing.assert_close(model(x), reference(x))
    assert sum(p.numel() for p in model.parameters()) == 16_186


# --- names ----------------------------------------------------------------------------------------------------------


def test_the_mlp_at_other_widths() -> None:
    keyspace = Keyspace.of(build_model("mlp:64", 3))
    assert (keyspace.size, keyspace.keys) == (59_210, 3 * 64 + 10)
    assert [layer.name for layer in keyspace.layers] == ["hidden1", "hidden2", "hidden3", "output"]
    same, thesis = build_model("mlp:hidden=512", 3).state_dict(), build_model("mlp", 3).state_dict()
    assert all(torch.equal(same[name], value) for name, value in thesis.items())


def test_names_of_a_users_module(mine: str) -> None:
    assert build_model(f"{mine}:small", 0).weight.shape == (3, 4)
    assert build_model(f"{mine}:Deep", 0).layer.weight.shape == (2, 4)
    assert build_model(f"{mine}:Deep.wide", 0).layer.weight.shape == (5, 4)
    assert build_model(f"{mine}:ready", 0).weight.shape == (3, 4)


def test_callables_and_modules_in_place_of_names() -> None:
    assert resolve_model(MLP) is MLP
    given = nn.Linear(2, 2)
    one, other = resolve_model(given)(), build_model(given, 5)
    assert torch.equal(one.weight, given.weight)
    assert torch.equal(other.weight, given.weight)
    assert one.weight.data_ptr() != given.weight.data_ptr() != other.weight.data_ptr()


@pytest.mark.parametrize(
    ("value", "problem"),
    [("mpl", "did you mean 'mlp'"), ("", "unknown name ''; allowed: cnn, gpt, linear, mlp"),
     ("cnn:16", "cnn takes no parameters"), ("mlp:wide", "hidden='wide' cannot be read"),
     ("mlp:0", "a whole number of at least 1"),
     ("mlp:64,3", "mlp takes hidden=512; got 2 values"), ("mlp:width=64", "has no parameter 'width'"),
     ("torchvision:resnet19", "did you mean 'resnet1"), ("torchvision:resnet18(num_classes=10)", "without arguments"),
     *((text, "form package.module:name") for text in ("os:", ":f", "os:path.", "os:getcwd()", "../os:getcwd",
                                                       "os:path:join", ".models:MLP")),
     ("pslab_test_absent:f", "cannot be imported: ModuleNotFoundError"),
     ("pslab_test_broken:f", "pslab_test_broken cannot be imported: ModuleNotFoundError: No module .*absent"),
     ("pslab_test_wrong:f", "cannot be imported: SyntaxError"),
     ("pslab_test_mine:smal", "has no 'smal'; did you mean 'small'"),
     ("pslab_test_mine:Deep.wid", "has no 'wid'; did you mean 'wide'"),
     ("pslab_test_mine:number", "is int: must be a class"),
     ("pslab_test_mine:broken", "the factory raised OSError: no weights"),
     ("pslab_test_mine:nothing", "the factory returned NoneType"),
     (lambda: nn.Linear("a", 2), "the factory raised TypeError"),
     (nn.Linear, "the factory raised TypeError: .*in_features"),
     (dict, "dict.*the factory returned dict, not an nn.Module"), ([], "a callable or an nn.Module")],
)  # fmt: skip
@pytest.mark.usefixtures("mine")
def test_unusable_models_are_refused_with_the_reason(value: object, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        build_model(value, 0)
    assert caught.value.field == "model"


def test_a_failed_import_keeps_its_cause(mine: str) -> None:
    with pytest.raises(ConfigError) as caught:
        import_named("data", "pslab_test_wrong:f")
    assert caught.value.field == "data"
    assert isinstance(caught.value.__cause__, SyntaxError)
    assert import_named("data", f"{mine}:number") == 3


# --- initialization -------------------------------------------------------------------------------------------------


def test_the_initial_model_depends_on_the_seed_alone() -> None:
    flats = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        before = torch.random.get_rng_state()
        model = build_model("mlp", 3)
        assert torch.equal(before, torch.random.get_rng_state())
        flats.append(Keyspace.of(model).flatten(model))
    assert torch.equal(flats[0], flats[1])
    other = build_model("mlp", 4)
    assert not torch.equal(flats[0], Keyspace.of(other).flatten(other))
    with torch.random.fork_rng([]):
        torch.manual_seed(seed_of(3, "init"))
        assert torch.equal(MLP().output.weight, model.output.weight)


def test_a_model_that_draws_from_any_global_generator_depends_on_the_seed_alone() -> None:
    before = global_states()
    (one, same), other = (build_model(Noisy, 3).bias for _ in range(2)), build_model(Noisy, 4).bias
    assert torch.equal(one, same)
    assert not (one == other).any()
    assert global_states() == before


# --- the check ------------------------------------------------------------------------------------------------------


class Shaped(nn.Module):
    """Its outputs always have this shape."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(shape))

    def forward(self, x: Tensor) -> Tensor:
        return self.bias + 0 * x.sum()


class Pair(nn.Linear):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return super().forward(x), x


class Untaught(nn.Linear):
    """Its forward pass works, its backward pass does not."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).detach()


class Otherwise(nn.Linear):
    """Its evaluation gives something else than its training."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(1)) if self.training else x.flatten(1)[:, : 784 // len(x)].reshape(-1)


X, Y = torch.ones(5, 1, 28, 28), torch.tensor([0, 3, 1, 9, 2])


DROPOUT = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(784, 10))


@pytest.mark.parametrize("model", [build_model("mlp", 0), build_model("cnn", 0), Shaped(2, 10), Shaped(2, 99), DROPOUT])
def test_checking_a_model_changes_neither_it_nor_the_global_generator(model: nn.Module) -> None:
    state = {name: value.clone() for name, value in model.state_dict().items()}
    before = torch.random.get_rng_state()
    check_model(model, X, Y)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("model", "problem"),
    [(MLP(100), r"inputs \[2, 1, 28, 28\] of torch.float32: RuntimeError"),
     (MLP().double(), "cannot learn from inputs .*float32"),
     (MLP(classes=9), r"gives \[2, 9\] .*\[2, classes\], with at least 10 classes"),
     (Shaped(10), r"gives \[10\]"), (Shaped(3, 10), r"gives \[3, 10\]"), (Shaped(2, 10, 1), r"gives \[2, 10, 1\]"),
     (nn.Sequential(nn.Flatten(), Pair(784, 10)), "gives no tensor"),
     (nn.Sequential(nn.Flatten(), Untaught(784, 10)), "does not require grad"),
     (nn.Sequential(nn.Conv2d(3, 4, 3)), "cannot learn .*channels"),
     (Otherwise(784, 10), r"gives \[784\] for inputs .* in evaluation mode")],
)  # fmt: skip
def test_a_model_that_cannot_learn_is_refused_with_shapes(model: nn.Module, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        check_model(model, X, Y)
    assert caught.value.field == "model"
