"""A worker's process that dies is replaced: its successor goes on where the server has it, with what was kept."""

from __future__ import annotations

import random
import signal
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from ownpolicies import Largest
from sabotage import Sabotaged, dying
from tiny import Dies, tiny

from pslab.engines.local.liveness import Liveness
from pslab.engines.local.recovery import replacing
from pslab.engines.local.recovery.replacing import LIVES, Recovery
from pslab.engines.processes import pool
from pslab.errors import StartFailed, WorkerDied
from pslab.lab.runs.run import run

KEPT, LINE, DRIVER = (f"pslab.engines.{room}" for room in ("worker.state:WorkerState", "local.lines.stream",
                                                            "worker.driver:WorkerDriver"))  # fmt: skip
CALLS = [(f"{KEPT}.begin", "before"), (f"{KEPT}.end", "before"), (f"{KEPT}._put", "torn"), ("os:writev", "half"),
         (f"{LINE}:Stream.send", "before"), (f"{LINE}:Stream.send", "after"), (f"{DRIVER}.arrived", "before"),
         (f"{DRIVER}.installed", "after")]  # fmt: skip
pytestmark = pytest.mark.usefixtures("small_pool")
LONG = {"compute_s": 0.05}  # a run that is not over before a process has been spawned


def conduct(tmp_path, act=None, hidden=32, **fields):
    marker = tmp_path / "marker" if act else None
    model = partial(Sabotaged, marker, act, hidden)
    wanted = tiny(**{"model": model, "sync": "bsp", "prune": Largest(), "on_death": "restart", "workers": 2,
                     "pushes": 40, **fields})  # fmt: skip
    return run(wanted, results=tmp_path / str(bool(act)), progress=False)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return conduct(tmp_path_factory.mktemp("undisturbed"))


def check(tmp_path, undisturbed, moment, **fields):
    result = conduct(tmp_path, partial(dying, *moment), **fields)
    (life,) = result.manifest["lives"]
    assert (life["worker"], life["how"]) == (1, "is gone (killed by SIGKILL)")
    assert (life["kept"], life["joined"]) == ("restored", life["iteration"])
    assert result.manifest["deaths"] == []
    assert result.manifest["verdict"] == "valid", result.manifest
    assert np.array_equal(result.weights, undisturbed.weights)


def moment(seed):
    """When a worker is killed: the n-th call of one of these, in a run of 20 iterations."""
    draws = random.Random(seed)
    where, when = draws.choice(CALLS)
    return where, draws.randint(2, 12), when


@pytest.mark.parametrize(("seed", "servers"), [(1, 1), (2, 2), *(
    pytest.param(seed, 1 + seed % 3, marks=pytest.mark.slow) for seed in (0, *range(3, 33)))])  # fmt: skip
def test_a_worker_that_is_killed_changes_no_bit_under_a_barrier(tmp_path, undisturbed, seed, servers):
    # where there are several servers the rule selects from the slices of each
    same = undisturbed if servers == 1 else conduct(tmp_path, servers=servers)
    check(tmp_path, same, moment(seed), servers=servers)


@pytest.mark.slow
@pytest.mark.parametrize("fields", [
    {"sync": "ssp:1", "pull": "changed"}, {"sync": "asp", "cluster": LONG},
    {"sync": "eager", "prune": "none", "cluster": LONG}, {"sync": "backup:1", "workers": 3, "cluster": LONG},
    {"sync": "ssp:1", "prune": "range:20", "pull": "range"}, {"sync": "ssp:1", "ranges": "layers"},
    {"sync": "ssp:2", "ranges": "layers", "cluster": {"compute_s": 0.01, "bandwidth_bit_s": 2e6, "latency_s": 0.002}},
    {"sync": "adiloco:4,dylu=on", "prune": "none", "cluster": {**LONG, "slow": {0: 2.0}}},
    {"sync": "adiloco:2", "prune": "none", "schedule": "linear", "cluster": LONG},
    {"sync": "asp", "servers": 3, "pull": "changed", "cluster": {**LONG, "latency_s": 0.002}},
    {"sync": "eager", "servers": 2, "prune": "none", "cluster": LONG},
], ids=lambda fields: "-".join(map(str, fields.values()))[:40])  # fmt: skip
def test_a_run_whose_worker_is_replaced_is_valid_under_every_kind_of_policy(tmp_path, fields):
    result = conduct(tmp_path, partial(dying, f"{DRIVER}.computed", 5), **{**fields, "pushes": 200})
    (life,) = result.manifest["lives"]
    assert life["joined"] >= life["iteration"]  # later only where it leaves and joins: an eager one
    assert result.manifest["verdict"] == "valid", result.manifest


@pytest.mark.slow
def test_a_worker_that_is_stopped_is_replaced(tmp_path, undisturbed):
    result = conduct(tmp_path, partial(dying, f"{LINE}:Stream.send", 5, end=signal.SIGSTOP), lease_s=1.0)
    (life,) = result.manifest["lives"]
    assert life["how"].startswith("was stopped by a signal and has been silent for longer than its lease")
    assert np.array_equal(result.weights, undisturbed.weights)


@pytest.mark.slow
def test_a_worker_that_dies_again_and_again_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(replacing, "LIVES", 1)
    wanted = tiny(model=Dies, sync="ssp:1", on_death="restart", workers=2, pushes=200)
    result = run(wanted, results=tmp_path, progress=False)
    assert [life["worker"] for life in result.manifest["lives"]] == [1]
    assert [death["worker"] for death in result.manifest["deaths"]] == [1]
    assert (result.manifest["outcome"], result.manifest["verdict"]) == ("budget", "valid")


@pytest.mark.slow
def test_a_pool_with_a_new_process_serves_the_next_run(tmp_path, undisturbed):
    conduct(tmp_path, partial(dying, f"{LINE}:Stream.send", 5))
    before = {process.pid for process in pool.acquire(2).processes.values()}
    again = conduct(tmp_path, seed=1)
    assert {process.pid for process in pool.acquire(2).processes.values()} == before
    assert "lives" not in again.manifest


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
    return found, records.calls


DEATH = {"worker": 1, "iteration": 4, "seconds": 0.5}


def test_the_server_is_given_the_new_process_once_it_is_prepared():
    found, calls = recovering()
    found.lost(DEATH)
    assert (calls, found.preparing) == ([("replace", 1), ("start", 1)], {1})
    found.prepared(1)
    assert (calls[2:], found.preparing) == ([("attach", 1)], set())
    found.joined({"worker": 1, "joined": 5, "kept": "zero"})
    assert found.lives == [{**DEATH, "how": "is gone", "joined": 5, "kept": "zero"}]


def test_a_place_is_given_up_after_so_many_processes_also_if_they_end_in_preparation():
    found, calls = recovering()
    found.lost(DEATH)
    for life in range(LIVES):
        found.ended(1)  # of the process before: the server's news came first
        assert len(calls) == 2 * (life + 1)
        found._pool.ended[1] = "error"
        found.ended(1)
    assert calls == [*[("replace", 1), ("start", 1)] * LIVES, ("abandon", 1)]
    assert found._liveness.deaths == [{**DEATH, "how": "is gone"}]
    found.ended(1)  # nothing prepares any more
    assert len(calls) == 2 * LIVES + 1


def test_where_no_process_can_be_spawned_the_run_goes_on_without_the_worker():
    found, calls = recovering(failing=True)
    found.lost(DEATH)
    assert calls == [("replace", 1), ("abandon", 1)]
    assert found.lives[0]["how"] == "is gone; no room"


def test_nothing_is_replaced_after_the_end_or_if_that_is_not_wanted():
    for death, on_death in [({"worker": 1, "over": True}, "restart"), (DEATH, "continue")]:
        found, calls = recovering(on_death=on_death)
        found.lost(death)
        assert (calls, found.lives) == ([], [])


def test_no_frame_is_due_where_the_server_itself_asks_for_a_successors_weights(tmp_path):
    """By the plan every frame is duplicated; its worker was killed before the first."""
    faults = [{"what": "kill", "worker": 1, "iteration": 0}, {"what": "duplicate", "probability": 1.0}]
    result = conduct(tmp_path, cluster={"compute_s": 0.01, "faults": faults})
    assert [(life["worker"], life["joined"]) for life in result.manifest["lives"]] == [(1, 0)]
    assert (result.manifest["verdict"], result.manifest.get("violations")) == ("valid", None)


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["admm:2", "diloco:2", "easgd:2", "streaming:4,2,overlap=1,alpha=0.5"])
def test_a_successor_goes_on_with_what_the_method_kept(sync, tmp_path):
    fields = {"sync": sync, "prune": "none", "cluster": {"compute_s": 0.01}}
    undisturbed = conduct(tmp_path, **fields)
    check(tmp_path, undisturbed, ("pslab.engines.worker.state:WorkerState.end", 5), **fields)


@pytest.mark.parametrize(("rule", "when"), [
    ("static:5%", "after"), pytest.param("static:5%", "before", marks=pytest.mark.slow),
    pytest.param("dgc:5%", "after", marks=pytest.mark.slow)])  # fmt: skip
def test_a_successor_has_the_residual_without_the_gradient_that_was_being_added_to_it(tmp_path, rule, when):
    fields = {"prune": rule, "hidden": 96, "cluster": {"compute_s": 0.01}}
    undisturbed = conduct(tmp_path, **fields)
    check(tmp_path, undisturbed, ("pslab.tensors.compression.frame:write", 5, when), **fields)


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
