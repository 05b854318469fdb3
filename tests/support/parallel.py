"""Two processes that train under torch's DistributedDataParallel, with a hook of pslab's: what they end with."""

from __future__ import annotations

import multiprocessing as mp
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from tiny import digits, net
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pslab
from pslab.ddp import CompressionState
from pslab.tensors.workload.data import Batches, batch
from pslab.tensors.workload.keyspace import Keyspace
from pslab.tensors.workload.models import build_model, in_dtype

PROCESSES, BATCH, RATE = 2, 16, 0.2


@dataclass(frozen=True)
class Case:
    """What is trained, and how."""

    prune: str = "none"
    quantize: str = "none"
    steps: int = 6
    optimizer: Mapping[str, float] = field(default_factory=dict)
    seed: int = 3
    dtype: torch.dtype = torch.float64
    bucket_mb: float = 25.0  #: of a bucket: small ones cut a layer in two
    stopped: int = 0  #: a new model and hook go on after so many steps, from a checkpoint; 0: none do
    broken: int | None = None  #: the step in which process 1 has a gradient that is not finite
    more: Mapping[str, Any] = field(default_factory=dict)  #: arguments of the hook


class Trained(NamedTuple):
    """What a process ends with."""

    weights: torch.Tensor  #: flat
    residual: torch.Tensor | None
    sent_bytes: int
    error: str


class Training:
    """One process's model, hook and optimizer."""

    def __init__(self, case: Case) -> None:
        module = in_dtype(build_model(net, case.seed), case.dtype)
        self.model = DistributedDataParallel(module, bucket_cap_mb=case.bucket_mb)
        self.state: CompressionState
        self.state, hook = pslab.ddp.hook(self.model, case.prune, case.quantize, seed=case.seed, **case.more)
        self.model.register_comm_hook(self.state, hook)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE, **case.optimizer)
        data = digits()
        self._examples = Batches(len(data.train_y), PROCESSES, dist.get_rank(), BATCH, case.seed)
        self._data, self._case = data, case

    def step(self, number: int) -> None:
        rows = torch.from_numpy(self._examples.at(number))
        x = batch(self._data.train_x[rows], self._case.dtype, self._data.mean, self._data.std)
        loss = nn.functional.cross_entropy(self.model(x), self._data.train_y[rows])
        if number == self._case.broken and dist.get_rank() == 1:
            loss = loss * torch.nan
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def trained(case: Case, folder: str) -> Trained:
    """Train in this process."""
    training, error = Training(case), ""
    try:
        for number in range(case.steps):
            if number and number == case.stopped:
                path = Path(folder) / f"{dist.get_rank()}.pt"
                torch.save([each.state_dict() for each in (training.model, training.optimizer, training.state)], path)
                training = Training(case)
                parts = (training.model, training.optimizer, training.state)
                for part, saved in zip(parts, torch.load(path, weights_only=True), strict=True):
                    part.load_state_dict(saved)
            training.step(number)
    except Exception as caught:
        error = f"{type(caught).__name__}: {caught}"
    residual = training.state.state_dict()["kept"].get("residual")
    module = training.model.module
    return Trained(Keyspace.of(module).flatten(module), residual, training.state.sent_bytes, error)


def _join(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    if not dist.is_initialized():
        dist.init_process_group("gloo", init_method=(Path(folder) / "store").as_uri(), rank=rank, world_size=PROCESSES)


def _every(cases: Sequence[Case], folder: str, rank: int) -> list[Trained]:
    _join(rank, folder)
    found = [trained(case, folder) for case in cases]
    dist.destroy_process_group()
    return found


def both(cases: Sequence[Case], folder: Path) -> list[tuple[Trained, ...]]:
    """What each of two processes ends with, in each of these cases."""
    with ProcessPoolExecutor(PROCESSES, mp.get_context("spawn")) as pool:
        each = list(pool.map(partial(_every, cases, str(folder)), range(PROCESSES)))
    return list(zip(*each, strict=True))
