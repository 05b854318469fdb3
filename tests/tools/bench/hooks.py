"""A step under torch's DDP with pslab's compressors, beside torch's own hooks: time, bytes, accuracy.

Two processes train the thesis's MLP on MNIST with each hook. The hooks take turns, step by step.
"""

from __future__ import annotations

import multiprocessing as mp
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import pslab
from tools.bench.measure import Row
from tools.bench.peers import Training

PROCESSES, BATCH_SIZE, RATE, SEED = 2, 64, 0.1, 0
TORCHS = ("all-reduce", "fp16", "PowerSGD, rank 2")
COMPRESSORS = (("none", "int8"), ("none", "qsgd:4"), ("none", "efsign"), ("static:1%", "none"),
               ("static:1%", "qsgd:4,residual=on"), ("dgc:1%,warm_up=0", "none"))  # fmt: skip
BUCKET_MB = 25  # all: torch's PowerSGD all-reduces in callbacks, whose order over gloo differs where there are several
DENSE_STEPS = 2  # of PowerSGD, whose first steps are all-reduced


class Hooked(NamedTuple):
    """What training with one hook takes of one process, and where it leads."""

    step_s: float
    step_bytes: float  #: that a process sends, or gives to an all-reduce
    accuracy: float


def rows(quick: bool) -> Iterator[Row]:
    """Each hook beside torch's all-reduce."""
    found = measured(40 if quick else 200)
    dense_s = found[TORCHS[0]].step_s
    for name, (step_s, step_bytes, accuracy) in found.items():
        note = f"{step_bytes:,.0f} bytes; {accuracy:.1%} of the test images"
        yield Row(name, step_s, dense_s, "torch's all-reduce", note=note)


def measured(steps: int, batch_size: int = BATCH_SIZE) -> dict[str, Hooked]:
    """So many steps with each hook; times are of the slower process."""
    with TemporaryDirectory() as folder, ProcessPoolExecutor(PROCESSES, mp.get_context("spawn")) as pool:
        first, *others = pool.map(partial(_trained, steps, batch_size, folder), range(PROCESSES))
    return {name: own._replace(step_s=max(own.step_s, *(each[name].step_s for each in others)))
            for name, own in first.items()}  # fmt: skip


def _trained(steps: int, batch_size: int, folder: str, rank: int) -> dict[str, Hooked]:
    torch.set_num_threads(1)
    where = (Path(folder) / "store").as_uri()
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=PROCESSES)
    trainings, sent = dict[str, Training](), dict[str, Callable[[], float]]()
    for name in (*TORCHS, *(", then ".join(pair) for pair in COMPRESSORS)):
        training = trainings[name] = Training(PROCESSES, rank, batch_size, RATE, momentum=0.0, seed=SEED)
        training.module = model = DistributedDataParallel(training.module, bucket_cap_mb=BUCKET_MB)
        sent[name] = _hook(name, model, steps)
    spent: dict[str, list[float]] = {name: [] for name in trainings}
    for step in range(steps):
        for name, training in trainings.items():
            start_s = time.perf_counter()
            training.step(step)
            spent[name].append(time.perf_counter() - start_s)
    found = {name: Hooked(median(spent[name]), sent[name](), each.accuracy() if rank == 0 else 0.0)
             for name, each in trainings.items()}  # fmt: skip
    dist.destroy_process_group()
    return found


def _hook(name: str, model: DistributedDataParallel, steps: int) -> Callable[[], float]:
    """Give the model the hook of this name; what tells, in the end, how many bytes a step took."""
    entries = sum(parameter.numel() for parameter in model.parameters())
    if name not in TORCHS:
        state, hook = pslab.ddp.hook(model, *name.split(", then "), seed=SEED)
        model.register_comm_hook(state, hook)
        return lambda: state.sent_bytes / steps
    if name == TORCHS[1]:
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if name == TORCHS[2]:
        power = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=DENSE_STEPS)
        model.register_comm_hook(power, powerSGD_hook.powerSGD_hook)
        return lambda: 4.0 * power.total_numel_after_compression / max(1, steps - DENSE_STEPS)
    return lambda: {TORCHS[0]: 4.0, TORCHS[1]: 2.0}[name] * entries
