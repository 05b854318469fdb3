"""A user's objects: a run trains and evaluates them as plain torch does on the same batches, or refuses them."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from resumed import interrupted, pushes_resumed, quiet, same
from tiny import finished, net, tiny
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)
from whole import in_process

from pslab.config.metric import metric_of
from pslab.config.run import Run
from pslab.errors import ConfigError, WorkerFailed
from pslab.lab.records.results import load
from pslab.lab.runs.resolve import resolve
from pslab.lab.runs.run import run
from pslab.tensors.device import one_thread
from pslab.tensors.workload.data import Batches, resolve_data
from pslab.tensors.workload.models import build_model
from pslab.tensors.workload.running_statistics import calibration

N, TEST, FEATURES, STEPS, RATE = 24, 13, 6, 4, 0.1


class Doubled(torch.autograd.Function):
    """Twice the input, whose gradient is clipped."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return (2 * gradient).clamp(-0.1, 0.1)


class Own(nn.Module):
    """Two layers with a part in between that is drawn."""

    def __init__(self, between: Callable[[torch.Tensor], torch.Tensor], outputs: int) -> None:
        super().__init__()
        self.first, self.last, self.between = nn.Linear(FEATURES, 5), nn.Linear(5, outputs), between
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.between(self.first(x) * self.scale))


class Tied(nn.Module):
    """Two layers that share their weight."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.a, self.b, self.last = nn.Linear(FEATURES, 6), nn.Linear(6, 6), nn.Linear(6, outputs)
        self.b.weight = self.a.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.b(self.a(x).tanh()))


def frozen(outputs: int) -> nn.Module:
    module = nn.Sequential(nn.Linear(FEATURES, 5), nn.ReLU(), nn.Linear(5, outputs))
    module[0].requires_grad_(False)
    return module


def hooked(outputs: int) -> nn.Module:
    module = nn.Sequential(nn.Linear(FEATURES, 5), nn.Linear(5, outputs))
    module[0].register_forward_hook(lambda layer, given, output: output.tanh())
    return module


def clipped(outputs: int) -> nn.Module:
    module = nn.Linear(FEATURES, outputs)
    module.weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    return module


class Adversarial(nn.Module):
    """Takes a backward pass for the gradient of its inputs, and leaves the gradients of its weights, or zeroes them."""

    def __init__(self, outputs: int, zero: bool = True) -> None:
        super().__init__()
        self.layer, self.zero = nn.Linear(FEATURES, outputs), zero

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            x = x.clone().requires_grad_()
            self.layer(x).pow(2).mean().backward()
            x = (x + 0.1 * x.grad.sign()).detach()  # type: ignore[union-attr]
            if self.zero:
                self.zero_grad()
        return self.layer(x)


def penalized(module: nn.Module) -> Callable[..., torch.Tensor]:
    return lambda output, target: functional.mse_loss(output, target) + sum(p.pow(2).sum() for p in module.parameters())


def rmse(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).pow(2).mean().sqrt()


def worst(output: torch.Tensor, target: torch.Tensor) -> np.floating[Any]:
    return np.abs(output.numpy() - target.numpy()).max()


rmse.lower_is_better = worst.lower_is_better = True  # type: ignore[attr-defined]

#: name -> (what makes it, whether it is refused)
MODELS: dict[str, tuple[Callable[[int], nn.Module], bool]] = {
    "linear": (lambda outputs: nn.Linear(FEATURES, outputs), False),
    "layer norm": (lambda outputs: nn.Sequential(nn.LayerNorm(FEATURES), nn.Linear(FEATURES, outputs)), False),
    "batch norm": (lambda outputs: nn.Sequential(nn.BatchNorm1d(FEATURES), nn.Linear(FEATURES, outputs)), False),
    "tied": (Tied, False), "frozen": (frozen, False), "module hook": (hooked, False),
    "tanh": (lambda outputs: Own(torch.tanh, outputs), False),
    "own function": (lambda outputs: Own(Doubled.apply, outputs), False),
    "checkpointed": (lambda outputs: Own(lambda x: checkpoint(torch.sigmoid, x, use_reentrant=False), outputs), False),
    "convolution": (lambda outputs: nn.Sequential(nn.Unflatten(1, (1, FEATURES)), nn.Conv1d(1, 3, 3), nn.Flatten(),
                                                  nn.Linear(12, outputs)), False),
    "zero_grad in forward": (Adversarial, False),
    "backward in forward": (lambda outputs: Adversarial(outputs, zero=False), False),
    "parameter hook": (clipped, True), "lazy": (lambda outputs: nn.LazyLinear(outputs), True),
    "weight norm": (lambda outputs: nn.utils.parametrizations.weight_norm(nn.Linear(FEATURES, outputs)), True),
}  # fmt: skip
LOSSES: dict[str, tuple[Any, bool]] = {
    "mse": ("mse", False), "l1 module": (nn.L1Loss(), False), "huber": (nn.HuberLoss(delta=0.5), False),
    "callable": (lambda output, target: (output - target).pow(4).mean(), False),
    "sum": (nn.MSELoss(reduction="sum"), True), "broadcast": (lambda o, t: (o - t[:, 0]).pow(2).mean(), True),
    "holds the model": (penalized, True),
}  # fmt: skip
METRICS: dict[str, Any] = {"loss": "loss", "rmse": rmse, "worst": worst}


def loaders(form: str, x: torch.Tensor, y: torch.Tensor, u: torch.Tensor, v: torch.Tensor) -> Any:
    """The same examples, given in this form; others stand beside those that are not to be seen."""
    rows, test = TensorDataset(torch.cat([x, u]), torch.cat([y, v])), DataLoader(TensorDataset(u, v), batch_size=3)
    if form == "tensors":
        return x, y, u, v
    options: dict[str, dict[str, Any]] = {
        "subset": {"dataset": Subset(rows, range(N)), "shuffle": True},
        "sampler": {"dataset": rows, "sampler": SubsetRandomSampler(list(range(N))), "batch_size": 5},
        "concatenated": {"dataset": ConcatDataset([Subset(rows, range(9)), Subset(rows, range(9, N))])},
        "dropped last": {"dataset": TensorDataset(x, y), "batch_size": N, "drop_last": True, "pin_memory": False},
        "weighted": {"dataset": rows, "sampler": WeightedRandomSampler([1.0] * N + [0.0] * TEST, N)},
        "own batches": {"dataset": rows, "batch_sampler": [[0, 1], [2, 3]]},
    }
    return DataLoader(**options[form]), test


DATA = {"tensors": False, "subset": False, "sampler": False, "concatenated": False, "dropped last": False,
        "weighted": True, "own batches": True}  # fmt: skip


def drawn(seed: int) -> Iterator[Any]:
    """A model, a loss, a metric and a form of data: three of four cases hold nothing that is refused."""
    rng = np.random.default_rng(seed)
    for table in (MODELS, LOSSES, METRICS, DATA):
        bad = {name for name, row in table.items() if (row[1] if isinstance(row, tuple) else row is True)}
        names = [name for name in table if seed % 4 == 0 or name not in bad]
        yield names[rng.integers(len(names))]


@one_thread()
def in_torch(module: nn.Module, loss: Any, x: torch.Tensor, y: torch.Tensor, given: Run) -> None:
    """Train by the mean gradient of the workers' batches."""
    batches = [Batches(len(y), given.workers, worker, given.batch_size, given.seed) for worker in range(given.workers)]
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for step in range(STEPS):
        sums = [torch.zeros_like(parameter) for parameter in trained]
        for own in batches:
            rows = torch.from_numpy(own.at(step))
            module.zero_grad()  # a backward pass in forward adds to the gradient
            loss(module.train()(x[rows]), y[rows]).backward()
            for total, parameter in zip(sums, trained, strict=True):
                total += parameter.grad / given.workers  # type: ignore[operator]
        with torch.no_grad():
            for parameter, total in zip(trained, sums, strict=True):
                parameter -= RATE * total


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 200), marks=pytest.mark.slow)],
                         ids=["some", "many"])  # fmt: skip
def test_a_run_trains_what_a_user_brings_as_torch_does_or_refuses_it_by_name(seeds: range, tmp_path):
    refused = 0
    for seed in seeds:
        model, loss, metric, form = drawn(seed)
        generator, outputs = torch.Generator().manual_seed(seed), 1 + seed % 2
        x, y = torch.randn(N, FEATURES, generator=generator), torch.randn(N, outputs, generator=generator)
        u, v = torch.randn(TEST, FEATURES, generator=generator), torch.randn(TEST, outputs, generator=generator)
        torch.manual_seed(seed)
        module = MODELS[model][0](outputs)
        objective = LOSSES[loss][0]
        given = objective(module) if loss == "holds the model" else objective
        workers = 1 + seed % 3
        broken = MODELS[model][1] or (LOSSES[loss][1] and not (loss == "broadcast" and outputs > 1)) or DATA[form]
        wanted: dict[str, Any] = {
            "model": module, "data": lambda x=x, y=y, u=u, v=v, form=form: loaders(form, x, y, u, v), "loss": given,
            "metric": METRICS[metric], "workers": workers, "batch_size": 4, "learning_rate": RATE, "seed": seed,
            "pushes": STEPS * workers, "engine": "virtual", "cluster": "lab", "keep_weights": True,
        }  # fmt: skip
        case = f"seed {seed}: {model}, {loss}, {metric}, {form}, {workers} workers"
        if broken or loss == "broadcast":
            refused += 1
            with pytest.raises(ConfigError):
                run(Run(**wanted), results=tmp_path, progress=False)
            continue
        plain = copy.deepcopy(module)
        in_torch(plain, functional.mse_loss if given == "mse" else given, x, y, Run(**wanted))
        result = run(Run(**wanted), results=tmp_path, progress=False)
        for name, value in result.state_dict().items():
            if "running" not in name and "num_batches" not in name:
                torch.testing.assert_close(value, plain.state_dict()[name], rtol=1e-4, atol=1e-6, msg=case)
        if model != "batch norm":
            with torch.no_grad():
                output = plain.eval()(u)
                right = float((functional.mse_loss if given == "mse" else given)(output, v) if metric == "loss"
                              else METRICS[metric](output, v))  # fmt: skip
            assert result.final == pytest.approx(right, rel=1e-4, nan_ok=True), case
    assert 0 < refused < len(seeds)


class Drawing(nn.Module):
    """Random also in evaluation, by generators of its own, too."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()
        self.own = [np.random.default_rng(0)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x) * (1 + random.random()) + torch.rand(10) + 9 * self.own[0].random()


def accuracy_of(model: Callable[[], nn.Module]) -> list[float]:
    run = tiny(engine="virtual", cluster="steady", model=model, pushes=160, eval_every=160, learning_rate=0.5)
    return [float(value) for value in finished(run).accuracy[-1][2:]]


def test_draws_in_evaluation_are_the_same_each_time():
    assert accuracy_of(Drawing) == accuracy_of(Drawing)
    run = tiny(engine="virtual", cluster="steady", model=Drawing, pushes=8, eval_every=4, learning_rate=1e-12)
    losses = finished(run).accuracy[:, 3]
    assert losses == pytest.approx(losses[0], rel=1e-5)


class Shifted(nn.Module):
    """A model whose gradient is what its own generator draws."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.w = np.random.default_rng(0), nn.Parameter(torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        at = int(self.own.integers(8)) if self.training else 0
        return self.w[at] + torch.zeros(len(x), 10)


def first(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return output[:, 0].mean()


def test_workers_do_not_draw_the_same_from_a_generator_of_the_model():
    run = tiny(engine="virtual", cluster="steady", model=Shifted, loss=first, metric="loss", sync="bsp", pushes=4)
    weights = finished(run).weights
    assert (weights != 0).sum() > 1


class Squeezed(nn.Module):
    """A model of which torch makes nothing for a batch of one: it normalizes over the batch, and squeezes."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x).squeeze()


@pytest.mark.parametrize(("train", "test"), [(257, 1001), (513, 3)])
def test_no_single_example_is_left_for_a_last_batch(train, test):
    draw = torch.Generator().manual_seed(0)
    x, y, test_x, test_y = (torch.randn(*shape, generator=draw) for shape in ((train, 4), (train,), (test, 4), (test,)))
    run = tiny(engine="virtual", cluster="steady", model=Squeezed, data=lambda: (x, y, test_x, test_y), loss="mse",
               metric="loss", pushes=4, dtype="float64")  # fmt: skip
    outcome = finished(experiment := resolve(run))
    module, order = Squeezed().double(), torch.from_numpy(calibration(run.seed, train))
    experiment.keyspace.bind(module, torch.from_numpy(outcome.weights.copy()), None)
    module.net[1].momentum = None  # torch's plain mean over the batches
    with torch.no_grad():
        for batch in (order[:256], order[256:]) if train == 513 else (order,):
            module(x[batch].double())
        expected = nn.functional.mse_loss(module.eval()(test_x.double()), test_y.double())
    assert outcome.accuracy[-1][3] == pytest.approx(float(expected), rel=1e-12)


class Merging(nn.Module):
    """Adds its factors into a frozen weight in evaluation mode, and takes them out in training mode, as LoRA does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.merged = nn.Parameter(torch.ones(2, 4), requires_grad=False), False
        self.a, self.b = nn.Parameter(torch.linspace(-1, 1, 4).view(1, 4)), nn.Parameter(torch.zeros(2, 1))

    def train(self, mode: bool = True) -> Merging:
        if mode == self.merged:
            self.weight.data += (-1 if mode else 1) * self.b.data @ self.a.data
        self.merged = not mode
        return super().train(mode)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.t() + (0 if self.merged else x @ self.a.t() @ self.b.t())


class Mean:
    """The mean error over all outputs so far, as metrics have it that are reset for each evaluation."""

    total = count = 0.0

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> float:
        self.total, self.count = self.total + float((output - target).abs().mean(1).sum()), self.count + len(target)
        return self.total / self.count


class InTraining(nn.Module):
    """A loss that is larger in training."""

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(output, target) * (2 if self.training else 1)


def complete(batch: list[tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
    """Those examples of a batch that could be read."""
    return default_collate([(x, y) for x, y in batch if not x.isnan().any()])


@pytest.mark.parametrize(("fields", "column"), [
    ({"model": Merging}, 3), ({"metric": Mean()}, 2), ({"loss": InTraining()}, 3), ({"metric": InTraining()}, 2),
    ({"unread": 12}, 3)], ids=["merged", "summed", "loss module", "metric module", "left out"])  # fmt: skip
def test_an_evaluation_is_that_of_fresh_objects_on_the_examples_that_there_are(fields, column):
    x, y = torch.linspace(-2, 2, 192).view(48, 4).sin(), torch.linspace(0, 1, 96).view(48, 2).cos()
    left = 48 - (unread := fields.pop("unread", 0))
    if unread:
        x[-unread:] = torch.nan
    loader = DataLoader(TensorDataset(x, y), collate_fn=complete)
    given = {"model": lambda: nn.Linear(4, 2), "loss": "mse", "metric": "loss", "data": lambda: [loader] * 2,
             "workers": 1, "batch_size": 48, "pushes": 12, "eval_every": 4, "engine": "virtual",
             "cluster": "lab"}  # fmt: skip
    outcome = finished(experiment := resolve(tiny(**given | fields)))
    module = (given | fields)["model"]()
    experiment.keyspace.bind(module, torch.from_numpy(outcome.weights.copy()), None)
    with torch.no_grad():
        error = module.eval()(x[:left]) - y[:left]
    expected = error.abs().mean() if isinstance(fields.get("metric"), Mean) else error.pow(2).mean()
    assert outcome.accuracy[-1][column] == pytest.approx(float(expected), rel=1e-5)


X, Y = torch.linspace(-2, 2, 384).view(64, 6).sin(), torch.arange(64) % 3


class Unfreezing(nn.Module):
    """A parameter that trains from a later pass on."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.layer, self.left = nn.Linear(6, 3), after
        self.gain = nn.Parameter(torch.ones(()), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.left -= self.training
        self.gain.requires_grad_(self.left < 0)
        return self.gain * self.layer(x)


def test_a_parameter_that_begins_to_train_is_named():
    problem = "requires_grad of parameter gain to True, .*use parameter.detach"
    for after, error in ((0, ConfigError), (2, WorkerFailed)):
        with pytest.raises(error, match=problem):
            finished(tiny(model=Unfreezing(after), data=lambda: (X, Y, X, Y), workers=1, batch_size=12, pushes=5,
                          engine="virtual", cluster="lab"))  # fmt: skip


def huber(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.huber_loss(output, target, delta=0.3)


# --- paths and labels -------------------------------------------------------------------------------------------------


def test_a_loss_and_a_metric_go_by_their_path_to_the_same_bits(tmp_path):
    x, y = torch.linspace(-1, 1, 384).view(64, 6).sin(), torch.linspace(0, 1, 128).view(64, 2).cos()
    fields: dict[str, Any] = {"engine": "virtual", "cluster": "lab", "model": lambda: nn.Linear(6, 2), "pushes": 24,
                              "data": lambda: (x, y, x, y), "batch_size": 8}  # fmt: skip
    named = tiny(**fields, loss=f"{__name__}:huber", metric=f"{__name__}:rmse:lower")
    given = tiny(**fields, loss=huber, metric=rmse)
    one, other = (run(each, results=tmp_path, progress=False) for each in (named, given))
    assert one.digest != other.digest
    assert one.manifest["weights_sha256"] == other.manifest["weights_sha256"]
    assert one.accuracy.equals(other.accuracy)
    again = Run.of(named.plain() | {name: fields[name] for name in ("model", "data")})
    assert run(again, results=tmp_path, progress=False).cached
    assert metric_of(load(one.path).run) == metric_of(other.run)


class Items(torch.utils.data.Dataset):
    """Examples that are read one by one, of which the labels are not known before."""

    def __init__(self, y: Tensor) -> None:
        self.y = y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        return X[place], self.y[place]


def changed(places: slice | list[int], label: int) -> Tensor:
    y = Y.clone()
    y[places] = label
    return y


GIVEN = {
    "tensors": lambda y: (X, y, X, y), "loaders": lambda y: [DataLoader(TensorDataset(X, y))] * 2,
    "parts": lambda y: [DataLoader(Subset(TensorDataset(X, y), range(64)), sampler=range(64))] * 2,
    "items": lambda y: [DataLoader(Items(y))] * 2, "chosen": lambda y: [DataLoader(Items(y), sampler=range(8, 60))] * 2,
}  # fmt: skip


def scored(y: Tensor, given: str, **fields: object) -> Run:
    return tiny(engine="virtual", cluster="lab", model=nn.Linear(6, 3), data=lambda: GIVEN[given](y), workers=2,
                pushes=4, **fields)  # fmt: skip


def test_a_label_out_of_range_is_refused_however_it_is_given():
    own = lambda output, y: functional.cross_entropy(output, y)  # noqa: E731
    for y, loss, problem in (
        (changed([40], 7), "cross_entropy", "at least 8 classes"),
        (Y + 1, "cross_entropy", "at least 4 classes .* count from 0"),
        (changed([40], -100), "cross_entropy", r"CrossEntropyLoss\(ignore_index=-100\)"),
        (changed([40], -1), nn.CrossEntropyLoss(), "Target -1 is out of bounds"),
        (changed([40], 3), nn.CrossEntropyLoss(), "Target 3 is out of bounds"),
        (changed([40], -100), own, "ignore_index must say so"),
    ):  # fmt: skip
        for given in ("tensors", "loaders", "parts"):
            with pytest.raises(ConfigError, match=problem):
                resolve(scored(y, given, loss=loss))


@pytest.mark.parametrize(("label", "given"), [(7, "items"), (-100, "chosen")])
def test_a_label_out_of_range_that_was_not_read_before_ends_a_run_with_the_example(label: int, given: str):
    with pytest.raises(WorkerFailed, match=f"(training|test) example 40 has the label {label}, .* 3 outputs") as error:
        finished(scored(changed([40], label), given, loss=nn.CrossEntropyLoss() if label > 0 else "cross_entropy"))
    assert "Traceback" not in str(error.value)


@pytest.mark.parametrize(("given", "ignored"), [("tensors", -100), ("loaders", 1), ("parts", 255), ("items", -100)])
def test_accuracy_leaves_out_the_labels_that_the_loss_ignores(given: str, ignored: int):
    y = changed(slice(10, 40), ignored)
    experiment = resolve(scored(y, given, loss=nn.CrossEntropyLoss(ignore_index=ignored)))
    model, found = nn.Linear(6, 3), finished(experiment)
    experiment.keyspace.bind(model, torch.from_numpy(found.weights.copy()), None)
    with torch.no_grad():
        right = (model(X).argmax(1) == y)[y != ignored]
        expected = nn.CrossEntropyLoss(ignore_index=ignored)(model(X), y)
    assert found.accuracy[-1][2:] == pytest.approx([float(right.double().mean()), float(expected)], rel=1e-6)


# --- text -------------------------------------------------------------------------------------------------------------

TEXT = "text:128,32"


def of_text(**fields: object) -> Run:
    return tiny(**{"model": "gpt:8,layers=1", "data": TEXT, "metric": "loss", "batch_size": 4, "pushes": 16,
                   "eval_every": 8, "cluster": "lab", **fields})  # fmt: skip


@pytest.mark.slow
def test_a_language_model_goes_on_from_a_checkpoint_with_the_same_bits(tmp_path: Path):
    run = of_text(engine="local", checkpoint_every=4, optimizer="adamw", learning_rate=3e-3, on_death="restart")
    interrupted(run, tmp_path / "ended")
    found = quiet(run, tmp_path / "ended")
    assert pushes_resumed(found)
    same(found, quiet(run, tmp_path / "alone"))


def test_the_loss_is_the_mean_over_all_bytes_of_the_test_set_and_the_accuracy_the_share_of_next_bytes():
    found = [in_process(of_text(engine="virtual", metric=metric, dtype="float64")) for metric in ("loss", "accuracy")]
    data, module = resolve_data(TEXT), build_model("gpt:8,layers=1", 0).double()
    keyspace = resolve(of_text(dtype="float64")).keyspace
    keyspace.bind(module, torch.from_numpy(found[0].weights.copy()), None)
    with torch.no_grad():
        scores = module(data.test_x.long()).transpose(1, 2).flatten(0, 1)
    loss = float(functional.cross_entropy(scores, data.test_y.flatten()))
    assert found[0].accuracy[-1][[2, 3]] == pytest.approx([loss, loss], rel=1e-12)
    share = float((scores.argmax(1) == data.test_y.flatten()).double().mean())
    assert found[1].accuracy[-1][[2, 3]] == pytest.approx([share, loss], rel=1e-12)


@pytest.mark.slow
def test_four_workers_under_bsp_learn_the_text_to_a_loss_of_2_3(tmp_path: Path):
    run = Run(model="gpt:64", data="text", metric="loss", workers=4, batch_size=8, pushes=1600, learning_rate=3e-3,
              optimizer="adamw:betas=(0.9;0.95),weight_decay=0.1", schedule="cosine:warm=20,end=0.1", engine="virtual",
              cluster="lab", eval_every=100, target_accuracy=2.3)  # fmt: skip
    result = quiet(run, tmp_path)
    assert result.manifest["verdict"] == "valid"
    assert (result.manifest["outcome"], result.manifest["pushes"] <= 1600) == ("target", True)
    assert result.final <= 2.3 < result.accuracy.accuracy.iloc[-2]
    assert result.accuracy.accuracy.iloc[0] == pytest.approx(math.log(256), abs=0.1)  # nothing is known at first
