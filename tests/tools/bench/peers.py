"""What rounds are compared with: shared memory without a protocol, gloo, and plain training.

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

import torch
from torch.nn import functional

from pslab.engines.experiment.shared_memory import Arena
from pslab.tensors.workload.data import Batches, batch, data_root, resolve_data
from pslab.tensors.workload.models import build_model

WAYS = ("shared", "gloo", "ddp", "alone")  # methods of _Peer
CHUNK = 1 << 16
SPINS = 200  # reads of a flag before the processor is yielded
LINE = 64  # bytes of a cache line, so that no two flags share one
HEAD = 4096  # bytes of flags before the tensors


class Peers:
    """The processes, which train on a device."""

    def __init__(self, workers: int, device: str = "cpu") -> None:
        context = mp.get_context("spawn")
        self.workers, self._arena = workers, Arena()
        self._folder = tempfile.TemporaryDirectory(prefix="pslab-bench-")
        self._pipes, self._processes = [], []
        for rank in range(workers + 1):  # the last one is the server
            here, there = context.Pipe()
            process = context.Process(
                target=_peer, args=(there, rank, workers, self._arena, self._folder.name, device), daemon=True
            )
            process.start()
            self._pipes.append(here)
            self._processes.append(process)

    def seconds(self, way: str, size: int, rounds: int) -> float:
        """Seconds per round of exchanging `size` float32, or of training on batches of `size`, in one of the WAYS."""
        self._arena.reserve(HEAD + 4 * size * (1 + self.workers))
        for pipe in self._pipes:
            pipe.send((way, size, rounds))
        return max(float(pipe.recv()) for pipe in self._pipes)

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:  # all at once: torch's rpc tells of each that others miss
            process.kill()
        for process in self._processes:
            process.join()
        self._folder.cleanup()


@contextlib.contextmanager
def peers(workers: int, device: str = "cpu") -> Iterator[Peers]:
    """Peers that are ended in any case."""
    with contextlib.closing(Peers(workers, device)) as others:
        yield others


class Training:
    """Plain training of the thesis's MLP on MNIST, with pslab's model, data and order of the examples."""

    def __init__(
        self, workers: int, rank: int, batch_size: int, rate: float, momentum: float, seed: int, device: str = "cpu"
    ) -> None:
        self._device = device
        self.data, self.module = resolve_data("mnist", data_root()), build_model("mlp", seed).to(device)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=rate, momentum=momentum)
        self._batches = Batches(len(self.data.train_y), workers, rank, batch_size, seed)

    def step(self, iteration: int) -> None:
        """Compute a gradient and apply it."""
        rows = torch.from_numpy(self._batches.at(iteration))
        self.optimizer.zero_grad()
        target = self.data.train_y[rows].to(self._device)
        loss = functional.cross_entropy(self.module(self._inputs(self.data.train_x[rows])), target)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        loss.item()  # as a run does, which waits for a device here

    @torch.no_grad()
    def accuracy(self) -> float:
        """On the test set."""
        found = self.module(self._inputs(self.data.test_x[:])).argmax(1).cpu()
        return float((found == self.data.test_y[:]).float().mean())

    def _inputs(self, x: torch.Tensor) -> torch.Tensor:
        return batch(x.to(self._device), torch.float32, self.data.mean, self.data.std)


class _Peer:
    """What one of the processes does: each way of WAYS returns its seconds per round."""

    def __init__(self, rank: int, workers: int, arena: Arena, folder: str, device: str) -> None:
        self.rank, self.workers, self.arena, self.folder, self.device = rank, workers, arena, folder, device
        self.serves = rank == workers

    def gloo(self, size: int, rounds: int) -> float:
        """All-reduce of torch.distributed, without a server."""
        if self.serves:
            return 0.0
        self._join()
        gradient = torch.zeros(size)
        return _timed(lambda r: torch.distributed.all_reduce(gradient), rounds)

    def ddp(self, batch_size: int, rounds: int) -> float:
        """Training with DistributedDataParallel of torch over gloo."""
        return 0.0 if self.serves else self._trained(batch_size, rounds, parallel=True)

    def alone(self, batch_size: int, rounds: int) -> float:
        """Training without any exchange."""
        return 0.0 if self.serves else self._trained(batch_size, rounds, parallel=False)

    def _trained(self, batch_size: int, rounds: int, *, parallel: bool) -> float:
        training = Training(self.workers, self.rank, batch_size, rate=0.01, momentum=0.0, seed=0,
                            device=self.device)  # fmt: skip
        if parallel:
            self._join()
            training.module = torch.nn.parallel.DistributedDataParallel(training.module)
        return _timed(training.step, rounds)

    def _join(self) -> None:
        if not torch.distributed.is_initialized():
            where = (Path(self.folder) / "store").as_uri()
            torch.distributed.init_process_group("gloo", init_method=where, rank=self.rank, world_size=self.workers)

    def shared(self, size: int, rounds: int) -> float:
        """The server adds the gradients, and workers read its weights in place."""
        flags = self.arena.bytes(0, LINE * (self.workers + 1)).cast("q")
        step, workers = LINE // 8, range(self.workers)
        weights, *gradients = (self.arena.tensor(HEAD + 4 * size * index, size, torch.float32)
                               for index in range(1 + self.workers))  # fmt: skip
        start = flags[step * self.rank]

        def serve(r: int) -> None:
            for worker in workers:
                _until(flags, step * worker, start + r + 1)
            for low in range(0, size, CHUNK):
                piece = slice(low, min(low + CHUNK, size))
                here = weights[piece]
                for gradient in gradients:
                    here.add_(gradient[piece], alpha=-1e-6)
            flags[step * self.workers] = start + r + 1

        def work(r: int) -> None:
            flags[step * self.rank] = start + r + 1
            _until(flags, step * self.workers, start + r + 1)

        return _timed(serve if self.serves else work, rounds)


def _until(flags: memoryview, index: int, value: int) -> None:
    while True:
        for _ in range(SPINS):
            if flags[index] >= value:
                return
        os.sched_yield()


def _timed(turn: Callable[[int], object], rounds: int) -> float:
    warm = max(1, rounds // 10)
    for r in range(warm):
        turn(r)
    start_s = time.perf_counter()
    for r in range(warm, warm + rounds):
        turn(r)
    return (time.perf_counter() - start_s) / rounds


def _peer(parent: Connection, *about: object) -> None:
    torch.set_num_threads(1)
    peer = _Peer(*about)  # type: ignore[arg-type]
    with contextlib.suppress(EOFError):
        while True:
            way, size, rounds = parent.recv()
            parent.send(getattr(peer, way)(size, rounds))
