from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pslab.errors import ConfigError, PslabError
from pslab.spec import build
from pslab.tensors.prune import PRUNERS, Deviation, Dynamic, NonFinite, Pruner, Rule, Static, Whole, is_finite

RULES: list[Rule] = [
    Whole(), Static(0.01), Static(0.3), Deviation(1), Deviation(3), Dynamic(1), Dynamic(5),
]  # fmt: skip


@dataclass(frozen=True)
class Above:
    """A user's rule."""

    threshold: float
    residual: bool = True

    def select(self, v: torch.Tensor) -> object:
        return (v.abs() > self.threshold).nonzero().flatten()


def gradients(size: int, dtype: torch.dtype, seed: int = 0) -> Iterator[torch.Tensor]:
    """A worker's gradients, and the kinds that no distribution draws."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(6):
        yield torch.randint(-9, 10, (size,), generator=generator).to(dtype)
    yield torch.zeros(size, dtype=dtype)
    yield -torch.randint(1, 99, (size,), generator=generator).to(dtype)
    yield torch.full((size,), 3, dtype=dtype)
    single = torch.zeros(size, dtype=dtype)
    single[-1] = -1
    yield single


def in_layers(*sizes: int) -> list[slice]:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]


# --- rules ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fraction", "n", "k"),
    [(0.25, 4, 1), (0.1, 30, 3), (0.1, 31, 4), (0.01, 10, 1), (1.0, 7, 7), (0.001, 1_000_000, 1000), (1e-9, 5, 1),
     (0.07, 100, 7), (0.29, 100, 29), (1.1 / 100, 1000, 11), (0.3, 10**9, 3 * 10**8), (0.1, 1, 1), (0.5, 3, 2)],
)  # fmt: skip
def test_static_count(fraction: float, n: int, k: int) -> None:
    assert Static(fraction).count(n) == k


@given(st.integers(1, 1000), st.integers(1, 10**6))
def test_static_count_is_the_exact_ceiling(per_mille: int, n: int) -> None:
    assert Static(per_mille / 1000).count(n) == max(1, -(-per_mille * n // 1000))


def test_vectors_of_the_rules() -> None:
    assert Static(0.25).select(torch.tensor([0.1, -0.5, 0.5, 0.2])).tolist() == [1]
    v = torch.tensor([0.1, -0.2, 0.3, -0.4, 2, -3, 0.05, 0])
    assert [Deviation(k).select(v).tolist() for k in (1, 2, 3)] == [[4, 5], [5], []]
    assert [Dynamic(k).select(torch.tensor([1.0, -2, 3, -4])).tolist() for k in (1, 2, 3)] == [[2, 3], [3], [3]]
    assert Whole().select(v).tolist() == list(range(8))


@pytest.mark.parametrize(
    ("text", "rule"),
    [("none", Whole()), ("static:1%", Static(0.01)), ("static:0.001,residual=off", Static(0.001, False)),
     ("std:2", Deviation(2.0)), ("std:2.5,off", Deviation(2.5, False)), ("dynamic", Dynamic()),
     ("dynamic:8", Dynamic(8))],
)  # fmt: skip
def test_rules_have_names(text: str, rule: Rule) -> None:
    assert build("prune", text, PRUNERS) == rule


@pytest.mark.parametrize(
    ("text", "words"),
    [("static", "static needs fraction"), ("static:0", "above 0 and at"), ("static:1.5", "above 0 and at"),
     ("static:nan", "above 0"), ("std:0", "above 0"), ("std:-1", "above 0"), ("std:inf", "above 0"),
     ("dynamic:0", "whole number from 1"), ("dynamic:2.5", "cannot be read"),
     ("none:1", "none takes no parameters"), ("statik:1%", "did you mean 'static'")],
)  # fmt: skip
def test_impossible_rules_are_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build("prune", text, PRUNERS)


def test_impossible_values_are_refused() -> None:
    for wrong in (lambda: Static("1%"), lambda: Static(True), lambda: Deviation("2"), lambda: Dynamic(True),
                  lambda: Dynamic(5.0), lambda: Static(0.1, "no"), lambda: Deviation(2, 1),
                  lambda: Dynamic(5, None)):  # fmt: skip
        with pytest.raises(ValueError, match="must be"):
            wrong()


# --- the pruner -----------------------------------------------------------------------------------------------------


def test_residual_vector() -> None:
    pruner, g = Pruner(Above(0.5), [slice(0, 3)], 3, torch.float64), torch.tensor([0.3, 1, 0.2], dtype=torch.float64)
    sent = [{1: 1.0}, {0: 0.6, 1: 1.0}, {1: 1.0, 2: 0.6}]
    left = [(0.3, 0, 0.2), (0, 0, 0.4), (0.3, 0, 0)]
    for expected, residual in zip(sent, left, strict=True):
        indices, values = pruner.prune(g)
        assert dict(zip(indices.tolist(), values.tolist(), strict=True)) == pytest.approx(expected)
        assert pruner.residual is not None
        assert pruner.residual.tolist() == pytest.approx(residual)


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sizes", [(1,), (1, 1, 5), (300, 1, 7000), (0, 64, 0)])
def test_what_is_sent_and_what_is_left_is_what_was_computed(
    rule: Rule, dtype: torch.dtype, sizes: tuple[int, ...]
) -> None:
    size = sum(sizes)
    pruner = Pruner(rule, in_layers(*sizes), size, dtype)
    computed, sent = torch.zeros(size, dtype=dtype), torch.zeros(size, dtype=dtype)
    for gradient in gradients(size, dtype):
        before = gradient.clone()
        indices, values = pruner.prune(gradient)
        assert torch.equal(gradient, before)
        assert indices.dtype == torch.int64
        assert values.dtype == dtype
        assert bool((indices[1:] > indices[:-1]).all())
        computed += gradient
        sent[indices] += values
        residual = torch.zeros(size, dtype=dtype) if pruner.residual is None else pruner.residual
        assert torch.equal(sent + residual, computed)  # exact: whole numbers
        assert not residual[indices].any()


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_nothing_is_lost_to_rounding(rule: Rule) -> None:
    size = 5000
    pruner = Pruner(rule, in_layers(200, 4800), size, torch.float64)
    generator = torch.Generator().manual_seed(9)
    computed, sent, scale = (torch.zeros(size, dtype=torch.float64) for _ in range(3))
    for _ in range(40):
        gradient = torch.randn(size, generator=generator, dtype=torch.float64)
        indices, values = pruner.prune(gradient)
        computed += gradient
        scale += gradient.abs()
        sent[indices] += values
    residual = torch.zeros(size) if pruner.residual is None else pruner.residual
    assert float(((sent + residual - computed).abs() / scale).max()) < 1e-12


def test_each_layer_is_selected_by_itself() -> None:
    gradient = torch.cat((torch.ones(100), 1000 * torch.ones(100)))
    gradient[7], gradient[150] = 2, 3000
    assert Pruner(Static(0.01), in_layers(100, 100), 200).prune(gradient)[0].tolist() == [7, 150]
    assert Pruner(Static(0.005), in_layers(200), 200).prune(gradient)[0].tolist() == [150]


def test_without_a_residual_the_unsent_is_dropped() -> None:
    pruner = Pruner(Static(0.25, residual=False), in_layers(4), 4)
    gradient = torch.tensor([1.0, -3, 2, 0])
    assert pruner.residual is None
    for _ in range(3):
        indices, values = pruner.prune(gradient)
        assert (indices.tolist(), values.tolist()) == ([1], [-3])
    assert gradient.tolist() == [1, -3, 2, 0]


def test_the_values_are_copies() -> None:
    for rule in RULES:
        gradient = torch.arange(1.0, 9)
        _, values = Pruner(rule, in_layers(8), 8).prune(gradient)
        before = values.clone()
        gradient.zero_()
        assert torch.equal(values, before)


@pytest.mark.parametrize("rule", [*RULES, Static(0.1, residual=False)], ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_gradient_that_is_not_finite_leaves_everything_as_it_was(rule: Rule, bad: float) -> None:
    pruner = Pruner(rule, in_layers(50, 50), 100)
    pruner.prune(torch.randn(100, generator=torch.Generator().manual_seed(4)))
    before = None if pruner.residual is None else pruner.residual.clone()
    gradient = torch.ones(100)
    gradient[99] = bad
    with pytest.raises(NonFinite, match="NaN or infinite"):
        pruner.prune(gradient)
    assert issubclass(NonFinite, PslabError)
    assert pruner.residual is None if before is None else torch.equal(pruner.residual, before)
    pruner.prune(torch.ones(100))


def test_is_finite() -> None:
    assert is_finite(torch.full((1000,), 3e38))  # though their sum is not
    assert is_finite(torch.empty(0))
    for bad in (float("nan"), float("inf"), -float("inf")):
        v = torch.zeros(5000)
        v[4321] = bad
        assert not is_finite(v)
    assert not is_finite(torch.tensor([float("inf"), -float("inf"), 1]))


@pytest.mark.parametrize(
    "found",
    [
        [3, 1],
        np.array([1, 3]),
        torch.tensor([3, 1], dtype=torch.int32),
        torch.tensor([0, 1, 0, 1, 0], dtype=torch.bool),
    ],
)
def test_a_users_rule_may_give_indices_in_any_form(found: object) -> None:
    class Fixed:
        residual = True

        def select(self, v: torch.Tensor) -> object:
            return found

    indices, values = Pruner(Fixed(), in_layers(5, 5), 10).prune(torch.arange(10.0))
    assert (indices.tolist(), values.tolist()) == ([1, 3, 6, 8], [1, 3, 6, 8])


@pytest.mark.parametrize("found", [[1, 1], [-1], [5], [0, 7]])
def test_indices_that_are_none_are_refused(found: list[int]) -> None:
    class Fixed:
        residual = False

        def select(self, v: torch.Tensor) -> list[int]:
            return found

    with pytest.raises(ValueError, match="distinct indices from 0 to 4"):
        Pruner(Fixed(), in_layers(5, 5), 10).prune(torch.ones(10))


def test_layers_that_leave_entries_out_are_refused() -> None:
    for layers in ([slice(0, 4)], [slice(1, 5)], [slice(0, 3), slice(2, 5)], [slice(0, 2), slice(3, 5)], []):
        with pytest.raises(ValueError, match="from 0 to 5"):
            Pruner(Static(0.1), layers, 5)
    Pruner(Static(0.1), [slice(2), slice(2, 5)], 5)


def test_a_gradient_of_another_model_is_refused() -> None:
    pruner = Pruner(Static(0.1), in_layers(5), 5)
    for gradient in (torch.ones(4), torch.ones(5, 1), torch.ones(5, dtype=torch.float64)):
        with pytest.raises(ValueError, match=r"\(5,\), torch.float32 is expected"):
            pruner.prune(gradient)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_sends_the_same() -> None:
    layers = in_layers(300, 1, 7000)
    for rule in RULES:
        here, there = Pruner(rule, layers, 7301), Pruner(rule, layers, 7301, device="cuda")
        for gradient in gradients(7301, torch.float32):
            for ours, theirs in zip(here.prune(gradient), there.prune(gradient.cuda()), strict=True):
                assert torch.equal(ours, theirs.cpu())
