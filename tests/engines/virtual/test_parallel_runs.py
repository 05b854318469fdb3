"""Virtual runs side by side: the bits of a run that is alone, and nothing left behind when one of them fails."""

from __future__ import annotations

import errno
import os
import signal
import tempfile
import threading
from pathlib import Path

import pytest
from tiny import Diverges, Raises, finished, tiny
from virtual_cases import DOWNLINK
from whole import in_process

from pslab.engines import execute
from pslab.engines.experiment.experiment import TABLES, Outcome
from pslab.engines.processes import pool
from pslab.engines.virtual import engine as virtual
from pslab.engines.virtual import parallel_runs
from pslab.errors import SweepFailed, Unwritable
from pslab.lab.records import disk
from pslab.lab.records.record import Result, find
from pslab.lab.records.results import load
from pslab.lab.runs.progress import Progress
from pslab.lab.runs.resolve import resolve
from pslab.lab.runs.run import sweep
from pslab.tensors.workload.data import data_root, resolve_data

CLUSTER = {"preset": "lab", "slow": {1: 2.0}}
KINDS = [{"sync": "asp", "optimizer": "adam", "workers": 3}, {"sync": "bsp", "prune": "static:10%", "pull": "changed"},
         {"sync": "eager", "prune": "static:10%", "pull": "changed"},
         *DOWNLINK, {"sync": "ssp:3", "target_accuracy": 0.3, "eval_every": 8, "pushes": 400}]  # fmt: skip


def mine(**fields: object):
    return tiny(**{"engine": "virtual", "cluster": CLUSTER, "pushes": 24, **fields})


def conduct(runs: list, heed=lambda: None) -> dict[int, Outcome]:
    found = {}
    for place, news in parallel_runs.conduct([resolve(run) for run in runs], heed):
        if isinstance(news, Outcome):
            found[place] = news
    return found


def test_runs_side_by_side_leave_the_bits_of_runs_alone():
    runs = [mine(**kind) for kind in KINDS]
    together = conduct(runs)
    assert sorted(together) == list(range(len(runs)))
    for place, run in enumerate(runs):
        alone = finished(run)
        for name in TABLES:
            one, other = getattr(together[place], name), getattr(alone, name)
            assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes()), (run, name)
        ours, theirs = together[place].facts, alone.facts
        timings = {"preparation_s", "turning_s", "wall_s"}
        assert {k: v for k, v in ours.items() if k not in timings} == {k: theirs[k] for k in ours.keys() - timings}
        assert ours.keys() == theirs.keys()
    assert [together[place].facts["outcome"] for place in sorted(together)] == ["budget"] * (len(runs) - 1) + ["target"]


def test_runs_on_two_datasets_do_not_mix():
    fewer = resolve_data("mnist:train=512,test=256", data_root())
    model = {"model": "mlp:8", "pushes": 8}
    runs = [mine(data=data, **model, seed=seed)
            for seed, data in enumerate((fewer, "mnist:train=640,test=128", fewer))]  # fmt: skip
    together = conduct(runs)
    for place, run in enumerate(runs):
        assert together[place].accuracy.tobytes() == in_process(run).accuracy.tobytes()


def test_as_many_runs_as_cores_are_under_way_and_each_reports_its_start():
    began, ended, progress = [], [], []
    for place, news in parallel_runs.conduct([resolve(mine(seed=seed)) for seed in range(5)], lambda: None):
        (ended if isinstance(news, Outcome) else progress if news else began).append(place)
        assert len(began) - len(ended) <= virtual.cores()
    assert sorted(began) == sorted(ended) == [0, 1, 2, 3, 4]


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


def test_local_timing_and_large_runs_do_not_run_side_by_side(monkeypatch: pytest.MonkeyPatch):
    assert execute.fits(resolve(mine()))
    assert not execute.fits(resolve(tiny()))
    assert not execute.fits(resolve(mine(engine="timing")))
    monkeypatch.setattr(execute, "LARGEST", 100)
    assert not execute.fits(resolve(mine()))


def kept_of(tmp_path: Path) -> dict[int, Result]:
    """What was set aside, by seed."""
    return {found.run.seed: found for found in map(load, (tmp_path / "interrupted").iterdir())}


def test_a_run_that_fails_is_named_with_what_it_completed_and_the_others_go_on(tmp_path: Path):
    runs = [mine(seed=0), mine(seed=1, model=Raises(6), sync="asp"), mine(seed=2, model=Diverges(4)), mine(seed=3)]
    with pytest.raises(SweepFailed) as error:
        sweep(runs, results=tmp_path, progress=False)
    first, *lines = str(error.value).splitlines()
    assert first == "1 of 4 runs failed; the others are recorded:"
    (kept,) = kept_of(tmp_path).values()
    assert kept.run.seed == 1
    assert 0 < kept.manifest["pushes"] == len(kept.pushes) < 24
    assert (kept.manifest["outcome"], kept.manifest["verdict"]) == ("interrupted", "unknown")
    (line,) = lines
    assert f"seed 1 ({runs[1].digest}): " in line
    assert "raised in iteration" in line
    assert f"RuntimeError: the model broke here; the run ended after {len(kept.pushes)} pushes; kept in" in line
    assert [result.digest for result in error.value.results] == [runs[index].digest for index in (0, 2, 3)]
    outcomes = [result.manifest["outcome"] for result in error.value.results]
    assert outcomes == ["budget", "diverged", "budget"]  # that a run diverges is a result
    assert all(find(run, tmp_path) for run in (runs[0], runs[2], runs[3]))


@pytest.mark.slow
@pytest.mark.usefixtures("small_pool")
def test_a_run_whose_process_dies_is_run_again_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    runs, struck = [mine(seed=seed, pushes=3000, eval_every=3000) for seed in range(3)], []

    def update(self, name, news):
        if not struck:
            struck.append(name)
            os.kill(pool._kept.processes[virtual.cores() - 1].pid, signal.SIGKILL)

    monkeypatch.setattr(Progress, "update", update)
    found = sweep(runs, results=tmp_path, progress=False)
    assert struck
    for result in found:
        assert result.weights.tobytes() == finished(result.run).weights.tobytes()


def test_a_stop_sets_aside_what_was_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    stop, runs, seen = threading.Event(), [mine(seed=seed, pushes=100_000) for seed in range(3)], set()

    def update(self, name, news):
        seen.add(name)
        if len(seen) == virtual.cores():
            stop.set()

    monkeypatch.setattr(Progress, "update", update)
    with pytest.raises(KeyboardInterrupt) as interrupt:
        sweep(runs, results=tmp_path, progress=False, stop=stop)
    kept = kept_of(tmp_path)
    assert len(kept) == len(seen) == virtual.cores()
    for result in kept.values():
        assert result.manifest["pushes"] == len(result.pushes) > 0
        assert len(result.accuracy) > 0
        assert result.weights.shape == (1930,)
        assert f"after {len(result.pushes)} pushes; kept in {result.path}" in str(interrupt.value)
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.slow
def test_a_full_disk_ends_all_of_them_and_sets_aside_what_was_under_way(tmp_path: Path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "elsewhere"))
    runs = [mine(seed=0, pushes=8), *(mine(seed=seed, pushes=100_000) for seed in range(1, virtual.cores() + 1))]
    monkeypatch.setattr(disk, "publish", full(disk.publish, tmp_path / "results"))
    with pytest.raises(Unwritable, match="No space left on device") as error:
        sweep(runs, results=tmp_path / "results", progress=False)
    there = [load(path) for path in (tmp_path / "elsewhere").glob("pslab-*/interrupted/*")]
    assert 2 <= len(there) <= virtual.cores() + 1  # the one that was finished, and those after it
    for result in there:
        assert str(result.path) in str(error.value)
        assert result.manifest["pushes"] == len(result.pushes) > 0


def full(publish, place: Path):
    """As if there were no room in one place."""

    def publish_elsewhere(draft: Path, target: Path, aside: Path | None = None) -> bool:
        if target.is_relative_to(place):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        return publish(draft, target, aside)

    return publish_elsewhere


def test_a_sweep_keeps_its_order_and_its_records_are_those_of_single_runs(tmp_path: Path):
    runs = [mine(sync=sync) for sync in ("asp", "bsp")]
    together = sweep(runs, results=tmp_path / "together", progress=False)
    assert [r.digest for r in together] == [run.digest for run in runs]
    assert not any(r.cached for r in together)
    for one in together:
        alone = sweep([one.run], results=tmp_path / "alone", progress=False)[0]
        assert one.manifest["weights_sha256"] == alone.manifest["weights_sha256"]
        assert one.manifest["verdict"] == alone.manifest["verdict"] == "valid"
        for name in ("accuracy", "phases", "pushes"):
            assert (one.path / f"{name}.csv").read_bytes() == (alone.path / f"{name}.csv").read_bytes()


def test_a_stop_ends_all_of_them_and_leaves_no_draft(tmp_path: Path):
    stop = threading.Event()
    stop.set()
    with pytest.raises(KeyboardInterrupt):
        sweep([mine(seed=seed) for seed in range(4)], results=tmp_path, progress=False, stop=stop)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_stop_in_the_middle_keeps_completed_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    stop, runs = threading.Event(), [mine(seed=seed) for seed in range(6)]
    real = parallel_runs.conduct

    def stopping(*arguments):
        for place, news in real(*arguments):
            yield place, news
            if isinstance(news, Outcome):
                stop.set()  # after the first that ended

    monkeypatch.setattr(parallel_runs, "conduct", stopping)
    with pytest.raises(KeyboardInterrupt):
        sweep(runs, results=tmp_path, progress=False, stop=stop)
    left = [path.name for path in (tmp_path / "runs").iterdir()]
    assert 1 <= len(left) < 6
    assert not [name for name in left if name.startswith(".")]


# -- runs that are not wanted any more -------------------------------------------------------------


def test_a_run_that_is_not_wanted_any_more_is_ended_and_leaves_no_record(tmp_path: Path):
    runs, told = [mine(pushes=8), mine(seed=1, pushes=100_000), mine(seed=2, pushes=100_000)], []

    def ended(result: Result) -> list[str]:
        told.append(result.digest)
        return [run.digest for run in runs[1:]]

    found = sweep(runs, results=tmp_path, progress=False, ended=ended)
    assert [result.run for result in found] == runs[:1]
    assert told == [runs[0].digest] == [path.name for path in (tmp_path / "runs").iterdir()]
    assert not (tmp_path / "interrupted").exists()


def test_an_error_of_the_function_that_is_told_ends_the_others_in_order(tmp_path: Path):
    runs = [mine(pushes=8), mine(seed=1, pushes=100_000)]

    def ended(result: Result) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        sweep(runs, results=tmp_path, progress=False, ended=ended)
    assert find(runs[0], tmp_path)
    assert not find(runs[1], tmp_path)
    assert list(kept_of(tmp_path)) in ([], [1])  # as far as it had come
