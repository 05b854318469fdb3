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


def parts_of(case: Case) -> tuple[Any, Any, Any]:
    """Return one process's model with its hook, the optimizer, and the state of the hook."""
    model = DistributedDataParallel(in_dtype(build_model(net, case.seed), case.dtype), bucket_cap_mb=case.bucket_mb)
    state, hook = pslab.ddp.hook(model, case.prune, case.quantize, seed=case.seed, **case.more)
    model.register_comm_hook(state, hook)
    return model, torch.optim.SGD(model.parameters(), lr=RATE, **case.optimizer), state


def trained(case: Case, folder: str) -> Trained:
    """Train in this process."""
    (model, optimizer, state), error, data = parts_of(case), "", digits()
    examples = Batches(len(data.train_y), PROCESSES, dist.get_rank(), BATCH, case.seed)
    try:
        for number in range(case.steps):
            if number and number == case.stopped:
                path = Path(folder) / f"{dist.get_rank()}.pt"
                torch.save([each.state_dict() for each in (model, optimizer, state)], path)
                model, optimizer, state = parts_of(case)
                for part, saved in zip((model, optimizer, state), torch.load(path, weights_only=True), strict=True):
                    part.load_state_dict(saved)
            rows = torch.from_numpy(examples.at(number))
            x = batch(data.train_x[rows], case.dtype, data.mean, data.std)
            loss = nn.functional.cross_entropy(model(x), data.train_y[rows])
            if number == case.broken and dist.get_rank() == 1:
                loss = loss * torch.nan
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    except Exception as caught:
        error = f"{type(caught).__name__}: {caught}"
    residual = state.state_dict()["kept"].get("residual")
    return Trained(Keyspace.of(model.module).flatten(model.module), residual, state.sent_bytes, error)


def _every(cases: Sequence[Case], folder: str, rank: int) -> list[Trained]:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=(Path(folder) / "store").as_uri(), rank=rank, world_size=PROCESSES)
    found = [trained(case, folder) for case in cases]
    dist.destroy_process_group()
    return found


def both(cases: Sequence[Case], folder: Path) -> list[tuple[Trained, ...]]:
    """Return what each of two processes ends with, in each of these cases."""
    with ProcessPoolExecutor(PROCESSES, mp.get_context("spawn")) as pool:
        each = list(pool.map(partial(_every, cases, str(folder)), range(PROCESSES)))
    return list(zip(*each, strict=True))
