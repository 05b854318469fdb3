"""A run in virtual time that goes on from a checkpoint leaves the bits of one that was never disturbed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from conducted import quiet
from tiny import Noisy, tiny
from virtual_cases import DOWNLINK, LAB, PORTABLE, THIN, batch_norm, in_words
from whole import conduct, ended_after, killed, same

from pslab.config.run import Run
from pslab.config.table import ROWS
from pslab.engines.experiment.checkpoint.store import CheckpointStore
from pslab.engines.experiment.experiment import Interrupted
from pslab.engines.virtual import engine as virtual
from pslab.lab.runs.resolve import resolve

MOVES = {**LAB, "leave": {1: 0.15, 2: 0.2}, "join": {1: 0.3, 3: 0.1}}
FAULTS = [{"what": "drop", "probability": 0.1}, {"what": "duplicate", "probability": 0.1},
          {"what": "delay", "for_s": 0.05, "probability": 0.1},
          {"what": "stop", "worker": 1, "iteration": 6, "for_s": 0.1},
          {"what": "kill", "worker": 3, "at_s": 0.3}]  # fmt: skip
PRUNED = {"prune": "static:5%", "pull": "changed"}
FAST: list[dict[str, Any]] = [
    *({"sync": row.small or row.example or row.name} for row in ROWS["sync"].values()),
    {"sync": "eager", "cluster": MOVES, **PRUNED},
    {"sync": "asp", "ranges": "layers:400", "order": "needed"},
    {"sync": "asp", "ranges": "layers:400", "order": "front:2000", "cluster": {**LAB, "duplex": "half"}},
    {"sync": "asp", "optimizer": "adam", **PRUNED},
    {"sync": "asp", "rate": "split", **PRUNED},
    {"sync": "asp", "rate": "dynsgd"},
    {"sync": "ssp:3", "prune": "dgc:5%,warm_up=1", "rate": "adagrad:worker"},
    {"sync": "asp", "target_accuracy": 0.6, "eval_every": 8, "pushes": 200},
    {"sync": "bsp", "dtype": "float64", "seconds": 0.5, "pushes": None, "eval_every": None},
    {"sync": "eager", "prune": "range:fit", **THIN},
    {"sync": "asp", "model": batch_norm},
    {"sync": "ssp:3", "cluster": {**LAB, "join": {3: 0.6}, "faults": FAULTS}, "on_death": "continue", "lease_s": 0.1},
    {"sync": "bsp", "model": Noisy},
    {"sync": "admm:3"},
    {"sync": "downpour:2,3"},
    {"sync": "asp", "quantize": "signum"},
    {"sync": "eager", "quantize": "efsign"},
    {"sync": "asp", "prune": "randomk:5%", "quantize": "onebit", "pull": "changed"},
    {"sync": "asp", "prune": "lowrank:2"},
    {"sync": "asp", "downlink": "int8", "cluster": MOVES},
    {"sync": "bsp", "downlink": "static:5%+fp16"},
    {"sync": "eager", "downlink": "qsgd:4,residual=on"},
    *({"sync": "bsp", "prune": prune} for prune in ("powersgd:2", "ef21:5%", "demo:topk=4,chunk=16",
                                                       "sketch:cols=100")),
]  # fmt: skip
SLOW: list[dict[str, Any]] = [
    *({"sync": row.small or row.example or row.name, **PRUNED} for row in ROWS["sync"].values() if row.name != "admm"),
    *({"sync": sync, "cluster": MOVES, **more} for sync in ("ssp:3", "eager", "dssp:1,2", "elastic:3")
      for more in ({}, PRUNED)),
    *({"sync": "asp", "ranges": "layers:400", "order": row.example or row.name} for row in ROWS["order"].values()),
    *({"sync": "bsp", "ranges": "layers", **more} for more in (PRUNED, {"cluster": {**LAB, "duplex": "half"}})),
    *({"sync": "asp", "optimizer": name, **more} for name in ("sgd:momentum=0.9", "adam", "nadam", "asgd", "rprop")
      for more in ({}, PRUNED)),
    *({"sync": "asp", "rate": row.example or row.name, **PRUNED} for row in ROWS["rate"].values()),
    *({"sync": "asp", "prune": row.example or row.name, "pull": "changed"} for row in ROWS["prune"].values()
      if row.name not in ("range", "lowrank", "powersgd", "ef21", "demo", "sketch")),
    *({"sync": "asp", "quantize": row.example or row.name} for row in ROWS["quantize"].values()),
    *PORTABLE, *DOWNLINK,
]  # fmt: skip


def mine(**fields: Any) -> Run:
    return tiny(**{"engine": "virtual", "cluster": LAB, "pushes": 80, "checkpoint_every": 12, **fields})


def resumed(fields: dict[str, Any], after: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = mine(**fields)
    alone, _ = conduct(run)
    killed(monkeypatch, run, folder, after)
    found, said = conduct(run, folder)
    assert "goes on after" in said[0]
    same(found, alone)
    assert [each["pushes"] >= 12 * after for each in found.facts["resumed"]] == [True]


@pytest.mark.one_of(6)
@pytest.mark.parametrize("fields", FAST, ids=in_words)
def test_a_resumed_run_leaves_the_bits_of_an_undisturbed_one(
    fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    resumed(fields, 1, tmp_path, monkeypatch)


@pytest.mark.one_of(3)
@pytest.mark.parametrize(
    "fields", [{"sync": "asp", "model": Noisy}, {"sync": "bsp", "model": batch_norm}, {"sync": "eager", **PRUNED},
               *DOWNLINK],
    ids=in_words,
)  # fmt: skip
def test_a_run_with_hosts_goes_on_with_another_number_of_them(
    fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = mine(**fields)
    experiment = dataclasses.replace(resolve(run), checkpoints=CheckpointStore(tmp_path))
    alone = virtual.execute(resolve(run), quiet, hosts=2)
    with ended_after(monkeypatch, 1, KeyboardInterrupt), pytest.raises(Interrupted):
        virtual.execute(experiment, quiet, hosts=2)
    found = virtual.execute(experiment, quiet, hosts=1)
    assert found.facts["resumed"]
    # without the accuracy: what a user's own model remembers, its evaluation may remember, too
    same(found, alone, without=("accuracy",) if run.model is Noisy else ())


@pytest.mark.slow
@pytest.mark.parametrize("fields", SLOW, ids=in_words)
@pytest.mark.parametrize("after", [1, 2])
def test_so_does_a_run_of_every_kind(
    fields: dict[str, Any], after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    resumed(fields, after, tmp_path, monkeypatch)
