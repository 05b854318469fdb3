"""Range push: the ranges of a sweep, what is pushed of them, and the residual of the others."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pslab.config.spec import build
from pslab.errors import ConfigError
from pslab.tensors.pruning.range_push import RangePruner, Ranges, keys_of, ranges_in
from pslab.tensors.workload.keyspace import KeyRange, Keyspace


def five() -> Keyspace:
    """Five keys of one entry each."""
    return Keyspace.of(nn.Linear(1, 5, bias=False))


def net() -> Keyspace:
    return Keyspace.of(nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)))


Pushed = list[dict[int, float]]


def swept(rule: Ranges, keyspace: Keyspace, gradients: list[torch.Tensor]) -> tuple[Pushed, RangePruner]:
    """What is pushed in each iteration, by flat index."""
    pruner, found = RangePruner(rule, keyspace, gradients[0].dtype), []
    for iteration, gradient in enumerate(gradients):
        pruner.keys = keys_of(min(int(rule.size), keyspace.keys), keyspace.keys, iteration)
        indices, values = pruner.prune(gradient, iteration)
        assert indices.tolist() == sorted(set(indices.tolist()))
        found.append(dict(zip(indices.tolist(), values.tolist(), strict=True)))
    return found, pruner


def test_a_sweep_by_hand():
    assert ranges_in(2, 5) == 3
    assert [keys_of(2, 5, i) for i in range(4)] == [KeyRange(0, 2), KeyRange(2, 4), KeyRange(4, 5), KeyRange(0, 2)]
    pushed, pruner = swept(Ranges(2), five(), [torch.ones(5)] * 3)
    assert pushed == [{0: 1, 1: 1}, {2: 2, 3: 2}, {4: 3}]
    assert pruner.residual.tolist() == [2, 2, 1, 1, 0]
    pushed, pruner = swept(Ranges(2, residual=False), five(), [torch.ones(5)] * 3)
    assert pushed == [{0: 1, 1: 1}, {2: 1, 3: 1}, {4: 1}]
    assert (pruner.residual, pruner.kept) == (None, {})


@given(st.integers(1, 9), st.integers(1, 30), st.integers(0, 999))
def test_pushed_and_residual_add_up_to_the_gradients(size: int, iterations: int, seed: int):
    keyspace, generator = net(), torch.Generator().manual_seed(seed)
    gradients = [torch.randint(-9, 9, (keyspace.size,), generator=generator).float() for _ in range(iterations)]
    before = [g.clone() for g in gradients]
    pushed, pruner = swept(Ranges(size), keyspace, gradients)
    total = torch.zeros(keyspace.size)
    for each in pushed:
        for at, value in each.items():
            total[at] += value
    assert torch.equal(total + pruner.residual, sum(gradients))
    assert all(map(torch.equal, before, gradients))
    # every entry is sent in each sweep, so none is later than K - 1 iterations
    sweep = ranges_in(min(size, keyspace.keys), keyspace.keys)
    for start in range(iterations - sweep + 1):
        assert set().union(*pushed[start : start + sweep]) == set(range(keyspace.size))


def test_range_rules_by_name():
    assert build("prune", "range:300") == Ranges(300)
    assert build("prune", "range:fit,quantile=0.25") == Ranges("fit", quantile=0.25)
    assert build("prune", "range:3,residual=off,local_apply=off") == Ranges(3, False, False)
    assert not Ranges(3, residual=False).applies  # there is no residual to apply
    assert (Ranges("fit").fitted, Ranges(3).fitted) == (True, False)


@pytest.mark.parametrize(
    ("text", "words"),
    [("range", "needs size"), ("range:0", "at least 1, or fit"), ("range:-3", "at least 1"), ("range:1.5", "or fit"),
     ("range:fitt", "or fit"), ("range:3,quantile=2", "from 0 to 1"), ("range:3,drop=on", "no parameter 'drop'")],
)  # fmt: skip
def test_impossible_parameters_are_refused(text: str, words: str):
    with pytest.raises(ConfigError, match=words):
        build("prune", text)
    with pytest.raises(ValueError, match="on \\(True\\) or off"):
        Ranges(3, residual=1)  # type: ignore[arg-type]
