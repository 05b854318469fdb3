"""A run that was ended before its time goes on from its newest checkpoint, wherever it is asked for again."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cells import of_cell
from resumed import interrupted, pushes_resumed, quiet, same
from tiny import net, tiny
from torch import nn

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
from pslab.policies.sync.asp import ASP

LAB = {"preset": "lab", "slow": {0: 2.0}}
FIELDS = {"engine": "virtual", "sync": "asp", "prune": "static:5%", "pull": "changed", "cluster": LAB, "pushes": 120,
          "checkpoint_every": 20}  # fmt: skip
RUN = tiny(**FIELDS)
LOCAL: dict[str, Any] = {"sync": "bsp", "prune": "static:5%", "pull": "changed", "on_death": "restart", "workers": 2,
                         "pushes": 160, "checkpoint_every": 20}  # fmt: skip
WRITE = "pslab.engines.experiment.checkpoint.store:CheckpointStore.write"
KILLS, SEEDS = 20, 24  # of a sweep, and its runs
SUPPORT = Path(__file__).parents[2] / "support"


def folder(results: Path) -> Path:
    return results / "checkpoints" / RUN.digest


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return quiet(RUN.but(checkpoint_every=None), tmp_path_factory.mktemp("undisturbed"))


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of a run that was ended after its second checkpoint."""
    place = tmp_path_factory.mktemp("left")
    interrupted(RUN, place)
    return place


@pytest.fixture
def results(left: Path, tmp_path: Path) -> Path:
    """The same, for a test to change."""
    return Path(shutil.copytree(left, tmp_path / "results"))


# -- where it goes on --------------------------------------------------------------------------------


def damaged(*numbers: int) -> Callable[[Path], None]:
    """One byte of these checkpoints is another one."""

    def change(results: Path) -> None:
        for number in numbers:
            path = folder(results) / f"{number:06d}.checkpoint"
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            path.write_bytes(content)

    return change


PASSED_OVER = "was passed over: it is incomplete or was changed"


@pytest.mark.parametrize(("change", "named", "pushes", "words", "times"), [
    (damaged(), {}, [40], "goes on after 40 pushes, from the checkpoint of 20", 1),
    (damaged(), {"fresh": True}, [], "goes on", 0),
    (damaged(2), {}, [20], PASSED_OVER, 1), (damaged(1, 2), {}, [], PASSED_OVER, 2),
    (damaged(1), {}, [40], PASSED_OVER, 0),
], ids=["newest", "fresh", "second damaged", "both damaged", "first damaged"])  # fmt: skip
def test_a_run_goes_on_from_its_newest_whole_checkpoint_and_leaves_none(
    results: Path, undisturbed: Result, capsys, change, named: dict, pushes: list[int], words: str, times: int
):
    assert sorted(path.name for path in folder(results).iterdir()) == ["000001.checkpoint", "000002.checkpoint"]
    change(results)
    found = run(RUN.but(checkpoint_every=None), results=results, progress=True, **named)
    same(found, undisturbed)
    assert pushes_resumed(found) == pushes
    assert capsys.readouterr().err.count(words) == times
    assert not folder(results).exists()
    assert found.manifest["verdict"] == "valid"


def test_runs_side_by_side_go_on_from_their_checkpoints(results: Path, undisturbed: Result):
    first, second = sweep([RUN, RUN.but(seed=1)], results=results, progress=False)
    same(first, undisturbed)
    assert (pushes_resumed(first), pushes_resumed(second)) == ([40], [])
    assert not list((results / "checkpoints").iterdir())


@pytest.mark.parametrize(("wanted", "limit_s"), [
    (RUN.but(checkpoint_every=None), 60.0), (tiny(pushes=40), 0.0),
    pytest.param(RUN.but(checkpoint_every=None), 0.0, marks=pytest.mark.slow),
    pytest.param(tiny(pushes=40), 60.0, marks=pytest.mark.slow),
], ids=["virtual", "local at once", "virtual at once", "local"])  # fmt: skip
def test_a_run_that_was_interrupted_while_it_was_evaluated_goes_on_with_that(
    wanted: Run, limit_s: float, undisturbed: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    real, seen = Progress.update, list[list[int]]()

    def interrupt(self: Progress, name: str, news: Any) -> None:
        real(self, name, news)
        seen.append(news.get("evaluating", []))
        if seen[-1] and seen[-1][0] >= 2:
            raise KeyboardInterrupt

    evaluate = [Coordinator.evaluate]  # its first call does what it does, the others nothing
    with monkeypatch.context() as patch:
        patch.setattr(Progress, "update", interrupt)
        if not limit_s:  # nothing more is evaluated before the prompt is back
            patch.setattr(Coordinator, "evaluate", lambda *a, **k: evaluate.pop()(*a, **k) if evaluate else None)
        with pytest.raises(RunsInterrupted, match="asked for again, it goes on with its evaluation"):
            quiet(wanted, tmp_path)
    monkeypatch.setattr(ROWS["engine"][wanted.engine].load(), "execute", lambda *_: pytest.fail("it began anew"))
    result = quiet(wanted, tmp_path)
    assert pushes_resumed(result) == [wanted.pushes]
    assert len(result.accuracy) == seen[-1][1]
    assert not (tmp_path / "checkpoints" / wanted.digest).exists()
    if wanted.engine == "virtual":
        same(result, undisturbed)


class Dawdling(nn.Module):
    """A model whose evaluation takes longer than an interrupt waits for, until there is a file."""

    def __init__(self, over: Path) -> None:
        super().__init__()
        self.net, self.over = net(), over

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.0 if self.training or self.over.exists() else 0.1)
        return self.net(x)


def test_runs_side_by_side_that_were_interrupted_while_they_were_evaluated_go_on_with_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    fields = {"model": partial(Dawdling, tmp_path / "over"), "checkpoint_every": None, "pushes": 40, "eval_every": 2}
    wanted = [RUN.but(seed=seed, **fields) for seed in (1, 2)]
    update, sent = Progress.update, []

    def interrupt(self: Progress, name: str, news: Any) -> None:
        update(self, name, news)
        if news.get("evaluating", [0])[0] >= 1 and not sent:
            sent.append(signal.raise_signal(signal.SIGINT))

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "update", interrupt)
        with pytest.raises(RunsInterrupted, match="asked for again, it goes on with its evaluation"):
            sweep(wanted, results=tmp_path, progress=False)
    (tmp_path / "over").touch()
    found = sweep(wanted, results=tmp_path, progress=False)
    assert [wanted[0].pushes] in [pushes_resumed(each) for each in found]
    same(found[0], run(wanted[0], results=tmp_path / "undisturbed", progress=False))


def test_a_checkpoint_of_another_machine_or_version_is_passed_over(left: Path):
    place = checkpoints(RUN, left)
    for name in ("digest", "torch", "numpy", "capability", "source", "python"):
        other = CheckpointStore(place.folder, {**place.facts, name: "another"})
        reported: list[str] = []
        assert list(other.newest(reported.append)) == []
        assert len(reported) == 2
        assert f"{name} 'another'" in reported[0]
        assert [facts["pushes"] for facts, _ in place.newest(reported.append)] == [40, 20]


@pytest.mark.parametrize("fields", [
    {}, {"servers": 3}, {"downlink": "int8", "pull": "whole"},
    *(pytest.param({"sync": sync, "servers": servers, "cluster": {"compute_s": 0.01}, "pushes": 400},
                   marks=pytest.mark.slow) for sync in ("asp", "ssp:3", "eager", "dssp:1,2") for servers in (1, 2)),
], ids=str)  # fmt: skip
def test_a_resumed_run_on_real_processes_is_valid_and_under_a_barrier_has_the_bits_of_an_undisturbed_one(
    tmp_path: Path, fields: dict[str, Any]
):
    wanted = tiny(**{**LOCAL, **fields})
    interrupted(wanted, tmp_path)
    found = quiet(wanted, tmp_path)
    assert [pushes >= 40 for pushes in pushes_resumed(found)] == [True]
    assert found.manifest["pushes"] >= wanted.pushes
    assert found.manifest["verdict"] == "valid", found.manifest["violations"]
    assert found.pushes.seconds.is_monotonic_increasing
    assert not (tmp_path / "checkpoints" / wanted.digest).exists()
    if wanted.sync == "bsp":
        same(found, quiet(wanted, tmp_path / "undisturbed"))


# -- states of the user's ----------------------------------------------------------------------------

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
    tmp_path: Path, undisturbed: Result
):
    wanted = RUN.but(sync=of_cell(CELL)())
    interrupted(wanted, tmp_path)
    found = quiet(wanted, tmp_path)
    assert pushes_resumed(found) == [40]
    assert np.array_equal(found.weights, undisturbed.weights)
    for each in sweep([wanted.but(seed=seed) for seed in (1, 2)], results=tmp_path, progress=False):
        assert each.manifest["checkpoints"] >= 3, each.manifest


class Unknown:
    """A policy whose state is of a kind that nobody knows."""

    window = None

    def initial(self, workers: tuple[int, ...]) -> Any:
        return lambda: workers

    def step(self, state: Any, event: Any, clocks: Any) -> Any:
        return state, ASP().step(None, event, clocks)[1]


class Alternating:
    """A rate that is not what it was, and a rule that counts."""

    weighted = residual = True
    calls = 0

    def scale(self, applied: Any) -> float:
        self.calls += 1
        return 0.25 + 0.1 * (self.calls % 2)

    def select(self, v: Any) -> Any:
        self.calls += 1
        return v.abs().argmax().view(1)


OWN_STATE = "a Alternating, keeps state of its own in its attributes"


@pytest.mark.parametrize(("wanted", "field", "policy", "words"), [
    (RUN, "sync", Unknown, "state is a builtins:function, whose state pslab does not know"),
    (RUN, "rate", Alternating, f"its rate, {OWN_STATE}"), (RUN, "prune", Alternating, f"its prune, {OWN_STATE}"),
    (tiny(**LOCAL), "rate", Alternating, f"its rate, {OWN_STATE}"),
], ids=["policy", "rate", "rule", "rate of a local run"])  # fmt: skip
def test_a_policy_whose_state_cannot_be_saved_runs_without_checkpoints_and_says_so(
    tmp_path: Path, capsys, wanted: Run, field: str, policy: type, words: str
):
    found = run(wanted.but(**{field: policy()}, pull="whole"), results=tmp_path, progress=True)
    assert found.manifest["pushes"] == wanted.pushes
    assert "checkpoints" not in found.manifest
    reported = capsys.readouterr().err
    assert reported.count("this run cannot be checkpointed") == (wanted.engine == "virtual")
    assert words in reported + found.manifest.get("no_checkpoints", "")


# -- ends of the process and the disk ----------------------------------------------------------------


def test_a_full_disk_ends_checkpoints_and_not_the_run(tmp_path: Path, monkeypatch, undisturbed: Result, capsys):
    def full(self: Any, pieces: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CheckpointStore, "write", full)
    same(run(RUN, results=tmp_path, progress=True), undisturbed)
    assert capsys.readouterr().err.count("no more checkpoints: they cannot be written") == 1


def in_process(results: Path, where: str, count: int, *runs: dict[str, Any]) -> bool:
    """Whether a process killed itself there (see killed.py), and did not come to its end."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), str(SUPPORT.parents[1])])}
    command = [sys.executable, str(SUPPORT / "killed.py"), str(results), where, str(count), *map(json.dumps, runs)]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=300, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
    return done.returncode != 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "where", "count", "pushes"),
    [(FIELDS, WRITE, 3, 40), (FIELDS, "os:fsync", 3, 20), (FIELDS, "pathlib:Path.unlink", 1, 60),
     (FIELDS, "pslab.engines.virtual.simulator:Simulator.facts", 1, 100), (LOCAL, WRITE, 4, 60),
     ({**LOCAL, "servers": 2}, WRITE, 4, 60)],
    ids=["before a write", "in a write", "after a write", "at the end", "local", "local, two servers"],
)  # fmt: skip
def test_a_run_whose_process_is_killed_leaves_the_bits_of_an_undisturbed_one(
    tmp_path: Path, fields: dict[str, Any], where: str, count: int, pushes: int
):
    """Of real processes the servers may be some pushes further than the last checkpoint that their parent wrote."""
    assert in_process(tmp_path, where, count, fields)
    found = quiet(tiny(**fields), tmp_path)
    same(found, quiet(tiny(**fields), tmp_path / "undisturbed"))
    (resumed,) = pushes_resumed(found)
    assert resumed == pushes or (found.run.engine == "local" and resumed > pushes)
    assert not (tmp_path / "checkpoints" / found.digest).exists()


@pytest.mark.slow
def test_a_sweep_that_is_killed_at_random_moments_has_the_table_of_an_undisturbed_one(tmp_path: Path):
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
