"""A worker's process that dies is replaced; test_kills.py has the instants at which it dies."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from ownpolicies import Largest
from tiny import Dies, tiny

from pslab.engines.local.liveness import Liveness
from pslab.engines.local.recovery.replacing import LIVES, Recovery
from pslab.engines.processes import pool
from pslab.errors import StartFailed, WorkerDied
from pslab.lab.runs.run import run

pytestmark = pytest.mark.usefixtures("small_pool")


def conduct(tmp_path, **fields):
    wanted = tiny(**{"sync": "bsp", "prune": Largest(), "on_death": "restart", "workers": 2, "pushes": 40, **fields})
    return run(wanted, results=tmp_path, progress=False)


@pytest.mark.slow
def test_a_worker_that_dies_again_and_again_is_given_up_and_the_pool_serves_the_next_run(tmp_path):
    result = conduct(tmp_path, model=Dies, sync="ssp:1", pushes=400)
    assert [life["worker"] for life in result.manifest["lives"]] == [1] * LIVES
    assert [death["worker"] for death in result.manifest["deaths"]] == [1]
    assert (result.manifest["outcome"], result.manifest["verdict"]) == ("budget", "valid")
    again = conduct(tmp_path, seed=1)
    assert "lives" not in again.manifest
    before = {process.pid for process in pool.acquire(2).processes.values()}
    conduct(tmp_path, seed=2)
    assert {process.pid for process in pool.acquire(2).processes.values()} == before


class Records:
    """A pool that spawns nothing."""

    def __init__(self, failing=False):
        self.calls, self.failing, self.ended = [], failing, {}

    def end_of(self, number):
        return WorkerDied(f"worker {number}", None, "is gone")

    def replace(self, number):
        self.calls.append(("replace", number))
        self.ended.pop(number, None)
        if self.failing:
            raise StartFailed("no room")

    def attach(self, number):
        self.calls.append(("attach", number))

    def order_plain(self, number, verb, *arguments):
        self.calls.append((verb, *arguments))

    watch = SimpleNamespace(lease_s=1.0)


def recovering(failing=False, on_death="restart"):
    records = Records(failing)
    found = Recovery(records, Liveness(records, 2, on_death), on_death, lambda n: records.calls.append(("start", n)),
                     lambda: None)  # fmt: skip
    return found, records


DEATH = {"worker": 1, "iteration": 4, "seconds": 0.5}


def test_the_server_is_given_the_new_process_once_it_is_prepared():
    found, records = recovering()
    calls = records.calls
    found.lost(DEATH)
    assert (calls, found.preparing) == ([("replace", 1), ("start", 1)], {1})
    found.prepared(1)
    assert (calls[2:], found.preparing) == ([("attach", 1)], set())
    found.joined({"worker": 1, "joined": 5, "kept": "zero"})
    assert found.lives == [{**DEATH, "how": "is gone", "joined": 5, "kept": "zero"}]


def test_a_place_is_given_up_after_so_many_processes_also_if_they_end_in_preparation():
    found, records = recovering()
    calls = records.calls
    found.lost(DEATH)
    for life in range(LIVES):
        found.ended(1)  # of the process before: the server's news came first
        assert len(calls) == 2 * (life + 1)
        records.ended[1] = "error"
        found.ended(1)
    assert calls == [*[("replace", 1), ("start", 1)] * LIVES, ("abandon", 1)]
    found.ended(1)  # nothing prepares any more
    assert len(calls) == 2 * LIVES + 1


def test_where_no_process_can_be_spawned_the_run_goes_on_without_the_worker():
    found, records = recovering(failing=True)
    found.lost(DEATH)
    assert records.calls == [("replace", 1), ("abandon", 1)]
    assert found.lives[0]["how"] == "is gone; no room"


def test_nothing_is_replaced_after_the_end_or_if_that_is_not_wanted():
    for death, on_death in [({"worker": 1, "over": True}, "restart"), (DEATH, "continue")]:
        found, records = recovering(on_death=on_death)
        found.lost(death)
        assert (records.calls, found.lives) == ([], [])


@pytest.mark.slow
@pytest.mark.parametrize("when", [{"iteration": 5}, {"at_s": 0.1}], ids=["iteration", "instant"])
def test_a_kill_that_the_cluster_plans_comes_once(tmp_path, when):
    cluster = {"compute_s": 0.02}
    undisturbed = conduct(tmp_path, cluster=cluster)
    wanted = {**cluster, "faults": [{"what": "kill", "worker": 1, **when}]}
    result = conduct(tmp_path, cluster=wanted)
    assert len(result.manifest["lives"]) == 1
    assert (result.manifest["verdict"], result.manifest.get("violations")) == ("valid", None)
    assert np.array_equal(result.weights, undisturbed.weights)
