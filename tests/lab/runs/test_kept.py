"""Whatever ends a run, what it had completed is kept, and the error says where."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import threading
from pathlib import Path

import pytest
from tiny import Raises, tiny

from pslab.engines.processes import pool
from pslab.errors import RecordError, RunError, WorkerDied, WorkerFailed
from pslab.lab.records.results import load
from pslab.lab.runs import interrupts as module
from pslab.lab.runs import machine
from pslab.lab.runs.progress import Progress
from pslab.lab.runs.run import run

LONG = tiny(workers=2, pushes=100_000, cluster={"compute_s": 0.002}, eval_every=20)


class RaisesInEvaluation(Raises):
    def forward(self, x):
        if not self.training and multiprocessing.parent_process() is not None:
            raise RuntimeError("the evaluation broke here")
        return self.net(x)


def kept_of(error: RunError) -> Path:
    found = re.search(r"the run ended after (\d+) pushes; kept in (.*)$", str(error))
    assert found
    result = load(found[2])
    assert result.manifest["pushes"] == int(found[1])
    assert len(result.pushes) == int(found[1])
    assert result.weights.shape == (1930,)
    assert result.manifest["outcome"] == "interrupted"
    assert result.manifest["verdict"] == "unknown", result.manifest["violations"]
    assert result.manifest["error"] in str(error)
    return result


def struck(monkeypatch: pytest.MonkeyPatch, number: int, by: signal.Signals) -> None:
    """One process gets a signal when the run is in progress."""

    struck = []

    def update(self, name, news):
        if news.get("pushes", 0) > 20 and not struck:
            struck.append(number)
            os.kill(pool.acquire(LONG.workers).processes[number].pid, by)

    monkeypatch.setattr(Progress, "update", update)


@pytest.mark.usefixtures("small_pool")
@pytest.mark.parametrize(
    ("number", "by", "words"),
    [pytest.param(1, signal.SIGKILL, "worker 1 is gone", id="worker"),
     pytest.param(pool.SERVER, signal.SIGKILL, "server is gone", id="server"),
     pytest.param(pool.SERVER, signal.SIGSTOP, "server was stopped", id="stopped-server", marks=pytest.mark.slow)],
)  # fmt: skip
def test_a_process_that_dies_does_not_take_the_work_with_it(tmp_path, monkeypatch, number, by, words):
    struck(monkeypatch, number, by)
    with pytest.raises(WorkerDied, match=words) as error:
        run(LONG.but(lease_s=0.5), results=tmp_path, progress=False)
    result = kept_of(error.value)
    assert result.manifest["pushes"] > 10  # pushes are counted before their step is applied
    assert len(result.phases) > 0  # of a worker that could still report
    assert len(list((tmp_path / "runs").iterdir())) == 0


@pytest.mark.slow
@pytest.mark.usefixtures("small_pool")
@pytest.mark.parametrize("engine", ["local", "virtual"])
def test_an_evaluation_that_raises_leaves_the_trained_weights(tmp_path, engine):
    cluster = {"compute_s": 0.002}
    wanted = tiny(workers=2, model=RaisesInEvaluation, pushes=40, engine=engine, cluster=cluster)
    with pytest.raises(WorkerFailed, match="the evaluation broke here") as error:
        run(wanted, results=tmp_path, progress=False)
    assert kept_of(error.value).manifest["pushes"] == 40


def test_a_record_that_does_not_fit_is_refused_before_a_process_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "acquire", None)
    monkeypatch.setattr(machine, "free_bytes", lambda place: (place, 0))
    with pytest.raises(RecordError, match=rf"needs at least \d+\.\d .B, but 0 bytes are free in {tmp_path}"):
        run(tiny(), results=tmp_path, progress=False)
    assert list(tmp_path.iterdir()) == []


def test_a_second_interrupt_takes_effect_where_the_first_one_is_not_heeded(monkeypatch):
    """A policy of a virtual run that loops for ever, in this process, never asks."""
    clock = iter([0.0, module.UNHEEDED_S / 2, 2 * module.UNHEEDED_S])
    stop, passed = threading.Event(), []

    def loop():
        for number in range(3):
            with monkeypatch.context() as patch:
                patch.setattr(module.time, "monotonic", lambda: next(clock))
                signal.raise_signal(signal.SIGINT)
            passed.append(number)

    with pytest.raises(KeyboardInterrupt, match="interrupted at once"), module.noted(stop):
        loop()
    assert (passed, stop.is_set()) == ([0, 1], True)


def test_once_an_interrupt_is_heeded_another_one_does_not_tear_what_is_kept(monkeypatch):
    monkeypatch.setattr(module, "UNHEEDED_S", -1.0)
    stop, passed = threading.Event(), []

    def kept():
        stop.set()
        try:
            module.heed(stop)
        finally:
            signal.raise_signal(signal.SIGINT)
            passed.append("kept")

    with pytest.raises(KeyboardInterrupt, match="every run that was finished is recorded"), module.noted(stop):
        kept()
    assert passed == ["kept"]
