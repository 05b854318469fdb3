"""Processes that end where a run does, before it starts, or beside it: what is completed is kept, nothing hangs."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conducted import Acts, conduct, died
from sabotage import Sabotaged, SabotagedServer, dying, once

from pslab.engines.execute import STARTS
from pslab.engines.experiment.experiment import Outcome
from pslab.engines.processes.coordinator import Coordinator
from pslab.errors import WorkerDied
from pslab.policies.sync.bsp import BSP

pytestmark = pytest.mark.usefixtures("small_pool")
LOOKS = 600  # of a run that does not hang
BEHIND_ITS_LAST_MESSAGE = "pslab.engines.local.worker:LocalWorker._last_message", 1, "after"
BEHIND_ITS_LAST_REPORT = "pslab.engines.local.server:LocalServer._report", 1, "after"
SHORT: dict[str, Any] = {"sync": "bsp", "eval_every": 20, "lease_s": 0.5}


@pytest.fixture(scope="module")
def undisturbed() -> Outcome:
    return conduct(**SHORT)


def facts_of(undisturbed: Outcome, **fields: Any) -> dict[str, Any]:
    """What is said of a run that has the weights and the accuracies of an undisturbed one."""
    looks = []

    def look(news: dict[str, Any]) -> None:
        looks.append(news)
        assert len(looks) < LOOKS, "it hangs"

    found = conduct(look, **{**SHORT, **fields})
    assert np.array_equal(found.weights, undisturbed.weights)
    assert np.array_equal(found.accuracy[:, [0, 2, 3]], undisturbed.accuracy[:, [0, 2, 3]])
    assert found.facts["outcome"] == "budget"
    return found.facts


@pytest.mark.parametrize(
    "on_death", ["continue", *(pytest.param(more, marks=pytest.mark.slow) for more in ("stop", "restart"))])
def test_a_worker_that_dies_behind_its_last_message_is_not_waited_for(tmp_path: Path, undisturbed: Outcome, on_death):
    model = partial(Sabotaged, tmp_path / "marker", partial(dying, *BEHIND_ITS_LAST_MESSAGE))
    facts = facts_of(undisturbed, model=model, on_death=on_death)
    assert (facts["deaths"], facts["phases_lost"]) == ([], [1])


@pytest.mark.parametrize("on_death", ["stop", pytest.param("restart", marks=pytest.mark.slow)])
def test_a_server_that_dies_behind_its_last_report_is_not_missed(tmp_path: Path, undisturbed: Outcome, on_death: str):
    stops = partial(dying, *BEHIND_ITS_LAST_MESSAGE, end=signal.SIGSTOP)  # the run is under way for a lease more
    model = partial(Sabotaged, tmp_path / "worker", stops)
    sync = SabotagedServer(BSP(), tmp_path / "server", partial(dying, *BEHIND_ITS_LAST_REPORT))
    assert "rewinds" not in facts_of(undisturbed, model=model, sync=sync, on_death=on_death)


def test_what_a_dead_evaluator_has_not_evaluated_workers_do_at_the_end(undisturbed: Outcome):
    model = partial(Acts, died, who="worker 2", evaluating=True)
    assert facts_of(undisturbed, model=model, evaluate="beside", on_death="continue")["deaths"] == []


def dies_when_somebody_writes(pipe: Path) -> None:
    os.close(os.open(pipe, os.O_RDONLY))  # until it is opened for writing
    died()


def test_what_an_evaluator_was_evaluating_when_the_run_ended_workers_do_if_it_dies(
    tmp_path: Path, undisturbed: Outcome, monkeypatch: pytest.MonkeyPatch
):
    os.mkfifo(pipe := tmp_path / "pipe")
    evaluate = Coordinator.evaluate

    def kills_first(self: Coordinator, *args: Any, **options: Any) -> None:
        with open(pipe, "r+b", buffering=0):  # which waits for nobody
            evaluate(self, *args, **options)

    monkeypatch.setattr(Coordinator, "evaluate", kills_first)
    model = partial(Acts, partial(dies_when_somebody_writes, pipe), who="worker 2", evaluating=True)
    facts_of(undisturbed, model=model, evaluate="beside", on_death="continue", lease_s=30)


class DiesAtOnce(BSP):
    """A policy with which the server's process is killed before it is prepared, so many times."""

    def __init__(self, folder: Path, times: int) -> None:
        self.folder, self.times = folder, times

    def initial(self, workers):
        if any(once(self.folder / str(time), "pslab-server") for time in range(self.times)):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().initial(workers)


def test_a_run_whose_server_dies_before_it_starts_begins_again(tmp_path: Path, undisturbed: Outcome):
    facts = facts_of(undisturbed, sync=DiesAtOnce(tmp_path, 1), on_death="restart")
    assert facts["fallen_starts"] == ["server is gone (killed by SIGKILL)"]


@pytest.mark.slow
@pytest.mark.parametrize(("on_death", "begun"), [("restart", STARTS), ("continue", 1)])
def test_a_run_does_not_begin_again_for_ever(tmp_path: Path, on_death: str, begun: int):
    with pytest.raises(WorkerDied, match="server is gone"):
        conduct(**{**SHORT, "sync": DiesAtOnce(tmp_path, 100)}, on_death=on_death)
    assert len(list(tmp_path.iterdir())) == begun
