"""What of a user's objects is refused before a process starts, with the field and words that say what is allowed."""

from __future__ import annotations

import dataclasses
import functools
import random
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from readings import Broken, Endless, Flow, Items, Rest, loaded
from refusals import Row, check_refused
from tiny import tiny
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, prune
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset, WeightedRandomSampler

from pslab.lab.runs.resolve import resolve
from pslab.tensors.workload.data import Batches, Dataset, resolve_data
from pslab.tensors.workload.example_check import check_objective
from pslab.tensors.workload.keyspace import Keyspace
from pslab.tensors.workload.models import MLP, build_model, check_model, running_norms
from pslab.tensors.workload.objective import accuracy, cross_entropy, l1, mse, resolve_loss

SOURCE = """
from torch import nn
class Deep(nn.Linear):
    def __init__(self, width=2): super().__init__(4, width)
    @classmethod
    def wide(cls): return cls(5)
def small(): return nn.Linear(4, 3)
ready, number = nn.Linear(4, 3), 3
def broken(): raise OSError('no weights')
def nothing(): return None
"""


@pytest.fixture
def _modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Modules of a user's on the path: one that works, one that imports what is not there, one that is no Python."""
    for name, text in (("mine", SOURCE), ("broken", "import pslab_test_absent"), ("wrong", "def f(:")):
        (tmp_path / f"pslab_test_{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [each for each in sys.modules if each.startswith("pslab_test_")]:
        del sys.modules[name]


NAMES: list[tuple[Any, str]] = [
    ("mpl", "did you mean 'mlp'"), ("", "unknown name ''; allowed: cnn, gpt, linear, mlp"),
    ("mlp:0", "a whole number of at least 1"), ("torchvision:resnet19", "did you mean 'resnet1"),
    ("torchvision:resnet18(num_classes=10)", "without arguments"), ("gpt:66", "multiple of 4, the number of heads"),
    *((text, "form package.module:name") for text in ("os:", ":f", "os:path.", "os:getcwd()", "os:path:join")),
    ("pslab_test_broken:f", "pslab_test_broken cannot be imported: ModuleNotFoundError: No module .*absent"),
    ("pslab_test_wrong:f", "cannot be imported: SyntaxError"),
    ("pslab_test_mine:Deep.wid", "has no 'wid'; did you mean 'wide'"),
    ("pslab_test_mine:number", "is int: must be a class"),
    ("pslab_test_mine:broken", "the factory raised OSError: no weights"),
    ("pslab_test_mine:nothing", "the factory returned NoneType"),
    (nn.Linear, "the factory raised TypeError: .*in_features"),
    (dict, "dict.*the factory returned dict, not an nn.Module"), ([], "a callable or an nn.Module"),
    ("linear", "a weight for each key of the data"),
]  # fmt: skip


@pytest.mark.usefixtures("_modules")
def test_names_and_factories_of_models():
    check_refused(("model", functools.partial(build_model, value, 0), words) for value, words in NAMES)
    built = [build_model(f"pslab_test_mine:{name}", 0) for name in ("small", "Deep", "Deep.wide", "ready")]
    assert [each.weight.shape for each in built] == [(3, 4), (2, 4), (5, 4), (3, 4)]


KEYLESS: list[tuple[nn.Module, str]] = [
    (nn.ReLU(), "no trainable parameters"), (nn.Linear(2, 2).requires_grad_(False), "requires_grad=True"),
    (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()), "0.weight is torch.float32, 1.weight is torch.float64"),
    (nn.LazyLinear(2), "weight is lazy"),
    *((nn.ParameterList([tensor]), f"0 {words}") for tensor, words in (
        (torch.zeros(2, dtype=torch.complex64), "is complex"), (torch.zeros(2, 2).to_sparse(), "is sparse"),
        (torch.zeros(0, 2), "has no elements"))),
]  # fmt: skip


def hooked(kind: str) -> nn.Module:
    module = nn.Linear(4, 2)
    getattr(module.bias, kind)(halved)
    return module


def halved(gradient: Tensor) -> Tensor:
    return gradient / 2


def of_class() -> nn.Module:
    class Marked(nn.Parameter):
        pass

    module = nn.Linear(4, 2)
    module.weight = Marked(module.weight.detach())
    return module


def normed() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 2)))


class Head(nn.Sequential):
    """Names some of its parameters alone."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 2), nn.Linear(2, 2))

    def parameters(self, recurse: bool = True) -> Any:
        return self[1].parameters()


def sharing(kind: str) -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    if kind == "buffer":
        module.register_buffer("twin", module[0].weight.detach()[2:])
    else:
        module[1].weight.data = module[0].weight.data
    return module


def enclosing(kind: str) -> nn.Module:
    """A function in a module refers to the object: in evaluation alone, or to say whether it trains."""
    module: Any = nn.Sequential(nn.Linear(4, 2))
    forward = module[0].forward
    if kind == "hook":
        module[0].register_forward_hook(lambda own, x, output: output if own.training else output * module[0].bias)
    elif kind == "table":
        module.table = {"drop": [functools.partial(lambda x, net: x, net=1), lambda x, net=module: x * net.training]}
    else:
        module[0].forward = lambda x: 2 * forward(x)
    return module


LOST: list[tuple[Callable[[], nn.Module], str]] = [
    (lambda: hooked("register_hook"), "parameter bias has a hook .halved., which is lost .* in forward, hook a tensor"),
    (lambda: hooked("register_post_accumulate_grad_hook"), "parameter bias has a hook"),
    (of_class, "parameter weight is of the class Marked"),
    (Head, r"must return exactly the trainable parameters"),
    (lambda: sharing("parameter"), "0.weight and 1.weight share memory, .*use one Parameter"),
    (lambda: sharing("buffer"), "0.weight and twin share memory"),
    (lambda: enclosing("hook"), r"module 0 \(Linear\) has in _forward_hooks the function enclosing"),
    (lambda: enclosing("table"), "it has in table the function .*or make it a method"),
    (lambda: enclosing("forward"), r"module 0 \(Linear\) has in forward the function enclosing"),
    (lambda: AveragedModel(nn.Linear(4, 2)), "update_parameters .*: give the model inside it"),
    (lambda: parametrizations.weight_norm(nn.Linear(4, 2)), "is parametrized, .*compute the weight in"),
    (lambda: prune.l1_unstructured(nn.Linear(4, 2), "weight", 0.5), "it has weight, .*call prune.remove"),
    (normed, r"module 0 \(Linear\) has weight, a tensor computed from parameters .*remove_weight_norm"),
    (lambda: nn.LazyLinear(2), "parameter weight is lazy: call the module once on a sample"),
    (lambda: nn.Sequential(nn.LazyBatchNorm1d(affine=False)), "buffer 0.running_mean is lazy"),
]


def test_models_that_have_no_keys_or_that_no_copy_could_be():
    check_refused(("model", functools.partial(Keyspace.of, module), words) for module, words in KEYLESS)
    (stream := nn.Linear(2, 2)).stream = sys.stdout
    check_refused([("model", lambda: Keyspace.of(stream).shell(stream), "copy.deepcopy cannot copy it")])
    with nn.modules.module.register_module_forward_hook(lambda module, x, output: output):
        check_refused([("model", lambda: build_model(nn.Linear(4, 2), 0),
                        r"register_module_forward_hook, .*register hooks on the model")])  # fmt: skip
    for factory, words in LOST:
        check_refused(("model", functools.partial(build_model, given, 0), words) for given in (factory(), factory))
    assert Keyspace.of(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double().requires_grad_(False))).size == 6
    both, tied = torch.ones(2, 4, 4), nn.Linear(4, 4)  # parts of one tensor, and a shared module
    build_model(nn.Sequential(nn.ParameterList([nn.Parameter(both[0]), nn.Parameter(both[1])]), tied, tied), 0)


@pytest.mark.parametrize(("owner", "name"), [(nn.GELU, "forward"), (nn.functional, "gelu"), (nn.Module, "__call__")])
def test_what_was_replaced_in_a_library(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str):
    resolve(run := tiny(model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(49, 10), nn.GELU())))
    before = getattr(owner, name)
    monkeypatch.setattr(owner, name, functools.wraps(before)(lambda *given: before(*given)))
    words = f"{owner.__name__}.{name} was replaced in this process by code of {__name__}, and workers import"
    check_refused([("model", lambda: resolve(run), words)])


class Passing(nn.Linear):
    """A layer whose pass ends as a function of its output, its input and its mode says."""

    def __init__(self, end: Callable[..., Any]) -> None:
        super().__init__(784, 10)
        self.end = end

    def forward(self, x: Tensor) -> Any:
        return self.end(super().forward(x.flatten(1)), x.flatten(1), self.training)


class Averaging(nn.Linear):
    """Moves what it does not train in each training pass."""

    def __init__(self) -> None:
        super().__init__(4, 2)
        self.mean = nn.Parameter(torch.zeros(2), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        self.mean.data += self.training
        return super().forward(x) + self.mean


PIXELS, DIGITS = torch.ones(5, 1, 28, 28), torch.tensor([0, 3, 1, 9, 2])
PASSES: list[tuple[nn.Module, str]] = [
    (MLP(100), r"inputs \[2, 1, 28, 28\] of torch.float32: RuntimeError"),
    (MLP().double(), "cannot learn from inputs .*float32"),
    (MLP(classes=9), r"gives \[2, 9\] .*\[2, classes\], with at least 10 classes"),
    (nn.Sequential(nn.Conv2d(3, 4, 3)), "cannot learn .*channels"),
    *((Passing(end), words) for end, words in (
        (lambda y, x, mode: y[0], r"gives \[10\]"), (lambda y, x, mode: y[:1].expand(3, 10), r"gives \[3, 10\]"),
        (lambda y, x, mode: y[..., None], r"gives \[2, 10, 1\]"), (lambda y, x, mode: (y, x), "gives no tensor"),
        (lambda y, x, mode: y.detach(), "does not require grad"),
        (lambda y, x, mode: y if mode else x[:, : 784 // len(x)].reshape(-1),
         r"gives \[784\] for inputs .* in evaluation mode"))),
]  # fmt: skip


def counting(module: nn.Module) -> nn.Module:
    """Count the passes of training in a buffer, by which outputs are divided."""
    module.register_buffer("passes", torch.ones(()))
    module.register_forward_hook(counted)
    return module


def counted(module: nn.Module, x: Any, output: Tensor) -> Tensor:
    module.passes = module.passes + module.training
    return output / module.passes


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_models_that_cannot_learn_or_that_change_what_is_not_trained():
    check_refused(("model", functools.partial(check_model, module, PIXELS, DIGITS), words) for module, words in PASSES)
    x, y = torch.linspace(-1, 2, 24).view(6, 4), torch.linspace(0, 1, 12).view(6, 2)
    check_refused(("model", functools.partial(check_model, module, x, y, functional.mse_loss, None), words)
                  for module, words in ((Averaging(), "parameter mean is changed by a training pass"),
                                        (enclosing("forward"), "uses parameter 0.weight of this object")))  # fmt: skip
    sample = torch.randn(2, 4, 6)
    check_refused(("model", functools.partial(running_norms, nn.Sequential(module), sample),
                   f"buffer {words} changes in training.*use one of these") for module, words in (
        (counting(nn.Identity()), "0.passes of Identity"), (counting(nn.BatchNorm1d(4)), "0.passes of BatchNorm1d"),
        (nn.utils.spectral_norm(nn.Linear(6, 5)), "0.weight_u of Linear")))  # fmt: skip


ONES, NUMBERS, LABELS = torch.ones(4, 3), torch.zeros(4, 2), torch.tensor([0, 1, 2, 1])
SCORES, WORDS = torch.randn(4, 5, 7), torch.randint(5, (4, 7))
COLUMN, SAMPLE = torch.linspace(-1, 1, 64)[:, None], torch.ones(2, 3)


def steep(output: Tensor, target: Tensor) -> Tensor:
    loss = mse(output, target)
    return loss + torch.autograd.grad(loss, output, create_graph=True)[0].square().mean()


def rmse(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).pow(2).mean().sqrt()


def tried(loss: Any, metric: Any = None, model: nn.Module | None = None, y: Tensor = NUMBERS, *more: Any) -> Any:
    return lambda: check_model(model or nn.Linear(3, 2), ONES, y, loss, metric, *more)


def objective(loss: Any, metric: Any, y: Tensor = COLUMN, examples: int = 8) -> Any:
    return lambda: check_objective(nn.Linear(3, 1), SAMPLE, y, examples, loss, metric)


OBJECTIVES: list[Row] = [
    *(("loss", functools.partial(resolve_loss, value, torch.float32), words) for value, words in (
        ("msee", "did you mean 'mse'"), ("mse:2", "takes no parameters"),
        (3, "must be one of cross_entropy, mse, l1, package.module:name, or a"),
        (nn.MSELoss, r"is a class: give an object of it, such as MSELoss\(\)"),
        (nn.PReLU(), "has parameters .weight."))),
    *(("", functools.partial(loss, output, target), words) for loss, output, target, words in (
        (mse, torch.zeros(4, 1), torch.zeros(4), r"one shape, not \[4, 1\] .*give output.squeeze\(-1\)"),
        (l1, torch.zeros(4), torch.zeros(4, 1), "one shape"), (mse, (1, 2), torch.zeros(4), "not tuple"),
        (cross_entropy, SCORES.transpose(1, 2), WORDS, r"give output.transpose\(1, -1\)"),
        (cross_entropy, NUMBERS, NUMBERS, "use loss='mse'"), (accuracy, NUMBERS, NUMBERS, "metric='loss'"))),
    *(("loss", tried(loss), words) for loss, words in (
        (lambda output, target: (output - target) ** 2, r"returned \[2, 2\] of torch.float32"),
        (lambda output, target: 1.0, "returned float: must return one"),
        (lambda output, target: torch.zeros(()), "has no gradient"),
        (lambda output, target: (output.detach() - target).mean(), "has no gradient"),
        (lambda output, target: torch.zeros((), requires_grad=True) * 2, "must depend on a weight"),
        (lambda output, target: functional.mse_loss(output, target[:, 0]), "Using a target size"),
        (lambda output, target: output @ ONES, "cannot be computed from outputs .* targets .*RuntimeError"),
        (steep, "^loss='steep': .*an evaluation has no gradients: skip operations that need them"),
        (cross_entropy, "cross_entropy needs scores"))),
    *(("metric", tried(mse, metric), words) for metric, words in (
        (lambda output, target: output[5], "cannot be computed from outputs .*IndexError"),
        (lambda output, target: "good", "returned str: must return a value for each of the 2"),
        (lambda output, target: torch.zeros(3), r"returned \[3\] of torch.float32"),
        (accuracy, "accuracy needs scores .*: use loss='mse' and metric='loss'"))),
    ("model", tried(cross_entropy, accuracy, nn.Linear(3, 3), LABELS, 5), "with at least 5 classes"),
    ("model", lambda: check_model(nn.Sequential(nn.Linear(3, 35), nn.Unflatten(1, (7, 5))), ONES, WORDS),
     r"logits \[2, classes, 7\], .*dimension 1, as in torch: transpose"),
    ("loss", objective(nn.MSELoss(reduction="sum"), None),
     "is a sum over the examples: .* return their mean, as reduction='mean' does"),
    ("loss", objective(lambda output, target: (output - target).pow(2).mean(), None, COLUMN[:, 0]),
     r"broadcasts outputs \[2, 1\] of torch.float32 with targets \[2\] .*output.squeeze\(-1\)"),
    ("metric", objective(None, rmse, COLUMN, 2**27), r"rmse.*is not a mean over .* 512 MiB, but .* at most 256 "),
    *(("metric", objective(None, metric), words) for metric, words in (
        (lambda output, target: {"a": rmse(output, target), "loss": 1.0}, "names a value 'loss'"),
        (lambda output, target: {"a": 1.0, "b": "good"},
         "returned str for 'b': must return a value for each of the 64"),
        (lambda output, target: {}, "returned no value"))),
]  # fmt: skip


def test_losses_and_metrics():
    check_refused(OBJECTIVES)
    tried(cross_entropy, accuracy, nn.Linear(3, 3), LABELS, 3)()
    assert objective(None, rmse, COLUMN, 2**26)().whole == (False, True)
    assert objective(None, mse, COLUMN, 2**27)().whole == (False, False)


def tensors() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return torch.rand(6, 3), torch.tensor([0, 1, 2, 0, 1, 2]), torch.rand(4, 3), torch.tensor([0, 1, 2, 4])


def fails() -> None:
    raise KeyError("column")


#: What stands where a tensor should: which of the four, what, and words.
TENSORS: list[tuple[int, Callable[[Tensor], Any], str]] = [
    (0, lambda x: "a", "train_x is str: must be a tensor"),
    (0, lambda x: x.log() / 0, "train_x contains values that are not finite"),
    (0, lambda x: x + 0j, r"train_x must be \[examples, ...\] .* not \[6, 3\] of torch.complex64"),
    *((0, change, "train_x must be") for change in (lambda x: x[:, 0], lambda x: x[0, 0], lambda x: x[:0])),
    (1, lambda y: y[:5], r"train_y must be \[6, ...\] of int64.* not \[5\]"),
    (1, lambda y: torch.eye(6).long(), r"test_y is \[4\] of .*, train_y is \[6, 6\] of"),
    (1, Tensor.float, "test_y is .*int64, train_y is .*float32"),
    (1, lambda y: torch.zeros(6, 0), r"train_y must be \[6, ...\]"),
    (1, lambda y: y / 0, "train_y contains values that are not finite"),
    (2, lambda x: x[:, :2], r"test_x is \[4, 2\] .* train_x is \[6, 3\]"),
    (2, Tensor.double, "one example must have the same shape and dtype in both"),
]  # fmt: skip
FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"std": 0.0}, "std above 0"), ({"mean": float("nan")}, "finite"), ({"std": float("inf")}, "finite"),
    ({"classes": 4}, "labels of test_y must be 0 to 3, not 0 to 4"), ({"mean": None}, "with mean=None inputs are tok"),
    ({"train_x": [1]}, "train_x must be a tensor, not list"),
]  # fmt: skip


def replaced(number: int, change: Callable[[Tensor], Any]) -> Callable[[], tuple[Any, ...]]:
    given = tensors()
    return lambda: (*given[:number], change(given[number]), *given[number + 1 :])


def test_data(tmp_path: Path):
    (tmp_path / "file").touch()
    check_refused(("data", functools.partial(resolve_data, value, root), words) for value, root, words in (
        ("mnsit", tmp_path, "did you mean 'mnist'"), ("torchvision:CIFAR11", tmp_path, "did you mean 'cifar1"),
        ("os:getcwd()", tmp_path, "package.module:name"), ("os:path", tmp_path, "must be a callable or a Dataset"),
        ("os:getcwd", tmp_path,
         r"must return a Dataset, \(train_x, train_y, test_x, test_y\), or \(train, test\) .*, not str of"),
        (4, tmp_path, "must be a callable or a Dataset, or one of mnist"),
        (fails, tmp_path, "without arguments, raised KeyError: 'column'"),
        ("torchvision:CIFAR10", tmp_path / "file",
         r"cannot be read from .*/file, nor downloaded .*FileExistsError.*datasets\.CIFAR10\(root, down")))  # fmt: skip
    check_refused(("data", functools.partial(resolve_data, replaced(*row)), words) for *row, words in TENSORS)
    check_refused(("data", functools.partial(resolve_data, lambda given=given: given), words) for given, words in (
        (tensors()[:3], "not tuple of 3"), (None, "not NoneType")))  # fmt: skip
    right = Dataset("mine", *tensors(), mean=0.0, std=1.0, classes=5)
    check_refused(("data", functools.partial(dataclasses.replace, right, **fields), words) for fields, words in FIELDS)
    parts = np.repeat([0, 1, 2], [2, 38, 20])
    check_refused([
        ("batch_size", lambda: Batches(399, 4, 0, 100, 0),
         r"4 workers take 400 examples .* there are 399: it can be at most 99"),
        ("", lambda: Batches(399, 4, 4, 1, 0), "worker 4 must be from 0 to 3"),
        ("", lambda: Batches(10, 1, 0, 1, 0).at(-1), "at least 0"),
        ("batch_size", lambda: Batches(60, 3, 0, 4, 7, parts=parts),
         "worker 0 has 2 examples, too few for a pass of 5 batches"),
    ])  # fmt: skip


class Alone(Items):
    def __getitem__(self, place: int) -> Any:
        return torch.zeros(3)


class Empty(DataLoader):
    def __iter__(self):
        return iter([])


READ: list[tuple[Callable[[], Any], str]] = [
    (lambda: loaded(Flow(), 2), "each of several loading processes would read all .*: use num_workers=1"),
    (lambda: loaded(Endless()), "has no length, which determines .*: define __len__"),
    (lambda: loaded(Broken()), "cannot be read: OSError: no example 0"),
    (lambda: loaded(Broken(), 1), "cannot be read: OSError: no example 0$"),
    (lambda: loaded(Items(0)), "cannot be read|must be"),
    (lambda: loaded([torch.zeros(2)] * 4), r"an example must be \(input, target\), so that"),
    (lambda: resolve_data(lambda: (Alone(), Alone())), r"an example must be \(input, target\)"),
    (lambda: loaded(TensorDataset(torch.ones(4, 2), torch.ones(4, 2) + 1j)), "real numbers, .*torch.complex64: use"),
    (lambda: resolve_data(lambda: (Items(), 3)), "torch's Datasets or DataLoaders, not tuple of 2"),
    *((lambda draw=draw: loaded(Items(20, draw)), "an example differs when it is read again")
      for draw in (lambda: np.random.default_rng().random(), random.SystemRandom(0).random)),
]  # fmt: skip
LOADERS: list[tuple[dict[str, Any], str]] = [
    *(
        ({"sampler": sampler}, words)
        for sampler, words in (
            (WeightedRandomSampler([1.0] * 20, 20, replacement=False), "sampler .WeightedRandomSampler. must"),
            (RandomSampler(range(20), replacement=True), "its sampler .RandomSampler. must give the same"),
            (RandomSampler(range(20), num_samples=7), "the same examples in each epoch"),
            ([1, 1], "each once"),
            (Rest(0, alternating=True), "its sampler .Rest. must"),
            ([5, 20], "from 0 to 19"),
            ([], "its sampler"),
            (iter(range(9)), "its sampler"),
            (BatchSampler(range(20), 4, False), r"its sampler cannot be copied and iterated over \(TypeError"),
        )
    ),
    ({"batch_size": None}, "batch_size= of its DataLoader cannot be used"),
    ({"num_workers": 1, "multiprocessing_context": "spawn"}, "multiprocessing_context= .* started by fork"),
    ({"drop_last": True, "batch_size": 8}, "test: drop_last= .* all test examples are evaluated"),
    ({"kind": Empty}, "a run does not call Empty.__iter__"),
]


def test_data_sets_and_data_loaders_of_torch():
    check_refused(("data", call, words) for call, words in READ)
    for arguments, words in LOADERS:
        loader = {"kind": DataLoader, **arguments}
        made = loader.pop("kind")(Items(), **loader)
        check_refused([("data", lambda made=made: resolve_data(lambda: (Items(), made)), words)])
