"""Backup workers: a trace by hand, one event at a time, and whole runs."""

from __future__ import annotations

from simulate import simulate
from tiny import tiny

from pslab.lab.runs.run import run
from pslab.policies.sync.backup import Backup


def test_backup_vector():
    trace = simulate(Backup(1), [2, 3, 7], 14)
    # rounds end at 3, 6, 9, 12; the slow worker's push at 7 belongs to the round that ended at 3, that at 14 to 9's
    assert trace.pushes == {0: [2, 5, 8, 11, 14], 1: [3, 6, 9, 12], 2: [7, 14]}
    assert [(p.worker, p.iteration) for p in trace.dropped] == [(2, 0), (2, 1)]
    assert [[(p.worker, p.iteration) for p in step.pushes] for step in trace.steps] == [
        [(0, t), (1, t)] for t in range(4)
    ]
    assert all(step.aggregate for step in trace.steps)


def test_a_round_waits_for_at_least_one_push():
    trace = simulate(Backup(5), [2, 3], 12)
    assert [len(step.pushes) for step in trace.steps] == [1] * len(trace.steps)
    assert trace.pushes[0] == [2, 4, 6, 8, 10, 12]


def test_dropped_pushes_do_not_count(tmp_path):
    wanted = tiny(engine="virtual", sync="backup:1", cluster={"compute_s": 0.003, "slow": {3: 4.0}}, pushes=60)
    result = run(wanted, results=tmp_path, progress=False)
    facts = result.manifest
    assert (facts["verdict"], facts["outcome"], facts["accepted"]) == ("valid", "budget", 60)
    assert facts["dropped"] >= 3
    assert facts["dropped_bytes"] == facts["dropped"] * (4 * 1930 + 24)
    assert set(result.pushes.groupby("version_applied").size()) == {3}
    assert result.accuracy.accuracy.iloc[-1] > 0.3
