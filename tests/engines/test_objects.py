"""A user's objects in whole runs: what they draw, their labels, and data that are read during the run."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from idx_files import draw_pictures
from processes import wait_for_end
from tiny import digits, finished, net, tiny
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Subset, TensorDataset
from whole import in_process

from pslab.config.run import Run
from pslab.engines.execute import execute
from pslab.engines.experiment.experiment import Outcome
from pslab.engines.processes import pool
from pslab.errors import ConfigError, WorkerFailed
from pslab.lab.runs.resolve import resolve
from pslab.lab.runs.run import run

X, Y = torch.linspace(-2, 2, 384).view(64, 6).sin(), torch.arange(64) % 3
LAB: dict[str, Any] = {"engine": "virtual", "cluster": "lab"}


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


# --- data that are read during the run --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw_pictures(root := tmp_path_factory.mktemp("pictures"))
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


def test_a_users_dataset_is_found_again(tmp_path):
    found = run(tiny(data=of_digits, pushes=24, engine="virtual", cluster="lab"), results=tmp_path, progress=False)
    assert found.manifest["verdict"] == "valid"
    assert run(found.run, results=tmp_path, progress=False).cached


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
