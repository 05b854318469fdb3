"""A model of weights without computation, to measure their exchange with the server."""

from __future__ import annotations

import itertools

import torch
from torch import nn

from pslab.config.cluster import Cluster
from pslab.config.run import Run
from pslab.config.spec import build
from pslab.engines.experiment.experiment import Experiment
from pslab.lab.runs.resolve import POLICIES
from pslab.tensors.update.optimizers import resolve_optimizer
from pslab.tensors.update.store import Part
from pslab.tensors.workload.data import Dataset
from pslab.tensors.workload.keyspace import Keyspace

ROW = 64  # weights per neuron


def exchange(size: int, ranges: int = 1, **fields: object) -> Experiment:
    """Workers that push gradients of at least `size` zeros, in whole neurons, pull the weights, and compute nothing."""
    run = Run.of({"batch_size": 1, "learning_rate": 1e-6, **fields})
    with torch.device("meta"):
        shell = nn.Linear(ROW, -(-size // ROW), bias=False)
    keyspace = Keyspace.of(shell)
    bounds = [keyspace.size * i // ranges for i in range(ranges + 1)]
    parts = tuple(Part((slice(low, high),)) for low, high in itertools.pairwise(bounds))
    x, y = torch.zeros(run.workers, ROW), torch.zeros(run.workers, dtype=torch.int64)
    policies = {field: build(field, str(getattr(run, field))) for field in POLICIES}
    return Experiment(
        run=run, cluster=Cluster(), optimizer=resolve_optimizer(run.optimizer), shell=shell, keyspace=keyspace,
        dataset=Dataset("nothing", x, y, x, y, mean=0.0, std=1.0, classes=1),
        weights=torch.zeros(1).expand(keyspace.size), parts=parts, trains=False, **policies,
    )  # fmt: skip
