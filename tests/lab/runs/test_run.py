"""run and sweep: what is finished is not run again, everything is checked before anything starts, and whatever ends a
run, what it had completed is kept."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path

import handmade
import pytest
from ownpolicies import AtMost, Silent
from sabotage import Acts, died
from tiny import Raises, tiny

import pslab.engines.local.engine
import pslab.lab.runs.run
from pslab.config.run import Run
from pslab.engines.processes import pool
from pslab.errors import (
    ConfigError,
    RecordError,
    RunError,
    RunsInterrupted,
    StartFailed,
    SweepFailed,
    Unwritable,
    in_a_sentence,
)
from pslab.errors import WorkerFailed as Failed
from pslab.lab.records.disk import Damaged
from pslab.lab.records.results import load
from pslab.lab.records.summary import applied
from pslab.lab.runs import interrupts, machine
from pslab.lab.runs.background import Background, current
from pslab.lab.runs.grid import grid
from pslab.lab.runs.progress import Progress
from pslab.lab.runs.run import InvalidRun, NobodyWaited, NotFoundAgain, NothingApplied, run, sweep
from pslab.policies.sync.asp import ASP


@pytest.fixture
def failing(monkeypatch):
    """Makes runs of seed 1 fail with an error."""
    real = pslab.engines.local.engine.execute

    def of(error):
        def execute(experiment, on_progress):
            if experiment.run.seed == 1:
                raise error
            return real(experiment, on_progress)

        monkeypatch.setattr(pslab.engines.local.engine, "execute", execute)

    return of


def recorded(results: Path) -> list[int]:
    """The seeds of all records."""
    return sorted(load(path).run.seed for path in (results / "runs").glob("[!.]*"))


def test_a_finished_run_is_never_run_twice_and_nothing_runs_if_one_of_them_cannot(tmp_path, capsys):
    with pytest.raises(ConfigError):
        sweep([tiny(), tiny(sync="bps")], results=tmp_path, progress=True)
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "")
    first = run(tiny(), results=tmp_path, progress=False)
    wanted = [tiny(), tiny(seed=1), tiny()]
    second, *others = sweep(wanted, results=tmp_path, progress=False)
    assert [result.cached for result in (first, second, *others)] == [False, True, False, True]
    assert second.accuracy.equals(first.accuracy)
    assert [result.digest for result in (second, *others)] == [each.digest for each in wanted]


class Careless(ASP):
    """A policy that claims a barrier and has none."""

    barrier = True


@pytest.mark.parametrize(("sync", "warned", "words"), [
    (AtMost(2, 0), NobodyWaited, "Iteration 0 starts without an event Asked"),  # it does not count the first one
    (AtMost(2, 3), None, ""), (Silent(), InvalidRun, "every worker waited, .*let the policy answer more pushes"),
    (Careless(), InvalidRun, "judged INVALID.*the policy claims a barrier"),
], ids=["nobody waits", "some wait", "stalls", "breaks its barrier"])  # fmt: skip
def test_a_policy_of_ones_own_that_holds_nobody_back_or_is_invalid_warns_each_time(
    tmp_path, sync, warned, words, recwarn
):
    wanted = tiny(sync=sync, engine="virtual", workers=3, pull="changed", cluster={"compute_s": 0.01, "slow": {0: 3.0}})
    for cached in (False, True):
        result = run(wanted, results=tmp_path, progress=False)
        assert (result.cached, result.manifest["verdict"]) == (cached, "invalid" if warned is InvalidRun else "valid")
    said = [str(each.message) for each in recwarn if each.category is (warned or NobodyWaited)]
    assert [bool(re.search(words, each)) for each in said] == [True, True] * bool(warned)


def test_what_was_not_emulated_in_time_is_run_again_where_it_is_asked_for(tmp_path, failing, monkeypatch):
    kept = [handmade.curve(tmp_path, tiny(seed=seed), [0.1, 0.9], emulation_ok=seed == 0) for seed in (0, 1)]
    runs, old = [result.run for result in kept], kept[1]
    assert [result.cached for result in sweep(runs, results=tmp_path, progress=False)] == [True, True]
    failing(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run(runs[1], results=tmp_path, progress=False, again=True)
    assert load(old.path).accuracy.accuracy.tolist() == [0.1, 0.9]  # an interrupted second attempt keeps the first
    monkeypatch.undo()
    other, new = sweep(runs, results=tmp_path, progress=False, again=True)
    assert (other.cached, new.cached, new.manifest["emulation_ok"]) == (True, False, True)
    (aside,) = (tmp_path / "replaced").iterdir()
    assert aside.name.startswith(f"{old.digest}-")
    assert load(aside).accuracy.accuracy.tolist() == [0.1, 0.9]  # whole
    with pytest.raises(RecordError, match="was changed since"):  # who held the old one reads no mixture
        _ = old.accuracy
    assert sweep(runs, results=tmp_path, progress=False, again=True)[1].cached


def test_what_a_result_makes_unwanted_is_not_begun_and_what_was_recorded_is_told_first(tmp_path):
    runs, told = [tiny(pushes=4, seed=seed) for seed in range(4)], []
    run(runs[3], results=tmp_path, progress=False)

    def ended(result):
        told.append((result.run.seed, result.cached))
        return [runs[1].digest] if result.run.seed == 3 else [runs[2].digest, runs[3].digest]

    found = sweep(runs, results=tmp_path, progress=False, ended=ended)
    assert told == [(3, True), (0, False)]
    assert [result.run.seed for result in found] == recorded(tmp_path) == [0, 3]  # what is recorded is there


@pytest.mark.parametrize("error", [Failed("worker 1", 3, "Traceback\nValueError: mine"), MemoryError("of 9 GB"),
                                   ConfigError("data", "folder:x", "gone"), ZeroDivisionError()],
                         ids=["raised", "memory", "refused", "policy"])  # fmt: skip
def test_a_run_that_fails_for_its_own_reason_does_not_stop_the_others(tmp_path, failing, error, capsys):
    failing(error)
    runs = grid(tiny(pushes=8), sync=["bsp", "ssp:1"], seed=[0, 1])
    with pytest.raises(SweepFailed, match="2 of 4 runs failed; the others are recorded") as failed:
        sweep(runs, results=tmp_path, progress=True)
    lines = [f"{{}}, seed 1 ({run.digest}): {in_a_sentence(error)}" for run in runs.run[[1, 3]]]
    wanted = [line.format(f"sync {sync}") for line, sync in zip(lines, ("bsp", "ssp:1"), strict=True)]
    assert [line.strip() for line in str(failed.value).splitlines()[1:]] == wanted
    assert all(each is error for each in failed.value.failures.values())
    assert failed.value.results[["sync", "seed"]].to_numpy().tolist() == [["bsp", 0], ["ssp:1", 0]]
    assert "[2/4] bsp none W=4 seed 1: failed: " in capsys.readouterr().err
    assert not list((tmp_path / "runs").glob(".*"))


@pytest.mark.parametrize("name", ["manifest.json", "pushes.csv", ""])
def test_a_damaged_record_is_set_aside_and_its_run_executed_again(tmp_path, name):
    place = run(tiny(), results=tmp_path, progress=False).path
    if name:  # as after a loss of power
        os.truncate(place / name, 99)
    else:
        shutil.rmtree(place)
        place.symlink_to("nowhere")
    with pytest.warns(Damaged, match=rf"{place}.* was moved to {tmp_path / 'damaged'}"):
        found = sweep([tiny(), tiny(seed=1)], results=tmp_path, progress=False)
    assert [each.cached for each in found] == [False, False]
    assert [path.name[:16] for path in (tmp_path / "damaged").iterdir()] == [tiny().digest]
    assert sweep([tiny()], results=tmp_path, progress=False)[0].cached


def test_a_record_that_cannot_be_opened_keeps_no_other_run_from_being_tried_and_a_full_disk_does(tmp_path, failing):
    place = run(tiny(), results=tmp_path, progress=False).path
    os.truncate(place / "manifest.json", 2**43)  # without a byte on disk
    with pytest.raises(SweepFailed, match=r"1 of 2 runs failed; the others are recorded:\n.* do not fit in the memory"):
        sweep([tiny(), tiny(seed=2)], results=tmp_path, progress=False)
    place.rename(tmp_path / "large")
    assert recorded(tmp_path) == [2]
    failing(Unwritable("there is no room"))
    with pytest.raises(Unwritable, match="no room"):
        sweep([tiny(pushes=8, seed=1), tiny(pushes=8)], results=tmp_path, progress=False)
    assert recorded(tmp_path) == [2]


def test_an_object_whose_content_is_unknown_is_run_again_and_says_so(tmp_path):
    sync = Remembers()
    for _ in range(2):
        with pytest.warns(NotFoundAgain, match="sync: a generator in it cannot be sent"):
            run(Run(engine="timing", cluster="lab", sync=sync, pushes=4), results=tmp_path, progress=False)
    with pytest.raises(ConfigError, match=r"sync=.*cannot be sent to a worker's process"):
        run(tiny(engine="virtual", cluster="lab", sync=sync), results=tmp_path, progress=False)
    first, second = (load(path).manifest["not_found_again"] for path in (tmp_path / "runs").iterdir())
    assert first == second != ""


class Remembers(ASP):
    """ASP with something in it that only this process knows."""

    def __init__(self) -> None:
        object.__setattr__(self, "chance", (each for each in range(3)))


SCRIPT = """
from pslab import Run, run
from pslab.policies.sync.asp import ASP
class Mine(ASP):
    pass
run(Run.of({"sync": Mine(), "data": "tiny:digits", "model": "tiny:net", "workers": 1, "batch_size": 16, "pushes": 8}))
"""


@pytest.mark.slow
def test_a_script_needs_no_guard_around_its_main(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    paths = os.pathsep.join(str(Path(__file__).parents[2] / folder) for folder in ("support", ".."))
    subprocess.run([sys.executable, "script.py"], env={**os.environ, "PYTHONPATH": paths}, cwd=tmp_path, check=True,
                   timeout=120)  # fmt: skip
    (made,) = (load(path) for path in (tmp_path / "results" / "runs").iterdir())
    assert (made.run.pushes, made.manifest["pushes"]) == (8, 8)


@pytest.mark.parametrize(("sync", "least"), [("bsp", 4), ("diloco:8", 32), ("local:3", 12)])
def test_a_run_that_ends_before_its_first_step_says_so_with_the_least_budget(tmp_path: Path, sync: str, least: int):
    wanted = tiny(engine="virtual", sync=sync, cluster={"compute_s": 0.01}, pushes=least // 2, learning_rate=0.01)
    with pytest.warns(NothingApplied, match=f"(?s)no step of the run with sync='{sync}', prune='none', 4 workers "
                      f"and seed 0 .*equally fast workers need {least} for a step$"):  # fmt: skip
        result = run(wanted, results=tmp_path, progress=False)
    assert (applied(result), result.remarks) == (0, ["no step was applied: the weights are the initial weights"])
    assert run(wanted.but(pushes=least), results=tmp_path, progress=False).manifest["pushes"] == least


# -- whatever ends it --------------------------------------------------------------------------------


class RaisesInEvaluation(Raises):
    def forward(self, x):
        if not self.training and multiprocessing.parent_process() is not None:
            raise RuntimeError("the evaluation broke here")
        return self.net(x)


@pytest.mark.usefixtures("small_pool")
@pytest.mark.parametrize(("model", "engine", "words"), [
    (partial(Acts, died, 12), "local", "worker 1 is gone"),
    *(pytest.param(RaisesInEvaluation, engine, "the evaluation broke here", marks=pytest.mark.slow)
      for engine in ("local", "virtual")),
])  # fmt: skip
def test_what_was_completed_is_kept_where_a_process_dies_or_an_evaluation_raises(tmp_path, model, engine, words):
    with pytest.raises(RunError, match=words) as error:
        run(tiny(workers=2, model=model, engine=engine, cluster={"compute_s": 0.002}), results=tmp_path, progress=False)
    found = re.search(r"the run ended after (\d+) pushes; kept in (.*)$", str(error.value))
    result = load(found[2])
    assert result.manifest["pushes"] == len(result.pushes) == int(found[1]) > 10
    assert len(result.phases) > 0  # of a worker that could still report
    assert result.weights.shape == (1930,)
    assert (result.manifest["outcome"], result.manifest["verdict"]) == ("interrupted", "unknown")
    assert result.manifest["error"] in str(error.value)
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_record_that_does_not_fit_is_refused_before_a_process_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "acquire", None)
    monkeypatch.setattr(machine, "free_bytes", lambda place: (place, 0))
    with pytest.raises(RecordError, match=rf"needs at least \d+\.\d .B, but 0 bytes are free in {tmp_path}"):
        run(tiny(), results=tmp_path, progress=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("unheeded_s", "heeded", "passed"), [(0.0, False, 1), (60.0, False, 3), (0.0, True, 3)])
def test_a_later_interrupt_takes_effect_unless_the_first_one_is_heeded(monkeypatch, unheeded_s, heeded, passed):
    """A policy of a virtual run that loops for ever, in this process, never asks; a record that is written is whole."""
    monkeypatch.setattr(interrupts, "UNHEEDED_S", unheeded_s)
    stop, survived = threading.Event(), []

    def interrupt_thrice() -> None:
        if heeded:
            stop.set()
            with suppress(RunsInterrupted):
                interrupts.heed(stop)
        for number in range(3):
            signal.raise_signal(signal.SIGINT)
            survived.append(number)

    words = "every run that was finished is recorded" if passed == 3 else "interrupted at once"
    with pytest.raises(KeyboardInterrupt, match=words), interrupts.noted(stop):
        interrupt_thrice()
    assert (len(survived), stop.is_set()) == (passed, True)


# -- in a thread -------------------------------------------------------------------------------------

LIMIT_S = 60.0
LONG = {"pushes": 100_000, "cluster": {"compute_s": 0.005}, "evaluate": "beside"}


def test_runs_in_the_background_end_and_one_that_fails_is_said_beside_what_is_completed(tmp_path: Path, failing):
    failing(MemoryError("of 9 GB"))
    wanted = [tiny(sync="asp"), tiny()]
    background = Background([*wanted, tiny(seed=1)], tmp_path)
    assert current() is background
    assert background.wait(LIMIT_S)
    assert [result.digest for result in background.finished] == [each.digest for each in wanted]
    assert (background.alive, background.note, current()) == (False, "", None)
    assert background.error.startswith("1 of 3 runs failed; the others are recorded:")


def test_a_second_one_is_refused_and_a_stop_ends_the_run_in_order_and_keeps_it(tmp_path: Path, monkeypatch):
    pushed = threading.Event()  # the first round of the run's four workers is applied: pushes are counted before that
    monkeypatch.setattr(Progress, "update", lambda self, name, news: news.get("pushes", 0) < 4 or pushed.set())
    background = Background([tiny(**LONG), tiny(**LONG, seed=1)], tmp_path)
    try:
        with pytest.raises(StartFailed, match="executed in this notebook already"):
            Background([tiny()], tmp_path)
        assert pushed.wait(LIMIT_S)
        with pytest.raises(StartFailed, match="in the background"):
            run(tiny(seed=5), results=tmp_path, progress=False)
    finally:
        background.stop()
        assert background.wait(LIMIT_S)
    assert (background.finished, background.error) == ([], "")
    assert "kept in" in background.note
    (kept,) = (tmp_path / "interrupted").iterdir()
    assert (load(kept).run.seed, len(load(kept).accuracy) > 0) == (0, True)
    assert list((tmp_path / "runs").iterdir()) == []
    assert run(tiny(), results=tmp_path, progress=False).manifest["pushes"] == 40
