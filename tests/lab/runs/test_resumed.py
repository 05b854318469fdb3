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
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from resumed import folder_of, interrupted, pushes_resumed, quiet, same
from tiny import net, tiny
from torch import nn

from pslab.config.run import Run
from pslab.config.table import ROWS
from pslab.engines.experiment.checkpoint.file import pack, unpack
from pslab.errors import RunsInterrupted
from pslab.lab.records.record import Result
from pslab.lab.runs.machine import checkpoints
from pslab.lab.runs.progress import Progress
from pslab.lab.runs.run import run, sweep

VIRTUAL = {"engine": "virtual", "sync": "asp", "prune": "static:5%", "pull": "changed", "pushes": 120,
           "cluster": {"preset": "lab", "slow": {0: 2.0}}}  # fmt: skip
LOCAL: dict[str, Any] = {"sync": "bsp", "prune": "static:5%", "pull": "changed", "on_death": "restart", "workers": 2,
                         "pushes": 160, "checkpoint_every": 20, "cluster": {"compute_s": 0.01}}  # fmt: skip
RUN = tiny(**LOCAL)
KILLS, SEEDS = 6, 24  # of a sweep, and its runs
SUPPORT = Path(__file__).parents[2] / "support"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return quiet(RUN.but(checkpoint_every=None), tmp_path_factory.mktemp("undisturbed"))


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of a run that was ended once it had two checkpoints."""
    place = tmp_path_factory.mktemp("left")
    interrupted(RUN, place)
    return place


@pytest.fixture
def results(left: Path, tmp_path: Path) -> Path:
    """The same, for a test to change."""
    return Path(shutil.copytree(left, tmp_path / "results"))


# -- where it goes on --------------------------------------------------------------------------------

Change = Callable[[int, Path], None]  # of the checkpoint that is the last but so many, at this path


def untouched(behind: int, path: Path) -> None:
    """Change nothing."""


def damaged(behind: int, path: Path) -> None:
    """Flip a bit of the newest."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= not behind
    path.write_bytes(content)


def both_damaged(behind: int, path: Path) -> None:
    damaged(0, path)


def forged(**changed: Any) -> Change:
    """Write both anew with other facts, or without tensors of these names, and a right sum."""

    def change(behind: int, path: Path) -> None:
        facts, tensors = unpack(path.read_bytes())
        tensors = {name: each for name, each in tensors.items() if name not in changed}
        facts |= {name: value for name, value in changed.items() if name in facts}
        path.write_bytes(b"".join(pack(facts, tensors)))

    return change


CHANGES: list[tuple[Change, dict[str, Any], int, str]] = [
    (untouched, {}, 1, "goes on after"), (untouched, {"fresh": True}, 0, ""),
    (damaged, {}, 1, "was passed over: the checksum differs"),
    (both_damaged, {}, 0, "was passed over: the checksum differs"),
    (forged(**{"server 0": None}), {}, 0, "was passed over: it does not match this run's state: KeyError('server 0')"),
    (forged(**{"table 1": None}), {}, 0, "it does not match this run's state"),
    (forged(dilation="x"), {}, 0, "its facts must have"), (forged(server={}), {}, 0, "of the same checkpoint"),
    (forged(source="another"), {}, 0, "the checkpoint was made with source 'another', but this"),
]  # fmt: skip


@pytest.mark.one_of(3)
@pytest.mark.parametrize(("change", "named", "count", "words"), CHANGES, ids=range(len(CHANGES)))
def test_a_run_goes_on_from_its_newest_whole_checkpoint_and_leaves_none(
    results: Path, undisturbed: Result, capsys, change: Change, named: dict, count: int, words: str
):
    paths = sorted(folder_of(RUN, results).iterdir(), reverse=True)
    assert len(paths) == 2
    assert {"digest", "torch", "numpy", "capability", "source", "python"} <= {*checkpoints(RUN, results).facts}
    for behind, path in enumerate(paths):
        change(behind, path)
    found = run(RUN.but(checkpoint_every=None), results=results, progress=True, **named)
    same(found, undisturbed)
    assert len(pushes_resumed(found)) == count
    assert all(20 <= pushes < 160 for pushes in pushes_resumed(found))
    assert words in capsys.readouterr().err
    assert not folder_of(RUN, results).exists()
    assert found.manifest["verdict"] == "valid"


@pytest.mark.parametrize("fields", [
    {"servers": 3}, {"downlink": "int8", "pull": "whole"},
    *(pytest.param({"sync": sync, "servers": servers, "pushes": 400}, marks=pytest.mark.slow)
      for sync in ("asp", "ssp:3", "eager", "dssp:1,2") for servers in (1, 2)),
    *(pytest.param(more, marks=pytest.mark.slow) for more in (
        {"rate": "dynsgd", "prune": "none", "sync": "asp"}, {"rate": "split", "sync": "asp"}, {"optimizer": "adam"},
        {"sync": "admm:2", "prune": "none", "pull": "whole"}, {"ranges": "layers", "servers": 2, "sync": "ssp:1"})),
], ids=str)  # fmt: skip
def test_a_resumed_run_is_valid_and_under_a_barrier_has_the_bits_of_an_undisturbed_one(
    tmp_path: Path, fields: dict[str, Any]
):
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


@pytest.mark.parametrize("wanted", [
    tiny(**VIRTUAL), pytest.param(tiny(pushes=40), marks=pytest.mark.slow)], ids=["virtual", "local"])  # fmt: skip
def test_a_run_that_was_interrupted_while_it_was_evaluated_goes_on_with_that(
    wanted: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    real, seen = Progress.update, list[list[int]]()

    def interrupt(self: Progress, name: str, news: Any) -> None:
        real(self, name, news)
        seen.append(news.get("evaluating", []))
        if seen[-1] and seen[-1][0] >= 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "update", interrupt)
        with pytest.raises(RunsInterrupted, match="the next call continues with its evaluation"):
            quiet(wanted, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(ROWS["engine"][wanted.engine].load(), "execute", lambda *_: pytest.fail("it began anew"))
        result = quiet(wanted, tmp_path)
    assert pushes_resumed(result) == [wanted.pushes]
    assert len(result.accuracy) == seen[-1][1]
    assert not folder_of(wanted, tmp_path).exists()
    if wanted.engine == "virtual":
        same(result, quiet(wanted, tmp_path / "undisturbed"))


class Dawdling(nn.Module):
    """A model whose evaluation takes longer than an interrupt waits for, until there is a file."""

    def __init__(self, over: Path) -> None:
        super().__init__()
        self.net, self.over = net(), over

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.0 if self.training or self.over.exists() else 0.1)
        return self.net(x)


@pytest.mark.slow
def test_runs_side_by_side_that_were_interrupted_while_they_were_evaluated_go_on_with_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    fields = {"model": partial(Dawdling, tmp_path / "over"), "pushes": 40, "eval_every": 2}
    wanted = [tiny(**{**VIRTUAL, "seed": seed, **fields}) for seed in (1, 2)]
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
    assert [wanted[0].pushes] in [pushes_resumed(each) for each in found]
    same(found[0], run(wanted[0], results=tmp_path / "undisturbed", progress=False))


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
