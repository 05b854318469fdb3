"""How fast the ways between the processes of a fleet are, and where each of these is: measured over their own streams.

A way's latency is half its shortest round trip. Its bandwidth is that of one message, as large as it takes for it to be
under way for TRANSFER_S; that of all ways at once is what the hosts of the servers take in.
"""

from __future__ import annotations

import platform
import select
import socket
import statistics
import struct
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from pslab.config.fleet import Fleet
from pslab.engines.processes.channel import limit_waits, report
from pslab.engines.processes.child import SERVER, ProcessContext, name
from pslab.engines.processes.pool import Pool
from pslab.engines.processes.precedence import cores
from pslab.engines.processes.watch import COMPUTING

PINGS = 200
LEAST_BYTES, MOST_BYTES, ROOM_BYTES = 1 << 20, 1 << 28, 1 << 20  # of one message, and of what it is written from
TRANSFER_S, TOGETHER_S = 0.2, 0.5
ANSWER_LIMIT_S = 10.0
REQUEST, ENDS = struct.Struct("<qq"), -1  # how many bytes it brings, how many it wants
_room = memoryview(bytearray(ROOM_BYTES))


class Host(NamedTuple):
    """Where a process is."""

    who: str  #: "server", "server 1", "worker 0"
    name: str
    cores: float
    gpus: list[str]
    python: str
    torch: str
    offset_s: float  #: how much more the server's clock shows
    bound_s: float  #: how far off that may be
    port: int  #: where it listens


class LinkSpeed(NamedTuple):
    """Between a worker and a server."""

    worker: int
    server: int
    latency_s: float
    up_bit_s: float
    down_bit_s: float


class LinkSpeeds(NamedTuple):
    """The figures of all links between workers and servers."""

    hosts: list[Host]
    ways: list[LinkSpeed]
    together_bit_s: float  #: all workers send at once

    def cluster(self) -> dict[str, float]:
        """The links of an emulated cluster like this one: medians over the ways."""
        each_bit_s = statistics.median(min(way.up_bit_s, way.down_bit_s) for way in self.ways)
        return {
            "latency_s": float(f"{statistics.median(way.latency_s for way in self.ways):.3g}"),
            "bandwidth_bit_s": float(f"{each_bit_s:.3g}"),
            "server_bandwidth_bit_s": float(f"{max(each_bit_s, self.together_bit_s):.3g}"),
        }


def measured(workers: int, servers: Sequence[int], fleet: Fleet, heed: Callable[[], None] = lambda: None) -> LinkSpeeds:
    """Between so many workers and the servers, which are the processes of these numbers beside SERVER.

    Raises:
        StartFailed: a process cannot be started, or is refused. WorkerFailed: one has not answered another within
        10 s. WorkerDied: one is gone.
    """
    pool = Pool(workers + len(servers), heed, fleet, others=("server",) * len(servers))
    try:
        everyone = {SERVER: "server", **{n: f"server {1 + s}" for s, n in enumerate(servers)},
                    **{worker: f"worker {worker}" for worker in range(workers)}}  # fmt: skip
        for number in everyone:
            role = Measures if 0 <= number < workers else Answers
            pool.start(number, role, *((list(servers),) if role is Measures else (workers,)))
        hosts = _reported(pool, everyone, heed)
        for number in (SERVER, *servers):
            pool.order(number, "serve")
        ways = list[LinkSpeed]()
        for worker in range(workers):
            pool.order(worker, "alone")
            ways += [LinkSpeed(worker, *each) for each in _reported(pool, [worker], heed)[worker]["ways"]]
        for worker in range(workers):
            pool.order(worker, "together")
        together_bit_s = sum(body["bit_s"] for body in _reported(pool, range(workers), heed).values())
        for worker in range(workers):
            pool.order(worker, "end")
        _reported(pool, everyone, heed)
        _tell_apart(hosts, pool)
        return LinkSpeeds([Host(who, **hosts[number]) for number, who in everyone.items()], ways, together_bit_s)
    finally:
        pool.close(kill=True)


def _tell_apart(hosts: dict[int, dict[str, Any]], pool: Pool) -> None:
    """Several hosts are named with their addresses: two of them may have one name."""
    found = pool.free(hosts)
    for address, (numbers, _) in found.items() if len(found) > 1 else ():
        for number in numbers:
            hosts[number]["name"] += f" ({address})"


def _reported(pool: Pool, numbers: Any, heed: Callable[[], None]) -> dict[int, dict[str, Any]]:
    """The next report of each of these, after that it is prepared."""
    found: dict[int, dict[str, Any]] = {}
    while missing := [number for number in numbers if number not in found]:
        heed()
        for number, each in pool.reports(dict.fromkeys(missing, COMPUTING), 0.1):
            if each.kind == "measured":
                found[number] = each.body
    return found


class _Role:
    called = "process {}"

    def __init__(self, context: ProcessContext, others: Sequence[Connection]) -> None:
        import torch

        self.called, self.parent, self.lines = name(context.number), context.parent, list(others)
        for line in self.lines:
            limit_waits(line, ANSWER_LIMIT_S)
        gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        (offset_s, bound_s), port = context.offset, context.reach.port if context.reach else 0
        self.measured(name=socket.gethostname(), cores=float(cores()), gpus=gpus, python=platform.python_version(),
                      torch=torch.__version__, offset_s=offset_s, bound_s=bound_s, port=port)  # fmt: skip

    def measured(self, **body: Any) -> None:
        report(self.parent, "measured", body)


class Answers(_Role):
    """The role of a server: it answers requests."""

    def __init__(self, context: ProcessContext, workers: int) -> None:
        decides = context.number == SERVER
        lines = [context.pipes[worker] if decides else context.line_of(worker) for worker in range(workers)]
        super().__init__(context, lines)

    def serve(self) -> None:
        """Answer until each worker has sent its last request."""
        while self.lines:
            for line in select.select(self.lines, (), ())[0]:
                brings, wants = REQUEST.unpack(line.recv_bytes())
                if brings == ENDS:
                    self.lines.remove(line)
                else:
                    take(line, brings)
                    send(line, wants)
        self.measured()


class Measures(_Role):
    """The role of a worker."""

    def __init__(self, context: ProcessContext, servers: Sequence[int]) -> None:
        super().__init__(context, [context.pipes[0], *(context.line_to(number)[0] for number in servers)])

    def alone(self) -> None:
        """While no other worker measures: latency, and bandwidth to each server and from it."""
        ways = []
        for server in range(len(self.lines)):
            pings = [self._took_s(server) for _ in range(PINGS)]
            rates = [self._bit_s(server, up=up) for up in (True, False)]
            ways.append((server, min(pings) / 2, *rates))
        self.measured(ways=ways)

    def together(self) -> None:
        """While all do: what it sends to all servers, one after the other, again and again."""
        begin_s, sent = time.perf_counter(), 0
        while (took_s := time.perf_counter() - begin_s) < TOGETHER_S:
            for server in range(len(self.lines)):
                self._took_s(server, brings=LEAST_BYTES)
                sent += LEAST_BYTES
        self.measured(bit_s=8 * sent / took_s)

    def end(self) -> None:
        """The servers wait for no more."""
        for line in self.lines:
            line.send_bytes(REQUEST.pack(ENDS, 0))
        self.measured()

    def _bit_s(self, server: int, *, up: bool) -> float:
        """By a transfer that takes long enough."""
        size = LEAST_BYTES
        while True:
            took_s = self._took_s(server, brings=size) if up else self._took_s(server, wants=size)
            if took_s >= TRANSFER_S or size >= MOST_BYTES:
                return 8 * size / took_s
            size *= 2

    def _took_s(self, server: int, *, brings: int = 0, wants: int = 0) -> float:
        """Until the answer to such a request was here."""
        begin_s, line = time.perf_counter(), self.lines[server]
        try:
            line.send_bytes(REQUEST.pack(brings, wants))
            send(line, brings)
            take(line, wants)
        except (EOFError, OSError) as error:
            words = f"server {server} has not answered {self.called} within {ANSWER_LIMIT_S:g} s ({error})"
            raise TimeoutError(f"{words}: is there a firewall between their hosts?") from error
        return time.perf_counter() - begin_s


def send(line: Connection, size_bytes: int) -> None:
    """Send so many bytes, in messages of no more than ROOM_BYTES; an empty one ends them."""
    for at in range(0, size_bytes, ROOM_BYTES):
        line.send_bytes(_room[: size_bytes - at])
    line.send_bytes(b"")


def take(line: Connection, size_bytes: int) -> None:
    """Take so many bytes, and keep none."""
    while taken := line.recv_bytes_into(_room):
        size_bytes -= taken
    if size_bytes:
        raise ConnectionError(f"{size_bytes} bytes are missing")
