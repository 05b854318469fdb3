"""Datasets by name, from torchvision and from a user's function; normalization; and the batches of each worker."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from idx_files import digits, write
from torch import Tensor

from pslab.errors import ConfigError
from pslab.tensors.workload.data import VISION, Batches, Dataset, _channels_first, batch, data_root, resolve_data
from pslab.tensors.workload.torchvision_ops import torchvision

ROOT = Path(__file__).resolve().parents[3] / "data"


@pytest.mark.parametrize(
    ("value", "problem"),
    [("mnsit", "did you mean 'mnist'"), ("torchvision:CIFAR11", "did you mean 'cifar1"),
     ("os:getcwd()", "package.module:name"), ("os:path", "must be a callable or a Dataset"),
     ("os:getcwd", r"must return a Dataset, \(train_x, train_y, test_x, test_y\), or \(train, test\) .*, not str of"),
     (4, "must be a callable or a Dataset, or one of mnist")],
)  # fmt: skip
def test_unusable_data_is_refused(value: object, problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        resolve_data(value, tmp_path)
    assert caught.value.field == "data"


# --- the folder of datasets -------------------------------------------------------------------------------------------


def test_the_root_is_named_or_the_nearest_folder_upwards_or_that_of_the_sources(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PSLAB_DATA", str(tmp_path / "elsewhere"))
    assert data_root() == tmp_path / "elsewhere"
    monkeypatch.delenv("PSLAB_DATA")
    monkeypatch.chdir(tmp_path)
    assert data_root() == ROOT
    for place in (tmp_path, tmp_path / "project"):
        write(place / "data" / "MNIST")
    (tmp_path / "project" / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "project" / "notebooks")
    assert data_root() == tmp_path / "project" / "data"


# --- torchvision ----------------------------------------------------------------------------------------------------


def test_a_dataset_of_torchvision(tmp_path: Path) -> None:
    write(tmp_path / "FashionMNIST", packed=False)
    data = resolve_data("torchvision:fashionmnist", tmp_path)
    images, labels = digits(20, 20)
    assert data.train_x.shape == (20, 1, 28, 28)
    assert np.array_equal(data.train_x.squeeze(1).numpy(), images)
    assert data.train_y.tolist() == labels.tolist()
    assert data.test_y.tolist() == digits(10, 10)[1].tolist()
    assert data.mean == pytest.approx(images.mean() / 255)
    assert data.std == pytest.approx(images.std() / 255)


def test_a_failed_download_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    problem = r"cannot be read from .*/file, nor downloaded .*FileExistsError.*datasets\.CIFAR10\(root, down"
    with pytest.raises(ConfigError, match=problem):
        resolve_data("torchvision:CIFAR10", tmp_path / "file")


def test_every_named_dataset_exists_in_torchvision() -> None:
    assert all(hasattr(torchvision().datasets, name) for name in VISION)


def test_colour_channels_come_first() -> None:
    images = torch.arange(2 * 4 * 5 * 3, dtype=torch.uint8).view(2, 4, 5, 3)
    turned = _channels_first(images)
    assert turned.shape == (2, 3, 4, 5)
    assert turned[1, 2, 3, 4] == images[1, 3, 4, 2]
    assert _channels_first(images[..., 0]).shape == (2, 1, 4, 5)


# --- a user's function ----------------------------------------------------------------------------------------------


def tensors() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return torch.rand(6, 3), torch.tensor([0, 1, 2, 0, 1, 2]), torch.rand(4, 3), torch.tensor([0, 1, 2, 4])


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "pslab_test_data.py").write_text(
        "import numpy as np\n"
        "def arrays():\n"
        "    x = np.array([[0, 255], [255, 255]], np.uint8)\n"
        "    return x, [0, 1], np.zeros((1, 2), np.uint8), np.ones(1, np.int32)\n"
        "def broken(): raise KeyError('column')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "pslab_test_data"
    sys.modules.pop("pslab_test_data", None)


def test_floats_of_a_function_are_taken_as_they_are() -> None:
    data = resolve_data(tensors)
    assert (data.name, data.mean, data.std, data.classes) == ("tensors", 0.0, 1.0, 5)
    assert torch.equal(batch(data.train_x, torch.float32, data.mean, data.std), data.train_x)


def test_uint8_of_a_function_is_measured(mine: str) -> None:
    data = resolve_data(f"{mine}:arrays")
    assert (data.mean, data.classes, data.test_y.dtype) == (0.75, 2, torch.int64)
    assert data.std == pytest.approx(np.std([0, 1, 1, 1]))
    assert data.train_y.tolist() == [0, 1]


def test_a_dataset_is_taken_as_it_is() -> None:
    data = Dataset("mine", *tensors(), mean=0.5, std=2.0, classes=7)
    assert resolve_data(data) is data
    assert resolve_data(lambda: data) is data
    assert "tensor" not in repr(data)


def test_an_exception_of_a_function_is_reported(mine: str) -> None:
    with pytest.raises(ConfigError, match="the function raised KeyError: 'column'"):
        resolve_data(f"{mine}:broken")


BAD = {
    "three": (lambda t: t[:3], "not tuple of 3"),
    "none": (lambda t: None, "not NoneType"),
    "text": (lambda t: ("a", *t[1:]), "train_x is str: must be a tensor"),
    "nan": (lambda t: (t[0].log() / 0, *t[1:]), "train_x contains values that are not finite"),
    "complex": (lambda t: (t[0] + 0j, *t[1:]), r"train_x must be \[examples, ...\] .* not \[6, 3\] of torch.complex64"),
    "flat": (lambda t: (t[0][:, 0], *t[1:]), r"train_x must be"),
    "scalar": (lambda t: (t[0][0, 0], *t[1:]), r"train_x must be"),
    "empty": (lambda t: (t[0][:0], t[1][:0], *t[2:]), r"train_x must be"),
    "few labels": (lambda t: (t[0], t[1][:5], *t[2:]), r"train_y must be \[6, ...\] of int64.* not \[5\]"),
    "one hot": (lambda t: (t[0], torch.eye(6).long(), *t[2:]), r"test_y is \[4\] of .*, train_y is \[6, 6\] of"),
    "real labels": (lambda t: (t[0], t[1].float(), *t[2:]), "test_y is .*int64, train_y is .*float32"),
    "no target": (lambda t: (t[0], torch.zeros(6, 0), *t[2:]), r"train_y must be \[6, ...\]"),
    "nan target": (lambda t: (t[0], t[1] / 0, *t[2:]), "train_y contains values that are not finite"),
    "other shape": (lambda t: (*t[:2], t[2][:, :2], t[3]), r"test_x is \[4, 2\] .* train_x is \[6, 3\]"),
    "other dtype": (lambda t: (*t[:2], t[2].double(), t[3]), "one example must have the same shape and dtype in both"),
}


@pytest.mark.parametrize("kind", BAD)
def test_tensors_that_do_not_fit_are_refused(kind: str) -> None:
    change, problem = BAD[kind]
    with pytest.raises(ConfigError, match=problem) as caught:
        resolve_data(lambda: change(tensors()))
    assert caught.value.field == "data"


@pytest.mark.parametrize(
    ("change", "problem"),
    [({"std": 0.0}, "std above 0"), ({"mean": float("nan")}, "finite"), ({"std": float("inf")}, "finite"),
     ({"classes": 4}, "labels of test_y must be 0 to 3, not 0 to 4"),
     ({"train_x": [1]}, "train_x must be a tensor, not list")],
)  # fmt: skip
def test_an_inconsistent_dataset_is_refused(change: dict[str, object], problem: str) -> None:
    whole = Dataset("mine", *tensors(), mean=0.0, std=1.0, classes=5)
    with pytest.raises(ConfigError, match=problem):
        dataclasses.replace(whole, **change)  # type: ignore[arg-type]


# --- normalization --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batch_normalizes_like_torchvision(dtype: torch.dtype) -> None:
    x = torch.arange(256, dtype=torch.uint8).view(2, 1, 8, 16)
    wanted = torchvision().transforms.Normalize([0.1307], [0.3081])(x.to(dtype) / 255)
    assert torch.equal(batch(x, dtype, 0.1307, 0.3081), wanted)
    floats = torch.tensor([[1.0, 3.0]])  # not divided by 255, and not changed
    assert batch(floats, dtype, 1.0, 2.0).tolist() == [[0.0, 1.0]]
    assert floats.tolist() == [[1.0, 3.0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tokens_are_indices_and_not_normalized(dtype: torch.dtype) -> None:
    x = torch.tensor([[0, 7], [255, 1]], dtype=torch.uint8)
    data = Dataset("tokens", x, x.long(), x, x.long(), mean=None, std=1.0, classes=256)
    found = batch(data.train_x, dtype, data.mean, data.std)
    assert data.tokens
    assert (found.dtype, found.tolist()) == (torch.int64, x.tolist())
    with pytest.raises(ConfigError, match=r"without a mean inputs are tokens, uint8, not \[2, 2\] of torch.int64"):
        dataclasses.replace(data, train_x=x.long(), test_x=x.long())


# --- batches --------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 40), st.integers(0, 2**63 - 1), st.integers(0, 30))
def test_workers_together_take_the_batch_of_one_worker(workers: int, size: int, more: int, seed: int, at: int) -> None:
    examples = workers * size + more
    one = Batches(examples, 1, 0, workers * size, seed).at(at)
    parts = [Batches(examples, workers, worker, size, seed).at(at) for worker in range(workers)]
    assert np.concatenate(parts).tolist() == one.tolist()
    assert all(part.dtype == np.int64 and part.shape == (size,) for part in parts)


def test_an_epoch_takes_every_example_at_most_once_in_a_new_order() -> None:
    batches = Batches(103, 1, 0, 10, 5)
    assert batches.rounds == 10
    epochs = [np.concatenate([batches.at(10 * epoch + i) for i in range(10)]) for epoch in range(3)]
    assert all(len(set(epoch.tolist())) == 100 and 0 <= epoch.min() <= epoch.max() < 103 for epoch in epochs)
    assert epochs[0].tolist() != epochs[1].tolist() != epochs[2].tolist()
    assert set(epochs[0].tolist()) != set(epochs[1].tolist()), "another three are left out"
    assert all(batches.at(i).tolist() == epochs[0][10 * i : 10 * i + 10].tolist() for i in (9, 0))  # in any order
    batches.at(3)[:] = 0  # the caller may write to its batch
    assert batches.at(3).tolist() == epochs[0][30:40].tolist() != Batches(103, 1, 0, 10, 6).at(3).tolist()


def test_the_order_of_examples_is_pinned() -> None:
    assert Batches(60_000, 4, 2, 4, 0).at(0).tolist() == [15998, 9568, 53042, 57692]


def test_impossible_batches_are_refused() -> None:
    problem = r"4 workers take 400 examples .* there are 399: it can be at most 99"
    with pytest.raises(ConfigError, match=problem) as caught:
        Batches(399, 4, 0, 100, 0)
    assert caught.value.field == "batch_size"
    with pytest.raises(ValueError, match="worker 4 must be from 0 to 3"):
        Batches(399, 4, 4, 1, 0)
    with pytest.raises(ValueError, match="at least 0"):
        Batches(10, 1, 0, 1, 0).at(-1)


PARTS = np.repeat([0, 1, 2], [10, 30, 20])


def test_with_parts_a_worker_takes_its_own_examples_once_a_pass_and_each_counts_the_same():
    counts = np.zeros(60)
    for worker, own in enumerate(np.split(np.arange(60), [10, 40])):
        batches = Batches(60, 3, worker, 4, 7, parts=PARTS)
        for epoch in range(2):
            taken = [batches.at(epoch * batches.rounds + turn) for turn in range(batches.rounds)]
            assert np.array_equal(np.sort(np.concatenate(taken)), own)
            for turn, examples in enumerate(taken):
                counts[examples] += batches.share(turn) / len(examples)
        assert not np.array_equal(batches.at(0), batches.at(batches.rounds))  # another order in each epoch
    assert np.allclose(counts, counts[0])
    assert counts.sum() == pytest.approx(2 * 3 * batches.rounds)  # the mean of a round's shares is 1


def test_a_part_that_is_too_small_for_a_pass_is_refused():
    with pytest.raises(ConfigError, match="worker 0 holds 2 examples, too few for a pass of 5 batches"):
        Batches(60, 3, 0, 4, 7, parts=np.repeat([0, 1, 2], [2, 38, 20]))
