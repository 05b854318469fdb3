"""Data that are read during the run: the same bits on every engine as from memory, whoever reads them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from processes import wait_for_end
from tiny import digits, finished, tiny
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from whole import in_process

from pslab.config.run import Run
from pslab.engines.execute import execute
from pslab.engines.experiment.experiment import Outcome
from pslab.engines.processes import pool
from pslab.errors import ConfigError
from pslab.lab.runs.resolve import resolve
from pslab.lab.runs.run import run


def net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.ReLU(), nn.Linear(8, 2))


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


def wanted(data: object, **fields: object) -> Run:
    return tiny(**{"data": data, "model": net, "workers": 2, "batch_size": 4, "pushes": 24, "eval_every": 8, **fields})


def same(one: Outcome, other: Outcome) -> bool:
    return one.weights.tobytes() == other.weights.tobytes() and np.array_equal(
        one.accuracy[:, [0, 2, 3]], other.accuracy[:, [0, 2, 3]])  # fmt: skip


@pytest.mark.parametrize("loaders", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_images_read_from_the_disk_train_to_the_bits_of_those_in_memory(pictures, loaders):
    held, data = finished(wanted(f"folder:{pictures},side=4")), f"folder:{pictures},side=4,memory=off,loaders={loaders}"
    assert same(held, finished(wanted(data)))
    virtual = wanted(data, engine="virtual", cluster="lab")
    assert same(held, finished(virtual))
    assert same(held, in_process(virtual))


def tensors() -> tuple[DataLoader, TensorDataset]:
    """torch's own Dataset of the digits."""
    data = digits()
    x, test = ((each.float() / 255 - data.mean) / data.std for each in (data.train_x, data.test_x))
    return DataLoader(TensorDataset(x, data.train_y), num_workers=1), TensorDataset(test, data.test_y)


def test_a_users_dataset_is_found_again_and_trains_as_its_tensors_do(tmp_path):
    def held() -> tuple[torch.Tensor, ...]:
        train, test = tensors()
        return (*train.dataset.tensors, *test.tensors)

    found = run(tiny(data=tensors, pushes=24, engine="virtual", cluster="lab"), results=tmp_path, progress=False)
    assert found.manifest["verdict"] == "valid"
    assert run(found.run, results=tmp_path, progress=False).cached
    assert same(finished(tiny(data=held, pushes=24)), finished(tiny(data=tensors, pushes=24)))


def test_the_digest_of_a_folder_that_is_not_in_memory_knows_its_files_and_reads_none(pictures, monkeypatch):
    data = f"folder:{pictures},side=4,memory=off"
    monkeypatch.setattr("pslab.config.sources._content", None)
    before = wanted(data).digest
    assert before == wanted(data).digest != wanted(f"{data},loaders=1").digest
    with monkeypatch.context() as patch:
        patch.setattr("pslab.config.sources._folders", {})
        os.utime(pictures / "train" / "dark" / "3.png")
        assert wanted(data).digest != before


def test_loaders_without_reading_are_refused(pictures):
    with pytest.raises(ConfigError, match="images are read before the run"):
        resolve(wanted(f"folder:{pictures},side=4,loaders=2"))


@pytest.mark.slow
@pytest.mark.usefixtures("small_pool")
def test_loading_processes_end_with_the_worker_that_has_them(pictures):
    loading: list[int] = []

    def note(news: dict) -> None:
        if news and not loading:
            for process in pool._kept.processes.values():
                tasks = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
                loading.extend(map(int, tasks))
            if loading:
                for process in pool._kept.processes.values():
                    process.kill()
                raise KeyboardInterrupt

    data = f"folder:{pictures},side=4,memory=off,loaders=1"
    with pytest.raises(KeyboardInterrupt):
        execute(resolve(wanted(data, pushes=100_000, cluster={"compute_s": 0.005})), note)
    assert loading
    for process in loading:
        wait_for_end(process, 5.0)
    assert not any(map(running, loading))


def running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
