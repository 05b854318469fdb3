"""Eager workers: vectors by hand, whole runs in virtual time, and the time of an iteration."""

from __future__ import annotations

import numpy as np
import pytest
from scalar import scalar, serial, traced
from simulate import simulate
from tiny import tiny
from whole import in_process

from pslab.policies.sync.eager import Eager

LINKS = {"compute_s": 10.0, "bandwidth_bit_s": 8.0 * 32 / 4}  # a push of the scalar, and a pull, take four seconds


def test_vector_of_two_workers(monkeypatch):
    steps, _ = traced(monkeypatch, scalar("eager", 1.0, 1.0, pushes=8))
    assert steps[:6] == [
        (10, 0, 0, 0, 0.25), (10, 1, 0, 0, 0.5), (20, 0, 1, 0, 0.6875), (20, 1, 2, 1, 0.875),
        (30, 0, 3, 1, 1.015625), (30, 1, 4, 1, 1.09375),
    ]  # fmt: skip


@pytest.mark.parametrize("cluster", [{"compute_s": 10.0}, LINKS, {**LINKS, "latency_s": 3.0}])
def test_one_worker_that_reads_its_writes_trains_serially_and_one_that_does_not_oscillates(monkeypatch, cluster):
    steps, _ = traced(monkeypatch, scalar("eager", 1.0, cluster=cluster))
    assert [step[-1] for step in steps] == serial(6, lambda step: 0.5)
    steps, _ = traced(monkeypatch, scalar("eager", 1.0, schedule="linear", cluster=cluster))
    assert [step[-1] for step in steps] == serial(6, lambda step: 0.5 * (1 - step / 6))
    steps, _ = traced(monkeypatch, scalar("eager:rmw=off", 1.0))
    assert [step[-1] for step in steps][:5] == [0.5, 1.0, 1.25, 1.25, 1.125]


@pytest.mark.parametrize("fields", [{"prune": "static:5%", "pull": "changed"}, {"prune": "std:2"}])
def test_pruned_own_writes_are_serial_training(fields):
    cluster = {"compute_s": 0.02, "bandwidth_bit_s": 1e6}
    eager, one = (in_process(tiny(engine="virtual", sync=sync, workers=1, dtype="float64", cluster=cluster,
                                  schedule="linear", **fields)).weights for sync in ("eager", "asp"))  # fmt: skip
    assert np.abs(eager - one).max() <= 1e-12
    assert np.abs(one).max() > 0.1


def test_eager_bound_includes_the_push_under_way():
    fast = {staleness: simulate(Eager(staleness), [1, 10], 100) for staleness in (1, 2, 4)}
    leads = {staleness: trace.gap_max for staleness, trace in fast.items()}
    assert leads == {1: 1, 2: 2, 4: 4}  # a worker that is held has not pushed
    assert len(simulate(Eager(), [1, 10], 100).pushes[0]) == 100
