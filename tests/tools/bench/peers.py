"""What a dense round is compared with: shared memory without a protocol, all-reduce of gloo, pickled pipes, raw TCP.

W workers and a server are spawned once. Each order that they execute returns seconds per round.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from pslab.engines.experiment.shared_memory import Arena
from pslab.tensors.workload.data import Batches, batch, data_root, resolve_data
from pslab.tensors.workload.models import build_model

CHUNK = 1 << 16
SPINS = 200  # reads of a flag before the processor is yielded
LINE = 64  # bytes of a cache line, so that no two flags share one


class Peers:
    """The processes."""

    def __init__(self, workers: int) -> None:
        context = mp.get_context("spawn")
        self.workers, self._arena = workers, Arena()
        self._folder = tempfile.TemporaryDirectory(prefix="pslab-bench-")
        lines = [context.Pipe() for _ in range(workers)]
        self._pipes, self._processes = [], []
        for rank in range(workers + 1):  # the last one is the server
            here, there = context.Pipe()
            ends = [server for server, _ in lines] if rank == workers else [lines[rank][1]]
            process = context.Process(
                target=_peer, args=(rank, workers, there, ends, self._arena, self._folder.name), daemon=True
            )
            process.start()
            self._pipes.append(here)
            self._processes.append(process)

    def seconds(self, what: str, size: int, rounds: int) -> float:
        """Seconds per round of exchanging `size` float32 in one of the WAYS."""
        self._arena.reserve(4096 + 4 * size * (1 + 2 * self.workers))
        for pipe in self._pipes:
            pipe.send((what, size, rounds))
        return max(float(pipe.recv()) for pipe in self._pipes)

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.join()
        self._folder.cleanup()


@contextlib.contextmanager
def peers(workers: int) -> Iterator[Peers]:
    """Peers that are ended in any case."""
    others = Peers(workers)
    try:
        yield others
    finally:
        others.close()


class _Peer:
    def __init__(self, rank: int, workers: int, ends: list[Connection], arena: Arena, folder: str) -> None:
        self.rank, self.workers, self.ends, self.arena, self.folder = rank, workers, ends, arena, folder
        self.serves = rank == workers
        self._group = False
        self._lines: list[socket.socket] = []

    def copies(self, size: int, rounds: int) -> float:
        """The server adds the gradients and copies the weights to each worker."""
        return self._shared(size, rounds, copy_out=True)

    def in_place(self, size: int, rounds: int) -> float:
        """The same, but workers read the server's weights in place."""
        return self._shared(size, rounds, copy_out=False)

    def gloo(self, size: int, rounds: int) -> float:
        """All-reduce of torch.distributed, without a server."""
        if self.serves:
            return 0.0
        self._join()
        gradient = torch.zeros(size)
        return _timed(lambda r: torch.distributed.all_reduce(gradient), rounds)

    def pickled(self, size: int, rounds: int) -> float:
        """Arrays through pipes of multiprocessing."""
        weights = np.zeros(size, np.float32)

        def serve(r: int) -> None:
            for pipe in self.ends:
                np.subtract(weights, pipe.recv(), out=weights)
            for pipe in self.ends:
                pipe.send(weights)

        def work(r: int) -> None:
            self.ends[0].send(weights)
            self.ends[0].recv()

        return _timed(serve if self.serves else work, rounds)

    def tcp(self, size: int, rounds: int) -> float:
        """Gradients and weights as they are, over blocking sockets; the server hears one worker after the other."""
        lines, weights, gradient = self._dialled(), torch.zeros(size), torch.zeros(size)
        out, into = (memoryview(each.numpy().data).cast("B") for each in (weights, gradient))

        def serve(r: int) -> None:
            for line in lines:
                _fill(line, into)
                weights.add_(gradient, alpha=-1e-6)
            for line in lines:
                line.sendall(out)

        def work(r: int) -> None:
            lines[0].sendall(into)
            _fill(lines[0], out)

        return _timed(serve if self.serves else work, rounds)

    def _dialled(self) -> list[socket.socket]:
        """The server's connections to the workers, or a worker's to it."""
        if not self._lines and self.serves:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                for pipe in self.ends:
                    pipe.send(listener.getsockname())
                    self._lines.append(listener.accept()[0])
        elif not self._lines:
            self._lines.append(socket.create_connection(self.ends[0].recv()))
        for line in self._lines:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._lines

    def ddp(self, batch_size: int, rounds: int) -> float:
        """Training with DistributedDataParallel of torch over gloo."""
        return 0.0 if self.serves else _timed(self._training(batch_size, parallel=True), rounds)

    def alone(self, batch_size: int, rounds: int) -> float:
        """The same steps without any exchange."""
        return 0.0 if self.serves else _timed(self._training(batch_size, parallel=False), rounds)

    def _training(self, batch_size: int, *, parallel: bool) -> Callable[[int], object]:
        data, module = resolve_data("mnist", data_root()), build_model("mlp", 0)
        if parallel:
            self._join()
            module = torch.nn.parallel.DistributedDataParallel(module)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
        batches = Batches(len(data.train_y), self.workers, self.rank, batch_size, 0)

        def turn(r: int) -> None:
            rows = torch.from_numpy(batches.at(r))
            optimizer.zero_grad()
            x = batch(data.train_x[rows], torch.float32, data.mean, data.std)
            functional.cross_entropy(module(x), data.train_y[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

        return turn

    def _join(self) -> None:
        if not self._group:
            where = (Path(self.folder) / "store").as_uri()
            torch.distributed.init_process_group("gloo", init_method=where, rank=self.rank, world_size=self.workers)
            self._group = True

    def _shared(self, size: int, rounds: int, *, copy_out: bool) -> float:
        flags = self.arena.bytes(0, LINE * (self.workers + 1)).cast("q")
        step = LINE // 8

        def flat(index: int) -> torch.Tensor:
            return self.arena.tensor(4096 + 4 * size * index, size, torch.float32)

        weights, start = flat(0), flags[step * self.rank]
        gradients = [flat(1 + w) for w in range(self.workers)]
        targets = [flat(1 + self.workers + w) for w in range(self.workers)] if copy_out else []

        def serve(r: int) -> None:
            for w in range(self.workers):
                _until(flags, step * w, start + r + 1)
            for low in range(0, size, CHUNK):
                piece = slice(low, min(low + CHUNK, size))
                here = weights[piece]
                for gradient in gradients:
                    here.add_(gradient[piece], alpha=-1e-6)
                for target in targets:
                    target[piece].copy_(here)
            flags[step * self.workers] = start + r + 1

        def work(r: int) -> None:
            flags[step * self.rank] = start + r + 1
            _until(flags, step * self.workers, start + r + 1)

        return _timed(serve if self.serves else work, rounds)


WAYS = ("copies", "in_place", "gloo", "pickled", "tcp", "ddp", "alone")


def _fill(line: socket.socket, place: memoryview) -> None:
    while place:
        place = place[line.recv_into(place) :]


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


def _peer(rank: int, workers: int, parent: Connection, ends: list[Connection], arena: Arena, folder: str) -> None:
    torch.set_num_threads(1)
    peer = _Peer(rank, workers, ends, arena, folder)
    ways = {name: getattr(peer, name) for name in WAYS}
    while True:
        try:
            what, size, rounds = parent.recv()
        except EOFError:
            return
        parent.send(ways[what](size, rounds))
