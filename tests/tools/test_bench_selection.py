"""The section on pruning, at a size that takes no time. No speed is judged here."""

from __future__ import annotations

import math

import pytest
import torch

from pslab.tensors.pruning.rules import Deviation, Dynamic, Rule, Static
from tools.bench.sections import selection


@pytest.mark.parametrize("kind", selection.DRAWS)
def test_each_rule_has_a_row(kind: str) -> None:
    rows = selection.selections(3000, kind, 0.0)
    assert [row.name.split()[0] for row in rows] == list(selection.THRESHOLDS)
    assert all(kind in row.name and 0 < row.ratio < math.inf for row in rows)
    assert "sends 1.00%; torch's operators" in rows[1].note
    assert "torch" not in rows[-1].note


def test_shares_are_ratios_to_an_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "BATCH_SIZE", 2)
    rows = selection.shares(0.0)
    assert len(rows) == 2 * len(selection.THRESHOLDS)
    assert all("an iteration of" in row.against and 0 < row.ratio < math.inf for row in rows)
    assert {row.bar for row in rows} == {selection.SHARE_BAR, None}


@pytest.mark.parametrize(
    ("density", "n", "expected"),
    [(0.001, 10**6, 4), (0.01, 25 * 10**6, 1.5), (0.1, 10**6, 30), (0.05, 25 * 10**6, 8), (0.3, 10**6, None)],
)
def test_bars_depend_on_density_and_size(density: float, n: int, expected: float | None) -> None:
    assert selection.bar(density, n) == expected


@pytest.mark.parametrize("rule", [Static(0.01), Deviation(2.0)])
def test_the_peers_select_the_same(rule: Rule) -> None:
    v = selection.DRAWS["laplace"](5000, torch.Generator().manual_seed(0))
    peer = selection._peer(rule, len(v))
    assert peer is not None
    assert sorted(peer(v).flatten().tolist()) == rule.select(v).tolist()
    assert selection._peer(Dynamic(), 9) is None


def test_drawn_gradients_have_their_kurtosis() -> None:
    for kind, fourth in {"gaussian": 3, "laplace": 6}.items():
        v = selection.DRAWS[kind](200_000, torch.Generator().manual_seed(1)).double()
        assert abs(float(v.mean())) < 0.02
        assert float((v**4).mean() / (v**2).mean() ** 2) == pytest.approx(fourth, rel=0.1)
