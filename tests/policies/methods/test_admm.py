"""Consensus ADMM in whole runs: its vector, its record, both engines, and what it cannot be run with."""

from __future__ import annotations

import numpy as np
import pytest
from scalar import scalar, traced
from tiny import tiny

from pslab.errors import ConfigError
from pslab.lab.runs.resolve import resolve
from pslab.lab.runs.run import run
from pslab.policies.methods.admm import ADMM
from pslab.protocol.traits import traits_of

TRAINING = {"sync": "admm:8,rho=0.1", "pushes": 4 * 8 * 6, "learning_rate": 0.5}


def test_two_workers_agree_on_the_mean_of_their_targets(monkeypatch):
    steps, outcome = traced(monkeypatch, scalar("admm:34,balance=off", 0.0, 4.0, pushes=4 * 2 * 34))
    assert [step[-1] for step in steps[::2]] == pytest.approx([1, 1.5, 1.75, 1.875], abs=1e-9)
    assert outcome.facts["seconds"] == 4 * 34 * 10.0  # every inner gradient takes its time
    assert [row[:2] for row in outcome.facts["residuals"]] == [[1, 1.0], [2, 1.0], [3, 1.0]]


def test_the_gradients_of_a_round():
    assert traits_of(ADMM(5)).gradients(3) == 5
    assert traits_of(ADMM(5)).gradients_before(2) == 10


def test_it_trains_a_network_and_engines_agree(tmp_path):
    here = run(tiny(engine="virtual", cluster="steady", **TRAINING), results=tmp_path, progress=False)
    there = run(tiny(**TRAINING), results=tmp_path, progress=False)
    assert np.array_equal(here.weights, there.weights)
    assert here.manifest["residuals"] == there.manifest["residuals"]
    assert (here.manifest["verdict"], there.manifest["verdict"]) == ("valid", "valid")
    assert here.accuracy.accuracy.iloc[-1] > 0.6


def test_the_rule_of_small_residuals_ends_a_run(tmp_path):
    found = run(tiny(engine="virtual", cluster="steady", **{**TRAINING, "sync": "admm:8,rho=0.1,stop=0.9"}),
                results=tmp_path, progress=False)  # fmt: skip
    assert found.manifest["outcome"] == "converged"
    assert found.manifest["verdict"] == "valid"
    assert max(found.manifest["residuals"][-1][-2:]) <= 0.9
    assert all(max(row[-2:]) > 0.9 for row in found.manifest["residuals"][:-1])


@pytest.mark.parametrize(
    ("fields", "problem", "field"),
    [
        ({"prune": "static:1%"}, "none of which is to be left out", "prune"),
        ({"optimizer": "adam"}, "use sgd", "optimizer"),
        ({"rate": "dynsgd"}, "which no rate scales", "rate"),
        ({"ranges": "layers"}, "pushes after several gradients", "sync"),
        ({"sync": "downpour:2,1", "prune": "range:9", "pull": "range"}, "ranges of keys in turn", "prune"),
        ({"sync": "downpour:2,1", "on_death": "restart"}, "would be lost", "on_death"),
        ({"sync": "average", "pushes": None, "seconds": 1.0}, "needs a budget", "pushes"),
    ],
)
def test_what_a_method_cannot_be_run_with(fields, problem, field):
    with pytest.raises(ConfigError, match=problem) as caught:
        resolve(tiny(**{"sync": "admm:2", **fields}))
    assert caught.value.field == field
