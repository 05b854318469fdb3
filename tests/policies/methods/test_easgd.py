"""Elastic averaging: its vector, what both ways of exchanging share, what is kept, and its limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scalar import scalar, traced
from tiny import tiny
from torch.nn import functional
from whole import in_process

from pslab.config.run import Run
from pslab.engines.server.ledger import PUSH_COLUMNS
from pslab.errors import ConfigError
from pslab.lab.judge import tables_of
from pslab.lab.runs.resolve import resolve
from pslab.tensors.workload.data import Batches, batch


def test_the_center_after_each_round(monkeypatch):
    run = scalar("easgd:1,beta=0.9", 0.0, 4.0, pushes=6)
    steps, outcome = traced(monkeypatch, run)
    assert [step[-1] for step in steps][::2] == pytest.approx([0.9, 1.2375, 1.5215625], abs=1e-12)
    assert outcome.weights[0] == pytest.approx(1.5215625, abs=1e-12)  # what is evaluated


def trained(**fields: Any) -> tuple[Run, Any, pd.DataFrame]:
    run = tiny(**{"engine": "virtual", "cluster": {"preset": "steady", "slow": {0: 3.0}}, "pushes": 48,
                  "dtype": "float64", "learning_rate": 0.1, **fields})  # fmt: skip
    outcome = in_process(run)
    assert (found := tables_of(run, outcome)[2])["verdict"] == "valid", found
    return run, outcome, pd.DataFrame(outcome.pushes, columns=PUSH_COLUMNS)


AWAY = {"compute_s": 0.01, "compute_sigma": 0.0, "leave": {1: 0.1}, "join": {1: 0.3}}
BACK = {"cluster": AWAY, "pushes": 144, "inner": "sgd:momentum=0.9"}


@pytest.mark.parametrize(("sync", "more"), [
    ("easgd:3,beta=0.6", {}), ("easgd:3,beta=0.6,alone=on", {}), ("easgd:1", {}), ("easgd:3,beta=0.6", BACK),
    ("easgd:3,beta=0.6,alone=on", BACK),
])  # fmt: skip
def test_workers_go_on_from_their_own_weights_and_are_drawn_to_the_center_as_it_is_to_them(sync, more):
    run, outcome, pushes = trained(sync=sync, **more)
    experiment, period, beta = resolve(run), int(sync[6]), 0.9 if sync == "easgd:1" else 0.6
    joined, next_of, momentum = 0, [0] * run.workers, 0.9 if more else 0.0
    data, space, module, center = experiment.dataset, experiment.keyspace, experiment.shell, experiment.weights.clone()
    batches = [Batches(len(data.train_y), run.workers, w, run.batch_size, run.seed) for w in range(run.workers)]
    own, velocity = [center.clone() for _ in batches], [torch.zeros_like(center) for _ in batches]
    centers, drawn = {0: center.clone()}, torch.zeros_like(center)
    for made, together in pushes.groupby("version_applied"):
        drawn.zero_()
        for push in together.itertuples():
            worker = int(push.worker)
            if push.iteration != next_of[worker]:  # it is back
                own[worker].copy_(centers[int(push.version_pulled)])
                velocity[worker].zero_()
                joined += 1
            next_of[worker] = int(push.iteration) + 1
            for step in range(period):
                rows = torch.from_numpy(batches[worker].at(int(push.iteration) * period + step))
                gradient = torch.zeros_like(center)
                space.bind(module, own[worker], gradient)
                x = batch(data.train_x[rows], center.dtype, data.mean, data.std)
                functional.cross_entropy(module(x), data.train_y[rows]).backward()
                velocity[worker].mul_(momentum).add_(gradient)
                own[worker].sub_(velocity[worker], alpha=run.learning_rate)
            difference = beta / run.workers * (own[worker] - centers[int(push.version_pulled)])
            own[worker].sub_(difference)
            drawn.add_(difference)
        center.add_(drawn, alpha=1 if "alone" in sync else run.workers / len(together))
        centers[int(made)] = center.clone()
    assert pushes.groupby("version_applied").size().max() == (1 if "alone" in sync else run.workers)
    assert joined == len(more) // 3
    np.testing.assert_allclose(outcome.weights, center.numpy(), rtol=0, atol=1e-12)


def test_the_state_of_a_workers_optimizer_is_kept_with_its_weights():
    found = [trained(sync="easgd:2", inner=inner)[1].weights for inner in ("sgd", "sgd:momentum=0.9", "adamw")]
    assert len({each.tobytes() for each in found}) == 3


@pytest.mark.parametrize(("fields", "problem"), [
    ({"workers": 1, "sync": "easgd:2,beta=1"}, "weights and those of the center would change places"),
    ({"sync": "easgd:2", "optimizer": "sgd:momentum=0.9"}, "forces alone: use sgd"),
    ({"sync": "easgd:2,beta=1.5"}, "a number above 0 and at most 1"),
    ({"sync": "easgd:2,beta=0"}, "a number above 0 and at most 1"),
    ({"sync": "easgd:2", "rate": "dynsgd"}, "rate"),
    ({"sync": "easgd:2", "prune": "dgc:5%"}, "momentum"),
])  # fmt: skip
def test_what_does_not_go_together_is_refused(fields, problem):
    with pytest.raises(ConfigError, match=problem):
        resolve(tiny(engine="virtual", cluster="lab", **fields))
