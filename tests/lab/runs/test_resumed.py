"""A run that was ended before its time goes on from its newest checkpoint, wherever it is asked for again."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cells import of_cell
from tiny import tiny
from whole import ended_after

from pslab.config.run import Run
from pslab.config.table import ROWS
from pslab.engines.experiment.checkpoint.store import CheckpointStore
from pslab.engines.processes.coordinator import Coordinator
from pslab.engines.virtual.engine import cores
from pslab.errors import RunsInterrupted
from pslab.lab.records.record import Result
from pslab.lab.runs.machine import checkpoints
from pslab.lab.runs.progress import Progress
from pslab.lab.runs.run import run, sweep

LAB = {"preset": "lab", "slow": {0: 2.0}}
FIELDS = {"engine": "virtual", "sync": "asp", "prune": "static:5%", "pull": "changed", "cluster": LAB, "pushes": 120,
          "checkpoint_every": 20}  # fmt: skip
RUN = tiny(**FIELDS)
KILLS, SEEDS = 20, 24  # of a sweep, and its runs
SUPPORT = Path(__file__).parents[2] / "support"
WHEN = ("preparation_s", "turning_s", "wall_s", "checkpoints", "checkpoints_s", "resumed", "sha256", "environment")


def interrupted(monkeypatch: pytest.MonkeyPatch, wanted: Run, results: Path, after: int = 2) -> None:
    """The run is ended once so many checkpoints have been made."""
    with ended_after(monkeypatch, after, KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        run(wanted, results=results, progress=False)


def same(one: Result, other: Result) -> None:
    """The same tables, weights and facts."""
    for name in ("accuracy", "phases", "pushes", "arrivals"):
        assert getattr(one, name).equals(getattr(other, name)), name
    assert np.array_equal(one.weights, other.weights)
    ours, theirs = ({k: v for k, v in each.manifest.items() if k not in WHEN} for each in (one, other))
    assert ours == theirs


@pytest.mark.parametrize("limit_s", [0.0, 60.0])
@pytest.mark.parametrize("wanted", [RUN.but(checkpoint_every=None), tiny(pushes=40)], ids=["virtual", "local"])
def test_a_run_that_was_interrupted_while_it_was_evaluated_goes_on_with_that(
    wanted: Run, limit_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    real, seen = Progress.update, list[list[int]]()

    def interrupt(self: Progress, name: str, news: Any) -> None:
        real(self, name, news)
        seen.append(news.get("evaluating", []))
        if seen[-1] and seen[-1][0] >= 2:
            raise KeyboardInterrupt

    engine = ROWS["engine"][wanted.engine].load()
    with monkeypatch.context() as interrupted:
        interrupted.setattr(Progress, "update", interrupt)
        if not limit_s:  # nothing more is evaluated before the prompt is back
            interrupted.setattr(Coordinator, "evaluate", only_once(Coordinator.evaluate))
        with pytest.raises(RunsInterrupted, match="asked for again, it goes on with its evaluation"):
            run(wanted, results=tmp_path, progress=False)
    monkeypatch.setattr(engine, "execute", lambda *_: pytest.fail("it began anew"))
    result = run(wanted, results=tmp_path, progress=False)
    assert [each["pushes"] for each in result.manifest["resumed"]] == [wanted.pushes]
    assert len(result.accuracy) == seen[-1][1]
    assert not (tmp_path / "checkpoints" / wanted.digest).exists()
    if wanted.engine == "virtual":
        monkeypatch.undo()
        same(result, run(wanted, results=tmp_path / "other", progress=False))


def only_once(evaluate: Any) -> Any:
    """The first call does what it does, the others nothing."""
    calls = [evaluate]
    return lambda *given, **named: calls.pop()(*given, **named) if calls else None


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return run(RUN.but(checkpoint_every=None), results=tmp_path_factory.mktemp("undisturbed"), progress=False)


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of a run that was ended after its second checkpoint."""
    place = tmp_path_factory.mktemp("left")
    with pytest.MonkeyPatch.context() as monkeypatch:
        interrupted(monkeypatch, RUN, place)
    return place


@pytest.fixture
def results(left: Path, tmp_path: Path) -> Path:
    """The same, for a test to change."""
    return Path(shutil.copytree(left, tmp_path / "results"))


CELL = """
from pslab.protocol.messages import Apply, Asked, Pushed, Start

class Seen:
    def __init__(self, pushes):
        self.pushes = pushes

def seen(state):
    return Seen(state.pushes + 1)

class Counting:
    window = None

    def initial(self, workers):
        return Seen(0)

    def step(self, state, event, clocks):
        match event:
            case Asked(worker, iteration):
                return state, (Start(worker, iteration),)
            case Pushed(worker, iteration):
                return seen(state), (Apply(worker, iteration),)
        return state, ()

factory = Counting
"""


def test_a_state_of_a_class_that_a_notebooks_cell_defines_is_checkpointed_here_and_in_other_processes(
    tmp_path, monkeypatch, undisturbed
):
    wanted = RUN.but(sync=of_cell(CELL)())
    interrupted(monkeypatch, wanted, tmp_path)
    found = run(wanted, results=tmp_path, progress=False)
    assert [each["pushes"] for each in found.manifest["resumed"]] == [40]
    assert np.array_equal(found.weights, undisturbed.weights)
    for each in sweep([wanted.but(seed=seed) for seed in (1, 2)], results=tmp_path, progress=False):
        assert each.manifest["checkpoints"] >= 3, each.manifest


def test_a_run_goes_on_from_its_newest_checkpoint_and_leaves_none(results, undisturbed, capsys):
    assert sorted(path.name for path in folder(results).iterdir()) == ["000001.checkpoint", "000002.checkpoint"]
    found = run(RUN.but(checkpoint_every=None), results=results, progress=True)
    same(found, undisturbed)
    assert [each["pushes"] for each in found.manifest["resumed"]] == [40]
    assert "goes on after 40 pushes, from the checkpoint of 20" in capsys.readouterr().err
    assert not folder(results).exists()
    assert found.manifest["verdict"] == "valid"


def test_a_fresh_run_begins_at_the_beginning(results, undisturbed):
    found = run(RUN, results=results, progress=False, fresh=True)
    same(found, undisturbed)
    assert "resumed" not in found.manifest


def folder(results: Path) -> Path:
    return results / "checkpoints" / RUN.digest


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(("damaged", "pushes"), [([2], [20]), ([1, 2], []), ([1], [40])], ids=str)
def test_a_damaged_checkpoint_is_passed_over_with_a_sentence(
    results, undisturbed, capsys, damaged, pushes
):
    for number in damaged:
        damage(folder(results) / f"{number:06d}.checkpoint")
    found = run(RUN, results=results, progress=True)
    same(found, undisturbed)
    assert [each["pushes"] for each in found.manifest.get("resumed", [])] == pushes
    assert (capsys.readouterr().err.count("was passed over: it is incomplete or was changed")) == (2 in damaged) + (
        damaged == [1, 2])


@pytest.mark.parametrize("name", ["digest", "torch", "numpy", "capability", "source", "python"])
def test_a_checkpoint_of_another_machine_or_version_is_passed_over(left, name):
    place = checkpoints(RUN, left)
    other = CheckpointStore(place.folder, {**place.facts, name: "another"})
    said: list[str] = []
    assert list(other.newest(said.append)) == []
    assert len(said) == 2
    assert f"{name} 'another'" in said[0]
    assert [facts["pushes"] for facts, _ in place.newest(said.append)] == [40, 20]


def test_a_full_disk_ends_checkpoints_and_not_the_run(tmp_path, monkeypatch, undisturbed, capsys):
    def full(self: Any, pieces: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CheckpointStore, "write", full)
    found = run(RUN, results=tmp_path, progress=True)
    same(found, undisturbed)
    assert capsys.readouterr().err.count("no more checkpoints: they cannot be written") == 1


class Counting:
    """A policy of the user's whose state is of a kind that nobody knows."""

    window = None

    def initial(self, workers: tuple[int, ...]) -> Any:
        return lambda: workers

    def step(self, state: Any, event: Any, clocks: Any) -> Any:
        from pslab.policies.sync.asp import ASP

        _, decisions = ASP().step(None, event, clocks)
        return state, decisions


def test_a_policy_whose_state_cannot_be_saved_runs_without_checkpoints_and_says_so(tmp_path, capsys):
    found = run(RUN.but(sync=Counting()), results=tmp_path, progress=True)
    assert found.manifest["pushes"] == 120
    said = capsys.readouterr().err
    assert said.count("this run cannot be checkpointed") == 1
    assert "state is a builtins:function, whose state pslab does not know" in said


class Alternating:
    """A rate of the user's that is not what it was."""

    calls = 0

    def scale(self, applied: Any) -> float:
        self.calls += 1
        return 0.25 + 0.1 * (self.calls % 2)


class Largest:
    """A rule of the user's that counts."""

    residual, calls = True, 0

    def select(self, v: Any) -> Any:
        self.calls += 1
        return v.abs().argmax().view(1)


@pytest.mark.parametrize(("field", "value"), [("rate", Alternating), ("prune", Largest)], ids=["rate", "prune"])
def test_a_policy_that_keeps_state_in_its_attributes_is_not_checkpointed(tmp_path, capsys, field, value):
    found = run(RUN.but(**{field: value()}, pull="whole"), results=tmp_path, progress=True)
    assert "checkpoints" not in found.manifest
    said = capsys.readouterr().err
    assert f"its {field}, a {value.__name__}, keeps state of its own in its attributes" in said


def test_runs_side_by_side_go_on_from_their_checkpoints(results, undisturbed):
    other = RUN.but(seed=1)
    first, second = sweep([RUN, other], results=results, progress=False)
    same(first, undisturbed)
    assert "resumed" not in second.manifest
    assert not list((results / "checkpoints").iterdir())


def in_process(results: Path, where: str, count: int, *runs: dict[str, Any]) -> bool:
    """Whether a process killed itself there (see killed.py), and did not come to its end."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), str(SUPPORT.parents[1])])}
    command = [sys.executable, str(SUPPORT / "killed.py"), str(results), where, str(count), *map(json.dumps, runs)]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=300, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
    return done.returncode != 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "count", "pushes"),
    [("pslab.engines.experiment.checkpoint.store:CheckpointStore.write", 3, 40), ("os:fsync", 3, 20),
     ("pathlib:Path.unlink", 1, 60),
     ("pslab.engines.virtual.simulator:Simulator.facts", 1, 100)],
    ids=["before a write", "in a write", "after a write", "at the end"],
)  # fmt: skip
def test_a_run_whose_process_is_killed_leaves_the_bits_of_an_undisturbed_one(
    tmp_path, undisturbed, where, count, pushes
):
    assert in_process(tmp_path, where, count, FIELDS)
    found = run(RUN, results=tmp_path, progress=False)
    same(found, undisturbed)
    assert [each["pushes"] for each in found.manifest["resumed"]] == [pushes]
    assert not folder(tmp_path).exists()


@pytest.mark.slow
def test_a_sweep_that_is_killed_at_random_moments_has_the_table_of_an_undisturbed_one(tmp_path):
    runs = [{**FIELDS, "pushes": 1500, "checkpoint_every": 100, "seed": seed} for seed in range(SEEDS)]
    wanted = sweep([tiny(**fields) for fields in runs], results=tmp_path / "undisturbed", progress=False)
    chance, place, done = random.Random(0), tmp_path / "killed", dict[str, int]()
    for kill in range(KILLS):
        assert in_process(place, "-", chance.randrange(50, 600), *runs), f"it was over after {kill} kills"
        records = {path.name: path.stat().st_mtime_ns for path in (place / "runs").glob("[!.]*")}
        assert records.items() >= done.items()  # none was lost, and none done again
        assert len(list((place / "checkpoints").glob("*"))) <= cores()  # the others are whole, or have not begun
        done = records
    found = sweep([tiny(**fields) for fields in runs], results=place, progress=False)
    for one, other in zip(found, wanted, strict=True):
        same(one, other)
    assert len(list((place / "runs").glob("[!.]*"))) == len(runs)
    assert not list((place / "checkpoints").iterdir())
