"""Local SGD: vectors by hand, whole runs, and its limits."""

from __future__ import annotations

import pytest
from scalar import scalar, traced

from pslab.policies.methods.local_sgd import LocalSGD
from pslab.protocol.traits import traits_of


def means(steps: list[tuple]) -> list[float]:
    """The weight after each round."""
    return [step[-1] for step in steps[::2]]


@pytest.mark.parametrize(
    ("sync", "pushes", "expected"),
    [
        ("local:2", 8, [1.5, 1.875]),
        ("local:1", 8, [1.0, 1.5, 1.75, 1.875]),
        ("local:2,after=2", 8, [1.0, 1.5, 1.875]),  # from 1.5 as in the second round of local:2
        ("local:4", 8, [(0.0 + 4 * (1 - 0.5**4)) / 2]),  # one averaging, at the end
    ],
)
def test_local_sgd_vectors(monkeypatch, sync, pushes, expected):
    steps, outcome = traced(monkeypatch, scalar(sync, 0.0, 4.0, pushes=pushes))
    assert means(steps) == expected
    assert outcome.facts["pushes"] == outcome.facts["accepted"] == pushes
    assert outcome.facts["seconds"] == pushes / 2 * 10.0  # a push takes as long as its gradients


def test_a_schedule_counts_gradients(monkeypatch):
    steps, _ = traced(monkeypatch, scalar("local:2", 4.0, schedule="linear", pushes=4))
    w = 0.0
    for step in range(4):
        w -= 0.5 * (1 - step / 4) * (w - 4.0)
    assert steps[-1][-1] == pytest.approx(w, abs=1e-15)


def test_gradients_of_a_push():
    traits = traits_of(LocalSGD(4, after=2))
    assert [traits.gradients_before(t) for t in range(5)] == [0, 1, 2, 6, 10]
    assert [traits.gradients(t) for t in range(4)] == [1, 1, 4, 4]
