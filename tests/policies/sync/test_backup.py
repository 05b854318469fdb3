"""Backup workers: who is late is not waited for, and what it pushes is dropped."""

from __future__ import annotations

import numpy as np
import pytest
from simulate import simulate
from tiny import tiny

from pslab.config.spec import build
from pslab.errors import ConfigError
from pslab.lab.runs.run import run
from pslab.policies.sync.backup import Backup
from pslab.policies.sync.bsp import BSP
from pslab.protocol.messages import Aggregate, Asked, Drop, Left, Pushed, Start
from pslab.protocol.window import Window


def test_by_hand():
    trace = simulate(Backup(1), [2, 3, 7], 14)
    # rounds end at 3, 6, 9, 12; what the slow one pushes at 7 belongs to the round that ended at 3, and at 14 to 9's
    assert trace.pushes == {0: [2, 5, 8, 11, 14], 1: [3, 6, 9, 12], 2: [7, 14]}
    assert [(p.worker, p.iteration) for p in trace.dropped] == [(2, 0), (2, 1)]
    assert [[(p.worker, p.iteration) for p in step.pushes] for step in trace.steps] == [
        [(0, t), (1, t)] for t in range(4)
    ]
    assert all(step.aggregate for step in trace.steps)


@pytest.mark.parametrize("compute_s", [[1, 4], [2, 3, 7], [1, 1, 1, 5]])
@pytest.mark.parametrize("ranges", [1, 2])
def test_without_a_spare_it_is_bsp(compute_s, ranges):
    backup, bsp = simulate(Backup(0), compute_s, 60, ranges=ranges), simulate(BSP(), compute_s, 60, ranges=ranges)
    assert backup.pushes == bsp.pushes
    assert backup.waited == bsp.waited
    assert not backup.dropped


def test_somebody_is_always_waited_for():
    trace = simulate(Backup(5), [2, 3], 12)
    assert [len(step.pushes) for step in trace.steps] == [1] * len(trace.steps)
    assert trace.pushes[0] == [2, 4, 6, 8, 10, 12]


@pytest.mark.parametrize("ranges", [1, 3])
def test_duplicates_change_nothing(ranges):
    once, twice = (simulate(Backup(1), [2, 3, 5], 60, ranges=ranges, copies=n) for n in (1, 2))
    assert twice.pushes == once.pushes
    assert [s.pushes for s in twice.steps] == [s.pushes for s in once.steps]
    assert twice.dropped == once.dropped


def test_who_leaves_is_not_waited_for():
    sync, clocks = Backup(0), Window(2, None)
    state = sync.initial((0, 1))
    state, none = sync.step(state, Pushed(0, 0, 1.0, False), clocks)
    state, held = sync.step(state, Asked(0, 1, 1.0), clocks)
    assert none == held == ()
    clocks.leave(0)
    state, decisions = sync.step(state, Left(1, 2.0, False), clocks)
    assert decisions == (Aggregate(((0, 0),)), Start(0, 1))
    assert state == (frozenset({0}), (), ())


def test_what_is_late_is_dropped_and_its_worker_goes_on():
    sync, clocks = Backup(1), Window(2, None)
    state = sync.initial((0, 1))
    state, decisions = sync.step(state, Pushed(0, 0, 1.0, False), clocks)
    assert decisions == (Aggregate(((0, 0),)),)
    state, decisions = sync.step(state, Asked(0, 1, 1.0), clocks)
    assert decisions == (Start(0, 1),)
    state, decisions = sync.step(state, Pushed(1, 0, 2.0, True), clocks)
    assert decisions == (Drop(1, 0),)
    state, decisions = sync.step(state, Asked(1, 1, 2.0), clocks)
    assert decisions == (Start(1, 1),)
    assert state[0] == {0, 1}


@pytest.mark.parametrize("engine", ["virtual", "local"])
def test_end_to_end(tmp_path, engine):
    wanted = tiny(engine=engine, sync="backup:1", cluster={"compute_s": 0.003, "slow": {3: 4.0}}, pushes=60)
    result = run(wanted, results=tmp_path, progress=False)
    facts = result.manifest
    assert (facts["verdict"], facts["outcome"], facts["accepted"]) == ("valid", "budget", 60)
    assert facts["dropped"] >= 3
    assert facts["dropped_bytes"] == facts["dropped"] * (4 * 1930 + 24)
    assert set(result.pushes.groupby("version_applied").size()) == {3}
    assert result.accuracy.accuracy.iloc[-1] > 0.3


def test_nothing_is_dropped_without_a_spare(tmp_path):
    backup, bsp = (
        run(tiny(engine="virtual", sync=sync, pull="changed", prune="static:5%", cluster="steady"), results=tmp_path,
            progress=False)
        for sync in ("backup:0", "bsp")
    )  # fmt: skip
    assert backup.manifest["dropped"] == 0
    assert np.array_equal(backup.weights, bsp.weights)


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError):
        build("sync", "backup:-1")
