"""Images in folders by class: their order, size, colours and labels; what is refused; what is found again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from pslab.config.run import Run
from pslab.errors import ConfigError
from pslab.lab.plots.labels import name
from pslab.lab.runs.resolve import resolve
from pslab.tensors.datasets import image_folder
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


def test_grey_images_have_one_channel(pictures: Path):
    assert load(pictures, ",side=4,colour=off").train_x.shape == (16, 1, 4, 4)


def test_the_same_folder_gives_the_same_object_until_it_changes(pictures: Path):
    first = load(pictures)
    assert load(pictures) is first
    (pictures / "test" / "bees" / "0.png").rename(pictures / "test" / "bees" / "9.png")
    assert load(pictures) is not first


def test_a_digest_is_of_what_the_images_hold(pictures: Path, tmp_path: Path):
    run = Run(data=f"folder:{pictures}")
    same = run.but(seed=0).digest
    assert run.digest == same
    (pictures / "train" / "ants" / "new.png").write_bytes((pictures / "train" / "bees" / "1.png").read_bytes())
    assert run.but(seed=0).digest != same
    assert Run(data="folder:/nowhere").digest  # a record can be read without its images


def broken(path: Path) -> None:
    (path / "train" / "ants" / "3.png").write_bytes(b"no image")


def other_class(path: Path) -> None:
    (path / "test" / "bees").rename(path / "test" / "bears")


def empty_class(path: Path) -> None:
    (path / "train" / "cats").mkdir()


def no_test(path: Path) -> None:
    (path / "test").rename(path / "tests")


def two_tests(path: Path) -> None:
    (path / "val").mkdir()


@pytest.mark.parametrize(
    ("change", "problem"),
    [(broken, "3.png is no image that can be read"), (other_class, "have other classes: bears, bees"),
     (empty_class, "Found no valid file for the classes cats"),
     (no_test, "needs a folder train and one of test and val"),
     (two_tests, "needs a folder train and one of test and val")],
)  # fmt: skip
def test_folders_that_do_not_fit_are_refused(pictures: Path, change, problem: str):
    change(pictures)
    with pytest.raises(ConfigError, match=problem) as caught:
        load(pictures)
    assert caught.value.field == "data"


def test_too_many_images_are_refused_before_one_is_decoded(pictures: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(image_folder, "LIMIT_BYTES", 24 * 3 * 10 * 10)
    broken(pictures)
    with pytest.raises(ConfigError, match=r"24 images of 12288 bytes take 0.0 GB .*: side=10 fits, or colour=off"):
        load(pictures, "")


def test_a_model_can_take_them_and_figures_have_words_for_them(pictures: Path):
    def model() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(192, 2))

    wanted = Run(model=model, data=f"folder:{pictures},side=8", workers=2, batch_size=4)
    assert resolve(wanted).examples == 16
    assert name("data", "folder:pictures,side=8") == "images of pictures, side 8"
