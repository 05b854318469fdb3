"""The real digits, other people's tensors, broken files, and who learns from which example when."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import struct
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pslab.errors import ConfigError
from pslab.tensors.workload.data import Batches, Dataset, _channels_first, batch, data_root, read_idx, resolve_data
from pslab.tensors.workload.torchvision_ops import torchvision

ROOT = Path(__file__).resolve().parents[3] / "data"
OFFICIAL = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}


def idx(array: np.ndarray) -> bytes:
    """An unsigned array as an idx file."""
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def digits(examples: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random images [examples, 28, 28] and labels [examples]."""
    generator = np.random.default_rng(seed)
    return (generator.integers(0, 256, (examples, 28, 28), np.uint8), generator.integers(0, 10, examples, np.uint8))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A root with a MNIST of 20 training examples, unpacked, and 10 test examples, gzipped."""
    write(tmp_path / "MNIST")
    return tmp_path


def write(folder: Path, *, packed: bool = True) -> None:
    (folder / "raw").mkdir(parents=True)
    for kind, count in (("train", 20), ("t10k", 10)):
        images, labels = digits(count, count)
        for name, array in ((f"{kind}-images-idx3-ubyte", images), (f"{kind}-labels-idx1-ubyte", labels)):
            if kind == "t10k" and packed:
                (folder / "raw" / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
            else:
                (folder / "raw" / name).write_bytes(idx(array))


# --- MNIST ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "digest"), OFFICIAL.items())
def test_the_files_are_the_official_ones(name: str, digest: str) -> None:
    assert hashlib.sha256(gzip.decompress((ROOT / "MNIST" / "raw" / f"{name}.gz").read_bytes())).hexdigest() == digest


def test_the_readme_names_the_same_digests() -> None:
    text = (ROOT / "README.md").read_text()
    assert all(f"{name} |" in text and digest in text for name, digest in OFFICIAL.items())


def test_the_real_mnist() -> None:
    data = resolve_data("mnist", ROOT)
    assert (data.train_x.shape, data.test_x.shape) == ((60_000, 1, 28, 28), (10_000, 1, 28, 28))
    assert (data.train_x.dtype, data.train_y.dtype, data.classes) == (torch.uint8, torch.int64, 10)
    assert data.train_y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert data.train_y.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert data.test_y.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    pixels = data.train_x.numpy().ravel()
    assert round(pixels.mean() / 255, 4) == data.mean == 0.1307
    assert round(pixels.std() / 255, 4) == data.std == 0.3081


def test_the_same_name_gives_the_same_object_and_a_part_is_the_first_examples() -> None:
    whole, part = resolve_data("mnist", ROOT), resolve_data("mnist:train=4096,test=1000", ROOT)
    assert resolve_data("mnist", ROOT) is whole
    assert torch.equal(part.train_x, whole.train_x[:4096])
    assert torch.equal(part.train_y, whole.train_y[:4096])
    assert torch.equal(part.test_x, whole.test_x[:1000])
    kept_bytes = part.train_x.untyped_storage().nbytes()
    assert kept_bytes == 4096 * 784
    assert torch.equal(resolve_data("mnist:128", ROOT).train_y, whole.train_y[:128])


def test_packed_and_unpacked_files_are_read(small: Path) -> None:
    data = resolve_data("mnist:train=20,test=10", small)
    for x, y, count in ((data.train_x, data.train_y, 20), (data.test_x, data.test_y, 10)):
        images, labels = digits(count, count)
        assert np.array_equal(x.squeeze(1).numpy(), images)
        assert y.tolist() == labels.tolist()


def test_changed_files_are_read_anew(small: Path) -> None:
    before = resolve_data("mnist:train=10,test=10", small)
    images, labels = digits(15, 99)
    (small / "MNIST/raw/train-images-idx3-ubyte").write_bytes(idx(images))
    (small / "MNIST/raw/train-labels-idx1-ubyte").write_bytes(idx(labels))
    after = resolve_data("mnist:train=10,test=10", small)
    assert after.train_y.tolist() == labels[:10].tolist() != before.train_y.tolist()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("mnsit", "did you mean 'mnist'"),
        ("mnist:train=0", "train=0 must be from 1 to 60000"),
        ("mnist:test=10001", "test=10001 must be from 1 to 10000"),
        ("mnist:trian=5", "no parameter 'trian'; it takes train=60000, test=10000"),
        ("mnist:train=many", "cannot be read"),
        ("mnist:1,2,3", "got 3 values"),
        ("mnist:train=21,test=10", "holds 20 images, fewer than 21"),
        ("torchvision:CIFAR11", "did you mean 'cifar1"),
        ("os:getcwd()", "package.module:name"),
        ("os:path", "must be a callable or a Dataset"),
        ("os:getcwd", r"must return a Dataset or \(train_x, train_y, test_x, test_y\), not str of"),
        (4, "must be a callable or a Dataset, or one of mnist"),
    ],
)
def test_a_name_that_is_none_is_refused(text: object, problem: str, small: Path) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        resolve_data(text, small)
    assert caught.value.field == "data"


def test_missing_files_say_where_it_looked_and_what_to_do(small: Path) -> None:
    (small / "MNIST/raw/t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(ConfigError) as caught:
        resolve_data("mnist", small)
    text = str(caught.value)
    assert f"looked in {small}/MNIST/raw for t10k-labels-idx1-ubyte (also with .gz)" in text
    assert "PSLAB_DATA" in text
    assert "torchvision:MNIST" in text


def test_images_and_labels_must_be_as_many(small: Path) -> None:
    (small / "MNIST/raw/train-labels-idx1-ubyte").write_bytes(idx(digits(19)[1]))
    with pytest.raises(ConfigError, match=r"holds 20 images, .* 19 labels"):
        resolve_data("mnist:train=10,test=10", small)


def test_a_label_that_is_no_digit_is_refused(small: Path) -> None:
    (small / "MNIST/raw/train-labels-idx1-ubyte").write_bytes(idx(np.full(20, 10, np.uint8)))
    with pytest.raises(ConfigError, match="labels of train_y must be 0 to 9, not 10 to 10"):
        resolve_data("mnist:train=10,test=10", small)


# --- idx files ------------------------------------------------------------------------------------------------------

WHOLE = idx(digits(3)[0])
HUGE = bytes([0, 0, 8, 3]) + struct.pack(">3I", 2**32 - 1, 2**32 - 1, 2**32 - 1)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "begins with"),
        (WHOLE[:3], "begins with 00 00 08"),
        (WHOLE[:10], "begins with 00 00 08 03"),
        (b"\x00\x00\x0d\x03" + WHOLE[4:], "begins with 00 00 0d 03, an idx file of 3 dimensions with 00 00 08 03"),
        (b"\x00\x00\x08\x01" + WHOLE[4:], "begins with 00 00 08 01"),
        (b"\x80\x04\x95\x00" + WHOLE[4:], "begins with 80 04"),
        (HUGE, r"says that it holds \[4294967295, 4294967295, 4294967295\], expected at most \[5, 28, 28\]"),
        (idx(digits(6)[0]), r"holds \[6, 28, 28\]"),
        (idx(np.zeros((0, 28, 28), np.uint8)), r"holds \[0, 28, 28\]"),
        (idx(np.zeros((3, 28, 27), np.uint8)), r"holds \[3, 28, 27\]"),
        (WHOLE[:-1], "must hold 2352 bytes after its header, it holds only 2351"),
        (WHOLE[:16], "it holds only 0"),
        (WHOLE + b"\x00", "it holds more"),
    ],
)
@pytest.mark.parametrize("packed", [False, True], ids=["raw", "gz"])
def test_a_broken_file_is_refused(content: bytes, problem: str, packed: bool, tmp_path: Path) -> None:
    path = tmp_path / ("x.gz" if packed else "x")
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(ConfigError, match=problem) as caught:
        read_idx(path, (5, 28, 28))
    assert caught.value.value == str(path)


@pytest.mark.parametrize(
    "content",
    [
        b"not gzip at all",
        gzip.compress(WHOLE)[:-9],
        gzip.compress(WHOLE)[:12] + b"\xff" * 40,
        gzip.compress(WHOLE)[:-8] + b"\x00" * 8,
    ],
    ids=["no gzip", "cut off", "garbage", "wrong checksum"],
)
def test_a_broken_gzip_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.gz").write_bytes(content)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_idx(tmp_path / "x.gz", (5, 28, 28))


@pytest.mark.parametrize("content", [HUGE + b"0" * 10**8, idx(np.zeros((5, 28, 28), np.uint8)) + b"0" * 10**8])
def test_a_hostile_file_takes_no_more_memory_than_an_honest_one(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(content, 1))
    del content
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError):
            read_idx(path, (5, 28, 28))
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: IsADirectoryError"):
        read_idx(tmp_path, (5,))


# --- where data lie -------------------------------------------------------------------------------------------------


def test_the_environment_names_the_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PSLAB_DATA", str(tmp_path / "elsewhere"))
    assert data_root() == tmp_path / "elsewhere"


def test_the_nearest_folder_upwards_is_the_root(monkeypatch: pytest.MonkeyPatch, small: Path) -> None:
    monkeypatch.delenv("PSLAB_DATA", raising=False)
    project = small / "project"
    write(small / "data" / "MNIST")
    write(project / "data" / "MNIST")
    (project / "notebooks" / "deep").mkdir(parents=True)
    monkeypatch.chdir(project / "notebooks" / "deep")
    assert data_root() == project / "data"


def test_elsewhere_the_source_tree_has_the_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PSLAB_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    assert data_root() == ROOT


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


def test_a_download_that_fails_teaches(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    problem = r"cannot be read from .*/file, nor downloaded .*FileExistsError.*datasets\.CIFAR10\(root, down"
    with pytest.raises(ConfigError, match=problem):
        resolve_data("torchvision:CIFAR10", tmp_path / "file")


def test_every_named_dataset_exists_in_torchvision() -> None:
    from pslab.tensors.workload.data import VISION

    assert all(hasattr(torchvision().datasets, name) for name in VISION)


def test_colours_come_first() -> None:
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


def test_arrays_of_a_named_function_are_measured(mine: str) -> None:
    data = resolve_data(f"{mine}:arrays")
    assert (data.mean, data.classes, data.test_y.dtype) == (0.75, 2, torch.int64)
    assert data.std == pytest.approx(np.std([0, 1, 1, 1]))
    assert data.train_y.tolist() == [0, 1]


def test_a_dataset_is_taken_as_it_is() -> None:
    data = Dataset("mine", *tensors(), mean=0.5, std=2.0, classes=7)
    assert resolve_data(data) is data
    assert resolve_data(lambda: data) is data
    assert "tensor" not in repr(data)


def test_a_function_that_raises_is_refused_with_its_cause(mine: str) -> None:
    with pytest.raises(ConfigError, match="the function raised KeyError: 'column'"):
        resolve_data(f"{mine}:broken")


BAD = {
    "three": (lambda t: t[:3], "not tuple of 3"),
    "none": (lambda t: None, "not NoneType"),
    "text": (lambda t: ("a", *t[1:]), "train_x is str: must be a tensor"),
    "nan": (lambda t: (t[0].log() / 0, *t[1:]), "train_x holds values that are not finite"),
    "integers": (lambda t: (t[0].long(), *t[1:]), r"train_x must be \[examples, ...\] .* not \[6, 3\] of torch.int64"),
    "flat": (lambda t: (t[0][:, 0], *t[1:]), r"train_x must be"),
    "scalar": (lambda t: (t[0][0, 0], *t[1:]), r"train_x must be"),
    "empty": (lambda t: (t[0][:0], t[1][:0], *t[2:]), r"train_x must be"),
    "few labels": (lambda t: (t[0], t[1][:5], *t[2:]), r"train_y must be \[6\] of int64.* not \[5\]"),
    "one hot": (lambda t: (t[0], torch.eye(6).long(), *t[2:]), r"train_y must be \[6\]"),
    "real labels": (lambda t: (t[0], t[1].float(), *t[2:]), r"train_y must be .* not \[6\] of torch.float32"),
    "negative": (lambda t: (t[0], t[1] - 1, *t[2:]), "labels of train_y must be 0 to 4, not -1 to 1"),
    "other shape": (lambda t: (*t[:2], t[2][:, :2], t[3]), r"test_x is \[4, 2\] .* train_x is \[6, 3\]"),
    "other dtype": (lambda t: (*t[:2], t[2].double(), t[3]), "one example must look the same in both"),
}


@pytest.mark.parametrize("kind", BAD)
def test_tensors_that_do_not_fit_are_refused(kind: str) -> None:
    change, problem = BAD[kind]
    with pytest.raises(ConfigError, match=problem) as caught:
        resolve_data(lambda: change(tensors()))
    assert caught.value.field == "data"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"std": 0.0}, "std above 0"),
        ({"mean": float("nan")}, "finite"),
        ({"std": float("inf")}, "finite"),
        ({"classes": 4}, "labels of test_y must be 0 to 3, not 0 to 4"),
        ({"train_x": [1]}, "train_x must be a tensor, not list"),
    ],
)
def test_a_dataset_that_cannot_be_is_refused(change: dict[str, object], problem: str) -> None:
    whole = Dataset("mine", *tensors(), mean=0.0, std=1.0, classes=5)
    with pytest.raises(ConfigError, match=problem):
        dataclasses.replace(whole, **change)  # type: ignore[arg-type]


# --- normalization --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bytes_become_what_torchvisions_transforms_make_of_them(dtype: torch.dtype) -> None:
    transforms = torchvision().transforms
    x = torch.arange(256, dtype=torch.uint8).view(2, 1, 8, 16)
    wanted = transforms.Normalize([0.1307], [0.3081])(x.to(dtype) / 255)
    assert torch.equal(batch(x, dtype, 0.1307, 0.3081), wanted)


def test_floats_are_not_divided_by_255() -> None:
    x = torch.tensor([[1.0, 3.0]])
    assert batch(x, torch.float64, 1.0, 2.0).tolist() == [[0.0, 1.0]]
    assert x.tolist() == [[1.0, 3.0]]


def test_a_batch_is_written_where_it_is_wanted() -> None:
    x, out = torch.full((2, 3), 255, dtype=torch.uint8), torch.empty(2, 3)
    assert batch(x, torch.float32, 0.0, 0.5, out) is out
    assert out.tolist() == [[2.0] * 3] * 2
    with pytest.raises(ValueError, match=r"out must be \[2, 3\] of torch.float64"):
        batch(x, torch.float64, 0.0, 1.0, out)
    with pytest.raises(ValueError, match="out must be"):
        batch(x, torch.float32, 0.0, 1.0, torch.empty(6))


# --- batches --------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 40), st.integers(0, 2**63 - 1), st.integers(0, 30))
def test_workers_together_see_in_order_what_one_sees(workers: int, size: int, more: int, seed: int, at: int) -> None:
    examples = workers * size + more
    one = Batches(examples, 1, 0, workers * size, seed).at(at)
    parts = [Batches(examples, workers, worker, size, seed).at(at) for worker in range(workers)]
    assert np.concatenate(parts).tolist() == one.tolist()
    assert all(part.dtype == np.int64 and part.shape == (size,) for part in parts)


def test_an_epoch_shows_every_example_at_most_once_and_the_next_is_mixed_anew() -> None:
    batches = Batches(103, 1, 0, 10, 5)
    assert batches.rounds == 10
    epochs = [np.concatenate([batches.at(10 * epoch + i) for i in range(10)]) for epoch in range(3)]
    for epoch in epochs:
        assert len(set(epoch.tolist())) == 100
        assert 0 <= epoch.min() <= epoch.max() < 103
    assert epochs[0].tolist() != epochs[1].tolist() != epochs[2].tolist()
    assert set(epochs[0].tolist()) != set(epochs[1].tolist()), "another three are left out"


def test_an_iteration_is_the_same_whenever_it_is_asked_for() -> None:
    forwards, backwards = Batches(50, 2, 1, 5, 9), Batches(50, 2, 1, 5, 9)
    there = [forwards.at(i).tolist() for i in range(17)]
    assert [backwards.at(i).tolist() for i in reversed(range(17))][::-1] == there


def test_another_seed_is_another_order_and_a_caller_may_write_into_its_batch() -> None:
    batches = Batches(50, 1, 0, 10, 0)
    first = batches.at(0)
    assert first.tolist() != Batches(50, 1, 0, 10, 1).at(0).tolist()
    kept = first.tolist()
    first[:] = 0
    assert batches.at(0).tolist() == kept


def test_a_permutation_is_made_once_per_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    from pslab.tensors.workload import data

    made: list[object] = []
    original = data.numpy_generator
    monkeypatch.setattr(data, "numpy_generator", lambda *names: made.append(names) or original(*names))
    batches = Batches(40, 1, 0, 10, 3)
    for i in range(12):
        batches.at(i)
    assert made == [(3, "epoch", 0), (3, "epoch", 1), (3, "epoch", 2)]


def test_the_order_is_what_it_always_was() -> None:
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
