"""A server that ends begins again at its newest checkpoint, wherever it was killed; under a barrier no bit changes."""

from __future__ import annotations

import signal
from functools import partial

import numpy as np
import pytest
from sabotage import SabotagedServer, dying
from tiny import tiny

from pslab.engines.job.outcome import Interrupted
from pslab.engines.job.shared_memory import Arena
from pslab.engines.local.engine import execute
from pslab.engines.local.recovery.checkpoints import Generations
from pslab.engines.processes import pool
from pslab.engines.worker.phases import PUSH
from pslab.errors import StartFailed, WorkerDied
from pslab.lab.runs.resolve import resolve
from pslab.lab.runs.run import run
from pslab.policies.sync.asp import ASP
from pslab.policies.sync.bsp import BSP
from pslab.policies.sync.ssp import SSP

CHECKPOINTS, LINE = "pslab.engines.local.recovery.checkpoints", "pslab.engines.local.lines.framed_pipe:Line"
MOMENTS = {
    "before a checkpoint": (f"{CHECKPOINTS}:Generations.write", 4),
    "while a checkpoint is written": ("pslab.engines.job.shared_memory:Arena.reserve", 4),
    "before a checkpoint has its number": (f"{CHECKPOINTS}:Generations.write", 4, "after"),
    "before a step is applied": ("pslab.engines.server.shard:TensorShard.apply", 7),
    "after a step is applied": ("pslab.engines.server.shard:TensorShard.apply", 7, "after"),
    "before it acknowledges": (f"{LINE}.send", 9),
    "after it has acknowledged": (f"{LINE}.send", 9, "after"),
    "in half a frame": ("os:write", 40, "half"),
}
FEW = ["while a checkpoint is written", "before it acknowledges"]


def conduct(tmp_path, act=None, like=BSP(), **fields):  # noqa: B008  frozen
    marker = tmp_path / "marker" if act else None
    policy = SabotagedServer(like, marker, act)
    wanted = tiny(**{"sync": policy, "prune": "static:5%", "on_death": "restart", "workers": 2, "pushes": 40,
                     "checkpoint_every": 6, "eval_every": 10, **fields})  # fmt: skip
    return execute(resolve(wanted), lambda news: None)


FIELDS = {"plain": {}, "adam": {"optimizer": "adam", "learning_rate": 0.01, "pull": "changed", "ranges": "layers"}}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return {name: conduct(tmp_path_factory.mktemp(name), **fields) for name, fields in FIELDS.items()}


def check(found, undisturbed):
    (rewind,) = found.facts["rewinds"]
    assert rewind["how"] == "server is gone (killed by SIGKILL)"
    assert 0 <= rewind["pushes"] - rewind["to_pushes"] <= 6 + 2  # a period, and a round
    assert np.array_equal(found.weights, undisturbed.weights)
    assert found.facts["pushes"] == undisturbed.facts["pushes"]
    columns = [0, 1, 2, 3, 4, 5, 6, 8, 9]  # all but instants and the bytes of pulls
    assert np.array_equal(found.pushes[:, columns], undisturbed.pushes[:, columns])
    assert np.array_equal(found.accuracy[:, [0, 2, 3]], undisturbed.accuracy[:, [0, 2, 3]])
    assert {life["kept"] for life in found.facts["lives"]} == {"restored"}
    whole, noted = ({(row[0], row[1]) for row in each.phases if row[2] == PUSH} for each in (undisturbed, found))
    begun = rewind["to_pushes"] // 2  # the iteration with which all began again; of the one before some is noted late
    ended = max(iteration for _, iteration in whole)  # acknowledged behind the stop rule, perhaps behind the end
    assert {iteration for _, iteration in whole - noted} <= {begun - 1, begun, ended}


@pytest.mark.one_of(3)
@pytest.mark.parametrize("moment", FEW)
def test_a_server_that_is_killed_changes_no_bit_under_a_barrier(tmp_path, undisturbed, moment):
    check(conduct(tmp_path, partial(dying, *MOMENTS[moment])), undisturbed["plain"])


@pytest.mark.slow
@pytest.mark.parametrize("moment", [name for name in MOMENTS if name not in FEW])
def test_a_server_that_is_killed_at_any_moment_changes_no_bit_under_a_barrier(tmp_path, undisturbed, moment):
    check(conduct(tmp_path, partial(dying, *MOMENTS[moment])), undisturbed["plain"])


@pytest.mark.slow
def test_the_state_of_an_optimizer_and_what_workers_have_pulled_go_back_too(tmp_path, undisturbed):
    act = partial(dying, *MOMENTS["before a step is applied"])
    found = conduct(tmp_path, act, **FIELDS["adam"])
    assert found.facts["rewinds"]
    assert np.array_equal(found.weights, undisturbed["adam"].weights)


def kill_server(end=signal.SIGKILL):
    import os

    killed = []

    def look(news):
        if news.get("pushes", 0) > 20 and not killed:
            killed.append(os.kill(pool._kept.processes[pool.SERVER].pid, end))

    return look


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{"sync": "bsp"}, {"sync": "asp"}, {"sync": "ssp:1", "ranges": "layers"},
                                    {"sync": "eager", "prune": "none"}, {"sync": "backup:1"}],
                         ids=lambda fields: fields["sync"])  # fmt: skip
def test_a_run_whose_server_is_replaced_is_valid_under_every_kind_of_policy(tmp_path, monkeypatch, fields):
    from pslab.lab.runs.progress import Progress

    look = kill_server()
    monkeypatch.setattr(Progress, "update", lambda self, name, news: look(news))
    wanted = tiny(**{"prune": "static:5%", "on_death": "restart", "workers": 3, "pushes": 120, "checkpoint_every": 7,
                     "cluster": {"compute_s": 0.02, "latency_s": 0.001}, **fields})  # fmt: skip
    result = run(wanted, results=tmp_path, progress=False)
    assert len(result.manifest["rewinds"]) == 1
    assert (result.manifest["verdict"], result.manifest.get("violations")) == ("valid", None)
    assert result.manifest["pushes"] >= 110


@pytest.mark.slow
@pytest.mark.parametrize("like", [ASP(), SSP(1)], ids=["asp", "ssp"])
def test_a_server_that_is_stopped_is_replaced(tmp_path, like):
    act = partial(dying, *MOMENTS["before it acknowledges"], end=signal.SIGSTOP)
    found = conduct(tmp_path, act, like, lease_s=1.0)
    assert found.facts["rewinds"][0]["how"].startswith("server was stopped by a signal and has been silent")
    assert found.facts["pushes"] == 40


@pytest.mark.slow
def test_without_a_checkpoint_the_servers_end_is_the_runs(tmp_path):
    class Secret(BSP):
        def initial(self, workers):
            return (), (), open(__file__)

        def step(self, state, event, clocks):
            found, decisions = super().step(state[:2], event, clocks)
            return (*found, state[2]), decisions

    with pytest.raises(WorkerDied, match="server is gone"):
        execute(resolve(tiny(sync=Secret(), on_death="restart", workers=2, pushes=2000)), kill_server())


def arenas():
    found = Generations((Arena(), Arena()))
    found.clear()
    return found


def pieces(number):
    from pslab.engines.job.checkpoint.file import pack
    from pslab.engines.job.checkpoint.flatten import flatten

    return pack({"number": number}, flatten([np.full(100, number)], {}))


def test_the_newer_generation_stays_whole_while_the_older_is_written(monkeypatch):
    found = arenas()
    assert found.newest() is None
    for number in (1, 2):
        found.write(pieces(number))
        assert found.newest()[0] == {"number": number}

    def broken():
        yield from pieces(3)[:1]
        raise KeyboardInterrupt

    class Breaking(list):
        def __iter__(self):
            return broken() if self.armed else super().__iter__()

    half = Breaking(pieces(3))
    half.armed = False
    monkeypatch.setattr(Arena, "reserve", lambda self, size_bytes: setattr(half, "armed", True))
    with pytest.raises(KeyboardInterrupt):
        found.write(half)
    assert found.newest()[0] == {"number": 2}


def test_a_damaged_generation_is_passed_over():
    found = arenas()
    for number in (1, 2):
        found.write(pieces(number))
    newer = found._arenas[1]
    newer.bytes(200, 1)[0] ^= 1
    assert found.newest()[0] == {"number": 1}


def test_no_checkpoint_is_one_of_a_run_that_is_over():
    wanted = tiny(sync="bsp", on_death="restart", workers=2, pushes=24, checkpoint_every=1)
    execute(resolve(wanted), lambda news: None)
    facts, _ = Generations(pool.acquire(2).checkpoints).newest()
    assert facts["pushes"] == 22  # with more it would be over


@pytest.mark.slow
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(24, "too many open files")])
def test_what_a_run_had_is_kept_if_it_ends_while_it_goes_back(monkeypatch, error):
    def spawn_one(self, number, lines):
        raise error

    monkeypatch.setattr(pool.Pool, "renew", lambda self, workers, renew=pool.Pool.renew: (
        monkeypatch.setattr(pool.Pool, "_spawn_one", spawn_one), renew(self, workers)))  # fmt: skip
    wanted = tiny(sync="bsp", on_death="restart", workers=2, pushes=100_000)
    with pytest.raises(Interrupted if error is KeyboardInterrupt else StartFailed) as found:
        execute(resolve(wanted), kill_server())
    outcome = found.value.outcome
    assert outcome.facts["outcome"] == "interrupted"
    assert len(outcome.pushes) >= 20
