"""The final weights of a run are what its recorded pushes alone say, whatever the engine, policy, rule or rate."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny import finished, tiny
from tools.chaos.replay import pushes_of, replay
from whole import in_process

from pslab.config.table import ROWS
from pslab.lab.runs.resolve import resolve

PRUNED = {"prune": "static:5%", "pull": "changed"}
ADAM = {"prune": "std:2", "optimizer": "adam"}
SYNCS = ("bsp", "ssp:1", "asp", "dssp:0,2", "elastic:2")
#: rules that remember something from one gradient to the next
LASTING = ("dgc:5%,warm_up=1", "static:5%,mode=frozen", "dynamic:mode=ratchet", "dynamic:mode=decay,warm_up=1",
           "std:2,warm_up=1", "dgc:5%,clip=0.5,warm_up=0")  # fmt: skip
#: without dynsgd:stalest: the list of pushes does not tell what workers compute on without ever pushing
EVERY_RATE = ("constant", "dynsgd", "dynsgd:inverse", "adagrad", "adagrad:server", "split", "split:equal",
              "split:speed", "split:identity", "modulated", "modulated:inverse", "modulated:reciprocal")  # fmt: skip
LAB = {"preset": "lab", "slow": {0: 3.0}}
MOVES = {"preset": "lab", "leave": {1: 0.1, 2: 0.155}, "join": {1: 0.2, 3: 0.05}}
REAL = {"compute_s": 0.002, "slow": {0: 3.0}}
# coordinates, so that a frame that is dense by chance is added up like the others
KEPT = {"pull": "changed", "pushes": 80}

VIRTUAL: list[dict[str, Any]] = [
    *({"sync": sync, "cluster": LAB, **fields} for sync in SYNCS for fields in ({}, PRUNED, ADAM)),
    *({"sync": sync, "cluster": MOVES, "pull": pull} for sync in SYNCS for pull in ("whole", "changed")),
    *({"sync": "asp", "rate": rate, "cluster": LAB, "learning_rate": 0.05} for rate in EVERY_RATE),
    *({"sync": "bsp", "rate": rate, "cluster": LAB, "learning_rate": 0.05, **PRUNED, "optimizer": "sgd:momentum=0.5"}
      for rate in EVERY_RATE),
    *({"prune": prune, "cluster": {"compute_s": 0.001, "compute_sigma": 0.5}, **KEPT} for prune in LASTING),
    *({"sync": sync, "cluster": LAB, "schedule": "warmup:0.4,then=linear"} for sync in ("asp", "bsp")),
]  # fmt: skip
LOCAL: list[dict[str, Any]] = [
    *({"sync": sync, "pushes": 60, "schedule": "linear", "cluster": REAL, **fields}
      for sync in ("asp", "ssp:1", "bsp") for fields in ({}, PRUNED, ADAM)),
    *({"prune": prune, "cluster": "free", **KEPT} for prune in LASTING),
    {"sync": "bsp", "pushes": 120, "cluster": "free"},  # many rounds in place
]  # fmt: skip


def test_every_rate_is_among_those_that_are_replayed():
    assert {rate.partition(":")[0] for rate in EVERY_RATE} == set(ROWS["rate"])


@pytest.mark.one_of(8)
@pytest.mark.parametrize(
    ("engine", "fields"), [*(("virtual", each) for each in VIRTUAL), *(("local", each) for each in LOCAL)], ids=str
)
def test_weights_are_the_replay_of_the_recorded_pushes(engine: str, fields: dict[str, Any]):
    experiment = resolve(tiny(engine=engine, **fields))
    outcome = in_process(experiment.run) if engine == "virtual" else finished(experiment)
    pushes = pushes_of(outcome)
    assert set(pushes.worker) == {0, 1, 2, 3}
    assert outcome.facts["pushes"] == len(pushes) >= 0.95 * (experiment.run.pushes or 0)  # the last may not be applied
    assert torch.equal(replay(experiment, pushes), torch.from_numpy(outcome.weights))
