"""A server that ends begins again at its newest checkpoint, wherever it was killed, and all others with it; under a
barrier no bit changes."""

from __future__ import annotations

import random
import signal
from functools import partial

import numpy as np
import pytest
from conducted import Signals
from ownpolicies import Largest
from sabotage import DECIDER, SabotagedServer, dying
from tiny import tiny

from pslab.engines.execute import execute as execute_again
from pslab.engines.experiment.experiment import Interrupted
from pslab.engines.local.engine import execute
from pslab.engines.local.lines.ends import number_of
from pslab.engines.local.recovery.checkpoints import CheckpointParts
from pslab.engines.processes import pool
from pslab.engines.worker.phases import PUSH
from pslab.errors import StartFailed, WorkerDied
from pslab.lab.judge import tables_of
from pslab.lab.runs.resolve import resolve
from pslab.lab.runs.run import run
from pslab.policies.sync.asp import ASP
from pslab.policies.sync.bsp import BSP
from pslab.policies.sync.ssp import SSP

APPLY, PART = "pslab.engines.server.shard:TensorShard.apply", "pslab.engines.local.recovery.server_state:CheckpointPart"
SEND = "pslab.engines.local.lines.stream:Stream.send"
pytestmark = pytest.mark.usefixtures("small_pool")
CALLS = [(APPLY, "before"), (APPLY, "after"), (f"{PART}.send", "before"), (f"{PART}.send", "after"), (SEND, "before"),
         (SEND, "after"), ("os:writev", "half")]  # fmt: skip


def conduct(tmp_path, act=None, like=BSP(), process=DECIDER, **fields):  # noqa: B008  frozen
    marker = tmp_path / "marker" if act else None
    policy = SabotagedServer(like, marker, act, process)
    wanted = tiny(**{"sync": policy, "prune": Largest(), "on_death": "restart", "workers": 2, "pushes": 40,
                     "checkpoint_every": 6, "eval_every": 10, **fields})  # fmt: skip
    return execute(resolve(wanted), lambda news: None)


FIELDS = {
    "plain": {}, "adam": {"optimizer": "adam", "learning_rate": 0.01, "pull": "changed", "ranges": "layers"},
    "changed": {"pull": "changed"}, "links": {"cluster": {"compute_s": 2e-3, "latency_s": 1e-3}},
    "rate": {"rate": "split"}, "downlink": {"downlink": "static:20%+int8"},
    "factors": {"prune": "powersgd:2"}, "estimates": {"prune": "ef21:5%", "downlink": "int8"},
}  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    found = {}

    def of(name, servers=1):
        if (name, servers) not in found:
            found[name, servers] = conduct(tmp_path_factory.mktemp(name), servers=servers, **FIELDS[name])
        return found[name, servers]

    return of


def named(outcome):
    """The rows of the pushes, all but instants and the bytes of pulls, whatever the order in which servers applied."""
    rows = outcome.pushes[:, [1, 2, 3, 4, 5, 6, 8, 9]]
    return rows[np.lexsort(rows.T[:3])]


def check(found, undisturbed, who):
    """Whether all went back; the bits are the same then, and otherwise."""
    assert np.array_equal(found.weights, undisturbed.weights)
    assert found.facts["pushes"] == undisturbed.facts["pushes"]
    assert np.array_equal(named(found), named(undisturbed))
    assert np.array_equal(found.accuracy[:, [0, 2, 3]], undisturbed.accuracy[:, [0, 2, 3]])
    if "rewinds" not in found.facts:
        return False
    (rewind,) = found.facts["rewinds"]
    assert rewind["how"] == f"{who} is gone (killed by SIGKILL)"
    assert 0 <= rewind["to_pushes"] <= rewind["pushes"]
    assert {life["kept"] for life in found.facts["lives"]} == {"restored"}
    whole, noted = ({(row[0], row[1]) for row in each.phases if row[2] == PUSH} for each in (undisturbed, found))
    begun = rewind["to_pushes"] // 2  # the iteration with which all began again; of the one before some is noted late
    ended = max(iteration for _, iteration in whole)  # acknowledged behind the stop rule, perhaps behind the end
    assert {iteration for _, iteration in whole - noted} <= {begun - 1, begun, ended}
    return True


def drawn(seed):
    """Of a run one of whose servers is killed: a name in FIELDS, servers, the one that is killed, and when that is."""
    draws = random.Random(seed)
    servers, (where, when) = draws.choice([1, 2, 2, 4]), draws.choice(CALLS)
    most = 5 if where.startswith(PART) else 16 if where == APPLY else 40  # a call that never comes kills none
    name = draws.choice(list(FIELDS))
    servers = min(servers, 2) if "ranges" in FIELDS[name] else servers  # a layer each
    return name, servers, draws.randrange(servers), (where, draws.randint(2, most), when)


def campaign(tmp_path, undisturbed, seed):
    name, servers, server, moment = drawn(seed)
    process = f"pslab-worker {number_of(2, server)}" if server else DECIDER
    found = conduct(tmp_path, partial(dying, *moment), process=process, servers=servers, **FIELDS[name])
    return check(found, undisturbed(name, servers), f"server {server} of {servers}" if server else "server")


@pytest.mark.parametrize("seed", [2, 4])
def test_a_server_that_is_killed_changes_no_bit_under_a_barrier(tmp_path, undisturbed, seed):
    assert campaign(tmp_path, undisturbed, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 70))
def test_whichever_server_is_killed_at_whatever_call_no_bit_changes_under_a_barrier(tmp_path, undisturbed, seed):
    campaign(tmp_path, undisturbed, seed)


@pytest.mark.slow
def test_a_run_whose_first_checkpoint_is_not_whole_has_not_started(tmp_path, undisturbed):
    act = partial(dying, f"{PART}.send", 1)
    policy = SabotagedServer(BSP(), tmp_path / "marker", act, f"pslab-worker {number_of(2, 1)}")
    wanted = tiny(sync=policy, prune=Largest(), on_death="restart", workers=2, servers=2, checkpoint_every=6,
                  eval_every=10)  # fmt: skip
    found = execute_again(resolve(wanted), lambda news: None)
    assert found.facts["fallen_starts"] == ["server 1 of 2 is gone (killed by SIGKILL)"]
    assert np.array_equal(found.weights, undisturbed("plain", 2).weights)


def test_faults_from_before_a_checkpoint_are_recorded_and_those_behind_it_are_still_to_come(tmp_path):
    """Worker 1 is to be killed at the very iteration with which all begin again."""
    faults = [{"what": "kill", "worker": 1, "iteration": 6}, {"what": "delay", "probability": 0.3, "for_s": 1e-3}]
    fields = {"cluster": {"compute_s": 2e-3, "latency_s": 1e-3, "faults": faults}}
    found = conduct(tmp_path, partial(dying, f"{PART}.send", 2, "after"), **fields)
    wanted = tiny(sync="bsp", prune=Largest(), on_death="restart", workers=2, eval_every=10, **fields)
    facts = tables_of(wanted, found)[2]
    assert [rewind["to_pushes"] for rewind in facts["rewinds"]] == [12]
    assert (facts["verdict"], facts.get("violations")) == ("valid", None)
    assert [(row[2], row[3]) for row in facts["faulted"] if row[0] == "kill"] == [(1, 6)]


@pytest.mark.slow
@pytest.mark.parametrize("server", [None, 0, 1])
@pytest.mark.parametrize("fields", [{"sync": "bsp"}, {"sync": "asp"}, {"sync": "ssp:1", "ranges": "layers"},
                                    {"sync": "eager", "prune": "none"}, {"sync": "backup:1"},
                                    {"sync": "ssp:2", "pull": "changed", "optimizer": "sgd:momentum=0.5"}],
                         ids=lambda fields: "-".join(map(str, fields.values())))  # fmt: skip
def test_a_run_whose_server_is_replaced_is_valid_under_every_kind_of_policy(tmp_path, monkeypatch, fields, server):
    """One server that decides for itself, or one of two."""
    from pslab.lab.runs.progress import Progress

    look = Signals(number_of(3, server) if server else pool.SERVER, signal.SIGKILL)
    monkeypatch.setattr(Progress, "update", lambda self, name, news: look(news))
    wanted = tiny(**{"prune": "static:5%", "on_death": "restart", "workers": 3, "pushes": 120, "checkpoint_every": 7,
                     "servers": 1 if server is None else 2, "cluster": {"compute_s": 0.02, "latency_s": 0.001},
                     **fields})  # fmt: skip
    result = run(wanted, results=tmp_path, progress=False)
    assert len(result.manifest["rewinds"]) == 1
    assert (result.manifest["verdict"], result.manifest.get("violations")) == ("valid", None)
    assert result.manifest["pushes"] >= 110


@pytest.mark.slow
@pytest.mark.parametrize(("like", "server"), [(ASP(), 0), (SSP(1), 0), (SSP(1), 1)], ids=["asp", "ssp", "ssp, another"])
def test_a_server_that_is_stopped_is_replaced(tmp_path, like, server):
    act = partial(dying, SEND, 9, end=signal.SIGSTOP)
    process = f"pslab-worker {number_of(2, server)}" if server else DECIDER
    found = conduct(tmp_path, act, like, process, lease_s=1.0, servers=1 + server)
    who = f"server {server} of 2" if server else "server"
    assert found.facts["rewinds"][0]["how"].startswith(f"{who} was stopped by a signal and has been silent")
    assert found.facts["pushes"] == 40


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_server_that_ends_with_the_runs_last_step_is_replaced_too(tmp_path, undisturbed, when, end):
    """The one that decides has ended the run, and waits for it."""
    act, process = partial(dying, APPLY, 20, when, end=end), f"pslab-worker {number_of(2, 1)}"
    found = conduct(tmp_path, act, process=process, servers=2, lease_s=1.5)
    assert len(found.facts["rewinds"]) == 1
    assert found.facts["outcome"] == "budget"
    assert np.array_equal(found.weights, undisturbed("plain", 2).weights)


@pytest.mark.slow
def test_without_a_checkpoint_the_servers_end_is_the_runs(tmp_path):
    class Secret(BSP):
        def initial(self, workers):
            return (), (), open(__file__)

        def step(self, state, event, clocks):
            found, decisions = super().step(state[:2], event, clocks)
            return (*found, state[2]), decisions

    wanted = tiny(sync=Secret(), on_death="restart", workers=2, pushes=2000)
    with pytest.raises(WorkerDied, match="server is gone"):
        execute(resolve(wanted), Signals(pool.SERVER, signal.SIGKILL))


def test_no_checkpoint_is_one_of_a_run_that_is_over(monkeypatch):
    take, made = CheckpointParts.take, []
    monkeypatch.setattr(CheckpointParts, "take", lambda self, *part: (
        found := take(self, *part), made.append(found.facts["pushes"]))[0])  # fmt: skip
    wanted = tiny(sync="bsp", on_death="restart", workers=2, pushes=24, checkpoint_every=1)
    execute(resolve(wanted), lambda news: None)
    assert 0 < max(made) < 24


def test_an_interrupt_is_heeded_while_new_processes_are_waited_for(monkeypatch):
    renewing, kill = [], Signals(pool.SERVER, signal.SIGKILL)

    def renew(self, workers, heed, renew=pool.Pool.renew):
        renewing.append(True)
        renew(self, workers, heed)
        renewing.clear()

    def interrupt(news):
        if renewing:
            raise KeyboardInterrupt
        kill(news)

    monkeypatch.setattr(pool.Pool, "renew", renew)
    with pytest.raises(Interrupted) as found:
        execute(resolve(tiny(sync="bsp", on_death="restart", workers=2, pushes=2000)), interrupt)
    assert len(found.value.outcome.pushes) >= 20


@pytest.mark.slow
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(24, "too many open files")])
def test_what_a_run_had_is_kept_if_it_ends_while_it_goes_back(monkeypatch, error):
    def begin(self, numbers):
        raise error

    monkeypatch.setattr(pool.Pool, "renew", lambda self, workers, heed, renew=pool.Pool.renew: (
        monkeypatch.setattr(pool.Pool, "_begin", begin), renew(self, workers, heed)))  # fmt: skip
    wanted = tiny(sync="bsp", on_death="restart", workers=2, pushes=100_000)
    with pytest.raises(Interrupted if error is KeyboardInterrupt else StartFailed) as found:
        execute(resolve(wanted), Signals(pool.SERVER, signal.SIGKILL))
    outcome = found.value.outcome
    assert outcome.facts["outcome"] == "interrupted"
    assert len(outcome.pushes) >= 20
