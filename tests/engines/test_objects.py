"""A user's objects in whole runs: their passes, draws, evaluations and labels are as plain torch has them."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from processes import wait_for_end
from tiny import digits, finished, net, tiny
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Subset, TensorDataset, default_collate
from whole import in_process

from pslab.config.run import Run
from pslab.engines.execute import execute
from pslab.engines.experiment.experiment import Outcome
from pslab.engines.processes import pool
from pslab.errors import ConfigError, WorkerFailed
from pslab.lab.runs.resolve import resolve
from pslab.lab.runs.run import run
from pslab.tensors.workload.data import resolve_data
from pslab.tensors.workload.models import build_model
from pslab.tensors.workload.running_statistics import calibration

X, Y = torch.linspace(-2, 2, 384).view(64, 6).sin(), torch.arange(64) % 3
LAB: dict[str, Any] = {"engine": "virtual", "cluster": "lab"}


# --- passes and draws -------------------------------------------------------------------------------------------------


class Doubled(torch.autograd.Function):
    """Twice the input, whose gradient is clipped."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return (2 * gradient).clamp(-0.1, 0.1)


class Adversarial(nn.Module):
    """Takes a backward pass for the gradient of its inputs, and leaves the gradients of its weights, or zeroes them."""

    def __init__(self, zero: bool) -> None:
        super().__init__()
        self.layer, self.zero = nn.Linear(6, 3), zero

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            x = x.clone().requires_grad_()
            self.layer(x).pow(2).mean().backward()
            x = (x + 0.1 * x.grad.sign()).detach()  # type: ignore[union-attr]
            if self.zero:
                self.zero_grad()
        return self.layer(x)


class Between(nn.Linear):
    """A layer, and a function of its outputs."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__(6, 3)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(super().forward(x))


@pytest.mark.parametrize("model", [
    Between(Doubled.apply), Between(lambda x: checkpoint(torch.sigmoid, x, use_reentrant=False)), Adversarial(True),
    Adversarial(False),
], ids=["own function", "checkpointed", "zero_grad in forward", "backward in forward"])  # fmt: skip
def test_a_pass_with_gradients_of_its_own_trains_as_in_torch(model: nn.Module):
    """One worker takes all examples in each step."""
    fields = {**LAB, "model": model, "data": lambda: (X, Y, X, Y), "workers": 1, "batch_size": 64, "pushes": 4}
    weights = in_process(tiny(**fields, dtype="float64")).weights
    plain = build_model(model, 0).double().train()
    for _ in range(4):
        plain.zero_grad()  # a backward pass in forward adds to the gradient
        functional.cross_entropy(plain(X.double()), Y).backward()
        with torch.no_grad():
            for parameter in plain.parameters():
                parameter -= 0.2 * parameter.grad  # type: ignore[operator]
    expected = torch.cat([parameter.detach().flatten() for parameter in plain.parameters()])
    torch.testing.assert_close(torch.from_numpy(weights.copy()), expected, rtol=1e-9, atol=1e-12)


class Drawing(nn.Module):
    """Random also in evaluation, by generators of its own, too."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()
        self.own = [np.random.default_rng(0)]

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) * (1 + random.random()) + torch.rand(10) + 9 * self.own[0].random()


def test_draws_in_evaluation_are_the_same_each_time():
    given = tiny(engine="virtual", cluster="steady", model=Drawing, pushes=8, eval_every=4, learning_rate=1e-12)
    losses = [*finished(given).accuracy[:, 3], *finished(given).accuracy[:, 3]]
    assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-5)


class Shifted(nn.Module):
    """A model whose gradient is what its own generator draws."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.w = np.random.default_rng(0), nn.Parameter(torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        at = int(self.own.integers(8)) if self.training else 0
        return self.w[at] + torch.zeros(len(x), 10)


def first(output: Tensor, target: Tensor) -> Tensor:
    return output[:, 0].mean()


def test_workers_do_not_draw_the_same_from_a_generator_of_the_model():
    run = tiny(engine="virtual", cluster="steady", model=Shifted, loss=first, metric="loss", sync="bsp", pushes=4)
    weights = finished(run).weights
    assert (weights != 0).sum() > 1


# --- evaluations -----------------------------------------------------------------------------------------------------


class Squeezed(nn.Module):
    """A model of which torch makes nothing for a batch of one: it normalizes over the batch, and squeezes."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))

    def forward(self, x: Tensor) -> Tensor:
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

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.t() + (0 if self.merged else x @ self.a.t() @ self.b.t())


class Mean:
    """The mean error over all outputs so far, as metrics have it that are reset for each evaluation."""

    total = count = 0.0

    def __call__(self, output: Tensor, target: Tensor) -> float:
        self.total, self.count = self.total + float((output - target).abs().mean(1).sum()), self.count + len(target)
        return self.total / self.count


class InTraining(nn.Module):
    """A loss that is larger in training."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return nn.functional.mse_loss(output, target) * (2 if self.training else 1)


def complete(batch: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
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
    given = {**LAB, "model": lambda: nn.Linear(4, 2), "loss": "mse", "metric": "loss", "data": lambda: [loader] * 2,
             "workers": 1, "batch_size": 48, "pushes": 12, "eval_every": 4}  # fmt: skip
    outcome = finished(experiment := resolve(tiny(**given | fields)))
    module = (given | fields)["model"]()
    experiment.keyspace.bind(module, torch.from_numpy(outcome.weights.copy()), None)
    with torch.no_grad():
        error = module.eval()(x[:left]) - y[:left]
    expected = error.abs().mean() if isinstance(fields.get("metric"), Mean) else error.pow(2).mean()
    assert outcome.accuracy[-1][column] == pytest.approx(float(expected), rel=1e-5)


class Unfreezing(nn.Module):
    """A parameter that trains from a later pass on."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.layer, self.left = nn.Linear(6, 3), after
        self.gain = nn.Parameter(torch.ones(()), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        self.left -= self.training
        self.gain.requires_grad_(self.left < 0)
        return self.gain * self.layer(x)


def test_a_parameter_that_begins_to_train_is_named():
    problem = "requires_grad of parameter gain to True, .*use parameter.detach"
    for after, error in ((0, ConfigError), (2, WorkerFailed)):
        with pytest.raises(error, match=problem):
            finished(scored(Y, "tensors", model=Unfreezing(after), workers=1, batch_size=12, pushes=5))


# --- labels -----------------------------------------------------------------------------------------------------------


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
    plain = {"model": nn.Linear(6, 3), "data": lambda: GIVEN[given](y), "workers": 2, "pushes": 4}
    return tiny(**{**LAB, **plain, **fields})


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


def test_the_loss_is_the_mean_over_all_bytes_of_the_test_set_and_the_accuracy_the_share_of_next_bytes():
    given = tiny(**LAB, model="gpt:8,layers=1", data="text:128,32", batch_size=4, pushes=16, dtype="float64")
    found = [in_process(given.but(metric=metric)) for metric in ("loss", "accuracy")]
    data, module = resolve_data("text:128,32"), build_model("gpt:8,layers=1", 0).double()
    resolve(given).keyspace.bind(module, torch.from_numpy(found[0].weights.copy()), None)
    with torch.no_grad():
        scores = module(data.test_x.long()).transpose(1, 2).flatten(0, 1)
    loss = float(functional.cross_entropy(scores, data.test_y.flatten()))
    assert found[0].accuracy[-1][[2, 3]] == pytest.approx([loss, loss], rel=1e-12)
    share = float((scores.argmax(1) == data.test_y.flatten()).double().mean())
    assert found[1].accuracy[-1][[2, 3]] == pytest.approx([share, loss], rel=1e-12)


# --- data that are read during the run --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty images to train and ten to test, of two classes."""
    root, chance = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for part, count in (("train", 20), ("test", 5)):
        for label, level in (("dark", 40), ("light", 90)):
            (root / part / label).mkdir(parents=True)
            for at in range(count):
                Image.fromarray(chance.integers(0, 2 * level, (4, 5, 3), np.uint8)).save(
                    root / part / label / f"{at}.png")  # fmt: skip
    return root


def of_pictures(folder: Path, more: str = "", **fields: object) -> Run:
    def model() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.ReLU(), nn.Linear(8, 2))

    plain = {"model": model, "workers": 2, "batch_size": 4, "pushes": 24, "eval_every": 8}
    return tiny(**{"data": f"folder:{folder},side=4{more}", **plain, **fields})


def same(one: Outcome, other: Outcome) -> bool:
    return one.weights.tobytes() == other.weights.tobytes() and np.array_equal(
        one.accuracy[:, [0, 2, 3]], other.accuracy[:, [0, 2, 3]])  # fmt: skip


@pytest.mark.parametrize("loaders", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_images_read_from_the_disk_train_to_the_bits_of_those_in_memory(pictures: Path, loaders: int):
    held, read = finished(of_pictures(pictures)), f",memory=off,loaders={loaders}"
    assert same(held, finished(of_pictures(pictures, read)))
    virtual = of_pictures(pictures, read, **LAB)
    assert same(held, finished(virtual))
    assert same(held, in_process(virtual))
    with pytest.raises(ConfigError, match="images are read before the run"):
        resolve(of_pictures(pictures, ",loaders=2"))


def of_digits() -> tuple[DataLoader, TensorDataset]:
    """torch's own Dataset of the digits."""
    data = digits()
    x, test = ((each.float() / 255 - data.mean) / data.std for each in (data.train_x, data.test_x))
    return DataLoader(TensorDataset(x, data.train_y), num_workers=1), TensorDataset(test, data.test_y)


def test_a_users_dataset_is_found_again_and_trains_as_its_tensors_do(tmp_path):
    def held() -> tuple[torch.Tensor, ...]:
        train, test = of_digits()
        return (*train.dataset.tensors, *test.tensors)

    found = run(tiny(data=of_digits, pushes=24, engine="virtual", cluster="lab"), results=tmp_path, progress=False)
    assert found.manifest["verdict"] == "valid"
    assert run(found.run, results=tmp_path, progress=False).cached
    assert same(finished(tiny(data=held, pushes=24)), finished(tiny(data=of_digits, pushes=24)))


@pytest.mark.slow
@pytest.mark.usefixtures("small_pool")
def test_loading_processes_end_with_the_worker_that_has_them(pictures):
    loading: list[int] = []

    def note(news: dict) -> None:
        processes = [process.pid for process in pool._kept.processes.values()] if news and not loading else []
        for process in processes:
            loading.extend(map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()))
        if loading:
            for process in processes:
                os.kill(process, signal.SIGKILL)
            raise KeyboardInterrupt

    run = of_pictures(pictures, ",memory=off,loaders=1", pushes=100_000, cluster={"compute_s": 0.005})
    with pytest.raises(KeyboardInterrupt):
        execute(resolve(run), note)
    assert loading
    for process in loading:
        wait_for_end(process)
    assert not any(map(running, loading))


def running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
