"""The pruning rules: what they select of a vector, which parameters they refuse, and how they change over time."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pslab.config.spec import build
from pslab.errors import ConfigError
from pslab.tensors.pruning.rules import (
    DGC,
    WARM_UP,
    BothSigns,
    Dense,
    Deviation,
    Dynamic,
    PruningRule,
    RandomK,
    Static,
    Threshold,
    warm,
)
from pslab.tensors.random_streams import seed_of


@given(st.integers(1, 1000), st.integers(1, 10**6))
def test_static_count_is_the_exact_ceiling(per_mille: int, n: int) -> None:
    assert Static(per_mille / 1000).count(n) == max(1, -(-per_mille * n // 1000))


def test_selections_by_hand() -> None:
    assert Static(0.25).select(torch.tensor([0.1, -0.5, 0.5, 0.2])).tolist() == [1]
    v = torch.tensor([0.1, -0.2, 0.3, -0.4, 2, -3, 0.05, 0])
    assert [Deviation(k).select(v).tolist() for k in (1, 2, 3)] == [[4, 5], [5], []]
    assert [Dynamic(k).select(torch.tensor([1.0, -2, 3, -4])).tolist() for k in (1, 2, 3)] == [[2, 3], [3], [3]]
    assert Dense().select(v).tolist() == list(range(8))
    assert [Threshold(x).select(v).tolist() for x in (2, 2.5, 4)] == [[4, 5], [5], []]
    assert BothSigns(0.5).select(torch.tensor([0.3, -0.4, 0, 1.2, -0.1, 0.8])).tolist() == [1, 3, 5]
    assert BothSigns(0.5).select(torch.zeros(3)).tolist() == []
    assert RandomK(0.3).select(torch.zeros(10), seed_of(0, "shared", 2, 0)).tolist() == [2, 4, 9]
    assert (RandomK(0.5, False).scale(4), RandomK(0.5).scale(4), RandomK(0.01).sends(10)) == (2, 1, 1)


@pytest.mark.parametrize(
    ("text", "rule"),
    [("none", Dense()), ("static:1%", Static(0.01)), ("static:0.001,residual=off", Static(0.001, False)),
     ("std:2", Deviation(2.0)), ("std:2.5,off", Deviation(2.5, False)), ("dynamic", Dynamic()),
     ("dynamic:8", Dynamic(8)), ("dynamic:mode=ratchet", Dynamic(mode="ratchet")),
     ("dynamic:mode=decay,gamma=0.8", Dynamic(mode="decay", gamma=0.8)),
     ("static:1%,mode=frozen", Static(0.01, mode="frozen")),
     ("std:2,warm_up=4", Deviation(2, warm_up=4)), ("dgc", DGC()),
     ("dgc:1%,clip=5,warm_up=0", DGC(0.01, clip=5.0, warm_up=0)),
     ("dgc:0.1%,nesterov=on,masking=off,momentum=0.5", DGC(momentum=0.5, nesterov=True, masking=False))],
)  # fmt: skip
def test_rules_by_name(text: str, rule: PruningRule) -> None:
    assert build("prune", text) == rule


@pytest.mark.parametrize(
    ("text", "words"),
    [("static", "static needs fraction"), ("static:0", "above 0 and at"), ("static:1.5", "above 0 and at"),
     ("static:nan", "above 0"), ("std:0", "above 0"), ("std:-1", "above 0"), ("std:inf", "above 0"),
     ("dynamic:0", "whole number of at least 1"), ("dynamic:2.5", "cannot be read"),
     ("dynamic:mode=rachet", "did you mean 'ratchet'"), ("dynamic:gamma=1", "below 1"),
     ("static:1%,warm_up=-1", "warm_up=-1: must be"),
     ("static:1%,warm_up=0.5", "cannot be read"), ("dgc:0", "above 0 and at"), ("dgc:0.1%,momentum=1", "below 1"),
     ("dgc:0.1%,sample=0", "above 0 and at"), ("dgc:0.1%,clip=0", "above 0, or None"), ("dgc:0.1%,clip=inf", "or None"),
     ("dgc:0.1%,momentum=0,nesterov=on", "needs a momentum"), ("dgc:0.1%,residual=off", "no parameter 'residual'"),
     ("threshold:0", "above 0"), ("randomk:0", "above 0 and at"), ("adaq:0", "above 0 and at"),
     ("none:1", "none takes no parameters"), ("statik:1%", "did you mean 'static'")],
)  # fmt: skip
def test_impossible_parameters_are_refused_by_name(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build("prune", text)


def test_impossible_parameters_are_refused() -> None:
    for wrong in (lambda: Static("1%"), lambda: Static(True), lambda: Deviation("2"), lambda: Dynamic(True),
                  lambda: Dynamic(5.0), lambda: Static(0.1, "no"), lambda: Deviation(2, 1),
                  lambda: Dynamic(5, None), lambda: Dynamic(mode="x"),
                  lambda: Static(0.1, mode="x"), lambda: Static(0.1, warm_up=True), lambda: DGC("1%"),
                  lambda: DGC(momentum="0.9"), lambda: DGC(clip=True), lambda: DGC(masking=1)):  # fmt: skip
        with pytest.raises(ValueError, match=r"must be|allowed"):
            wrong()


# --- thresholds that are kept -----------------------------------------------------------------------------------------


def kept() -> torch.Tensor:
    return torch.zeros(1, dtype=torch.float64)


def test_the_literal_threshold_rises_until_no_entry_exceeds_it() -> None:
    v, threshold, rule = torch.tensor([1.0, -2, 3, -4]), kept(), Dynamic(mode="literal")
    seen = [(rule.select(v, threshold).tolist(), threshold.item()) for _ in range(6)]
    assert seen == [([0, 1, 2, 3], 2.5), ([2, 3], 3.5), ([3], 4), ([], 4), ([], 4), ([], 4)]


def test_the_ratchet_starts_again_with_the_mean() -> None:
    v, threshold, rule = torch.tensor([1.0, -2, 3, -4]), kept(), Dynamic(mode="ratchet")
    seen = [(rule.select(v, threshold).tolist(), threshold.item()) for _ in range(6)]
    assert seen == [([0, 1, 2, 3], 2.5), ([2, 3], 3.5), ([3], 4), ([2, 3], 2.5), ([2, 3], 3.5), ([3], 4)]
    assert rule.select(torch.zeros(4), threshold).tolist() == []
    assert threshold.item() == 0  # so that the next gradient is sent
    assert rule.select(torch.full((4,), -2.0), threshold).tolist() == [0, 1, 2, 3]


def test_the_decaying_threshold_falls() -> None:
    v, threshold, rule = torch.tensor([1.0, -2, 3, -4]), kept(), Dynamic(mode="decay", gamma=0.5)
    seen = [(rule.select(v, threshold).tolist(), threshold.item()) for _ in range(3)]
    assert seen == [([0, 1, 2, 3], 2.5), ([1, 2, 3], 3), ([1, 2, 3], 3)]
    assert rule.select(v / 8, threshold).tolist() == []
    assert threshold.item() == 1.5


def test_a_frozen_threshold_is_that_of_the_first_gradient() -> None:
    threshold, rule = kept(), Static(0.25, mode="frozen")
    assert rule.select(torch.zeros(4), threshold).tolist() == [0]  # gives no threshold
    assert rule.select(torch.tensor([0.1, -0.5, 0.5, 0.2]), threshold).tolist() == [1]
    assert rule.select(torch.tensor([0.5, -9, 0.1, -0.6]), threshold).tolist() == [0, 1, 3]
    assert rule.select(torch.full((4,), 0.4), threshold).tolist() == []
    assert threshold.item() == 0.5


@pytest.mark.parametrize("rule", [Dynamic(mode="ratchet"), Dynamic(mode="decay"), Static(0.3, mode="frozen")], ids=str)
def test_without_a_kept_threshold_every_gradient_is_the_first(rule: Static | Dynamic) -> None:
    v = torch.randn(100, generator=torch.Generator().manual_seed(1))
    first = rule.select(v, kept())
    assert all(torch.equal(rule.select(v), first) for _ in range(3))


# --- warm-up ----------------------------------------------------------------------------------------------------------


def test_warm_up_densities_by_epoch() -> None:
    assert WARM_UP == (0.25, 0.0625, 0.015625, 0.004, 0.001)
    four = [warm(epoch, 4) for epoch in (0, 0.99, 1, 2.5, 3.99, 4, 9)]
    assert four == [0.25, 0.25, 0.0625, 0.015625, 0.004, None, None]
    assert [warm(epoch, 2) for epoch in range(3)] == [0.25, 0.0625, None]
    assert [warm(epoch, 10) for epoch in range(11)] == [*(d for d in WARM_UP for _ in range(2)), None]
    assert warm(0, 0) is None


@pytest.mark.parametrize(
    ("rule", "warmed", "then"),
    [
        (Static(0.01, warm_up=4), [0.25, 0.0625, 0.015625, 0.01], Static(0.01, warm_up=4)),
        (Static(0.5, False, warm_up=2), [0.5, 0.5], Static(0.5, False, warm_up=2)),
        (Deviation(2, warm_up=5), list(WARM_UP), Deviation(2, warm_up=5)),
        (Dynamic(warm_up=1, mode="ratchet"), [0.25], Dynamic(warm_up=1, mode="ratchet")),
        (DGC(), [0.25, 0.0625, 0.015625, 0.004], DGC()),
    ],
    ids=str,
)
def test_a_warm_up_is_never_sparser_than_its_rule(rule: PruningRule, warmed: list[float], then: PruningRule) -> None:
    v = torch.randn(10_000, generator=torch.Generator().manual_seed(2))
    for epoch, fraction in enumerate(warmed):
        here = rule.at(epoch + 0.5)  # type: ignore[attr-defined]
        assert (here.fraction, here.residual) == (fraction, rule.residual)
        assert math.ceil(0.8 * fraction * 10_000) <= len(here.select(v)) <= math.ceil(fraction * 10_000)
    assert rule.at(len(warmed)) == then  # type: ignore[attr-defined]


# --- why the literal threshold starves --------------------------------------------------------------------------------


def densities(rule: Dynamic, residual: bool, steps: int, n: int = 30_000) -> list[float]:
    """The shares that are sent of stationary Gaussian gradients."""
    generator, v, threshold, found = torch.Generator().manual_seed(3), torch.zeros(n), kept(), list[float]()
    for _ in range(steps):
        v = (v if residual else 0) + torch.randn(n, generator=generator)
        indices = rule.select(v, threshold)
        v[indices] = 0
        found.append(len(indices) / n)
    return found


@pytest.mark.parametrize(
    ("mode", "residual", "steps", "least", "most"),
    [("literal", False, 20, 0, 1e-4), ("literal", True, 80, 0, 2e-4), ("ratchet", True, 80, 1e-5, 1),
     ("passes", True, 20, 5e-3, 1), ("decay", True, 60, 1e-4, 1)],
)  # fmt: skip
def test_only_the_literal_threshold_starves(mode: str, residual: bool, steps: int, least: float, most: float) -> None:
    """The most that it sends in one of the last six steps."""
    found = densities(Dynamic(mode=mode), residual, steps)
    assert least <= max(found[-6:]) <= most
    if mode == "literal" and not residual:
        assert found[:3] == pytest.approx([1, 0.425, 0.171], rel=0.04)
