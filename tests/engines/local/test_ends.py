"""Processes that end, are stopped, hang or are interrupted: every wait of the parent ends, and names the process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ownpolicies import AlwaysHold
from sabotage import Acts, SabotagedServer, Signals, died, dying, once, stopped
from tiny import conduct, quiet, tiny

from pslab.engines.execute import STARTS
from pslab.engines.experiment.experiment import Interrupted, Outcome
from pslab.engines.local import local_run
from pslab.engines.local.engine import execute
from pslab.engines.processes import pool, watch
from pslab.engines.processes.child import number_of
from pslab.engines.worker.phases import PHASES
from pslab.errors import Stalled, WorkerDied
from pslab.lab.runs.resolve import resolve
from pslab.policies.sync.asp import ASP
from pslab.policies.sync.bsp import BSP

pytestmark = pytest.mark.usefixtures("small_pool")
LIMIT_S = 300.0  # for one run, however busy the machine
BEHIND_ITS_LAST_MESSAGE = "pslab.engines.local.worker:LocalWorker._last_message", 1, "after"
BEHIND_ITS_LAST_REPORT = "pslab.engines.local.server:LocalServer._report", 1, "after"
SHORT: dict[str, Any] = {"sync": "bsp", "eval_every": 20, "lease_s": 0.5}


class DiesAtOnce(BSP):
    """A policy with which the server's process is killed before it is prepared, so many times."""

    def __init__(self, folder: Path, times: int) -> None:
        self.folder, self.times = folder, times

    def initial(self, workers):
        if any(once(self.folder / str(time), "pslab-server") for time in range(self.times)):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().initial(workers)


def worker_ends(folder: Path, end: int = signal.SIGKILL) -> dict[str, Any]:
    act = partial(dying, *BEHIND_ITS_LAST_MESSAGE, end=end)
    return {"model": partial(Acts, act, 1, marker=folder / "worker")}


def server_ends(folder: Path) -> dict[str, Any]:
    """The run is under way for a lease more than its last report: a worker is stopped."""
    act = partial(dying, *BEHIND_ITS_LAST_REPORT)
    return {**worker_ends(folder, signal.SIGSTOP), "sync": SabotagedServer(BSP(), folder / "server", act)}


def evaluator_ends(folder: Path) -> dict[str, Any]:
    return {"model": partial(Acts, died, who="worker 2", evaluating=True), "evaluate": "beside"}


def server_ends_at_once(folder: Path) -> dict[str, Any]:
    return {"sync": DiesAtOnce(folder, 1)}


GONE, WHOLE = {"deaths": [], "phases_lost": [1]}, {"deaths": [], "rewinds": None}
AGAIN = {"fallen_starts": ["server is gone (killed by SIGKILL)"]}


@pytest.fixture(scope="module")
def undisturbed() -> Outcome:
    return conduct(**SHORT)


@pytest.mark.parametrize(("ends", "on_death", "facts"), [
    (worker_ends, "continue", GONE), (server_ends, "stop", WHOLE), (evaluator_ends, "continue", WHOLE),
    (server_ends_at_once, "restart", AGAIN),
    *(pytest.param(*row, marks=pytest.mark.slow) for row in (
        (worker_ends, "stop", GONE), (worker_ends, "restart", GONE), (server_ends, "restart", WHOLE))),
])  # fmt: skip
def test_a_process_that_dies_behind_its_last_word_or_before_the_run_is_not_missed(
    tmp_path: Path, undisturbed: Outcome, ends: Any, on_death: str, facts: dict[str, Any]
):
    """A dead evaluator's evaluations are done by workers at the end."""
    until_s = time.monotonic() + LIMIT_S

    def look(news: dict[str, Any]) -> None:
        assert time.monotonic() < until_s, "it hangs"

    found = conduct(look, **{**SHORT, "on_death": on_death, **ends(tmp_path)})
    assert np.array_equal(found.weights, undisturbed.weights)
    assert np.array_equal(found.accuracy[:, [0, 2, 3]], undisturbed.accuracy[:, [0, 2, 3]])
    assert found.facts["outcome"] == "budget"
    assert {name: found.facts.get(name) for name in facts} == facts


@pytest.mark.slow
@pytest.mark.parametrize(("on_death", "begun"), [("restart", STARTS), ("continue", 1)])
def test_a_run_does_not_begin_again_for_ever(tmp_path: Path, on_death: str, begun: int):
    with pytest.raises(WorkerDied, match="server is gone"):
        conduct(**{**SHORT, "sync": DiesAtOnce(tmp_path, 100)}, on_death=on_death)
    assert len(list(tmp_path.iterdir())) == begun


# --- processes that are stopped or hang -------------------------------------------------------------------------------

LEASE_S = 0.3
BRIEF: dict[str, Any] = {"sync": "asp", "lease_s": LEASE_S}


def hangs() -> None:
    threading.Event().wait()


def loops() -> None:
    while True:
        pass


def raises() -> None:
    raise ValueError("the model broke here")


def stop_server(news: dict[str, Any]) -> None:
    if "workers" in news:
        os.kill(pool._kept.processes[pool.SERVER].pid, signal.SIGSTOP)  # type: ignore[union-attr]


class NeverEnds(ASP):
    def step(self, state, event, clocks):
        loops()


SILENT = "has been silent for longer than its lease of 0.3 s while"
ENDS = {
    "a stopped server": ({"pushes": 100_000}, rf"server was stopped by a signal and {SILENT} serving"),
    "a stopped worker": ({"model": partial(Acts, stopped), "sync": "bsp"},
                         rf"worker 1 was stopped by a signal and {SILENT} computing"),
    "a worker that dies": ({"model": partial(Acts, died), "sync": "bsp"},
                           r"worker 1 is gone \(exit code 9\), in iteration 6"),
    "an evaluator that dies": ({"model": partial(Acts, died, who="worker 2", evaluating=True), "evaluate": "beside"},
                               r"evaluator is gone \(exit code 9\)"),
    "a worker that hangs": ({"model": partial(Acts, hangs), "sync": "bsp"}, rf"worker 1 {SILENT} computing"),
    "one that prepares": ({"model": partial(Acts, stopped, 1)}, rf"worker 1 .* {SILENT} preparing"),
    "one that evaluates": ({"model": partial(Acts, stopped, evaluating=True)}, rf"worker 1 .* {SILENT} evaluating"),
    "all wait": ({"sync": AlwaysHold(1), "pushes": 50}, r"worker 0 has been waiting for .* on clock 1 for \d"),
    "a policy that loops": ({"sync": NeverEnds()},
                            r"server computes and has not reported for 0.3 s .* a policy's step"),
}  # fmt: skip


@pytest.mark.parametrize("what", [
    pytest.param(each, marks=[pytest.mark.slow] * (each != "a stopped server")) for each in ENDS])  # fmt: skip
def test_a_process_that_gives_no_sign_of_life_ends_the_run_by_name_and_no_process_is_left(
    what: str, monkeypatch: pytest.MonkeyPatch
):
    if what == "a policy that loops":  # a busy machine lets other servers wait for a core for longer
        monkeypatch.setattr(watch, "MUTE_S", LEASE_S)
    fields, words = ENDS[what]
    processes = [process.pid for process in pool.acquire(2).processes.values()]
    with pytest.raises(Stalled if what == "all wait" else WorkerDied, match=words):
        conduct(stop_server if "server" in what else quiet, **{**BRIEF, **fields})
    assert [watch.used_by(process) for process in processes] == [("", 0)] * len(processes)


@pytest.mark.parametrize(("model", "iteration", "how"), [
    (partial(Acts, stopped), 6, "was stopped by a signal and has been silent for longer than its lease"),
    pytest.param(partial(Acts, raises), 6, "ValueError: the model broke here", marks=pytest.mark.slow),
    pytest.param(partial(Acts, died), 6, "is gone (exit code 9)", marks=pytest.mark.slow),
    pytest.param(partial(Acts, stopped, 1), 0, "was stopped by a signal", marks=pytest.mark.slow),
], ids=["stopped", "raises", "dies", "stopped in preparation"])  # fmt: skip
def test_the_others_go_on_without_a_worker(model: Any, iteration: int, how: str):
    """What it noted of its phases is not lost."""
    outcome = conduct(**{**BRIEF, "sync": "bsp"}, model=model, on_death="continue", workers=3, pushes=60)
    (death,) = outcome.facts["deaths"]
    assert (death["worker"], death["iteration"], outcome.facts["outcome"]) == (1, iteration, "budget")
    assert death["how"].startswith(how)
    computed = (outcome.phases[:, 0] == 1) & (outcome.phases[:, 2] == PHASES.index("compute"))
    assert outcome.phases[computed, 1].tolist() == list(range(iteration))


def test_the_others_go_on_without_a_worker_that_dies_while_the_pool_starts():
    killed = []

    def kill(news: dict[str, Any]) -> None:
        for process in multiprocessing.active_children():
            if process.name == "pslab-worker 1" and not killed:
                killed.append(process.kill())

    pool.release(kill=True)
    facts = conduct(kill, sync="bsp", on_death="continue", workers=3, pushes=60).facts
    assert killed
    assert [(death["worker"], death["iteration"]) for death in facts["deaths"]] == [(1, 0)]
    assert facts["outcome"] == "budget"


def test_a_worker_that_computes_for_ever_before_the_run_is_named_once_in_each_lease():
    said = []

    def look(news: dict[str, Any]) -> None:
        said.extend([1] * news.get("waits", "").startswith("worker 1: still preparing after "))  # others are done
        if len(said) == 2:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        conduct(look, **BRIEF, model=partial(Acts, loops, 1))


@pytest.mark.slow
def test_an_evaluation_that_never_ends_can_be_interrupted():
    looks = list[Any]()

    def interrupt(news: dict[str, Any]) -> None:
        looks.extend([news] * ("evaluating" in news or bool(looks)))
        if len(looks) == 8:  # the evaluation has begun
            raise KeyboardInterrupt

    model = partial(Acts, loops, who="worker 0", evaluating=True)
    with pytest.raises(Interrupted) as error:
        conduct(interrupt, **BRIEF, model=model, eval_every=2000, pushes=2000)
    assert error.value.outcome.facts["pushes"] == 2000


# --- and interrupts --------------------------------------------------------------------------------------------------

LONG = tiny(pushes=100_000, cluster={"compute_s": 0.002}, eval_every=20)
ENOUGH = 20  # pushes, of which rounds are complete


def test_completed_pushes_come_with_the_interrupt_and_the_pool_serves_the_next_run(monkeypatch: pytest.MonkeyPatch):
    """An interrupt may take longer than people wait: other tests may be busy."""
    monkeypatch.setattr(local_run, "INTERRUPT_LIMIT_S", LIMIT_S)
    before = {p.pid for p in pool.acquire(4).processes.values()}
    calls = list[int]()

    def interrupt(news: dict[str, Any]) -> None:
        calls.extend([news.get("pushes", 0)] * bool(news))  # empty ones only ask whether to go on
        if calls and calls[-1] >= ENOUGH:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as raised:
        execute(resolve(LONG), interrupt)
    outcome = raised.value.outcome
    assert outcome.facts["outcome"] == "interrupted"
    assert len(outcome.pushes) == outcome.facts["pushes"] > 0
    assert outcome.accuracy[-1][0] == outcome.facts["pushes"]  # the last snapshot is evaluated first
    assert max(calls[:-1], default=0) < ENOUGH  # no news since
    assert execute(resolve(tiny()), quiet).facts["pushes"] == 40
    assert {p.pid for p in pool.acquire(4).processes.values()} == before


@pytest.mark.parametrize(("on_death", "by", "words"), [
    ("continue", signal.SIGKILL, "is gone"),
    pytest.param("stop", signal.SIGSTOP, "was stopped by a signal", marks=pytest.mark.slow),
])  # fmt: skip
def test_a_server_that_dies_ends_the_run_by_name(on_death: str, by: int, words: str):
    signals = Signals(number_of(2, 1), by, after=40)
    with pytest.raises(WorkerDied, match=f"server 1 of 2 {words}") as raised:
        conduct(signals, servers=2, sync="asp", pushes=10**6, on_death=on_death, lease_s=1.0, eval_every=40,
                cluster={"compute_s": 1e-3})  # fmt: skip
    outcome = raised.value.outcome
    assert outcome is not None
    assert outcome.facts["pushes"] >= 40
    assert len(outcome.pushes) > 40
    assert len(outcome.weights) == 1930
    assert pool._kept is None  # no process is left


def test_a_server_is_not_dead_where_its_messages_come_closer_together_than_its_signs_of_life():
    fields = {"workers": 1, "servers": 2, "sync": "asp", "pushes": 14, "cluster": {"compute_s": 0.05}}
    assert conduct(**fields, lease_s=0.3, eval_every=14).facts["pushes"] == 14
