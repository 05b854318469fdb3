"""Compute times: chance comes from named streams."""

from __future__ import annotations

import numpy as np
import pytest

from pslab.config.cluster import Cluster
from pslab.engines.emulation.compute_times import ComputeTimes


def test_compute_times_follow_the_model():
    cluster = Cluster(compute_s=0.02, compute_sigma=0.1, stall_probability=0.05, stall_factor=5, slow={1: 3})
    times = ComputeTimes(cluster, seed=1, worker=0)
    drawn = np.array([times.draw() for _ in range(20_000)])
    stalled = drawn > 0.05
    assert stalled.mean() == pytest.approx(0.05, abs=0.006)
    assert drawn[~stalled].mean() == pytest.approx(0.02, rel=0.01)
    assert np.log(drawn[~stalled]).std() == pytest.approx(0.1, rel=0.05)
    slow = ComputeTimes(cluster, seed=1, worker=1)
    assert np.mean([slow.draw() for _ in range(20_000)]) == pytest.approx(3 * 0.02 * 1.2, rel=0.03)


def test_a_trace_is_repeated():
    cluster = Cluster(compute_s=1.0, slow={1: 3.0}, trace={0: [0.1, 0.2, 0.3]})
    recorded, modelled = (ComputeTimes(cluster, 0, worker) for worker in (0, 1))
    assert [recorded.draw() for _ in range(5)] == [0.1, 0.2, 0.3, 0.1, 0.2]
    assert modelled.draw() == 3.0


def test_compute_times_are_the_same_for_the_same_names_only():
    cluster = Cluster(compute_s=0.02, compute_sigma=0.1)

    def five(seed: int, worker: int) -> list[float]:
        times = ComputeTimes(cluster, seed, worker)
        return [times.draw() for _ in range(5)]

    assert five(0, 0) == five(0, 0)
    assert five(0, 0) != five(0, 1)
    assert five(0, 0) != five(1, 0)


def test_computation_without_a_model_takes_no_modelled_time():
    assert ComputeTimes(Cluster(), 0, 0).draw() == 0
