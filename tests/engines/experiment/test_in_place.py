"""Weights read in place: the same bits as with copies, and only under a policy that keeps its promise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tiny import finished, tiny

import pslab.engines.experiment.experiment
from pslab.errors import WorkerFailed
from pslab.lab.runs.resolve import resolve
from pslab.policies.sync.asp import ASP


@pytest.mark.one_of(3)
@pytest.mark.parametrize("fields", [{}, {"prune": "static:5%"}, {"optimizer": "adam", "learning_rate": 0.01}])
def test_in_place_and_with_copies_are_equal_to_the_bit(monkeypatch, fields):
    experiment = resolve(tiny(sync="bsp", **fields))
    assert experiment.in_place
    here = finished(experiment)
    monkeypatch.setattr(pslab.engines.experiment.experiment.Experiment, "in_place", False)
    copied = finished(experiment)
    assert np.array_equal(here.weights, copied.weights)
    assert np.array_equal(here.pushes[:, [1, 2, 4, 5, 6, 8]].sum(0), copied.pushes[:, [1, 2, 4, 5, 6, 8]].sum(0))


@pytest.mark.parametrize(
    "fields", [{"sync": "ssp:0"}, {"sync": "asp"}, {"pull": "changed"}, {"cluster": {"latency_s": 0.001}}]
)
def test_without_a_barrier_workers_get_copies(fields):
    assert not resolve(tiny(**{"sync": "bsp", **fields})).in_place


class Liar(ASP):
    barrier = True


def test_a_policy_that_breaks_its_promise_is_stopped():
    with pytest.raises(WorkerFailed, match="has a barrier, but applies 1 pushes while others compute"):
        finished(tiny(sync=Liar()))


def test_workers_that_only_exchange_leave_no_accuracy_and_change_nothing():
    experiment = replace(resolve(tiny(sync="bsp")), trains=False)
    outcome = finished(experiment)
    assert outcome.facts["pushes"] == 40
    assert outcome.accuracy.shape == (0, 4)
    assert np.array_equal(outcome.weights, experiment.weights.numpy())
