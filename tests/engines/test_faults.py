"""Faults of the cluster under every policy: runs end, the judge holds them valid, and weights are what was applied."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conducted import judged
from histories import History, assert_valid, history
from tiny import finished, tiny
from tools.audit.verdict import audit
from whole import in_process

from pslab.config.table import ROWS

POLICIES = [row.small or row.example or name for name, row in ROWS["sync"].items()]
# workers that push a few times in a run, and mostly wait
FEW = {"local:8", "admm:2", "average:0.1", "easgd:2", "diloco:2", "adiloco:2"}
LINKS = {"compute_s": 1.0, "slow": {0: 3.0}, "latency_s": 0.01, "compute_sigma": 0.1}
FAULTS: dict[str, list[dict[str, Any]]] = {
    "duplicates": [{"what": "duplicate", "probability": 1.0}],
    "drops": [{"what": "drop", "probability": 0.3, "for_s": 0.5}],
    "stop at an instant": [{"what": "stop", "worker": 1, "at_s": 2.5, "for_s": 1.5}],
    "stop at an iteration": [{"what": "stop", "worker": 1, "iteration": 2, "for_s": 4.0}],
    "kill at an iteration": [{"what": "kill", "worker": 1, "iteration": 2}],
    "kill at an instant": [{"what": "kill", "worker": 2, "at_s": 4.0}],
    "all": [{"what": "delay", "probability": 0.3, "for_s": 5.0}, {"what": "corrupt", "probability": 0.1},
            {"what": "duplicate", "probability": 0.3}, {"what": "stop", "probability": 0.1},
            {"what": "kill", "worker": 0, "iteration": 4}],
}  # fmt: skip


def faulty(sync: str, faults: list[dict[str, Any]], **fields: Any) -> History:
    return history(sync, {**LINKS, "faults": faults}, on_death="continue", lease_s=3.0, **fields)


@pytest.mark.one_of(2)
@pytest.mark.parametrize("faults", FAULTS)
@pytest.mark.parametrize("sync", POLICIES)
def test_a_run_with_faults_ends_and_is_valid(sync: str, faults: str):
    run, tables, facts = faulty(sync, FAULTS[faults])
    assert facts["outcome"] == "budget"
    assert set(facts["faults"]) == {fault["what"] for fault in FAULTS[faults]}
    if sync not in FEW:
        assert all(facts["faults"].values())
    assert_valid(audit(run, tables, facts))


@pytest.mark.parametrize("sync", ["bsp", "ssp:1", "asp", "dssp:1,1", "elastic:2", "backup:1"])
def test_layer_by_layer_a_run_with_faults_ends_and_is_valid(sync: str):
    run, tables, facts = faulty(sync, FAULTS["all"], ranges="layers")
    assert facts["outcome"] == "budget"
    assert_valid(audit(run, tables, facts))


def test_a_kill_is_noticed_after_a_lease():
    *_, facts = faulty("bsp", FAULTS["kill at an instant"])
    (death,) = facts["deaths"]
    assert (death["worker"], death["seconds"]) == (2, 7.0)
    assert ["kill", "", 2, 1, -1, 4.0] in facts["faulted"]


def test_a_worker_that_joins_before_its_death_was_noticed_begins_a_new_life():
    cluster = {**LINKS, "faults": FAULTS["kill at an instant"], "leave": {2: 4.5}, "join": {2: 5.0}}
    run, tables, facts = history("asp", cluster, on_death="continue", lease_s=3.0)
    arrivals = tables["arrivals"]
    moves = arrivals[arrivals.kind.isin(["leave", "join"])]
    assert moves[["kind", "worker", "seconds"]].to_numpy().tolist() == [["leave", 2, 5.0], ["join", 2, 5.0]]
    assert_valid(audit(run, tables, facts))


def test_a_killed_worker_is_replaced_when_its_death_is_noticed_if_it_may_be():
    cluster = {**LINKS, "faults": FAULTS["kill at an instant"], "join": {2: 9.0}, "leave": {2: 6.0}}
    run, tables, facts = history("asp", cluster, on_death="restart", lease_s=3.0)
    arrivals = tables["arrivals"]
    moves = arrivals[arrivals.kind.isin(["leave", "join"])]
    assert moves[["kind", "worker", "seconds"]].to_numpy().tolist() == [["leave", 2, 7.0], ["join", 2, 7.0]]
    assert (facts["deaths"], [life["worker"] for life in facts["lives"]]) == ([], [2])
    assert_valid(audit(run, tables, facts))


def test_acknowledgements_come_without_weights_where_none_would_bring_them():
    """An eager worker asks for weights when it starts to compute, for which it may lack a free buffer."""
    late = [{"what": "delay", "worker": 1, "iteration": 1, "direction": "up", "for_s": 9.0}]
    run, tables, facts = history("eager:9", {"compute_s": 1.0, "latency_s": 0.01, "faults": late}, workers=2)
    assert facts["outcome"] == "budget"
    assert_valid(audit(run, tables, facts))


def test_a_worker_that_is_back_before_its_first_push_begins_with_its_first_range():
    cluster = {"compute_s": 1.0, "latency_s": 0.1, "leave": {1: 0.5}, "join": {1: 0.7}}
    run, tables, facts = history("asp", cluster, prune="range:7,local_apply=off", pull="range")
    assert tables["pushes"].query("worker == 1").iteration.min() == 0
    assert_valid(audit(run, tables, facts))


@pytest.mark.one_of(4)
@pytest.mark.parametrize("sync", POLICIES)
def test_duplicates_of_every_frame_leave_the_same_weights(sync: str):
    twice = [{"what": "duplicate", "probability": 1.0}]
    once, run = (tiny(engine="virtual", sync=sync, cluster={**LINKS, "faults": faults}) for faults in ([], twice))
    found = in_process(run)
    assert np.array_equal(found.weights, in_process(once).weights)
    assert found.facts["refused"] > 30 or sync in FEW
    assert judged(run, found) == {"verdict": "valid"}


@pytest.mark.one_of(2)
@pytest.mark.parametrize(("sync", "ranges"), [("bsp", "whole"), ("ssp:1", "layers"), ("eager:1", "whole")])
def test_real_processes_obey_the_same_plan(sync: str, ranges: str):
    """Under a bound, so that no worker is so slow that its iteration 3 does not come."""
    faults = [{"what": "delay", "probability": 0.2, "for_s": 0.01}, {"what": "corrupt", "iteration": 2, "for_s": 0.01},
              {"what": "duplicate", "probability": 0.3}, {"what": "stop", "worker": 1, "iteration": 3, "for_s": 0.05},
              {"what": "drop", "at_s": 0.02, "for_s": 0.02}]  # fmt: skip
    run = tiny(sync=sync, ranges=ranges, cluster={"faults": faults})
    outcome = finished(run)
    assert outcome.facts["outcome"] == "budget"
    assert all(outcome.facts["faults"].values())
    assert outcome.facts["refused"] >= outcome.facts["faults"]["corrupt"]
    assert judged(run, outcome) == {"verdict": "valid"}
