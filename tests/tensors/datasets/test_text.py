"""The language reference of the interpreter: its split, its windows, its name."""

from __future__ import annotations

import hashlib
import platform
import sys

import numpy as np
import pytest
import torch

from pslab.config import sources
from pslab.config.run import Run
from pslab.errors import ConfigError
from pslab.tensors.datasets.text import BLOCK, WINDOW
from pslab.tensors.workload.data import Dataset, resolve_data

HASHES = {"3.11.7": "fe9b4ed9d54db922353d02300c0774db017dbf8cdf92b3de9640d98caaa681e8"}  # as released


@pytest.fixture
def numbered(monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """A text of 25 blocks and a half, each of which repeats its own number."""
    content = np.repeat(np.arange(26, dtype=np.uint8), BLOCK)[: 25 * BLOCK + BLOCK // 2]
    monkeypatch.setattr(sources, "language_reference", content.tobytes)
    return resolve_data("text")


@pytest.mark.skipif(platform.python_version() not in HASHES, reason="a release whose text is not known")
def test_the_text_of_a_release_is_known():
    text, data = sources.language_reference(), resolve_data("text")
    assert hashlib.sha256(text).hexdigest() == HASHES[platform.python_version()]
    assert (len(text), len({*text})) == (466_275, 107)
    assert (data.name, len(data.train_x), len(data.test_x)) == ("text-fe9b4ed9", 6581, 703)


def test_every_tenth_block_is_tested_with_and_no_byte_is_in_both_parts(numbered: Dataset):
    assert {*numbered.test_x.unique().tolist()} == {9, 19}
    assert {*numbered.train_x.unique().tolist()} == {*range(26)} - {9, 19}
    last = numbered.train_y[-1, -1]  # one byte is needed behind the last window
    assert len(numbered.train_x) == (23 * BLOCK + BLOCK // 2 - 1) // WINDOW
    assert int(last) == 25


def test_windows_follow_each_other_without_overlap_and_targets_are_the_next_bytes():
    data = resolve_data("text")
    assert (data.train_x.dtype, data.train_y.dtype, data.classes) == (torch.uint8, torch.int64, 256)
    for x, y in ((data.train_x, data.train_y), (data.test_x, data.test_y)):
        assert x.shape == y.shape == (len(x), WINDOW)
        assert torch.equal(x.flatten()[1:].long(), y.flatten()[:-1])
    assert sources.language_reference().startswith(data.train_x[0].numpy().tobytes())


def test_its_sizes_take_the_first_windows():
    whole, part = resolve_data("text"), resolve_data("text:200,test=30")
    assert torch.equal(part.train_x, whole.train_x[:200])
    assert torch.equal(part.test_y, whole.test_y[:30])
    assert part.name == whole.name


def test_another_text_is_another_dataset_and_another_digest(monkeypatch: pytest.MonkeyPatch):
    name, run = resolve_data("text").name, Run(data="text:100")
    before, mnist = run.digest, Run().digest
    monkeypatch.setattr(sources, "language_reference", lambda: b"another release" * 10_000)
    assert resolve_data("text").name != name
    assert run.but().digest != before
    assert Run().digest == mnist


@pytest.mark.parametrize(
    ("text", "problem"),
    [("text:0", "from 1 to"), ("text:9999999", r"train=9999999: the text has \d+ windows of 64 bytes to train with"),
     ("text:test=9999", r"test=9999: the text has \d+ windows .* to test with"), ("text:1.5", "cannot be read"),
     ("text:trian=5", "did you mean 'train'")],
)  # fmt: skip
def test_sizes_that_the_text_does_not_have_are_refused(text: str, problem: str):
    with pytest.raises(ConfigError, match=problem):
        resolve_data(text)


def test_an_interpreter_without_the_text_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    sources.language_reference.cache_clear()
    with pytest.raises(ConfigError, match="use a Python with pydoc_data"):
        resolve_data("text")
