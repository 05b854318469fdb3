"""Many workers and servers, of which one decides for all ranges: what a message costs it, and runs in virtual time in
which it costs that. And a model that fills memory: 10^9 parameters in ranges, plain SGD, one worker."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pandas as pd

from pslab.config.run import Run
from pslab.config.spec import build
from pslab.engines.execute import execute
from pslab.engines.experiment.job import Job
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.experiment.wire import WHOLE, Carried, Frame, PushInfo, Wanted, pack, unpack
from pslab.engines.local.store import frame_of
from pslab.engines.processes import pool as pools
from pslab.engines.server.clock import WallClock
from pslab.engines.server.driver import ServerDriver
from pslab.engines.server.ledger import PUSH_COLUMNS, Ledger
from pslab.engines.server.push_accounts import PushAccounts
from pslab.engines.server.store import Finished, Work
from pslab.engines.virtual.timing import Sizes, job_without_tensors
from pslab.engines.worker.phases import COMPUTE
from pslab.lab.runs.resolve import resolve
from pslab.protocol.messages import Pull, Push
from pslab.protocol.server import Reply, Server
from pslab.protocol.store import Order, StoreMachine
from tools.bench.measure import Row, alternated, copy_s, ignore
from tools.bench.processes import ROW, exchange

POLICIES, CROWDS, RANGES = ("asp", "ssp:3", "bsp"), (64, 256, 1000), (1, 64)
COUNTS = (120_000, 3), (20_000, 1)  # messages, and how often they are measured: as a rule, and quickly
ROUNDS, LEAST = 3, 640  # of all workers; pushes of a simulation
FORGET_PEAK = Path("/proc/self/clear_refs")  # Linux, with "5": of this process's memory
SIZE, LARGE_RANGES, LARGE_ROUNDS = 10**9, 16, 7  # of the large model
TOUCHED = 3  # rounds in which some memory is touched for the first time
MEMORY_BAR, TIME_BAR = 1.3, 2.0
NEEDED_BYTES = 4 * 4 * SIZE  # the weights, the worker's two gradients, and as much again for the copy
#: 10 Gbit/s for each worker, 25 for each server; a gradient takes 100 ms. Of the thesis's MLP, dense: 3.7 MB.
CLUSTER: dict[str, float] = {
    "bandwidth_bit_s": 1e10, "server_bandwidth_bit_s": 2.5e10, "latency_s": 5e-5, "compute_s": 0.1,
    "compute_sigma": 0.1, "apply_s": 4e-4, "serve_s": 3e-4,
}  # fmt: skip
#: Changes that would shorten its work, as a factor of its time by the number of servers.
LESS: dict[str, Callable[[int], float]] = {
    "ten times faster": lambda servers: 0.1,
    "one push and one pull for all ranges": lambda servers: 1 / servers,
    "free": lambda servers: 0.0,
}


def deciding(quick: bool) -> dict[tuple[str, int, int], Row]:
    """The time of a message at the state machine alone, and at the whole server: with driver, accounts, ledger and
    frames; with several servers, also with orders to their stores. Without system calls, and without tensors.

    By policy, workers and ranges.
    """
    count, repeats = COUNTS[quick]
    found = {}
    for policy, workers, ranges in product(POLICIES, CROWDS[::2] if quick else CROWDS, RANGES):
        ours, machine = alternated({"server": partial(server_s, policy, workers, ranges, count),
                                    "machine": partial(message_s, policy, workers, count, ranges)},
                                   repeats).values()  # fmt: skip
        where = "1 range" if ranges == 1 else f"{ranges} ranges at {ranges} servers"
        note = f"{1e-3 / ours:.3g} thousand a second; the machine alone {1e-3 / machine:.3g}"
        found[policy, workers, ranges] = Row(f"a message under {policy}, W={workers}, {where}", ours, machine,
                                             "the machine alone", unit="us", note=note)  # fmt: skip
    return found


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

    def hand(self, order: Order, work: Work) -> Finished:
        self._machine.order(order, work)
        pack(frame_of(order, work))
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


class Simulated(NamedTuple):
    """A run in virtual time, and what it took to simulate it."""

    pushes_s: float  #: iterations of all workers, a second
    busy: float  #: share of the time in which the server that decides is busy
    computing: float  #: share of the workers' time in which they compute
    wall_s: float
    cpu_s: float
    events: int
    peak_bytes: int  #: of memory, that the process had


def simulated(policy: str, workers: int, servers: int, message_s: float, rounds: int) -> Simulated:
    """So many rounds of all workers; the server that decides takes `message_s` for a push and a pull of one range."""
    run = Run(engine="timing", workers=workers, servers=servers, sync=policy, batch_size=1, pushes=rounds * workers,
              cluster={**CLUSTER, "message_s": message_s})  # fmt: skip
    FORGET_PEAK.write_text("5")
    experiment, start_s = resolve(run), time.thread_time()
    outcome = execute(experiment, ignore)
    cpu_s = time.thread_time() - start_s
    phase, begin_s, end_s = outcome.phases[:, 2:5].T
    computed_s, seconds = (end_s - begin_s)[phase == COMPUTE].sum(), outcome.facts["seconds"]
    facts, peak_bytes = outcome.facts, 1024 * kibibytes("/proc/self/status", "VmHWM")
    return Simulated(facts["pushes"] / seconds, facts["server_busy_s"] / seconds, computed_s / workers / seconds,
                     facts["turning_s"], cpu_s, facts["events"], peak_bytes)  # fmt: skip


def limits(workers: int, servers: int, message_s: float, round_s: float) -> dict[str, float]:
    """What each part alone would allow, in iterations of all workers a second: the least of these is the limit.

    `round_s`: what an iteration of a worker takes that is alone.
    """
    job = job_without_tensors(resolve(Run(engine="timing", servers=servers, cluster=CLUSTER)))
    largest_bytes = max(job.payload_bytes(index, WHOLE) for index in range(servers))
    work_s = (CLUSTER["apply_s"] + CLUSTER["serve_s"]) / servers
    own_s = message_s * servers + work_s  # of the server that decides, which also holds a range
    byte_s = CLUSTER["server_bandwidth_bit_s"] / 8
    return {"the workers": workers / round_s, "the servers' links": byte_s / largest_bytes,
            "the work on the weights": 1 / work_s, "the server that decides": 1 / own_s}  # fmt: skip


def crowds(spent_s: Mapping[tuple[str, int], float], quick: bool) -> Iterator[Row]:
    """Runs of many workers and servers in virtual time, beside the arithmetic.

    Args:
        spent_s: by policy and servers, what the server that decides takes for a message.
    """
    most, many = CROWDS[0] if quick else CROWDS[-1], RANGES[-1]
    cases = [*(("asp", workers, many, "") for workers in (16, 64, 256) if workers < most), ("asp", most, 1, ""),
             *((policy, most, many, "") for policy in POLICIES),
             *(("asp", most, many, less) for less in LESS)]  # fmt: skip
    for policy, workers, servers, less in cases:
        message_s = 2 * spent_s[policy, servers] * (LESS[less](servers) if less else 1.0)
        alone = simulated(policy, 1, servers, message_s, rounds=20)
        allowed = limits(workers, servers, message_s, 1 / alone.pushes_s)
        limit = min(allowed, key=allowed.__getitem__)
        run = simulated(policy, workers, servers, message_s, max(ROUNDS, LEAST // workers))
        event_us, peak_mib = 1e6 * run.cpu_s / run.events, run.peak_bytes / 2**20
        note = (f"limit: {limit}; who decides is busy {100 * run.busy:.0f} %, workers compute "
                f"{100 * run.computing:.0f} %; simulated in {run.wall_s:.3g} s ({run.cpu_s:.3g} of CPU), "
                f"{event_us:.3g} us an event; the process has {peak_mib:.0f} MiB")  # fmt: skip
        name = f"{policy}, W={workers}, {servers} server{'s' * (servers > 1)}{less and f', {less}'}: pushes"
        yield Row(name, run.pushes_s, allowed[limit], "arithmetic", unit="/s", note=note)


def rows(quick: bool) -> Iterator[Row]:
    """What a message costs the server that decides, and what follows; where there is memory for it, the large model."""
    measured = deciding(quick)
    yield from measured.values()
    most = max(workers for _, workers, _ in measured)
    yield from crowds({(policy, ranges): row.ours for (policy, workers, ranges), row in measured.items()
                       if workers == most}, quick)  # fmt: skip
    if kibibytes("/proc/meminfo", "MemAvailable") * 1024 < NEEDED_BYTES:
        print(f"  left out: a model of 10^9 parameters needs {NEEDED_BYTES / 2**30:.0f} GiB of free memory")
    else:
        yield from large_model()


def large_model() -> Iterator[Row]:
    """The memory of the server compared with the model; a round compared with one copy of the model."""
    pools.release()
    experiment = exchange(SIZE, LARGE_RANGES, workers=1, sync="bsp", pushes=LARGE_ROUNDS)
    pushes = pd.DataFrame(execute(experiment, ignore).pushes, columns=PUSH_COLUMNS)
    ends = pushes.groupby("iteration").seconds.max().tolist()  # when the last range of each was applied
    process = f"/proc/{pools.acquire(1).processes[pools.SERVER].pid}/smaps_rollup"
    own, resident = (1024 * kibibytes(process, name) for name in ("Anonymous", "Rss"))
    pools.release()
    yield Row(f"10^9 parameters in {LARGE_RANGES} ranges, a round",
              median(end - start for start, end in pairwise(ends[TOUCHED - 1 :])), copy_s(SIZE, 2.0),
              "one copy, one thread", TIME_BAR, "s", f"the first, which touches the memory, {ends[0]:.1f} s")
    model = 4 * experiment.keyspace.size
    yield Row("the server's own memory and the weights", own + model, model, "the model", MEMORY_BAR, "GiB",
              f"also mapped: the worker's gradients; {resident / 2**30:.1f} GiB in all")  # fmt: skip


def kibibytes(file: str, name: str) -> int:
    """A figure of a file of /proc; 0 if it is not there."""
    found = re.search(rf"^{name}:\s+(\d+) kB", Path(file).read_text(), re.MULTILINE)
    return int(found[1]) if found else 0


def _iteration(job: Job, worker: int, iteration: int) -> bytes:
    """The frame that a worker sends: of each range the push, and the request for its next weights."""
    frame: Frame = []
    for index, part in enumerate(job.parts):
        frame.append(Push(worker, index, iteration, 0, PushInfo(WHOLE, part.size, math.nan)))
        frame.append(Pull(worker, index, iteration + 1, 0, Wanted(0, 0)))
    return pack(frame)


_CARRIED = pack([Carried(WHOLE, 0.0, 0.0)])
