"""A run that was ended before its time goes on from its newest checkpoint, wherever it is asked for again; a run in
virtual time begins again, to the same bits, and a sweep has its finished runs."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import net, tiny
from torch import nn

from pslab.config.run import Run
from pslab.engines.execute import execute
from pslab.engines.experiment.checkpoint.file import pack, unpack
from pslab.engines.experiment.experiment import Interrupted
from pslab.errors import RunsInterrupted
from pslab.lab.records.record import Result
from pslab.lab.runs.machine import checkpoints, with_checkpoints
from pslab.lab.runs.progress import Progress
from pslab.lab.runs.resolve import resolve
from pslab.lab.runs.run import run, sweep

VIRTUAL = {"engine": "virtual", "sync": "asp", "prune": "static:5%", "pull": "changed", "pushes": 120,
           "cluster": {"preset": "lab", "slow": {0: 2.0}}}  # fmt: skip
LOCAL: dict[str, Any] = {"sync": "bsp", "prune": "static:5%", "pull": "changed", "on_death": "restart", "workers": 2,
                         "pushes": 160, "checkpoint_every": 20, "cluster": {"compute_s": 0.01}}  # fmt: skip
RUN = tiny(**LOCAL)
KILLS, SEEDS = 6, 24  # of a sweep, and its runs
SUPPORT = Path(__file__).parents[2] / "support"
OF_THE_MACHINE = ("preparation_s", "turning_s", "wall_s", "resumed", "sha256", "environment")
#: What of a local run's pushes does not depend on the machine's time, where a barrier sets their order.
UNDER_A_BARRIER = ["worker", "iteration", "range", "version_pulled", "version_applied", "loss", "density", "bytes_up"]


def quiet(wanted: Run, results: Path, **more: Any) -> Result:
    """The result of a run that shows no progress."""
    return run(wanted, results=results, progress=False, **more)


def folder_of(wanted: Run, results: Path) -> Path:
    """The folder of a run's checkpoints."""
    return results / "checkpoints" / wanted.digest


def interrupted(wanted: Run, results: Path, after: int = 2) -> None:
    """The run is ended once so many checkpoints are on disk."""

    def look(news: dict[str, Any]) -> None:
        if len(list(folder_of(wanted, results).glob("*.checkpoint"))) >= after:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        execute(with_checkpoints(resolve(wanted), results), look)


def same(one: Result, other: Result) -> None:
    """Both left the same bits: the weights, and of the tables and facts what does not depend on the machine."""
    assert np.array_equal(one.weights, other.weights)
    if one.run.engine == "local":
        ours, theirs = (each.pushes[UNDER_A_BARRIER].sort_values(UNDER_A_BARRIER[:3]) for each in (one, other))
        assert np.array_equal(ours, theirs)
        ours, theirs = (each.accuracy[["pushes", "accuracy", "loss"]] for each in (one, other))
        assert ours.equals(theirs)
        return
    for name in ("accuracy", "phases", "pushes", "arrivals"):
        assert getattr(one, name).equals(getattr(other, name)), name
    ours, theirs = ({k: v for k, v in each.manifest.items() if k not in OF_THE_MACHINE} for each in (one, other))
    assert ours == theirs


def pushes_resumed(result: Result) -> list[int]:
    """After how many pushes a run went on, each time."""
    return [each["pushes"] for each in result.manifest.get("resumed", [])]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return quiet(RUN.but(checkpoint_every=None), tmp_path_factory.mktemp("undisturbed"))


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of a run that was ended once it had two checkpoints."""
    place = tmp_path_factory.mktemp("left")
    interrupted(RUN, place)
    return place


# -- where it goes on --------------------------------------------------------------------------------


def forge(path: Path, changed: dict[str, Any]) -> None:
    """Write a checkpoint anew with other facts, or without tensors of these names, and a right sum."""
    facts, tensors = unpack(path.read_bytes())
    facts |= {name: value for name, value in changed.items() if name in facts}
    kept = {name: tensor for name, tensor in tensors.items() if name not in changed}
    path.write_bytes(b"".join(pack(facts, kept)))


#: How many of the newest are forged, and how; arguments; from how many it goes on, and the words.
CHANGES: list[tuple[int, dict[str, Any], dict[str, Any], int, str]] = [
    (0, {}, {}, 1, "goes on after"), (0, {}, {"fresh": True}, 0, ""),
    (1, {"source": "another"}, {}, 1, "was passed over: the checkpoint was made with source 'another', but this"),
    (2, {"server 0": None}, {}, 0, "was passed over: it does not match this run's state: KeyError('server 0')"),
    (2, {"table 1": None}, {}, 0, "it does not match this run's state"),
    (2, {"dilation": "x"}, {}, 0, "its facts must have"), (2, {"server": {}}, {}, 0, "of the same checkpoint"),
]  # fmt: skip


@pytest.mark.one_of(3)
@pytest.mark.parametrize(("newest", "forged", "named", "count", "words"), CHANGES, ids=range(len(CHANGES)))
def test_a_run_goes_on_from_its_newest_whole_checkpoint_and_leaves_none(
    left: Path, tmp_path: Path, undisturbed: Result, capsys, newest, forged, named, count, words
):
    results = Path(shutil.copytree(left, tmp_path / "results"))
    paths = sorted(folder_of(RUN, results).iterdir(), reverse=True)
    assert len(paths) == 2
    assert {"digest", "torch", "numpy", "capability", "source", "python"} <= {*checkpoints(RUN, results).facts}
    for path in paths[:newest]:
        forge(path, forged)
    found = run(RUN.but(checkpoint_every=None), results=results, progress=True, **named)
    same(found, undisturbed)
    assert len(pushes_resumed(found)) == count
    assert all(20 <= pushes < 160 for pushes in pushes_resumed(found))
    assert words in capsys.readouterr().err
    assert not folder_of(RUN, results).exists()
    assert found.manifest["verdict"] == "valid"


@pytest.mark.parametrize("fields", [
    {"servers": 3}, {"downlink": "int8", "pull": "whole"}, *(pytest.param(more, marks=pytest.mark.slow) for more in (
        *({"sync": sync, "servers": servers, "pushes": 400}
          for sync in ("asp", "ssp:3", "eager", "dssp:1,2") for servers in (1, 2)),
        {"rate": "dynsgd", "prune": "none", "sync": "asp"}, {"rate": "split", "sync": "asp"}, {"optimizer": "adam"},
        {"sync": "admm:2", "prune": "none", "pull": "whole"}, {"ranges": "layers", "servers": 2, "sync": "ssp:1"})),
], ids=str)  # fmt: skip
def test_a_resumed_run_is_valid_and_under_a_barrier_has_the_bits_of_an_undisturbed_one(tmp_path: Path, fields: dict):
    wanted = tiny(**{**LOCAL, **fields})
    interrupted(wanted, tmp_path)
    found = quiet(wanted, tmp_path)
    assert [pushes >= 20 for pushes in pushes_resumed(found)] == [True]
    assert found.manifest["pushes"] >= wanted.pushes
    assert found.manifest["verdict"] == "valid", found.manifest["violations"]
    assert found.pushes.seconds.is_monotonic_increasing
    assert not folder_of(wanted, tmp_path).exists()
    if wanted.sync in ("bsp", "admm:2"):
        same(found, quiet(wanted, tmp_path / "undisturbed"))


# -- while it is evaluated ---------------------------------------------------------------------------


class Dawdling(nn.Module):
    """A model whose evaluation takes longer than an interrupt waits for, until there is a file."""

    def __init__(self, over: Path) -> None:
        super().__init__()
        self.net, self.over = net(), over

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.0 if self.training or self.over.exists() else 0.1)
        return self.net(x)


@pytest.mark.parametrize(("engine", "count"), [
    ("virtual", 1), pytest.param("local", 1, marks=pytest.mark.slow), pytest.param("virtual", 2, marks=pytest.mark.slow)
])  # fmt: skip
def test_runs_that_were_interrupted_while_they_were_evaluated_go_on_with_that(
    engine: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    fields = {"model": partial(Dawdling, tmp_path / "over"), "pushes": 40, "eval_every": 2}
    like = VIRTUAL if engine == "virtual" else {}
    wanted = [tiny(**{**like, "seed": seed, **fields}) for seed in range(count)]
    update, sent = Progress.update, []

    def interrupt(self: Progress, name: str, news: Any) -> None:
        update(self, name, news)
        if news.get("evaluating", [0])[0] >= 1 and not sent:
            sent.append(signal.raise_signal(signal.SIGINT))

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "update", interrupt)
        with pytest.raises(RunsInterrupted, match="the next call continues with its evaluation"):
            sweep(wanted, results=tmp_path, progress=False)
    (tmp_path / "over").touch()
    found = sweep(wanted, results=tmp_path, progress=False)
    assert [wanted[0].pushes] in [pushes_resumed(each) for each in found]  # nothing was trained again
    assert not [*tmp_path.glob("checkpoints/*")]
    same(found[0], quiet(wanted[0], tmp_path / "undisturbed"))


# -- ends of the process and the disk ----------------------------------------------------------------


def test_a_full_disk_ends_checkpoints_and_not_the_run(tmp_path: Path, undisturbed: Result, capsys):
    (tmp_path / "checkpoints").touch()  # nothing can be written below it
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
def test_a_sweep_that_is_killed_at_random_moments_has_the_table_of_an_undisturbed_one(tmp_path: Path):
    runs = [{**VIRTUAL, "pushes": 600, "seed": seed} for seed in range(SEEDS)]
    wanted = sweep([tiny(**fields) for fields in runs], results=tmp_path / "undisturbed", progress=False)
    chance, place, done = random.Random(0), tmp_path / "killed", dict[str, int]()
    for _ in range(KILLS):
        if not in_process(place, "-", chance.randrange(500, 1500), *runs):
            break  # it was over
        records = {path.name: path.stat().st_mtime_ns for path in (place / "runs").glob("[!.]*")}
        assert records.items() >= done.items()  # none was lost, and none done again
        done = records
    found = sweep([tiny(**fields) for fields in runs], results=place, progress=False)
    for one, other in zip(found, wanted, strict=True):
        same(one, other)
    assert len(list((place / "runs").glob("[!.]*"))) == len(runs)
