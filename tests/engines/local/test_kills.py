"""A process of a run is killed or stopped at the n-th call of a function: the run ends valid, under a barrier with the
bits of an undisturbed one, within its limit, and nothing of it is left.

`case(seed)` draws the run, the process, the call and the end.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import select
import signal
import subprocess
import sys
import time
import uuid
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from ownpolicies import Alternating, Largest, Talking
from processes import living, shared_names, wait_for_end
from sabotage import DECIDER, Acts, SabotagedServer, Signals, died, dying
from tiny import net, tiny
from tools.chaos.campaign import replayable
from tools.chaos.replay import pushes_of, replay

from pslab.config.spec import build
from pslab.engines.execute import execute
from pslab.engines.experiment.experiment import Interrupted, Outcome
from pslab.engines.local.recovery.replacing import LIVES
from pslab.engines.processes import pool
from pslab.engines.processes.child import number_of
from pslab.engines.worker.phases import PUSH
from pslab.errors import WorkerFailed
from pslab.lab.judge import tables_of
from pslab.lab.records.record import find
from pslab.lab.runs.resolve import resolve
from pslab.lab.runs.run import run
from pslab.policies.sync.asp import ASP
from pslab.protocol.messages import Aggregate, Pushed

pytestmark = pytest.mark.usefixtures("small_pool")
linux = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux's pidfd_open and /proc")
LIMIT_S = 300.0  # for one run, however busy the machine
LEASE_S = 2.0  # of a process that is stopped
LINKS = {"compute_s": 2e-3, "latency_s": 1e-3}
SLOW = {"compute_s": 0.05}  # of a run that is not over before a process has been spawned
SUPPORT = Path(__file__).parents[2] / "support"

#: Runs under a barrier: whatever ends, their bits stay.
BARRIER: dict[str, dict[str, Any]] = {
    "plain": {}, "adam": {"optimizer": "adam", "learning_rate": 0.01, "pull": "changed", "ranges": "layers", "most": 2},
    "momentum": {"optimizer": "sgd:momentum=0.5", "pull": "changed"}, "links": {"cluster": LINKS},
    "split": {"rate": "split"}, "dynsgd": {"rate": "dynsgd", "prune": "none"}, "adagrad": {"rate": "adagrad"},
    "downlink": {"downlink": "static:20%+int8"}, "factors": {"prune": "powersgd:2"},
    "estimates": {"prune": "ef21:5%", "downlink": "int8"}, "dgc": {"prune": "dgc:5%"},
    "a policy whose state is a generator": {"sync": Talking()}, "a rate that counts": {"rate": Alternating()},
    "duplicates": {"cluster": {**LINKS, "faults": [{"what": "duplicate", "probability": 1.0}]}},
    "admm": {"sync": "admm:2", "prune": "none", "most": 1}, "diloco": {"sync": "diloco:2", "prune": "none"},
    "easgd": {"sync": "easgd:2", "prune": "none"},
    "streaming": {"sync": "streaming:4,2,overlap=1,alpha=0.5", "prune": "none", "most": 2},
}  # fmt: skip
#: Runs whose pushes come in any order: each is one that could have been.
FREE: dict[str, dict[str, Any]] = {
    "asp": {"sync": "asp", "cluster": SLOW}, "ssp": {"sync": "ssp:1", "pull": "changed", "ranges": "layers", "most": 2},
    "eager": {"sync": "eager", "prune": "none", "cluster": SLOW}, "backup": {"sync": "backup:1", "workers": 3},
    "keys in turn": {"sync": "ssp:1", "prune": "range:20", "pull": "range"},
    "layers over links": {"sync": "ssp:2", "ranges": "layers", "most": 2,
                          "cluster": {"compute_s": 0.01, "bandwidth_bit_s": 2e6, "latency_s": 0.002}},
    "adiloco": {"sync": "adiloco:4,dylu=on", "prune": "none", "cluster": {**SLOW, "slow": {0: 2.0}}},
}  # fmt: skip
RUNS = BARRIER | FREE
APPLY, STATE = "pslab.engines.server.shard:TensorShard.apply", "pslab.engines.worker.state:WorkerState"
SEND, DRIVER = "pslab.engines.local.lines.stream:Stream.send", "pslab.engines.worker.driver:WorkerDriver"
PART, STORE = "pslab.engines.local.recovery.server_state:pack", "pslab.engines.experiment.checkpoint.store"
#: Of each kind of process the calls, when in them it ends, and up to which of them in a run of 20 iterations.
CALLS: dict[str, list[tuple[str, str, int]]] = {
    "server": [(APPLY, "before", 16), (APPLY, "after", 16), (PART, "before", 5), (PART, "after", 5),
               (SEND, "before", 40), (SEND, "after", 40), ("os:writev", "half", 40)],
    "worker": [(f"{STATE}.begin", "before", 12), (f"{STATE}.end", "before", 12), (f"{STATE}._put", "torn", 12),
               ("os:writev", "half", 12), (SEND, "before", 12), (SEND, "after", 12),
               (f"{DRIVER}.arrived", "before", 12), (f"{DRIVER}.installed", "after", 12),
               ("pslab.tensors.compression.frame:write", "after", 12)],
    "parent": [(f"{STORE}:CheckpointStore.write", "before", 4), ("os:fsync", "before", 4),
               (f"{STORE}:pack", "after", 4), ("pathlib:Path.unlink", "before", 2)],
}  # fmt: skip


class Case(NamedTuple):
    """What is drawn from a seed."""

    name: str  #: of RUNS
    servers: int
    kind: str  #: of CALLS
    process: int  #: of the servers, or the workers
    where: str
    when: str
    count: int
    end: int
    on_death: str = "restart"


def case(seed: int) -> Case:
    """The process of a run that ends, and when."""
    draws = random.Random(seed)
    kind = draws.choice(["server", "server", "server", "worker", "worker", "parent"])
    name = draws.choice(list(BARRIER)[:8] if kind == "parent" else list(RUNS))  # whose fields are words
    servers = min(draws.choice([1, 2, 2, 4]), RUNS[name].get("most", 4))
    where, when, most = draws.choice(CALLS[kind])
    end = signal.SIGSTOP if draws.random() < 0.2 and kind != "parent" else signal.SIGKILL
    process = draws.randrange(servers) if kind == "server" else 1
    drawn = Case(name, servers, kind, process, where, when, draws.randint(2, most), end)
    goes_on = kind == "worker" and servers == 1 and "checkpoint" not in where and draws.random() < 0.4
    goes_on = goes_on and name != "estimates"  # whose server would keep the pushes of the dead: it is refused
    return drawn._replace(on_death="continue") if goes_on else drawn


def fields_of(name: str, servers: int) -> dict[str, Any]:
    fields = {key: value for key, value in RUNS[name].items() if key != "most"}
    return {"sync": "bsp", "prune": "static:5%", "on_death": "restart", "workers": 2, "servers": servers, "pushes": 40,
            "checkpoint_every": 6, "eval_every": 10, **fields}  # fmt: skip


def conduct(
    name: str, servers: int, case: Case | None = None, folder: Path | None = None, **more: Any
) -> tuple[Outcome, str]:
    """What comes of a run, in which a process ends, and its verdict."""
    fields, marker = {**fields_of(name, servers), **more}, folder and folder / "marker"
    act = case and partial(dying, case.where, case.count, case.when, end=case.end)
    if case is None or case.kind == "server":
        number = number_of(fields["workers"], case.process) if case and case.process else None
        process = DECIDER if number is None else f"pslab-worker {number}"
        like = build("sync", fields["sync"]) if isinstance(fields["sync"], str) else fields["sync"]
        fields["sync"] = SabotagedServer(like, marker, act, process)
    else:
        fields["model"] = partial(Acts, act, 1, marker=marker)
    if case and case.end == signal.SIGSTOP:
        fields["lease_s"] = LEASE_S
    if case and case.on_death == "continue":
        fields |= {"on_death": "continue", "checkpoint_every": None, "workers": 3, "pushes": 60}
    until_s, wanted = time.monotonic() + LIMIT_S, tiny(**fields)

    def look(news: dict[str, Any]) -> None:
        assert time.monotonic() < until_s, "it hangs"

    outcome = execute(experiment := resolve(wanted), look)
    replays = replayable(experiment) and name not in ("downlink", "estimates", "a rate that counts")
    if case and case.on_death == "continue" and replays:
        assert np.array_equal(replay(experiment, pushes_of(outcome)).numpy(), outcome.weights)
    return outcome, tables_of(wanted, outcome)[2]["verdict"]


@cache
def undisturbed(name: str, servers: int) -> Outcome:
    outcome, verdict = conduct(name, servers)
    assert verdict == "valid"
    return outcome


def named(outcome: Outcome) -> np.ndarray:
    """The rows of the pushes, all but instants and the bytes of pulls, whatever the order in which servers applied."""
    rows = outcome.pushes[:, [1, 2, 3, 4, 5, 6, 8, 9]]
    return rows[np.lexsort(rows.T[:3])]


def same(found: Outcome, whole: Outcome) -> None:
    assert np.array_equal(found.weights, whole.weights)
    assert found.facts["pushes"] == whole.facts["pushes"]
    assert np.array_equal(named(found), named(whole))
    assert np.array_equal(found.accuracy[:, [0, 2, 3]], whole.accuracy[:, [0, 2, 3]])


def noted(found: Outcome, whole: Outcome) -> None:
    """A new server says where all began again, and no other phases are lost than of what was under way."""
    (rewind,) = found.facts["rewinds"]
    assert 0 <= rewind["to_pushes"] <= rewind["pushes"]
    ours, theirs = ({(row[0], row[1]) for row in each.phases if row[2] == PUSH} for each in (found, whole))
    begun = rewind["to_pushes"] // 2  # the iteration with which all began again; of the one before some is noted late
    ended = max(iteration for _, iteration in theirs)  # acknowledged behind the stop rule, perhaps behind the end
    assert {iteration for _, iteration in theirs - ours} <= {begun - 1, begun, ended}


def left(token: str) -> list[int]:
    """The processes with this token that do not end by themselves; they are killed."""
    for process in sorted(living(token), reverse=True):  # the oldest one ends behind all others
        wait_for_end(process, LIMIT_S)
    found = living(token)
    for process in found:
        os.kill(process, signal.SIGKILL)
    return found


def parent_killed(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process that starts a run in this folder and is killed at a call of a function; nothing of it is left."""
    token, paths = uuid.uuid4().hex, os.pathsep.join([str(SUPPORT), str(SUPPORT.parents[1])])
    done = subprocess.run([sys.executable, str(SUPPORT / "killed.py"), str(folder), *words], capture_output=True,
                          env={**os.environ, "PYTHONPATH": paths, "PSLAB_TOKEN": token, **environment}, text=True,
                          timeout=LIMIT_S, check=False)  # fmt: skip
    assert left(token) == []
    return done


def ended_in_parent(drawn: Case, folder: Path) -> None:
    """A parent is killed: the next one goes on from the checkpoint, if there was one."""
    fields = fields_of(drawn.name, drawn.servers)
    done = parent_killed(folder, drawn.where, str(drawn.count), json.dumps(fields))
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    found, whole = run(tiny(**fields), results=folder, progress=False), undisturbed(drawn.name, drawn.servers)
    assert found.manifest["verdict"] == "valid"
    assert np.array_equal(found.weights, whole.weights)
    assert np.array_equal(found.accuracy[["pushes", "accuracy", "loss"]], whole.accuracy[:, [0, 2, 3]])
    assert all(0 < each["pushes"] < 40 for each in found.manifest.get("resumed", ()))
    assert not list((folder / "checkpoints").glob("*"))


def check(seed: int, folder: Path) -> None:
    drawn = case(seed)
    if drawn.kind == "parent":
        ended_in_parent(drawn, folder)
        return
    found, verdict = conduct(drawn.name, drawn.servers, drawn, folder)
    assert verdict == "valid"
    if drawn.on_death == "continue":
        assert {death["worker"] for death in found.facts["deaths"]} <= {1}
        assert found.facts["outcome"] == "budget"
        return
    met = found.facts.get("rewinds", ()) if drawn.kind == "server" else found.facts.get("lives", ())
    amid_ranges = drawn.kind == "worker" and "ranges" in RUNS[drawn.name]  # its successor may join a round later
    if drawn.name in BARRIER and not amid_ranges:
        whole = undisturbed(drawn.name, drawn.servers)
        same(found, whole)
        assert {life["kept"] for life in found.facts.get("lives", ())} <= {"restored", "nothing kept"}
        if met and drawn.kind == "server" and RUNS[drawn.name].get("sync", "bsp") == "bsp":
            noted(found, whole)
    assert found.facts["pushes"] >= 38
    pool.release(kill=True)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("seed", [25, 26, 57])
def test_whichever_process_ends_the_run_is_valid_and_under_a_barrier_no_bit_changes(tmp_path: Path, seed: int):
    check(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_sixty_ends_leave_valid_runs_with_the_same_bits(tmp_path: Path, seed: int):
    check(seed, tmp_path)


def test_faults_from_before_a_checkpoint_are_recorded_and_those_behind_it_are_still_to_come(tmp_path: Path):
    """Worker 1 is to be killed at the very iteration with which all begin again."""
    faults = [{"what": "kill", "worker": 1, "iteration": 6}, {"what": "delay", "probability": 0.3, "for_s": 1e-3}]
    cluster = {**LINKS, "faults": faults}
    found, verdict = conduct("plain", 1, Case("plain", 1, "server", 0, PART, "before", 3, signal.SIGKILL), tmp_path,
                             cluster=cluster)  # fmt: skip
    assert verdict == "valid"
    assert [rewind["to_pushes"] for rewind in found.facts["rewinds"]] == [12]
    assert [(row[2], row[3]) for row in found.facts["faulted"] if row[0] == "kill"] == [(1, 6)]


@pytest.mark.slow
def test_a_run_whose_first_checkpoint_is_not_whole_has_not_started(tmp_path: Path):
    found, verdict = conduct("plain", 2, Case("plain", 2, "server", 1, PART, "before", 1, signal.SIGKILL), tmp_path)
    assert (verdict, found.facts["fallen_starts"]) == ("valid", ["server 1 of 2 is gone (killed by SIGKILL)"])
    same(found, undisturbed("plain", 2))


def test_an_interrupt_is_heeded_while_new_processes_are_waited_for(tmp_path: Path):
    kill, later = Signals(pool.SERVER, signal.SIGKILL, after=60), []

    def look(news: dict[str, Any]) -> None:
        kill(news)
        later.extend([1] * kill.sent)
        if len(later) == 5:
            raise KeyboardInterrupt

    run = tiny(sync="bsp", on_death="restart", workers=2, pushes=100_000, checkpoint_every=20)
    with pytest.raises(Interrupted) as error:
        execute(resolve(run), look)
    assert len(error.value.outcome.pushes) >= 20


class ByChance(ASP):
    """A policy that holds some pushes back, as bytes of the system's say: no replay leads to its state again."""

    def initial(self, workers: tuple[int, ...]) -> Any:
        return ()

    def step(self, state: Any, event: Any, clocks: Any) -> Any:
        if not isinstance(event, Pushed):
            return state, super().step(None, event, clocks)[1]
        state = (*state, (event.worker, event.iteration))
        return (state, ()) if len(state) == 1 and os.urandom(1)[0] % 2 else ((), (Aggregate(state),))


def test_a_policy_that_decides_by_chance_is_named_where_its_run_is_to_go_on(tmp_path: Path):
    fields = {"on_death": "restart", "workers": 2, "pushes": 400, "checkpoint_every": 20, "cluster": SLOW}
    with pytest.raises(WorkerFailed, match=r"ByChance.* decides by more than its events.*fresh=True"):
        execute(resolve(tiny(sync=ByChance(), **fields)), Signals(pool.SERVER, signal.SIGKILL, after=40))


@pytest.mark.slow
def test_a_worker_that_dies_again_and_again_is_given_up_and_the_pool_serves_the_next_run():
    run = tiny(model=partial(Acts, died), sync="ssp:1", prune=Largest(), on_death="restart", workers=2, pushes=400)
    facts = execute(resolve(run), lambda news: None).facts
    assert [life["worker"] for life in facts["lives"]] == [1] * LIVES
    assert ([death["worker"] for death in facts["deaths"]], facts["outcome"]) == ([1], "budget")
    assert "lives" not in execute(resolve(run.but(model=net)), lambda news: None).facts


# --- kill -9 of the parent leaves no process, no name in /dev/shm and no record that looks finished -------------------

POOL = "pslab.engines.processes.pool:Pool"
#: A function, and the calls of it before which the parent is killed.
MOMENTS = {
    "multiprocessing.process:BaseProcess.start": (1, 3, 5), f"{POOL}.reports": (1, 2, 6, 14, 20),
    f"{POOL}.shelve": (1,), f"{POOL}.order": (1, 4, 9, 12),
    "pslab.engines.experiment.shared_memory:Arena.reserve": (1, 2), "pslab.lab.records.drafts:environment": (1,),
    "pandas:DataFrame.to_csv": (1, 3), "numpy:save": (1,), "pslab.lab.records.disk:publish": (1,),
}  # fmt: skip
BUSY = """from functools import partial
from pathlib import Path
from sabotage import Acts, in_c_code
from tiny import tiny
from pslab.lab.runs.run import run
place = Path({place!r})
model = partial(Acts, partial(in_c_code, place / "begun"), 1)
run(tiny(model=model, pushes=200), results=place, progress=False)
"""


@linux
@pytest.mark.parametrize(("where", "count"), [
    pytest.param(where, count, marks=[pytest.mark.slow] * ("publish" not in where))
    for where, counts in MOMENTS.items() for count in counts])  # fmt: skip
def test_a_killed_parent_leaves_nothing(tmp_path: Path, where: str, count: int):
    before, temporary = shared_names(), tmp_path / "t"
    temporary.mkdir()  # the path of a socket has at most 107 characters
    ended = parent_killed(tmp_path, where, str(count), TMPDIR=str(temporary))
    assert ended.returncode == -signal.SIGKILL, f"{where} was not called {count} times:\n{ended.stderr}"
    assert list(temporary.iterdir()) == []
    assert shared_names() <= before
    wanted = tiny(pushes=200, cluster={"compute_s": 0.005})
    assert find(wanted, tmp_path) is None  # nothing unfinished is taken for finished
    assert run(wanted.but(pushes=8), results=tmp_path, progress=False).manifest["pushes"] == 8
    assert not list((tmp_path / "runs").glob(".*"))  # a draft of the dead, if there was one, was cleared away


@linux
def test_a_worker_in_c_code_that_never_returns_ends_with_its_killed_parent(tmp_path: Path):
    token, begun = uuid.uuid4().hex, tmp_path / "begun"
    os.mkfifo(begun)
    environment = {**os.environ, "PSLAB_TOKEN": token, "PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path])}
    parent = subprocess.Popen([sys.executable, "-c", BUSY.format(place=str(tmp_path))], env=environment)
    pipe = os.open(begun, os.O_RDONLY | os.O_NONBLOCK)
    assert select.select([pipe], [], [], LIMIT_S)[0]
    os.close(pipe)
    parent.kill()
    parent.wait()
    assert left(token) == []
