"""Images in folders by class, and the language reference of the interpreter: their order, their labels, their names."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from refusals import check_refused
from torch import nn

from pslab.config import sources
from pslab.config.run import Run
from pslab.lab.plots.labels import name
from pslab.lab.runs.resolve import resolve
from pslab.tensors.datasets import image_folder
from pslab.tensors.datasets.text import BLOCK, WINDOW
from pslab.tensors.workload.data import Dataset, resolve_data

COLOURS = {"ants": (200, 40, 0), "bees": (0, 40, 200)}


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Eight images a class to train and four to test, of several sizes; the left half is a class's colour."""
    for part, count in (("train", 8), ("test", 4)):
        for label, colour in COLOURS.items():
            (tmp_path / part / label).mkdir(parents=True)
            for at in range(count):
                image = np.zeros((12 + at, 20, 3), np.uint8)
                image[:, :10] = colour
                image[0, 0] = at
                Image.fromarray(image).save(tmp_path / part / label / f"{at}.png")
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
    assert name("data", "folder:pictures,side=8") == "images of pictures, side 8"


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
def test_folders_that_do_not_fit_are_refused(pictures: Path, change, words: str):
    change(pictures)
    check_refused([("data", lambda: load(pictures), words)])


def test_too_many_images_are_refused_before_one_is_decoded(pictures: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(image_folder, "LIMIT_BYTES", 24 * 3 * 10 * 10)
    (pictures / "train" / "ants" / "3.png").write_bytes(b"no image")
    check_refused([("data", lambda: load(pictures, ""),
                    r"24 images of 12288 bytes take 0.0 GB .*: side=10 fits, or colour=off")])  # fmt: skip


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
