"""Processes that end where a run does, before it starts, or beside it: what is completed is kept, nothing hangs."""

from __future__ import annotations

import multiprocessing
import os
import signal
from functools import partial

import numpy as np
import pytest
from sabotage import Sabotaged, SabotagedServer, dying, once
from tiny import Raises, tiny

from pslab.engines.execute import STARTS, execute
from pslab.engines.local.engine import _LocalRun
from pslab.errors import WorkerDied
from pslab.lab.runs.resolve import resolve
from pslab.policies.sync.bsp import BSP

LEASE_S, LOOKS = 0.5, 600
BEHIND_ITS_LAST_MESSAGE = "pslab.engines.local.worker:LocalWorker._last_message", 1, "after"
BEHIND_ITS_LAST_REPORT = "pslab.engines.local.server:LocalServer._report", 1, "after"


def conduct(**fields):
    """A run of 20 rounds by two workers; one that hangs fails."""
    looks = []

    def look(news):
        looks.append(news)
        if len(looks) > LOOKS:
            raise AssertionError("it hangs")

    wanted = tiny(**{"sync": "bsp", "workers": 2, "pushes": 40, "eval_every": 20, "lease_s": LEASE_S, **fields})
    return execute(resolve(wanted), look)


@pytest.fixture(scope="module")
def undisturbed():
    return conduct()


def same(found, undisturbed):
    assert np.array_equal(found.weights, undisturbed.weights)
    assert np.array_equal(found.accuracy[:, [0, 2, 3]], undisturbed.accuracy[:, [0, 2, 3]])
    return found.facts


@pytest.mark.parametrize("on_death", ["stop", "continue", pytest.param("restart", marks=pytest.mark.slow)])
def test_a_worker_that_dies_behind_its_last_message_is_not_waited_for(tmp_path, undisturbed, on_death):
    model = partial(Sabotaged, tmp_path / "marker", partial(dying, *BEHIND_ITS_LAST_MESSAGE))
    facts = same(conduct(model=model, on_death=on_death), undisturbed)
    assert (facts["outcome"], facts["deaths"], facts["phases_lost"]) == ("budget", [], [1])


@pytest.mark.parametrize("on_death", ["stop", pytest.param("restart", marks=pytest.mark.slow)])
def test_a_server_that_dies_behind_its_last_report_is_not_missed(tmp_path, undisturbed, on_death):
    stops = partial(dying, *BEHIND_ITS_LAST_MESSAGE, end=signal.SIGSTOP)  # the run is under way for a lease more
    model = partial(Sabotaged, tmp_path / "worker", stops)
    sync = SabotagedServer(BSP(), tmp_path / "server", partial(dying, *BEHIND_ITS_LAST_REPORT))
    facts = same(conduct(model=model, sync=sync, on_death=on_death), undisturbed)
    assert facts["outcome"] == "budget"
    assert "rewinds" not in facts


class DiesBeside(Raises):
    """A model whose first evaluation ends the process that evaluates beside two workers."""

    def forward(self, x):
        if not self.training and multiprocessing.current_process().name == "pslab-worker 2":
            os._exit(9)
        return self.net(x)


def test_what_a_dead_evaluator_has_not_evaluated_workers_do_at_the_end(undisturbed):
    facts = same(conduct(model=DiesBeside, evaluate="beside", on_death="continue"), undisturbed)
    assert facts["deaths"] == []
    with pytest.raises(WorkerDied, match=r"evaluator is gone \(exit code 9\)"):
        conduct(model=DiesBeside, evaluate="beside")


class DiesBehind(Raises):
    """A model whose first evaluation beside two workers ends that process once somebody writes to a pipe."""

    def __init__(self, pipe):
        super().__init__()
        self.pipe = pipe

    def forward(self, x):
        if not self.training and multiprocessing.current_process().name == "pslab-worker 2":
            os.close(os.open(self.pipe, os.O_RDONLY))  # until it is opened for writing
            os._exit(9)
        return self.net(x)


def test_what_an_evaluator_was_evaluating_when_the_run_ended_workers_do_if_it_dies(tmp_path, undisturbed, monkeypatch):
    os.mkfifo(pipe := tmp_path / "pipe")
    evaluate = _LocalRun.evaluate

    def kills_first(self, *args, **options):
        with open(pipe, "r+b", buffering=0):  # which waits for nobody
            evaluate(self, *args, **options)

    monkeypatch.setattr(_LocalRun, "evaluate", kills_first)
    same(conduct(model=partial(DiesBehind, pipe), evaluate="beside", on_death="continue", lease_s=30), undisturbed)


class DiesAtOnce(BSP):
    """A policy with which the server's process is killed before it is prepared, so many times."""

    def __init__(self, folder, times):
        self.folder, self.times = folder, times

    def initial(self, workers):
        if any(once(self.folder / str(time), "pslab-server") for time in range(self.times)):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().initial(workers)


def test_a_run_whose_server_dies_before_it_starts_begins_again(tmp_path, undisturbed):
    facts = same(conduct(sync=DiesAtOnce(tmp_path, 1), on_death="restart"), undisturbed)
    assert facts["fallen_starts"] == ["server is gone (killed by SIGKILL)"]


@pytest.mark.slow
@pytest.mark.parametrize(("on_death", "begun"), [("restart", STARTS), ("continue", 1)])
def test_a_run_does_not_begin_again_for_ever(tmp_path, on_death, begun):
    with pytest.raises(WorkerDied, match="server is gone"):
        conduct(sync=DiesAtOnce(tmp_path, 100), on_death=on_death)
    assert len(list(tmp_path.iterdir())) == begun
