"""An interrupt ends a run in order: what it finished is kept, and the pool serves the next run."""

from __future__ import annotations

import signal

import pytest
from tiny import tiny

from pslab.engines.experiment.experiment import Interrupted
from pslab.engines.local import engine
from pslab.engines.local.engine import execute
from pslab.engines.processes import pool
from pslab.lab.records.record import find
from pslab.lab.records.results import load
from pslab.lab.runs.resolve import resolve
from pslab.lab.runs.run import run

LONG = tiny(pushes=100_000, cluster={"compute_s": 0.002}, eval_every=20)


def interrupt_at(count):
    """An on_progress that interrupts at its count-th call."""
    calls = []

    def on_progress(news):
        if news:  # empty ones only ask whether to go on
            calls.append(news)
        if len(calls) == count:
            raise KeyboardInterrupt

    return calls, on_progress


@pytest.fixture
def patient(monkeypatch):
    """An interrupt may take longer than people wait: other tests may be busy."""
    monkeypatch.setattr(engine, "INTERRUPT_LIMIT_S", 20.0)


def test_completed_pushes_come_with_the_interrupt_and_the_pool_serves_the_next_run(patient):
    before = {p.pid for p in pool.acquire(4).processes.values()}
    calls, on_progress = interrupt_at(2)
    with pytest.raises(Interrupted) as interrupt:
        execute(resolve(LONG), on_progress)
    outcome = interrupt.value.outcome
    assert outcome.facts["outcome"] == "interrupted"
    assert len(outcome.pushes) == outcome.facts["pushes"] > 0
    assert outcome.accuracy[-1][0] == outcome.facts["pushes"]  # the last snapshot is evaluated first
    assert len(calls) == 2
    assert execute(resolve(tiny()), calls.append).facts["pushes"] == 40
    assert {p.pid for p in pool.acquire(4).processes.values()} == before


def test_an_interrupted_run_is_kept_apart_and_its_place_reported(tmp_path, monkeypatch, patient):
    from pslab.lab.runs.progress import Progress

    def update(self, name, news):
        if news.get("pushes", 0) >= LONG.workers:  # a busy machine reports before the first step
            raise KeyboardInterrupt

    monkeypatch.setattr(Progress, "update", update)
    with pytest.raises(KeyboardInterrupt, match=r"interrupted after \d+ pushes; kept in .*interrupted"):
        run(LONG, results=tmp_path, progress=False)
    assert find(LONG, tmp_path) is None
    (kept,) = (tmp_path / "interrupted").iterdir()
    assert load(kept).manifest["outcome"] == "interrupted"
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_termination_keeps_the_work_before_it_takes_effect(tmp_path, monkeypatch, patient):
    from pslab.lab.runs.progress import Progress

    def update(self, name, news):
        if news.get("pushes", 0) >= LONG.workers:
            signal.raise_signal(signal.SIGTERM)

    received = []
    before = signal.signal(signal.SIGTERM, lambda *_: received.append(len(list((tmp_path / "interrupted").iterdir()))))
    monkeypatch.setattr(Progress, "update", update)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(LONG, results=tmp_path, progress=False)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert received == [1]


def test_progress_reports_what_workers_do():
    calls = []

    def on_progress(news):
        if news:
            calls.append(news)
            if any(state["doing"] == "waiting" for state in news["workers"]) or len(calls) == 200:
                raise KeyboardInterrupt

    slow = LONG.but(sync="bsp", cluster={"compute_s": 0.002, "slow": {0: 500.0}})
    with pytest.raises(Interrupted):
        execute(resolve(slow), on_progress)
    for news in calls:
        states = {worker: state["doing"] for worker, state in enumerate(news["workers"])}
        assert states[0] in ("computing", "transferring")
        assert all(0 in state["for"] for state in news["workers"][1:] if state["doing"] == "waiting")
    assert any(state["doing"] == "waiting" for state in calls[-1]["workers"])


def test_accuracy_is_evaluated_beside_the_run_if_wanted():
    news = []
    wanted = tiny(evaluate="beside", pushes=200, cluster={"compute_s": 0.005})
    outcome = execute(resolve(wanted), news.append)
    first = next(index for index, item in enumerate(news) if "accuracy" in item)
    last = max(index for index, item in enumerate(news) if "workers" in item)
    assert first < last
    assert outcome.facts["disturbed"]
    assert not execute(resolve(tiny()), news.append).facts["disturbed"]
