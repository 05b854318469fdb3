"""Virtual runs side by side, and hosts that die: nothing is left behind when one of them fails."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
from tiny import Diverges, Raises, finished, tiny
from whole import in_process

from pslab.config.available import cores
from pslab.engines.execute import fits
from pslab.engines.experiment.experiment import Interrupted, Outcome
from pslab.engines.processes import pool
from pslab.engines.virtual import engine as virtual
from pslab.engines.virtual import parallel_runs
from pslab.engines.virtual.engine import execute
from pslab.errors import SweepFailed, WorkerDied
from pslab.lab.records.record import Result, find
from pslab.lab.records.results import load
from pslab.lab.runs.progress import Progress
from pslab.lab.runs.resolve import resolve
from pslab.lab.runs.run import sweep
from pslab.tensors.workload.data import data_root, resolve_data

CLUSTER = {"preset": "lab", "slow": {1: 2.0}}
ENOUGH = 20  # pushes, of which rounds are complete


def mine(**fields: object):
    return tiny(**{"engine": "virtual", "cluster": CLUSTER, "pushes": 24, **fields})


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch):
    """An interrupt may take longer than people wait: other tests may be busy."""
    for module in (virtual, parallel_runs):
        monkeypatch.setattr(module, "INTERRUPT_LIMIT_S", 300.0)


def test_as_many_runs_as_cores_are_under_way_and_runs_on_two_datasets_do_not_mix():
    """Also runs without tensors, if they are long."""
    fewer = resolve_data("mnist:train=512,test=256", data_root())
    runs = [*(mine(data=data, model="mlp:8", pushes=8, seed=seed)
              for seed, data in enumerate((fewer, "mnist:train=640,test=128", fewer))),
            *(mine(engine="timing", pushes=1101, workers=3, sync=sync) for sync in ("asp", "ssp:1"))]  # fmt: skip
    assert [fits(resolve(run)) for run in (*runs[3:], runs[3].but(pushes=300))] == [True, True, False]
    began, together = [], dict[int, Outcome]()
    for place, news in parallel_runs.conduct(map(resolve, runs), lambda: None):
        began += [place] * (news == {})
        together |= {place: news} if isinstance(news, Outcome) else {}
        assert len(began) - len(together) <= cores()
    assert sorted(began) == sorted(together) == [0, 1, 2, 3, 4]
    for place, run in enumerate(runs):
        alone = in_process(run) if run.engine == "virtual" else finished(run)
        for table in ("accuracy", "arrivals", "phases"):
            assert getattr(together[place], table).tobytes() == getattr(alone, table).tobytes()
        assert together[place].facts["seconds"] == alone.facts["seconds"]


def test_an_unwanted_run_is_not_begun_or_ends_alone_and_its_process_serves_the_next():
    runs, began, ended = [mine(seed=seed, pushes=100_000) for seed in (0, 1)] + [mine(), mine(seed=1)], set(), {}
    unwanted = lambda place: place == 1 or (place in began and place < 3)  # noqa: E731
    for place, news in parallel_runs.conduct(map(resolve, runs), lambda: None, unwanted):
        began.add(place)
        if not isinstance(news, dict):
            ended[place] = news
    outcomes = {place: news.facts["outcome"] for place, news in ended.items() if isinstance(news, Outcome)}
    assert began == {0, 2, 3}
    assert outcomes.get(0, "interrupted") == "interrupted"  # or it was stopped before it had started
    assert outcomes[3] == "budget"
    assert not pool._kept.ended
    assert ended[3].weights.tobytes() == finished(runs[3]).weights.tobytes()


def kept_of(tmp_path: Path) -> dict[int, Result]:
    """What was set aside, by seed."""
    return {found.run.seed: found for found in map(load, (tmp_path / "interrupted").iterdir())}


def test_a_run_that_fails_is_named_with_what_it_completed_and_the_others_go_on(tmp_path: Path):
    runs = [mine(seed=0), mine(seed=1, model=Raises(6), sync="asp"), mine(seed=2, model=Diverges(4)), mine(seed=3)]
    with pytest.raises(SweepFailed) as error:
        sweep(runs, results=tmp_path, progress=False)
    (kept,) = kept_of(tmp_path).values()
    assert 0 < kept.manifest["pushes"] == len(kept.pushes) < 24
    assert (kept.run.seed, kept.manifest["outcome"], kept.manifest["verdict"]) == (1, "interrupted", "unknown")
    first, line = str(error.value).splitlines()
    assert first == "1 of 4 runs failed; the others are recorded:"
    assert f"seed 1 ({runs[1].digest}): " in line
    assert f"RuntimeError: the model broke here; the run ended after {len(kept.pushes)} pushes; kept in" in line
    results = {result.digest: result.manifest["outcome"] for result in error.value.results}
    assert results == {runs[0].digest: "budget", runs[2].digest: "diverged", runs[3].digest: "budget"}
    assert all(find(run, tmp_path) for run in (runs[0], runs[2], runs[3]))  # that a run diverges is a result


def test_a_stop_sets_aside_what_was_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    stop, runs, seen = threading.Event(), [mine(seed=seed, pushes=100_000) for seed in range(3)], set()

    def update(self, name, news):
        seen.update([name] * (news.get("pushes", 0) >= ENOUGH))
        if len(seen) == cores():
            stop.set()

    monkeypatch.setattr(Progress, "update", update)
    with pytest.raises(KeyboardInterrupt) as interrupt:
        sweep(runs, results=tmp_path, progress=False, stop=stop)
    kept = kept_of(tmp_path)
    assert len(kept) == len(seen) == cores()
    for result in kept.values():
        assert result.manifest["pushes"] == len(result.pushes) > 0
        assert (len(result.accuracy) > 0, result.weights.shape) == (True, (1930,))
        assert f"after {len(result.pushes)} pushes; kept in {result.path}" in str(interrupt.value)
    assert list((tmp_path / "runs").iterdir()) == []


def test_an_interrupt_keeps_completed_pushes_and_evaluates_the_last_weights():
    def interrupt(news: dict) -> None:
        if news.get("pushes", 0) >= ENOUGH:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as raised:
        execute(resolve(mine(pushes=100_000, eval_every=50)), interrupt)
    outcome = raised.value.outcome
    assert (outcome is not None, str(raised.value)) == (True, "interrupted")
    assert 0 < outcome.facts["pushes"] == outcome.accuracy[-1][0] < 100_000


def test_a_run_that_is_not_wanted_any_more_is_ended_and_leaves_no_record(tmp_path: Path):
    runs, told = [mine(pushes=8), mine(seed=1, pushes=100_000), mine(seed=2, pushes=100_000)], []

    def ended(result: Result) -> list[str]:
        told.append(result.digest)
        return [run.digest for run in runs[1:]]

    found = sweep(runs, results=tmp_path, progress=False, ended=ended)
    assert [result.run for result in found] == runs[:1]
    assert told == [runs[0].digest] == [path.name for path in (tmp_path / "runs").iterdir()]
    assert not (tmp_path / "interrupted").exists()


# --- hosts that die ---------------------------------------------------------------------------------------------------

RUN = mine(sync="asp", pushes=2000, eval_every=2000, lease_s=0.3)


def striking(by: signal.Signals):
    struck, news = [], []

    def on_progress(item):
        news.append(item)
        if item.get("pushes", 0) >= ENOUGH and not struck:
            struck.append(by)
            os.kill(pool._kept.processes[0].pid, by)

    return news, on_progress


@pytest.mark.usefixtures("small_pool")
@pytest.mark.parametrize(("by", "words"), [
    (signal.SIGKILL, r"host 0 of virtual workers is gone \(killed by SIGKILL\)"),
    pytest.param(signal.SIGSTOP, "host 0 .*silent for longer than its lease of 0.3 s while computing",
                 marks=pytest.mark.slow),
], ids=["killed", "stopped"])  # fmt: skip
def test_a_host_that_dies_ends_the_run_and_its_work_is_kept(by, words):
    with pytest.raises(WorkerDied, match=words) as error:
        execute(resolve(RUN), striking(by)[1], hosts=2)
    outcome = error.value.outcome
    assert 0 < outcome.facts["pushes"] == len(outcome.pushes) < 2000


@pytest.mark.slow
@pytest.mark.usefixtures("small_pool")
def test_a_run_that_may_continue_begins_again_and_leaves_the_same_bits():
    news, on_progress = striking(signal.SIGKILL)
    again = execute(resolve(RUN.but(on_death="continue")), on_progress, hosts=2)
    undisturbed = execute(resolve(RUN), lambda item: None, hosts=2)
    (item,) = [item for item in news if "repeated" in item]
    assert item["repeated"] == "host 0 of virtual workers is gone (killed by SIGKILL): once again"
    np.testing.assert_array_equal(again.weights, undisturbed.weights)
    np.testing.assert_array_equal(again.pushes, undisturbed.pushes)
