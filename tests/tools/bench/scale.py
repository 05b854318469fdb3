"""Many workers and servers, of which one decides for all ranges: what a message costs it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product

from pslab.config.spec import build
from pslab.engines.experiment.job import Job
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.experiment.wire import WHOLE, Carried, Frame, PushInfo, Wanted, pack, unpack
from pslab.engines.local.store import frame_of
from pslab.engines.server.clock import WallClock
from pslab.engines.server.driver import ServerDriver
from pslab.engines.server.ledger import Ledger
from pslab.engines.server.push_accounts import PushAccounts
from pslab.engines.server.store import Details, Finished
from pslab.engines.virtual.timing import Sizes, job_without_tensors
from pslab.protocol.messages import Pull, Push
from pslab.protocol.server import Reply, Server
from pslab.protocol.store import Order, StoreMachine
from tools.bench.measure import Row, alternated, ignore
from tools.bench.processes import ROW, exchange

POLICIES, CROWDS, RANGES = ("asp", "ssp:3", "bsp"), (64, 256, 1000), (1, 64)
COUNTS = (120_000, 3), (20_000, 1)  # messages, and how often they are measured: as a rule, and quickly


def rows(quick: bool) -> Iterator[Row]:
    """The time of a message at the state machine alone, and at the whole server: with driver, accounts, ledger and
    frames; with several servers, also with orders to their stores. Without system calls, and without tensors."""
    count, repeats = COUNTS[quick]
    for policy, workers, ranges in product(POLICIES, CROWDS[::2] if quick else CROWDS, RANGES):
        ours, machine = alternated({"server": partial(server_s, policy, workers, ranges, count),
                                    "machine": partial(message_s, policy, workers, count, ranges)},
                                   repeats).values()  # fmt: skip
        where = "1 range" if ranges == 1 else f"{ranges} ranges at {ranges} servers"
        note = f"{1e-3 / ours:.3g} thousand a second; the machine alone {1e-3 / machine:.3g}"
        yield Row(f"a message under {policy}, W={workers}, {where}", ours, machine, "the machine alone", unit="us",
                  note=note)  # fmt: skip


def message_s(policy: str, workers: int, count: int, ranges: int = 1) -> float:
    """CPU seconds of one message at the server's machine, of at least `count`: each worker pushes a range, then asks
    for it, in turn."""
    server, rounds = Server(range(workers), ranges, build("sync", policy)), -(-count // (2 * workers * ranges))
    start_s = time.thread_time()
    for iteration, worker, index in product(range(rounds), range(workers), range(ranges)):
        for message in (Push(worker, index, iteration, 0), Pull(worker, index, iteration + 1, 0)):
            for effect in server.handle(message, 0.0):
                if isinstance(effect, Reply):
                    server.answered(index)
    return (time.thread_time() - start_s) / (2 * rounds * workers * ranges)


class RemoteStore:
    """A store in another process, as the decider sees it: orders become bytes, and the answers are bytes, too."""

    def __init__(self) -> None:
        self._machine = StoreMachine()

    def hand(self, order: Order, details: Details) -> Finished:
        self._machine.order(order, details)
        pack(frame_of(order, details))
        (carried,) = unpack(_CARRIED)
        return Finished.of(self._machine.done(), *carried)

    def finish(self) -> Sequence[Finished]:
        return ()


class Packing:
    """A transport that packs frames into bytes and drops them."""

    def send(self, worker: int, frame: Frame, now: float) -> None:
        pack(frame)

    def attend(self) -> None:
        """Do what is due between messages: nothing."""

    def keep(self) -> None:
        """Keep the weights: there are none."""


def server_s(policy: str, workers: int, servers: int, count: int) -> float:
    """CPU seconds of one message at the server, of at least `count`, from a frame's bytes to those of the answer."""
    rounds = -(-count // (2 * workers * servers))
    run = {"workers": workers, "servers": servers, "sync": policy, "pushes": 10**9}
    job, arenas = job_without_tensors(exchange(ROW * servers, servers, **run)), (Arena(), Arena())
    accounts = PushAccounts(job, Ledger(job, None, None, ignore, arenas))
    clock, machine = WallClock(), Server(range(workers), servers, job.sync)
    stores = [RemoteStore() for _ in range(1, servers)]
    driver = ServerDriver(job, machine, accounts, Sizes(job), clock, Packing(), others=stores)
    clock.start()
    spent_s = 0.0
    for iteration, worker in product(range(rounds), range(workers)):
        frame = _iteration(job, worker, iteration)
        start_s = time.thread_time()
        driver.receive(list(unpack(frame)))
        spent_s += time.thread_time() - start_s
    for arena in arenas:
        arena.close()
    return spent_s / (2 * rounds * workers * servers)


def _iteration(job: Job, worker: int, iteration: int) -> bytes:
    """The frame that a worker sends: of each range the push, and the request for its next weights."""
    frame: Frame = []
    for index, part in enumerate(job.parts):
        frame.append(Push(worker, index, iteration, 0, PushInfo(WHOLE, part.size, math.nan)))
        frame.append(Pull(worker, index, iteration + 1, 0, Wanted(0, 0)))
    return pack(frame)


_CARRIED = pack([Carried(WHOLE, 0.0, 0.0)])
