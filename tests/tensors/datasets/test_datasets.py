"""Data sets: MNIST and idx files, images in folders, the interpreter's text, and sparse rows."""

from __future__ import annotations

import functools
import gzip
import hashlib
import struct
import sys
import tracemalloc
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from idx_files import COLOURS, digits, draw_pictures, idx, write
from refusals import check_refused
from torch import nn
from torch.nn import functional

from pslab.config import sources
from pslab.config.run import Run
from pslab.errors import ConfigError
from pslab.lab.runs.resolve import resolve
from pslab.tensors.datasets import functions, image_folder, libsvm
from pslab.tensors.datasets.mnist import read_idx
from pslab.tensors.datasets.planted import Planted
from pslab.tensors.datasets.text import BLOCK, WINDOW
from pslab.tensors.sparse import SparseInputs, numbered, on_keys, rows_of
from pslab.tensors.workload.data import Dataset, resolve_data
from pslab.tensors.workload.models import Linear

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
    *((idx(np.zeros(shape, np.uint8)), f"is .{shape[0]}, 28") for shape in ((6, 28, 28), (0, 28, 28), (3, 28, 27))),
    (WHOLE[:-1], "must have 2352 bytes after its header, but has only 2351"), (WHOLE[:16], "but has only 0"),
    (WHOLE + b"\x00", "but has more"),
]  # fmt: skip


def test_broken_files_are_refused_and_one_that_unpacks_to_too_much_takes_no_memory(tmp_path: Path):
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
    (path := tmp_path / "bomb.gz").write_bytes(gzip.compress(idx(np.zeros((5, 28, 28), np.uint8)) + b"0" * 10**7, 1))
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError):
            read_idx(path, (5, 28, 28))
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    draw_pictures(tmp_path)
    return tmp_path


def load(path: Path, options: str = ",side=8") -> Dataset:
    return resolve_data(f"folder:{path}{options}")


def test_images_are_cropped_to_one_square_and_labelled_by_their_folder(pictures: Path):
    data = load(pictures)
    assert (data.train_x.shape, data.test_x.shape) == ((16, 3, 8, 8), (8, 3, 8, 8))
    assert (data.train_x.dtype, data.classes) == (torch.uint8, 2)
    assert data.train_y.tolist() == [0] * 8 + [1] * 8
    for picture, label in zip(data.train_x, data.train_y, strict=True):
        assert picture[:, 4, 1].tolist() == pytest.approx([*COLOURS.values()][label], abs=2)
        assert picture[:, 4, -1].tolist() == pytest.approx([0, 0, 0], abs=2)
    assert data.mean == pytest.approx(data.train_x.double().mean() / 255)
    assert load(pictures, ",side=4,colour=off").train_x.shape == (16, 1, 4, 4)  # grey
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    assert resolve(Run(model=model, data=f"folder:{pictures},side=8", workers=2, batch_size=4)).examples == 16


def test_the_same_folder_is_the_same_object_with_the_same_digest_until_it_changes(pictures: Path):
    first, run = load(pictures), Run(data=f"folder:{pictures}")
    digest = run.digest
    assert load(pictures) is first
    assert run.but(seed=0).digest == digest
    (pictures / "test" / "bees" / "0.png").rename(pictures / "test" / "bees" / "9.png")
    assert load(pictures) is not first
    digest = run.but(seed=0).digest
    (pictures / "train" / "ants" / "new.png").write_bytes((pictures / "train" / "bees" / "1.png").read_bytes())
    assert run.but(seed=0).digest != digest
    assert Run(data="folder:/nowhere").digest  # a record can be read without its images


@pytest.mark.parametrize(("change", "words"), [
    (lambda path: (path / "train/ants/3.png").write_bytes(b"no image"), "3.png cannot be read as an image"),
    (lambda path: (path / "test/bees").rename(path / "test/bears"), "same classes: only one has bears, bees"),
    (lambda path: (path / "train/cats").mkdir(), "Found no valid file for the classes cats"),
    (lambda path: (path / "test").rename(path / "tests"), "needs a folder train and one of test and val"),
    (lambda path: (path / "val").mkdir(), "needs a folder train and one of test and val"),
], ids=["broken", "other class", "empty class", "no test", "two tests"])  # fmt: skip
def test_folders_that_do_not_fit_or_hold_too_much_are_refused(pictures: Path, change, words: str, monkeypatch):
    monkeypatch.setattr(image_folder, "LIMIT_BYTES", 24 * 3 * 10 * 10)
    check_refused([("data", lambda: load(pictures, ""),
                    r"24 images of 12288 bytes take 0.0 GB .*: side=10 fits, or colour=off")])  # fmt: skip
    change(pictures)
    check_refused([("data", lambda: load(pictures), words)])


def test_every_tenth_block_is_tested_with_and_no_byte_is_in_both_parts(monkeypatch: pytest.MonkeyPatch):
    content = np.repeat(np.arange(26, dtype=np.uint8), BLOCK)[: 25 * BLOCK + BLOCK // 2]  # each repeats its number
    before, run = resolve_data("text").name, Run(data="text:100").digest
    monkeypatch.setattr(sources, "language_reference", content.tobytes)
    data = resolve_data("text")
    assert data.name != before  # another text is another dataset, and another digest
    assert Run(data="text:100").digest != run
    assert {*data.test_x.unique().tolist()} == {9, 19}
    assert {*data.train_x.unique().tolist()} == {*range(26)} - {9, 19}
    assert len(data.train_x) == (23 * BLOCK + BLOCK // 2 - 1) // WINDOW  # one byte is needed behind the last window
    assert int(data.train_y[-1, -1]) == 25


def test_windows_follow_each_other_targets_are_the_next_bytes_and_sizes_take_the_first_windows():
    data, part = resolve_data("text"), resolve_data("text:200,test=30")
    assert (data.train_x.dtype, data.train_y.dtype, data.classes) == (torch.uint8, torch.int64, 256)
    for x, y in ((data.train_x, data.train_y), (data.test_x, data.test_y)):
        assert x.shape == y.shape == (len(x), WINDOW)
        assert torch.equal(x.flatten()[1:].long(), y.flatten()[:-1])
    assert sources.language_reference().startswith(data.train_x[0].numpy().tobytes())
    assert torch.equal(part.train_x, data.train_x[:200])
    assert torch.equal(part.test_y, data.test_y[:30])
    assert part.name == data.name


def test_sizes_that_the_text_does_not_have_and_an_interpreter_without_it_are_refused(monkeypatch: pytest.MonkeyPatch):
    check_refused(("data", functools.partial(resolve_data, text), words) for text, words in (
        ("text:0", "from 1 to"),
        ("text:9999999", r"train=9999999: the text has \d+ windows of 64 bytes to train with"),
        ("text:test=9999", r"test=9999: the text has \d+ windows .* to test with"), ("text:1.5", "cannot be read"),
        ("text:trian=5", "did you mean 'train'")))  # fmt: skip
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    sources.language_reference.cache_clear()
    check_refused([("data", lambda: resolve_data("text"), "use a Python with pydoc_data")])


A, B, C = 0, 1, 2
SMALL = rows_of("small", 3, [(np.array(keys), np.ones(len(keys))) for keys in ([A, C], [], [B, C], [C])],
                np.array([1, 0, 1, 0]), np.array([False, False, True, False]))  # fmt: skip
ROWS = Planted(rows=40, keys=60, per_row=5, communities=3).load()


def test_rows_can_be_taken_in_any_order_and_the_holders_of_a_key_are_the_rows_that_hold_it():
    taken, (starts, holders) = SMALL.take(np.array([2, 0, 1])), SMALL.holders
    assert [taken.keys[a:b].tolist() for a, b in pairwise(taken.starts)] == [[B, C], [A, C], []]
    assert taken.labels.tolist() == [1, 1, 0]
    assert SMALL.training.entries_of.tolist() == [2, 0, 1]
    assert [holders[a:b].tolist() for a, b in pairwise(starts)] == [[0], [2], [0, 2, 3]]


def test_what_is_no_row_or_no_file_of_rows_is_refused(tmp_path: Path):
    check_refused(("data", functools.partial(replace, SMALL, **{field: value}), words) for field, value, words in (
        ("starts", np.array([0, 2, 2, 4, 6]), "not decrease"), ("starts", np.array([0, 3, 2, 4, 5]), "not decrease"),
        ("values", np.ones(4, np.float32), "as many values as keys"), ("labels", np.ones(3), "as many labels and test"),
        ("key_count", 2, "must be from 0 to 1"), ("keys", np.array([2, 0, 1, 2, 2], np.int32), "must increase"),
        ("values", np.array([1, 1, np.nan, 1, 1]), "finite")))  # fmt: skip
    file = tmp_path / "rows.txt"
    for text, words in (("1 1:2\nx 1:2\n", "line 2 is not"), ("1 1=2\n", "line 1 is not"),
                        ("1 2:1 1:1\n", "line 1: keys must"), ("1 0:1\n", "from 1"),
                        ("1 99999999999:1\n", "from 1 and increase"), ("", "has no rows")):  # fmt: skip
        file.write_text(text)
        check_refused([("data", lambda: libsvm.load(file), words)])
    file.write_text("1 1:1\n")
    check_refused([
        ("data", lambda: resolve_data(f"libsvm:{file}"), r"has no rows to (test with|train on)"),
        *(("data", lambda path=path: libsvm.load(path), "cannot be read")
          for path in (tmp_path / "none", Path("/dev/zero"))),
        ("data", lambda: functions.load.__wrapped__(tmp_path / "none"), "has no Python source files"),
        ("planted.per_row", lambda: Planted(keys=40, communities=4, per_row=11), "a community has 10 keys"),
    ])  # fmt: skip


def test_planted_communities_share_no_key_without_noise_and_keys_follow_zipfs_law():
    rows = Planted(rows=64, keys=320, per_row=5, communities=4, noise=0.0).load()
    group = np.arange(320)  # of keys that rows hold together: the least of them, spread until nothing changes
    for _ in range(64):
        for first, end in pairwise(rows.starts):
            group[rows.keys[first:end]] = group[rows.keys[first:end]].min()
    assert len(np.unique(group[np.unique(rows.keys)])) >= 4
    rows = Planted(rows=2000, keys=800, per_row=10, communities=2, noise=0.3, exponent=1.1).load()
    frequent = np.sort(np.bincount(rows.keys, minlength=800))[::-1]
    assert (rows.entries_of == 10).all()
    assert frequent[:20].sum() > 5 * frequent[400:420].sum()
    one, again, other = (Planted(rows=50, keys=100, per_row=4, communities=2, seed=seed).load() for seed in (3, 3, 4))
    assert one.content == again.content != other.content


def test_a_libsvm_file_is_read_and_names_a_run_by_what_it_holds(tmp_path: Path):
    (tmp_path / "rows.txt").write_text("+1 1:0.5 3:-2 # a comment\n\n-1 2:1e-3\n0\n")
    rows = libsvm.load(tmp_path / "rows.txt")
    assert (rows.name, rows.key_count, rows.labels.tolist()) == ("rows.txt", 3, [1, 0, 0])
    assert (rows.starts.tolist(), rows.keys.tolist()) == ([0, 2, 3, 3], [0, 2, 1])
    assert rows.values.tolist() == pytest.approx([0.5, -2, 1e-3])
    file = tmp_path / "more.txt"
    lines = [f"{row % 2} {1 + row % 7}:0.5 {9 + row % 5}:1.5" for row in range(60)]
    file.write_text("\n".join(lines))
    found, before = resolve_data(f"libsvm:{file}"), Run(data=f"libsvm:{file}", model="linear").digest
    assert found is resolve_data(f"libsvm:{file}")
    assert (found.classes, found.train_x.shape[1], len(found.train_y) + len(found.test_y)) == (2, 13, 60)
    file.write_text("\n".join(lines[1:]))
    assert Run(data=f"libsvm:{file}", model="linear").digest != before
    assert len((found := resolve_data(f"libsvm:{file}")).train_y) + len(found.test_y) == 59


MODULE = '''
import os

def plain(alpha, beta=alpha):
    """Docs of plain."""
    return alpha + beta

class Thing:
    async def method(self):
        def inner(): pass
        return inner

if os:
    def late(): "docs"
'''


def test_functions_are_rows_of_their_words_without_docstrings(tmp_path: Path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "mod.py").write_text(MODULE)
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "left_out.py").write_text("def hidden(): pass\n")
    rows = functions.load.__wrapped__(tmp_path)
    assert (len(rows), rows.labels.tolist()) == (3, [1, 0, 1])
    # plain: def plain alpha beta return; method: async def method self inner pass return; late: its line is its docs'
    assert rows.entries_of.tolist() == [5, 7, 0]
    assert rows.values[0] == pytest.approx(5**-0.5)


def dense(x: torch.Tensor) -> np.ndarray:
    """Row by row, without torch's own conversion."""
    starts, keys, values = (each.numpy() for each in (x.crow_indices(), x.col_indices(), x.values()))
    found = np.zeros(tuple(x.shape))
    for row in range(len(found)):
        found[row, keys[starts[row] : starts[row + 1]]] = values[starts[row] : starts[row + 1]]
    return found


def test_a_batch_has_the_rows_that_were_asked_for_over_all_keys_or_its_own():
    inputs, rows = SparseInputs.of(ROWS), np.array([7, 0, 39, 7])
    x, keys = inputs[torch.from_numpy(rows)], inputs.keys_of(rows)
    found = dense(x)
    for row, number in zip(found, rows, strict=True):
        here = slice(ROWS.starts[number], ROWS.starts[number + 1])
        assert np.array_equal(np.flatnonzero(row), ROWS.keys[here])
        assert np.allclose(row[ROWS.keys[here]], ROWS.values[here])
    assert np.array_equal(dense(inputs[2:5]), dense(inputs[torch.arange(2, 5)]))
    assert np.array_equal(keys, np.flatnonzero(found.any(0)))
    assert np.array_equal(dense(on_keys(x, keys)), found[:, keys])


def test_rows_of_several_steps_are_numbered_over_the_keys_of_all():
    inputs, rows = SparseInputs.of(ROWS), np.array([3, 11, 30, 3, 0])
    narrow = inputs.narrowed(rows)
    for begin, end in pairwise([0, 2, 3, 3, 5]):
        x = on_keys(inputs[torch.from_numpy(rows[begin:end])], narrow.keys)
        found = narrow.inputs(begin, end)
        assert found.shape == (end - begin, len(narrow.keys))
        for name in ("crow_indices", "col_indices", "values"):
            assert torch.equal(getattr(found, name)(), getattr(x, name)())


def test_keys_are_numbered_as_a_search_among_the_distinct_ones_would():
    for count, most in ((0, 9), (1, 9), (7, 2**31 - 1), (5000, 999)):
        keys = np.random.default_rng(count).integers(0, most, count).astype(np.int32)
        distinct, numbers = numbered(keys)
        assert all(map(np.array_equal, (distinct, numbers), np.unique(keys, return_inverse=True)))
        assert (distinct.dtype, numbers.dtype) == (np.int64, np.int32)


def test_the_gradient_of_a_sparse_batch_is_that_of_the_same_dense_batch():
    inputs, y = SparseInputs.of(ROWS), torch.tensor([0, 1, 1, 0])
    x = inputs[torch.tensor([1, 2, 3, 20])]
    gradients = []
    for batch in (x.double(), torch.from_numpy(dense(x))):
        module = Linear(60).double()
        torch.nn.init.normal_(module.weight, generator=torch.Generator().manual_seed(0))
        functional.cross_entropy(module(batch), y).backward()
        gradients.append(module.weight.grad.numpy())
    assert np.allclose(*gradients, atol=1e-12)
    assert np.abs(gradients[0]).max() > 0
