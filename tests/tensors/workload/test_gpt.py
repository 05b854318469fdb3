"""The language model: its size, its first weights, what each byte may know of, and a reference implementation."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pslab.config.spec import build
from pslab.errors import ConfigError
from pslab.tensors.random_streams import generator
from pslab.tensors.workload.gpt import GPT
from pslab.tensors.workload.models import build_model


def some_bytes(*shape: int) -> Tensor:
    return torch.randint(256, shape, generator=generator(0, "bytes"))


@pytest.mark.parametrize(
    ("text", "count"), [("gpt", 119_104), ("gpt:64", 119_104), ("gpt:64,layers=2", 119_104),
                        ("gpt:128,layers=4", 828_544)],
)  # fmt: skip
def test_the_table_of_bytes_is_counted_once_and_there_are_no_biases(text: str, count: int) -> None:
    model = build_model(text, 0)
    assert sum(parameter.numel() for parameter in model.parameters()) == count
    assert {name.rpartition(".")[2] for name, _ in model.named_parameters()} == {"weight"}


def test_first_weights_are_normal_and_smaller_where_blocks_add_to_the_stream() -> None:
    model = build_model("gpt:64,layers=3", 0)
    for name, weight in model.named_parameters():
        if weight.ndim == 1:
            assert torch.equal(weight, torch.ones(64)), name
            continue
        deviation = 0.02 / (math.sqrt(6) if name.endswith(("attended.weight", "narrow.weight")) else 1)
        assert float(weight.detach().std()) == pytest.approx(deviation, rel=0.05), name


def reference(model: GPT, x: Tensor) -> Tensor:
    """[B, T] -> [B, T, 256], a head, an example and a place at a time."""
    weights = dict(model.named_parameters())
    stream = weights["bytes.weight"][x] + weights["places.weight"][: x.shape[1]]
    for number in range(len(model.blocks)):
        own = {name.removeprefix(f"blocks.{number}."): each for name, each in weights.items()}
        normal = functional.layer_norm(stream, stream.shape[-1:], own["norm1.weight"])
        query, key, value = (normal @ own["attend.weight"].T).chunk(3, 2)
        found = torch.zeros_like(stream)
        size = stream.shape[2] // 4
        for head in (slice(first * size, (first + 1) * size) for first in range(4)):
            for at in range(x.shape[1]):
                scores = (key[:, : at + 1, head] * query[:, at : at + 1, head]).sum(2) / math.sqrt(size)
                found[:, at, head] = (scores.softmax(1)[:, :, None] * value[:, : at + 1, head]).sum(1)
        stream = stream + found @ own["attended.weight"].T
        normal = functional.layer_norm(stream, stream.shape[-1:], own["norm2.weight"])
        wide = normal @ own["widen.weight"].T
        stream = stream + (wide * 0.5 * (1 + torch.erf(wide / math.sqrt(2)))) @ own["narrow.weight"].T
    return functional.layer_norm(stream, stream.shape[-1:], weights["norm.weight"]) @ weights["bytes.weight"].T


def test_scores_are_those_of_a_reference_that_looks_at_one_place_at_a_time() -> None:
    model, x = build_model("gpt:16", 3).double(), some_bytes(2, 9)
    with torch.no_grad():
        for parameter in model.parameters():  # so that blocks matter
            parameter.mul_(10)
        torch.testing.assert_close(model(x), reference(model, x).transpose(1, 2), rtol=1e-10, atol=1e-12)


def test_a_score_depends_on_no_later_byte_and_on_every_earlier_one() -> None:
    model, x = build_model("gpt:16", 0).double(), some_bytes(1, 64)
    with torch.no_grad():
        before = model(x)
        for at in (0, 31, 63):
            other = x.clone()
            other[0, at] = (x[0, at] + 1) % 256
            changed = (model(other) != before).any(1)[0]
            assert changed.tolist() == [False] * at + [True] * (64 - at)


@pytest.mark.parametrize(
    ("text", "problem"),
    [("gpt:66", "must be a multiple of 4, the number of heads, such as 64"), ("gpt:2", "from 4 to 4096"),
     ("gpt:64,layers=0", "from 1 to 64"), ("gpt:64,heads=2", "gpt has no parameter 'heads'")],
)  # fmt: skip
def test_other_shapes_are_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        build("model", text)
