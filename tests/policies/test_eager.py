"""Eager workers: vectors by hand, whole runs in virtual time, and the time of an iteration."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scalar import scalar, serial, traced
from simulate import simulate
from tiny import finished, tiny

from pslab.engines.worker.phases import PHASE_COLUMNS, PHASES
from pslab.lab.runs.run import run
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


@pytest.mark.one_of(4)
@pytest.mark.parametrize("fields", [{}, {"pull": "changed"}, {"prune": "std:2"}])
@pytest.mark.parametrize("bandwidth", [None, 1e6])
def test_pruned_own_writes_are_serial_training(tmp_path, fields, bandwidth):
    cluster = {"compute_s": 0.02, "bandwidth_bit_s": bandwidth}
    eager, one = (
        run(tiny(engine="virtual", sync=sync, workers=1, dtype="float64", cluster=cluster, schedule="linear",
                 **{"prune": "static:5%", **fields}),
            results=tmp_path, progress=False).weights
        for sync in ("eager", "asp")
    )  # fmt: skip
    assert np.abs(eager - one).max() <= 1e-12
    assert np.abs(one).max() > 0.1


def test_pulling_changed_entries_gives_the_same_weights(tmp_path):
    # transfers take no time, so that the order of events does not depend on their size
    free = {"find_s": 0.0, "decode_s": 0.0, "bandwidth_bit_s": None, "server_bandwidth_bit_s": None}
    fields = {"sync": "eager", "prune": "static:5%", "cluster": {"preset": "lab", "slow": {0: 3.0}, **free}}
    whole, changed = (
        run(tiny(engine="virtual", pull=pull, **fields), results=tmp_path, progress=False)
        for pull in ("whole", "changed")
    )
    assert np.array_equal(whole.weights, changed.weights)
    assert 0 < changed.pushes.bytes_down.sum() < whole.pushes.bytes_down.sum()
    assert set(whole.pushes.bytes_down) == {4 * 1930 + 24}  # each push's pull was answered before it was applied


def iteration_s(sync: str, compute_s: float, link_s: float, duplex: str, workers: int) -> float:
    """Seconds between two computations of worker 0, where a push, and a pull, take `link_s` on its link."""
    size = 4 * 1930 + 24  # a dense frame
    cluster = {"compute_s": compute_s, "bandwidth_bit_s": 8 * size / link_s, "duplex": duplex}
    wanted = tiny(engine="timing", sync=sync, workers=workers, cluster=cluster, pushes=30 * workers)
    outcome = finished(wanted)
    phases = pd.DataFrame(outcome.phases, columns=PHASE_COLUMNS)
    mine = phases[(phases.worker == 0) & (phases.phase == PHASES.index("compute"))]
    return float(np.diff(np.sort(mine.begin_s))[10:25].mean())


@pytest.mark.one_of(2)
@pytest.mark.parametrize(("c", "p"), [(10, 4), (8, 4), (5, 5), (4, 6)])
@pytest.mark.parametrize("workers", [1, 3])
def test_an_iteration_takes_as_long_as_its_longest_part(c, p, workers):
    assert iteration_s("asp", c, p, "full", workers) == pytest.approx(c + p + p, rel=0.05)
    assert iteration_s("eager", c, p, "full", workers) == pytest.approx(max(c, p), rel=0.05)
    assert iteration_s("eager", c, p, "half", workers) == pytest.approx(max(c, p + p), rel=0.05)


def test_eager_bound_includes_the_push_under_way():
    fast = {staleness: simulate(Eager(staleness), [1, 10], 100) for staleness in (1, 2, 4)}
    leads = {staleness: trace.gap_max for staleness, trace in fast.items()}
    assert leads == {1: 1, 2: 2, 4: 4}  # a worker that is held has not pushed
    assert len(simulate(Eager(), [1, 10], 100).pushes[0]) == 100
