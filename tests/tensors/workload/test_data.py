"""Datasets by name, from torchvision and from a user's function; normalization; and the batches of each worker."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from idx_files import digits, write
from torch import Tensor

from pslab.tensors.workload.data import VISION, Batches, Dataset, batch, batch_slices, data_root, resolve_data
from pslab.tensors.workload.torchvision_ops import torchvision

ROOT = Path(__file__).resolve().parents[3] / "data"


def test_the_root_is_named_or_the_nearest_folder_upwards_or_that_of_the_sources(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("PSLAB_DATA", str(tmp_path / "elsewhere"))
    assert data_root() == tmp_path / "elsewhere"
    monkeypatch.delenv("PSLAB_DATA")
    monkeypatch.chdir(tmp_path)
    assert data_root() == ROOT
    for folder in (tmp_path, tmp_path / "project"):
        write(folder / "data" / "MNIST")
    (tmp_path / "project" / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "project" / "notebooks")
    assert data_root() == tmp_path / "project" / "data"


def test_datasets_of_torchvision(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    write(tmp_path / "FashionMNIST", packed=False)
    data = resolve_data("torchvision:fashionmnist", tmp_path)
    images, labels = digits(20, 20)
    assert data.train_x.shape == (20, 1, 28, 28)
    assert np.array_equal(data.train_x.squeeze(1).numpy(), images)
    assert (data.train_y.tolist(), data.test_y.tolist()) == (labels.tolist(), digits(10, 10)[1].tolist())
    assert (data.mean, data.std) == (pytest.approx(images.mean() / 255), pytest.approx(images.std() / 255))
    assert all(hasattr(torchvision().datasets, name) for name in VISION)

    class CIFAR10:
        """The data set without its files, with the colour of a pixel last."""

        def __init__(self, root: Path, train: bool, **more: object) -> None:
            self.data, self.targets = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3), [0, 1]

    monkeypatch.setattr(torchvision().datasets, "CIFAR10", CIFAR10)
    found = resolve_data("torchvision:cifar10", tmp_path).train_x
    assert torch.equal(found, torch.arange(120, dtype=torch.uint8).view(2, 4, 5, 3).permute(0, 3, 1, 2))


def tensors() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return torch.rand(6, 3), torch.tensor([0, 1, 2, 0, 1, 2]), torch.rand(4, 3), torch.tensor([0, 1, 2, 4])


def test_a_users_function_gives_floats_as_they_are_or_bytes_that_are_measured_or_a_dataset():
    floats = resolve_data(tensors)
    assert (floats.name, floats.mean, floats.std, floats.classes) == ("tensors", 0.0, 1.0, 5)
    assert torch.equal(batch(floats.train_x, torch.float32, floats.mean, floats.std), floats.train_x)
    x = np.array([[0, 255], [255, 255]], np.uint8)
    data = resolve_data(lambda: (x, [0, 1], np.zeros((1, 2), np.uint8), np.ones(1, np.int32)))
    assert (data.mean, data.classes, data.test_y.dtype) == (0.75, 2, torch.int64)
    assert data.std == pytest.approx(np.std([0, 1, 1, 1]))
    assert data.train_y.tolist() == [0, 1]
    given = Dataset("mine", *tensors(), mean=0.5, std=2.0, classes=7)
    assert resolve_data(given) is resolve_data(lambda: given) is given
    assert "tensor" not in repr(given)


def test_bytes_are_normalized_as_torchvision_does_and_tokens_and_floats_are_not():
    x = torch.arange(256, dtype=torch.uint8).view(2, 1, 8, 16)
    tokens = Dataset("tokens", x, x.long(), x, x.long(), mean=None, std=1.0, classes=256)
    for dtype in (torch.float32, torch.float64):
        wanted = torchvision().transforms.Normalize([0.1307], [0.3081])(x.to(dtype) / 255)
        assert torch.equal(batch(x, dtype, 0.1307, 0.3081), wanted)
        floats = torch.tensor([[1.0, 3.0]])  # not divided by 255, and not changed
        assert (batch(floats, dtype, 1.0, 2.0).tolist(), floats.tolist()) == ([[0.0, 1.0]], [[1.0, 3.0]])
        read = batch(tokens.train_x, dtype, tokens.mean, tokens.std)
        assert (tokens.tokens, read.dtype, read.tolist()) == (True, torch.int64, x.tolist())


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 40), st.integers(0, 2**63 - 1), st.integers(0, 30))
def test_workers_together_take_the_batch_of_one_worker(workers: int, size: int, more: int, seed: int, at: int):
    examples = workers * size + more
    one = Batches(examples, 1, 0, workers * size, seed).at(at)
    parts = [Batches(examples, workers, worker, size, seed).at(at) for worker in range(workers)]
    assert np.concatenate(parts).tolist() == one.tolist()
    assert all(part.dtype == np.int64 and part.shape == (size,) for part in parts)


def test_an_epoch_takes_every_example_at_most_once_in_a_new_order():
    batches = Batches(103, 1, 0, 10, 5)
    assert batches.rounds == 10
    epochs = [np.concatenate([batches.at(10 * epoch + i) for i in range(10)]) for epoch in range(3)]
    assert all(len(set(epoch.tolist())) == 100 and 0 <= epoch.min() <= epoch.max() < 103 for epoch in epochs)
    assert epochs[0].tolist() != epochs[1].tolist() != epochs[2].tolist()
    assert set(epochs[0].tolist()) != set(epochs[1].tolist()), "another three are left out"
    batches.at(3)[:] = 0  # the caller may write to its batch
    assert batches.at(3).tolist() == epochs[0][30:40].tolist() != Batches(103, 1, 0, 10, 6).at(3).tolist()
    assert Batches(60_000, 4, 2, 4, 0).at(0).tolist() == [15998, 9568, 53042, 57692]  # pinned


def test_with_parts_a_worker_takes_its_own_examples_once_a_pass_and_each_counts_the_same():
    counts, sizes = np.zeros(60), np.repeat([0, 1, 2], [10, 30, 20])
    for worker, own in enumerate(np.split(np.arange(60), [10, 40])):
        batches = Batches(60, 3, worker, 4, 7, parts=sizes)
        for epoch in range(2):
            taken = [batches.at(epoch * batches.rounds + turn) for turn in range(batches.rounds)]
            assert np.array_equal(np.sort(np.concatenate(taken)), own)
            for turn, examples in enumerate(taken):
                counts[examples] += batches.share(turn) / len(examples)
        assert not np.array_equal(batches.at(0), batches.at(batches.rounds))  # another order in each epoch
    assert np.allclose(counts, counts[0])
    assert counts.sum() == pytest.approx(2 * 3 * batches.rounds)  # the mean of a round's shares is 1


def test_no_batch_of_an_evaluation_is_a_single_example():
    for examples, size, lengths in ((2000, 1000, [1000, 1000]), (2001, 1000, [1000, 1001]), (1002, 1000, [1000, 2]),
                                    (1, 1000, [1]), (3, 1, [3]), (4, 0, [2, 2])):  # fmt: skip
        slices = batch_slices(examples, size)
        assert [each.stop - each.start for each in slices] == lengths
        assert [place for each in slices for place in range(examples)[each]] == list(range(examples))
