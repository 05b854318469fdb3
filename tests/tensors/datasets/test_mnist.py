"""MNIST: the real files, parts of them, and files that are broken."""

from __future__ import annotations

import functools
import gzip
import hashlib
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from idx_files import digits, idx, write
from refusals import check_refused

from pslab.errors import ConfigError
from pslab.tensors.datasets.mnist import read_idx
from pslab.tensors.workload.data import resolve_data

ROOT = Path(__file__).resolve().parents[3] / "data"
OFFICIAL = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A root with 20 training examples, unpacked, and 10 test examples, gzipped."""
    write(tmp_path / "MNIST")
    return tmp_path


def test_the_real_mnist_is_the_official_one_and_a_part_is_its_first_examples():
    text = (ROOT / "README.md").read_text()
    for name, digest in OFFICIAL.items():
        packed = (ROOT / "MNIST" / "raw" / f"{name}.gz").read_bytes()
        assert hashlib.sha256(gzip.decompress(packed)).hexdigest() == digest
        assert f"{name} |" in text
        assert digest in text
    data, part = resolve_data("mnist", ROOT), resolve_data("mnist:train=4096,test=1000", ROOT)
    assert resolve_data("mnist", ROOT) is data
    assert (data.train_x.shape, data.test_x.shape) == ((60_000, 1, 28, 28), (10_000, 1, 28, 28))
    assert (data.train_x.dtype, data.train_y.dtype, data.classes) == (torch.uint8, torch.int64, 10)
    assert data.test_y.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    pixels = data.train_x.numpy().ravel()
    assert (round(pixels.mean() / 255, 4), round(pixels.std() / 255, 4)) == (data.mean, data.std) == (0.1307, 0.3081)
    for name, count in (("train_x", 4096), ("train_y", 4096), ("test_x", 1000), ("test_y", 1000)):
        assert torch.equal(getattr(part, name), getattr(data, name)[:count])
    assert part.train_x.untyped_storage().nbytes() == 4096 * 784  # the other images are not kept in memory
    assert torch.equal(resolve_data("mnist:128", ROOT).train_y, data.train_y[:128])


def test_packed_and_unpacked_files_are_read_and_read_again_when_they_change(small: Path):
    data = resolve_data("mnist:train=20,test=10", small)
    for x, y, count in ((data.train_x, data.train_y, 20), (data.test_x, data.test_y, 10)):
        images, labels = digits(count, count)
        assert np.array_equal(x.squeeze(1).numpy(), images)
        assert y.tolist() == labels.tolist()
    labels = digits(20, 99)[1]
    (small / "MNIST/raw/train-labels-idx1-ubyte").write_bytes(idx(labels))
    after = resolve_data("mnist:train=20,test=10", small)
    assert after.train_y.tolist() == labels.tolist() != data.train_y.tolist()


def test_parts_labels_and_files_that_are_not_there_are_refused(small: Path):
    check_refused(("data", functools.partial(resolve_data, text, small), words) for text, words in (
        ("mnist:train=0", "train=0: must be a whole number from 1 to 60000"),
        ("mnist:test=10001", "test=10001: must be a whole number from 1 to 10000"),
        ("mnist:trian=5", r"has no parameter 'trian'; did you mean 'train'\? allowed: test, train"),
        ("mnist:train=many", "cannot be read"), ("mnist:1,2,3", "got 3 values"),
        ("mnist:train=21,test=10", "has 20 images, fewer than 21")))  # fmt: skip
    for labels, words in (
        (digits(19)[1], r"has 20 images, .* 19 labels"),
        (np.full(20, 10, np.uint8), "labels of train_y must be 0 to 9, not 10 to 10"),
    ):
        (small / "MNIST/raw/train-labels-idx1-ubyte").write_bytes(idx(labels))
        check_refused([("data", lambda: resolve_data("mnist:train=10,test=10", small), words)])
    (small / "MNIST/raw/t10k-labels-idx1-ubyte.gz").unlink()
    words = rf"looked in {small}/MNIST/raw for t10k-labels-idx1-ubyte \(also with .gz\).*(PSLAB_DATA|torchvision:MNIST)"
    check_refused([("data", lambda: resolve_data("mnist", small), words)])


WHOLE = idx(digits(3)[0])
HUGE = bytes([0, 0, 8, 3]) + struct.pack(">3I", 2**32 - 1, 2**32 - 1, 2**32 - 1)
BROKEN = [
    (b"", "starts with"), (WHOLE[:10], "starts with 00 00 08 03"),
    (b"\x00\x00\x0d\x03" + WHOLE[4:], "starts with 00 00 0d 03, but .* of 16 bytes that starts with 00 00 08 03"),
    (HUGE, r"shape is \[4294967295, 4294967295, 4294967295\], not \[5, 28, 28\]"),
    (idx(digits(6)[0]), r"shape is \[6, 28, 28\]"), (idx(np.zeros((0, 28, 28), np.uint8)), r"shape is \[0, 28, 28\]"),
    (idx(np.zeros((3, 28, 27), np.uint8)), r"shape is \[3, 28, 27\]"),
    (WHOLE[:-1], "must have 2352 bytes after its header, but has only 2351"), (WHOLE[:16], "but has only 0"),
    (WHOLE + b"\x00", "but has more"),
]  # fmt: skip


def test_broken_files_are_refused(tmp_path: Path):
    for content, words in BROKEN:
        for path, stored in ((tmp_path / "x", content), (tmp_path / "x.gz", gzip.compress(content))):
            path.write_bytes(stored)
            with pytest.raises(ConfigError, match=words) as caught:
                read_idx(path, (5, 28, 28))
            assert caught.value.value == str(path)
    for content in (b"not gzip at all", gzip.compress(WHOLE)[:-9], gzip.compress(WHOLE)[:12] + b"\xff" * 40,
                    gzip.compress(WHOLE)[:-8] + b"\x00" * 8):  # fmt: skip
        (tmp_path / "x.gz").write_bytes(content)
        with pytest.raises(ConfigError, match="cannot be read"):
            read_idx(tmp_path / "x.gz", (5, 28, 28))
    with pytest.raises(ConfigError, match="cannot be read: IsADirectoryError"):
        read_idx(tmp_path, (5,))


def test_a_file_that_unpacks_to_too_much_takes_no_memory(tmp_path: Path):
    (path := tmp_path / "bomb.gz").write_bytes(gzip.compress(idx(np.zeros((5, 28, 28), np.uint8)) + b"0" * 10**7, 1))
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError):
            read_idx(path, (5, 28, 28))
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
