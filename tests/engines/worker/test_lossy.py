"""A lossy compressor needs a codec, a rule and their rows: what a frame loses goes back to the residual."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tiny import tiny
from torch.nn import functional
from whole import conduct

from pslab.config.table import ROWS, Row
from pslab.errors import FrameError
from pslab.lab.judge.tables import tables_of
from pslab.lab.runs.resolve import resolve
from pslab.tensors import codec
from pslab.tensors.codec import Codec, Entries, decode, encode
from pslab.tensors.device import one_thread
from pslab.tensors.workload.data import Batches, batch


class Signs(Codec):
    """The signs of all entries, and the mean of their magnitudes: a bit for each entry."""

    exact = False

    def write(self, entries: Entries) -> tuple[np.ndarray, ...]:
        scale = np.abs(entries.values).mean(dtype=np.float64, keepdims=True)
        return scale.astype(entries.values.dtype), np.packbits(entries.values > 0)

    def read(self, body: np.ndarray, n: int, k: int, dtype: np.dtype[Any]) -> Entries:
        scale = np.frombuffer(body[: dtype.itemsize], dtype)
        return Entries(n, None, np.where(np.unpackbits(body[dtype.itemsize :])[:n], scale, -scale).astype(dtype))

    def bounds(self, k: np.ndarray, n: np.ndarray, itemsize: int) -> tuple[np.ndarray, np.ndarray]:
        return (size := itemsize + np.ceil(n / 8)), size


@pytest.fixture
def signs(monkeypatch):
    """The codec of this page has the row of one that is not used here."""
    monkeypatch.setitem(ROWS["codec"], "coordinates", Row("codec", "coordinates", f"{__name__}:Signs"))
    codec.codec_of.cache_clear()
    yield
    codec.codec_of.cache_clear()


@pytest.mark.usefixtures("signs")
def test_a_lossy_frame_is_shorter_and_is_read_as_a_vector():
    values = np.array([0.5, -1.0, 3.0, -1.5, 1.5], np.float32)
    frame = encode(Entries(5, None, values), "coordinates")
    assert len(frame) == codec.START + 4 + 1
    assert decode(frame, n=5).values.tolist() == [1.5, -1.5, 1.5, -1.5, 1.5]


@pytest.mark.usefixtures("signs")
def test_the_record_of_a_lossy_run_is_valid():
    wanted = tiny(engine="virtual", cluster="lab", workers=1, pushes=12, prune="static:100%", codec="coordinates")
    assert tables_of(wanted, conduct(wanted)[0])[2]["verdict"] == "valid"


def test_a_codec_that_lacks_a_method_is_none():
    with pytest.raises(TypeError, match="bounds"):
        type("Half", (Codec,), {"write": Signs.write, "read": Signs.read})()


@pytest.mark.usefixtures("signs")
def test_positions_alone_cannot_be_asked_of_a_codec_that_writes_none():
    with pytest.raises(FrameError, match="coordinates has no positions"):
        codec.positions_of(np.array([1, 3]), 5, "coordinates")


@pytest.mark.usefixtures("signs")
def test_what_a_codec_loses_is_added_to_the_next_gradient():
    """Of one worker: signs with error feedback (Karimireddy et al., ICML 2019), step by step."""
    wanted = tiny(engine="virtual", cluster="lab", workers=1, pushes=12, prune="static:100%", codec="coordinates",
               dtype="float64", learning_rate=0.05)  # fmt: skip
    experiment, outcome = resolve(wanted), conduct(wanted)[0]
    data, weights = experiment.dataset, experiment.weights.clone()
    residual, gradient = torch.zeros_like(weights), torch.zeros_like(weights)
    batches = Batches(len(data.train_y), 1, 0, wanted.batch_size, wanted.seed)
    with one_thread():
        for step in range(wanted.pushes):
            experiment.keyspace.bind(experiment.shell, weights, gradient.zero_())
            rows = torch.from_numpy(batches.at(step))
            x = batch(data.train_x[rows], torch.float64, data.mean, data.std)
            functional.cross_entropy(experiment.shell(x), data.train_y[rows]).backward()
            residual += gradient
            sent = torch.where(residual > 0, residual.abs().mean(), -residual.abs().mean())
            residual -= sent
            weights -= wanted.learning_rate * sent
    np.testing.assert_allclose(outcome.weights, weights.numpy(), rtol=1e-9, atol=1e-12)
