"""Real processes that are stopped or hang: every wait of the parent ends, and says which process was waited for."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from functools import partial
from typing import Any

import pytest
from conducted import Acts, conduct, died, quiet, stopped
from ownpolicies import AlwaysHold

from pslab.engines.experiment.experiment import Interrupted
from pslab.engines.processes import pool, watch
from pslab.engines.worker.phases import PHASES
from pslab.errors import Stalled, WorkerDied
from pslab.policies.sync.asp import ASP

LEASE_S = 0.3
SHORT: dict[str, Any] = {"sync": "asp", "lease_s": LEASE_S}

pytestmark = pytest.mark.usefixtures("small_pool")


def hangs() -> None:
    threading.Event().wait()


def loops() -> None:
    while True:
        pass


def raises() -> None:
    raise ValueError("the model broke here")


def takes_long() -> None:
    until_s = time.process_time() + 2 * LEASE_S
    while time.process_time() < until_s:
        pass


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


FEW = ("a stopped server",)
CASES = [*FEW, *(pytest.param(each, marks=pytest.mark.slow) for each in ENDS if each not in FEW)]


@pytest.mark.parametrize("what", CASES)
def test_a_process_that_gives_no_sign_of_life_ends_the_run_by_name_and_no_process_is_left(
    what: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(watch, "MUTE_S", LEASE_S)
    fields, words = ENDS[what]
    processes = [process.pid for process in pool.acquire(2).processes.values()]
    with pytest.raises(Stalled if what == "all wait" else WorkerDied, match=words):
        conduct(stop_server if "server" in what else quiet, **{**SHORT, **fields})
    assert [watch.used_by(process) for process in processes] == [("", 0)] * len(processes)


@pytest.mark.parametrize(("model", "iteration", "how"), [
    (partial(Acts, stopped), 6, "was stopped by a signal and has been silent for longer than its lease"),
    pytest.param(partial(Acts, raises), 6, "ValueError: the model broke here", marks=pytest.mark.slow),
    pytest.param(partial(Acts, died), 6, "is gone (exit code 9)", marks=pytest.mark.slow),
    pytest.param(partial(Acts, stopped, 1), 0, "was stopped by a signal", marks=pytest.mark.slow),
], ids=["stopped", "raises", "dies", "stopped in preparation"])  # fmt: skip
def test_the_others_go_on_without_a_worker(model: Any, iteration: int, how: str):
    """What it noted of its phases is not lost."""
    outcome = conduct(**{**SHORT, "sync": "bsp"}, model=model, on_death="continue", workers=3, pushes=60)
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


@pytest.mark.slow
def test_a_worker_that_is_stopped_after_the_run_is_not_waited_for():
    facts = conduct(**SHORT, model=partial(Acts, stopped), pushes=30).facts  # the other one reaches the budget alone
    assert (facts["outcome"], facts["deaths"]) == ("budget", [])


@pytest.mark.slow
def test_what_a_stopped_worker_was_to_evaluate_another_one_does():
    outcome = conduct(**SHORT, model=partial(Acts, stopped, evaluating=True), on_death="continue")
    assert outcome.accuracy[:, 0].tolist() == [2.0 * n for n in range(21)]


@pytest.mark.parametrize(("batch", "cluster", "phase"), [
    pytest.param(1, "free", "preparing", marks=pytest.mark.slow), (2, {"compute_s": 0.001}, "rehearsing"),
])  # fmt: skip
def test_a_worker_that_computes_for_ever_before_the_run_is_named_once_in_each_lease(batch, cluster, phase):
    said = []

    def look(news: dict[str, Any]) -> None:
        said.extend([1] * news.get("waits", "").startswith(f"worker 1: still {phase} after "))  # others are done
        if len(said) == 2:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        conduct(look, **SHORT, model=partial(Acts, loops, batch), cluster=cluster)


@pytest.mark.slow
def test_an_evaluation_that_never_ends_can_be_interrupted():
    looks = [0, False]  # since the last news, and whether the run has begun

    def interrupt(news: dict[str, Any]) -> None:
        looks[:] = (0, True) if "workers" in news else (looks[0] + (not news), looks[1])
        if looks == [8, True]:  # the run is over, and the evaluation has begun
            raise KeyboardInterrupt

    model = partial(Acts, loops, who="worker 0", evaluating=True)
    with pytest.raises(Interrupted) as error:
        conduct(interrupt, **SHORT, model=model, eval_every=2000, pushes=2000)
    assert error.value.outcome.facts["pushes"] == 2000


@pytest.mark.parametrize(
    "fields", [{"model": partial(Acts, takes_long), "pushes": 20}, {"cluster": {"compute_s": 0.4}, "pushes": 2}],
    ids=["computed", "modelled"])  # fmt: skip
def test_long_gradients_are_no_silence(fields: dict[str, Any]):
    facts = conduct(**{**SHORT, "sync": "bsp", **fields}).facts
    assert (facts["deaths"], facts["pushes"]) == ([], fields["pushes"])
