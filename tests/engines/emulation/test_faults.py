"""The plan of faults: what meets which frame and which computation, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from pslab.config.cluster import Cluster
from pslab.engines.emulation.faults import LISTED, Fate, Faults, facts
from pslab.protocol.messages import Ack, Pull, Push, Weights


def plan(*faults: dict[str, Any], seed: int = 0) -> Faults:
    return Faults(Cluster(compute_s=1.0, faults=faults), seed)


def test_a_frame_is_of_the_iteration_whose_push_request_or_answer_it_is():
    found = plan({"what": "drop", "worker": 1, "iteration": 3, "for_s": 0.5})
    hit, missed = Fate(0.5, 1), Fate(0.0, 1)
    assert found.fate("up", 1, [Push(1, 0, 3, 0), Pull(1, 0, 4, 0)], 7.0) == hit
    assert found.fate("down", 1, [Ack(1, 0, 3), Weights(1, 0, 4, 9)], 8.0) == hit
    assert found.fate("up", 1, [Pull(1, 0, 3, 0)], 7.0) == missed
    assert found.fate("up", 0, [Push(0, 0, 3, 0)], 7.0) == missed
    assert found.rows == [("drop", "up", 1, 3, 0, 7.0), ("drop", "down", 1, 3, 0, 8.0)]


def test_delays_of_several_faults_add_up_and_a_duplicate_is_one_more():
    found = plan({"what": "delay", "iteration": 0, "for_s": 1.0}, {"what": "corrupt", "iteration": 0, "for_s": 0.5},
                 {"what": "duplicate", "iteration": 0, "direction": "up"})  # fmt: skip
    assert found.fate("up", 0, [Push(0, 0, 0, 0)], 0.0) == Fate(1.5, 2)
    assert found.fate("down", 0, [Weights(0, 0, 1, 1)], 0.0) == Fate(1.5, 1)
    assert found.refused == 2


def test_an_instant_meets_the_first_frame_of_each_worker_from_then_on():
    found = plan({"what": "delay", "at_s": 2.0})
    for worker in (0, 1):
        fates = [found.fate("up", worker, [Push(worker, 0, at, 0)], float(at)).delay_s for at in range(5)]
        assert fates == [0, 0, 0.2, 0, 0]


def test_chance_depends_on_the_seed_and_the_frame_and_on_nothing_else():
    fault = {"what": "drop", "probability": 0.25}
    frames = [(worker, Push(worker, 0, at, 0)) for worker in range(4) for at in range(500)]

    def hits(order: list[Any], seed: int) -> set[Any]:
        found = plan(fault, seed=seed)
        return {frame for worker, frame in order if found.fate("up", worker, [frame], 0.0).delay_s}

    assert hits(frames, 0) == hits(frames[::-1], 0) != hits(frames, 1)
    assert 0.2 < len(hits(frames, 0)) / len(frames) < 0.3


@pytest.mark.parametrize(
    ("begin_s", "ends_s", "paused_s"),
    [(0.0, 1.9, 0.0), (1.0, 2.5, 3.0), (2.0, 2.5, 3.0), (4.0, 5.0, 1.0), (5.0, 6.0, 0.0)],
)
def test_a_computation_stands_still_while_its_worker_is_stopped(begin_s: float, ends_s: float, paused_s: float):
    found = plan({"what": "stop", "worker": 1, "at_s": 2.0, "for_s": 3.0})
    assert found.pause_s(0, 0, begin_s, ends_s) == 0.0
    assert found.pause_s(1, 0, begin_s, ends_s) == paused_s
    assert len(found.rows) == bool(paused_s)


def test_a_stop_that_comes_while_a_worker_is_stopped_begins_in_the_longer_computation():
    found = plan({"what": "stop", "at_s": 3.0, "for_s": 1.0}, {"what": "stop", "at_s": 1.0, "for_s": 1.5})
    assert found.pause_s(0, 0, 0.0, 2.0) == 2.5


def test_a_worker_is_killed_once_at_an_iteration():
    found = plan({"what": "kill", "worker": 0, "iteration": 2}, {"what": "kill", "worker": 1, "at_s": 5.0})
    assert [found.kills(0, at) for at in (1, 2, 2, 3)] == [False, True, False, False]
    assert (found.kill_s(0), found.kill_s(1)) == (float("inf"), 5.0)


def test_a_manifest_lists_the_first_faults_and_counts_all():
    cluster = Cluster(faults=({"what": "drop", "probability": 0.1},))
    rows: list[Any] = [("drop", "up", 0, at, 0, 2000.0 - at) for at in range(2000)]
    found = facts(cluster, rows)
    assert found["faults"] == {"drop": 2000}
    assert len(found["faulted"]) == LISTED
    assert found["faulted"][0][5] == 1.0
    assert facts(Cluster(), []) == {}
