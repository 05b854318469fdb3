"""pslab verify: a line for each check, and which of them fails."""

from __future__ import annotations

import math
import shutil
from functools import partial
from pathlib import Path

import handmade
import numpy as np
import pytest
import torch
from falsified import falsified, relabelled
from tiny import Diverges, tiny
from torch import nn

from pslab.__main__ import main
from pslab.config.run import Run
from pslab.engines.server.ledger import ARRIVAL_COLUMNS
from pslab.engines.virtual import recorded_order
from pslab.lab.runs.resolve import resolve
from pslab.lab.runs.run import run
from pslab.policies.sync.asp import ASP

RUN = {"model": "tiny:net", "data": "tiny:digits", "batch_size": 16, "pushes": 16, "sync": "asp", "dilation": 1}


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    wanted = Run.of({**RUN, "engine": "virtual", "cluster": "lab"})
    return run(wanted, results=tmp_path_factory.mktemp("results"), progress=False).path


def verified(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[str], str]:
    """The exit status, the first two words of each line that is a finding's first, and all words."""
    status = main(["verify", *map(str, arguments)])
    out = capsys.readouterr().out
    lines = [line.split()[:2] for line in out.splitlines() if line.startswith(("ok ", "note ", "PROBLEM "))]
    return status, [" ".join(line) for line in lines], " ".join(out.split())


def test_a_true_virtual_record_passes_with_its_rerun_and_an_unknown_digest_names_the_nearest(capsys, record):
    status, lines, _ = verified(capsys, record.name[:6], "--results", record.parents[1])
    assert (status, lines) == (0, ["ok sums", "ok judge", "ok rerun"])
    assert main(["verify", record.name[:5] + "zz", "--results", str(record.parents[1])]) == 2
    assert record.name in capsys.readouterr().err


class Mine(ASP):
    """A policy of the user's own."""


def own_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


@pytest.mark.parametrize(("fields", "lines", "words"), [
    ({"model": "tiny:Swells", "optimizer": "adam", "learning_rate": 1e6}, "ok ok ok", "the same bits"),
    ({"sync": Mine()}, "ok note note", "none: sync='Mine#"),
    ({"model": own_net, "data": "mnist:train=256,test=64"}, "ok ok note", "none: model='own_net#"),
], ids=["diverged", "a policy", "a model"])  # fmt: skip
def test_of_a_sound_record_only_what_it_holds_is_computed_again(capsys, tmp_path, fields, lines, words):
    """Numbers that are not finite have the same bits again; an object of the user's is not in a record."""
    made = run(Run.of({**RUN, "engine": "virtual", "cluster": "lab", **fields}), results=tmp_path, progress=False)
    assert math.isnan(made.manifest["largest_weight"]) == ("optimizer" in fields)
    status, found, out = verified(capsys, made.digest, "--results", tmp_path)
    assert (status, [line.split()[0] for line in found], words in out) == (0, lines.split(), True)


def test_a_file_that_the_manifest_does_not_name_is_noticed_and_one_bad_record_does_not_hide_the_next(
    capsys, record, tmp_path
):
    noted = shutil.copytree(record, tmp_path / "runs" / record.name)
    (noted / "notes.txt").write_text("mine")
    status, _, out = verified(capsys, record.name, "--results", tmp_path)
    assert (status, "contains notes.txt, which its manifest does not list: move it away" in out) == (1, True)
    copy = shutil.copytree(record, tmp_path / record.name)
    (copy / "pushes.csv").write_text("")
    torn = shutil.copytree(record, tmp_path / "torn")
    (torn / "phases.csv").unlink()
    old = handmade.asp(tmp_path)
    status, lines, _ = verified(capsys, copy, torn, old.path)
    assert status == 1
    assert lines == ["PROBLEM sums", "PROBLEM record", "ok sums", "ok judge", "PROBLEM rerun"]


EMULATED = {"compute_s": 0.002}


@pytest.mark.one_of(5)
@pytest.mark.parametrize("fields", [
    {"sync": "bsp", "servers": 2, "ranges": "layers", "cluster": {"compute_s": 0.002, "bandwidth_bit_s": 1e8}},
    {"sync": "eager", "prune": "dgc:5%", "pull": "changed"}, {"sync": "ssp:1", "prune": "range:5", "pull": "range"},
    {"sync": "backup:1"}, {"sync": "admm:2"}, {"sync": "asp", "pushes": None, "seconds": 2.0},
    {"model": "tiny:Swells", "optimizer": "adam", "learning_rate": 1e6},
    {"on_death": "continue", "cluster": {**EMULATED, "faults": [{"what": "kill", "worker": 1, "iteration": 2}]}},
    {"cluster": {**EMULATED, "faults": [{"what": "duplicate", "probability": 0.3}]}},
], ids=str)  # fmt: skip
def test_gradients_of_real_processes_are_computed_again_in_their_recorded_order(capsys, tmp_path, fields):
    real = run(Run.of({**RUN, "cluster": EMULATED, **fields}), results=tmp_path, progress=False)
    assert real.manifest["verdict"] == "valid"
    status, _, out = verified(capsys, real.digest, "--results", tmp_path)
    assert status == 0
    assert "the same bits: gradients in the recorded order, weights and evaluations" in out


@pytest.mark.parametrize("first", [0, 1])
def test_of_workers_whose_gradients_are_not_finite_the_one_ended_the_run_that_the_record_names(first):
    experiment = resolve(tiny(engine="virtual", cluster=recorded_order.CLUSTER, model=partial(Diverges, 0), workers=2))
    nothing = np.empty((0, len(ARRIVAL_COLUMNS)))
    outcome = recorded_order.execute(experiment, nothing, "diverged", 1.0, first)
    assert outcome.facts["diverged"] == {"worker": first, "iteration": 0}


def test_a_record_of_a_gpu_that_is_not_here_is_not_run_again(capsys, record, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    copy = falsified(record, tmp_path, relabelled(device="cuda"))
    status, _, out = verified(capsys, copy)
    assert (status, "torch sees no CUDA device here" in out) == (0, True)
