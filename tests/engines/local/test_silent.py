"""Real processes that are stopped or hang: every wait of the parent ends, and says who was waited for."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import threading
import time
from functools import partial

import pytest
import torch
from ownpolicies import AlwaysHold
from sabotage import Sabotaged
from tiny import Raises, tiny

from pslab.engines.experiment.experiment import Interrupted
from pslab.engines.local.engine import execute
from pslab.engines.processes import pool, watch
from pslab.errors import RunError, Stalled, WorkerDied
from pslab.lab.runs.resolve import resolve
from pslab.policies.sync.asp import ASP

LEASE_S = 0.3


def stopped():
    os.kill(os.getpid(), signal.SIGSTOP)


class Stops(Raises):
    """A model that does something at its seventh batch, or in its first evaluation; in one process."""

    act, who, evaluating, good = staticmethod(stopped), "pslab-worker 1", False, 6

    def __init__(self) -> None:
        super().__init__(self.good)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.left -= self.training
        if multiprocessing.current_process().name == self.who and (
            not self.training if self.evaluating else self.training and self.left == -1
        ):
            self.act()
        return self.net(x)


class Hangs(Stops):
    act = staticmethod(lambda: threading.Event().wait())


class StopsAtOnce(Stops):
    good = 0


class StopsInEvaluation(Stops):
    evaluating = True


class Loops(Stops):
    @staticmethod
    def act():
        while True:
            pass


class LoopsInEvaluation(Loops):
    evaluating, who = True, "pslab-worker 0"


class LoopsAtOnce(Loops):
    good = 0


class LoopsLater(Loops):
    good = 1  # after the batch of the preparation


pytestmark = pytest.mark.usefixtures("small_pool")


def conduct(on_progress=lambda news: None, **fields):
    return execute(resolve(tiny(**{"sync": "asp", "lease_s": LEASE_S, "workers": 2, **fields})), on_progress)


def stop_server(news):
    if "workers" in news:
        os.kill(pool._kept.processes[pool.SERVER].pid, signal.SIGSTOP)


@pytest.mark.slow
@pytest.mark.parametrize("model", [Stops, Hangs])
def test_a_silent_worker_ends_the_run(model):
    with pytest.raises(WorkerDied, match=r"worker 1 .*silent for longer than its lease of 0.3 s while computing"):
        conduct(model=model, sync="bsp")


def test_the_others_go_on_without_a_silent_worker():
    outcome = conduct(model=Stops, sync="bsp", on_death="continue", workers=3, pushes=60)
    (death,) = outcome.facts["deaths"]
    assert death["worker"] == 1
    assert death["how"].startswith("was stopped by a signal and has been silent for longer than its lease")
    assert outcome.facts["outcome"] == "budget"


def test_the_others_go_on_without_a_worker_that_dies_while_the_pool_starts():
    killed = []

    def kill(news):
        for process in multiprocessing.active_children():
            if process.name == "pslab-worker 1" and not killed:
                killed.append(process.kill())

    pool.release(kill=True)
    outcome = conduct(kill, sync="bsp", on_death="continue", workers=3, pushes=60)
    assert killed
    assert [(death["worker"], death["iteration"]) for death in outcome.facts["deaths"]] == [(1, 0)]
    assert outcome.facts["outcome"] == "budget"


@pytest.mark.parametrize("fields", [{}, {"cluster": {"compute_s": 0.001}}], ids=["prepares", "rehearses"])
def test_a_worker_that_computes_for_ever_before_the_run_is_named_once_in_each_lease(fields):
    said, model, phase = 0, *((LoopsLater, "rehearsing") if fields else (LoopsAtOnce, "preparing"))

    def look(news):
        nonlocal said
        said += news.get("waits", "").startswith(f"worker 1: still {phase} after ")  # others are done
        if said == 2:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        conduct(look, model=model, lease_s=1.0, **fields)


class RaisesAlone(Stops):
    @staticmethod
    def act():
        raise ValueError("the model broke here")


def test_the_others_go_on_without_a_worker_that_raises():
    outcome = conduct(model=RaisesAlone, sync="bsp", on_death="continue", pushes=60)
    (death,) = outcome.facts["deaths"]
    assert (death["worker"], death["how"]) == (1, "ValueError: the model broke here")
    assert outcome.facts["outcome"] == "budget"


@pytest.mark.slow
def test_a_worker_that_is_stopped_after_the_run_is_not_waited_for():
    outcome = conduct(model=Stops, workers=2, pushes=200)  # the other one reaches the budget alone
    assert (outcome.facts["outcome"], outcome.facts["deaths"]) == ("budget", [])


def test_a_stopped_server_ends_the_run():
    with pytest.raises(WorkerDied, match=r"server was stopped by a signal and has been silent .* while serving"):
        conduct(stop_server, pushes=100_000)


def survived(model, on_death, phase):
    """What is left of a run whose worker 1 is silent in a phase; None if that ends the run, and says so."""
    if on_death == "continue":
        return conduct(model=model, on_death=on_death)
    with pytest.raises(WorkerDied, match=rf"worker 1 .* while {phase}"):
        conduct(model=model)
    return None


@pytest.mark.slow
@pytest.mark.parametrize("on_death", ["stop", "continue"])
def test_a_worker_that_is_stopped_in_preparation_is_dead(on_death):
    if (outcome := survived(StopsAtOnce, on_death, "preparing")) is None:
        return
    (death,) = outcome.facts["deaths"]
    assert (death["worker"], death["iteration"]) == (1, 0)


@pytest.mark.slow
@pytest.mark.parametrize("on_death", ["stop", "continue"])
def test_a_worker_that_is_stopped_in_an_evaluation_is_dead(on_death):
    if outcome := survived(StopsInEvaluation, on_death, "evaluating"):
        assert outcome.accuracy[:, 0].tolist() == [2.0 * n for n in range(21)]  # another one evaluates its snapshots


@pytest.mark.slow
def test_when_no_worker_can_go_on_the_error_says_who_waits_for_whom():
    with pytest.raises(Stalled, match=r"worker 0 has been waiting for .* on clock 1 for \d"):
        conduct(sync=AlwaysHold(1), pushes=50)


class NeverEnds(ASP):
    def step(self, state, event, clocks):
        while True:
            pass


@pytest.mark.slow
def test_a_policy_that_never_ends_is_no_sign_of_life(monkeypatch):
    monkeypatch.setattr(watch, "MUTE_S", LEASE_S)
    with pytest.raises(WorkerDied, match=r"server computes and has not reported for 0.3 s .* a policy's step"):
        conduct(sync=NeverEnds())


@pytest.mark.slow
def test_an_evaluation_that_never_ends_can_be_interrupted():
    quiet = [0, False]

    def interrupt(news):
        quiet[0], quiet[1] = (0, True) if "workers" in news else (quiet[0] + (not news), quiet[1])
        if quiet[1] and quiet[0] == 8:  # the run is over, and the evaluation has begun
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as error:
        conduct(interrupt, model=LoopsInEvaluation, eval_every=2000, pushes=2000)
    assert error.value.outcome.facts["pushes"] == 2000


class TakesLong(Stops):
    @staticmethod
    def act():
        until_s = time.process_time() + 3 * LEASE_S
        while time.process_time() < until_s:
            pass


@pytest.mark.parametrize("fields", [{"model": TakesLong, "pushes": 20}, {"cluster": {"compute_s": 0.6}, "pushes": 2}],
                         ids=["computed", "modelled"])  # fmt: skip
def test_long_gradients_are_no_silence(fields):
    outcome = conduct(**{"lease_s": LEASE_S, "sync": "bsp", **fields})
    assert outcome.facts["deaths"] == []
    assert outcome.facts["pushes"] == fields["pushes"]


def compile_in_turn(folder):
    from pslab.tensors.selection.compiling import in_turn

    with in_turn(folder, "a loop"):
        pass


def test_who_waits_for_a_process_that_compiles_is_not_silent(tmp_path):
    looks, marker = [], tmp_path / "marker"

    def look(news):
        looks.extend([news] * marker.exists())
        if len(looks) == 12:  # each is a tenth of a second: that is longer than a lease
            fcntl.flock(lock, fcntl.LOCK_UN)

    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        model = partial(Sabotaged, marker, partial(compile_in_turn, tmp_path))
        assert conduct(look, model=model).facts["outcome"] == "budget"
    assert (tmp_path / "lock").read_text() == "a loop\n"


@pytest.mark.slow
@pytest.mark.parametrize("evaluating", [False, True])
def test_children_are_gone_after_an_error(evaluating):
    processes = [process.pid for process in pool.acquire(2).processes.values()]
    with pytest.raises(RunError):
        conduct(model=StopsInEvaluation if evaluating else Stops, sync="bsp")
    assert [watch.used_by(process) for process in processes] == [("", 0)] * 3
