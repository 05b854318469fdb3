"""Faults of the cluster under every policy: runs end, the judge holds them valid, and weights are what was applied."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from histories import History, assert_valid, history
from tiny import tiny

from pslab.config.table import ROWS
from pslab.engines.execute import execute
from pslab.lab.judge.verdict import judge
from pslab.lab.runs.resolve import resolve
from pslab.lab.runs.run import tables_of

POLICIES = [row.small or row.example or name for name, row in ROWS["sync"].items()]
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


@pytest.mark.parametrize("faults", FAULTS)
@pytest.mark.parametrize("sync", POLICIES)
def test_a_run_with_faults_ends_and_is_valid(sync: str, faults: str):
    run, tables, facts = faulty(sync, FAULTS[faults])
    assert facts["outcome"] == "budget"
    assert set(facts["faults"]) == {fault["what"] for fault in FAULTS[faults]}
    if sync != "local:8":  # whose iterations are few
        assert all(facts["faults"].values())
    assert_valid(judge(run, tables, facts))


@pytest.mark.parametrize("sync", ["bsp", "ssp:1", "asp", "dssp:1,1", "elastic:2", "backup:1"])
def test_layer_by_layer_a_run_with_faults_ends_and_is_valid(sync: str):
    run, tables, facts = faulty(sync, FAULTS["all"], ranges="layers")
    assert facts["outcome"] == "budget"
    assert_valid(judge(run, tables, facts))


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
    assert_valid(judge(run, tables, facts))


def test_acknowledgements_come_without_weights_where_none_would_bring_them():
    """An eager worker asks for weights when it starts to compute, for which it may lack a free buffer."""
    late = [{"what": "delay", "worker": 1, "iteration": 1, "direction": "up", "for_s": 9.0}]
    run, tables, facts = history("eager:9", {"compute_s": 1.0, "latency_s": 0.01, "faults": late}, workers=2)
    assert facts["outcome"] == "budget"
    assert_valid(judge(run, tables, facts))


@pytest.mark.parametrize("sync", POLICIES)
def test_duplicates_of_every_frame_leave_the_same_weights(sync: str):
    twice = [{"what": "duplicate", "probability": 1.0}]
    found = []
    for faults in ([], twice):
        cluster = {"compute_s": 1.0, "slow": {0: 3.0}, "compute_sigma": 0.1, "latency_s": 0.01, "faults": faults}
        outcome = execute(resolve(tiny(engine="virtual", sync=sync, cluster=cluster)), lambda news: None)
        found.append(outcome)
    assert np.array_equal(found[0].weights, found[1].weights)
    assert found[1].facts["refused"] > 30 or sync == "local:8"  # which pushes a few times
    assert tables_of(tiny(engine="virtual", sync=sync, cluster=cluster), found[1])[2]["verdict"] == "valid"


@pytest.mark.parametrize(("sync", "ranges"), [("bsp", "whole"), ("asp", "layers"), ("eager", "whole")])
def test_real_processes_obey_the_same_plan(sync: str, ranges: str):
    faults = [{"what": "delay", "probability": 0.2, "for_s": 0.01}, {"what": "corrupt", "iteration": 2, "for_s": 0.01},
              {"what": "duplicate", "probability": 0.3}, {"what": "stop", "worker": 1, "iteration": 3, "for_s": 0.05},
              {"what": "drop", "at_s": 0.02, "for_s": 0.02}]  # fmt: skip
    run = tiny(sync=sync, ranges=ranges, cluster={"faults": faults})
    outcome = execute(resolve(run), lambda news: None)
    *_, facts = tables_of(run, outcome)
    assert facts["outcome"] == "budget"
    assert all(facts["faults"].values())
    assert facts["refused"] >= facts["faults"]["corrupt"]
    assert (facts["verdict"], facts.get("violations")) == ("valid", None)
