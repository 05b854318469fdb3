"""What rounds are compared with: shared memory without a protocol, gloo, and training by torch alone.

W workers and a server are spawned once. Each order that they execute returns seconds per round.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import pslab
from pslab.engines.experiment.shared_memory import Arena
from pslab.tensors.workload.data import Batches, batch, data_root, resolve_data
from pslab.tensors.workload.models import build_model

BARE, DDP, SHARED, GLOO = "the same steps without exchange", "DDP over gloo", "shared memory", "gloo all-reduce"
POWER = "PowerSGD, rank 2"
TORCHS = (DDP, "fp16", POWER)  # by torch's own hooks
COMPRESSORS = ("none, then int8", "none, then qsgd:4", "none, then efsign", "static:1%, then none",
               "static:1%, then qsgd:4,residual=on", "dgc:1%,warm_up=0, then none")  # fmt: skip
CHUNK = 1 << 16
SPINS = 200  # reads of a flag before the processor is yielded
LINE = 64  # bytes of a cache line, so that no two flags share one
HEAD = 4096  # bytes of flags before the tensors
BUCKET_MB = 25  # all: torch's PowerSGD all-reduces in callbacks, whose order over gloo differs where there are several


@contextlib.contextmanager
def peers(workers: int, device: str = "cpu") -> Iterator[Callable[[str, int, int], float]]:
    """Spawn the processes, which train on a device, and end them in any case.

    Yields:
        seconds(name, size, rounds): per round of exchanging `size` float32, or of training on batches of `size`.
    """
    context, arena, pipes, processes = mp.get_context("spawn"), Arena(), list[Connection](), list[Any]()

    def seconds(name: str, size: int, rounds: int) -> float:
        arena.reserve(HEAD + 4 * size * (1 + workers))
        for pipe in pipes:
            pipe.send((name, size, rounds))
        return max(float(pipe.recv()) for pipe in pipes)

    with tempfile.TemporaryDirectory(prefix="pslab-bench-") as folder:
        try:
            for rank in range(workers + 1):  # the last one is the server
                here, there = context.Pipe()
                process = context.Process(target=_peer, args=(there, rank, workers, arena, folder, device), daemon=True)
                process.start()
                pipes.append(here)
                processes.append(process)
            yield seconds
        finally:
            for process in processes:  # all at once
                process.kill()
            for process in processes:
                process.join()


def _peer(parent: Connection, rank: int, workers: int, arena: Arena, folder: str, device: str) -> None:
    torch.set_num_threads(1)
    with contextlib.suppress(EOFError):
        while True:
            name, size, rounds = parent.recv()
            if name == SHARED:
                parent.send(_timed(_exchanging(arena, rank, workers, size), rounds))
            elif rank == workers:
                parent.send(0.0)  # there is no server
            else:
                if name != BARE and not dist.is_initialized():
                    where = (Path(folder) / "store").as_uri()
                    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=workers)
                parent.send(_timed(_summing(size) if name == GLOO else _training(name, rank, workers, size, device),
                                   rounds))  # fmt: skip


def _timed(turn: Callable[[int], object], rounds: int) -> float:
    warm = max(1, rounds // 10)
    for r in range(warm):
        turn(r)
    start_s = time.perf_counter()
    for r in range(warm, warm + rounds):
        turn(r)
    return (time.perf_counter() - start_s) / rounds


def _summing(size: int) -> Callable[[int], object]:
    gradient = torch.zeros(size)
    return lambda r: dist.all_reduce(gradient)


def _training(name: str, rank: int, workers: int, batch_size: int, device: str) -> Callable[[int], object]:
    """Return a step of the thesis's MLP on MNIST, with pslab's model, data and order of the examples."""
    data = resolve_data("mnist", data_root())
    module: Any = build_model("mlp", 0).to(device)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    batches = Batches(len(data.train_y), workers, rank, batch_size, 0)
    if name != BARE:
        module = DistributedDataParallel(module, bucket_cap_mb=BUCKET_MB)
    if name == "fp16":
        module.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif name == POWER:
        power = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
        module.register_comm_hook(power, powerSGD_hook.powerSGD_hook)
    elif name in COMPRESSORS:
        module.register_comm_hook(*pslab.ddp.hook(module, *name.split(", then "), seed=0))

    def step(iteration: int) -> None:
        rows = torch.from_numpy(batches.at(iteration))
        optimizer.zero_grad()
        x = batch(data.train_x[rows].to(device), torch.float32, data.mean, data.std)
        loss = functional.cross_entropy(module(x), data.train_y[rows].to(device))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        loss.item()  # as a run does, which waits for a device here

    return step


def _exchanging(arena: Arena, rank: int, workers: int, size: int) -> Callable[[int], object]:
    """Return a round in which the server adds the gradients, and workers read its weights in place."""
    flags, step = arena.bytes(0, LINE * (workers + 1)).cast("q"), LINE // 8
    weights, *gradients = (arena.tensor(HEAD + 4 * size * index, size, torch.float32) for index in range(1 + workers))
    start = flags[step * rank]

    def await_flag(number: int, value: int) -> None:
        while True:
            for _ in range(SPINS):
                if flags[step * number] >= value:
                    return
            os.sched_yield()

    def serve(r: int) -> None:
        for worker in range(workers):
            await_flag(worker, start + r + 1)
        for low in range(0, size, CHUNK):
            piece = slice(low, min(low + CHUNK, size))
            for gradient in gradients:
                weights[piece].add_(gradient[piece], alpha=-1e-6)
        flags[step * workers] = start + r + 1

    def work(r: int) -> None:
        flags[step * rank] = start + r + 1
        await_flag(workers, start + r + 1)

    return serve if rank == workers else work
