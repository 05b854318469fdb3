"""Virtual time: its cost compared with the gradients alone, the gain of a second core, events per second, and what
the protocol costs by the number of workers."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pslab.config.run import Run
from pslab.engines.execute import execute
from pslab.engines.experiment.checkpoint.checkpointing import PERIOD_S, SHARE
from pslab.engines.experiment.checkpoint.store import CheckpointStore
from pslab.engines.processes import pool as pools
from pslab.engines.processes.coordinator import Coordinator
from pslab.engines.virtual import engine as virtual
from pslab.engines.virtual.hosts import Hosts
from pslab.engines.worker.tensors import NO_BASIS
from pslab.lab.runs.resolve import resolve
from pslab.protocol.window import Window
from tools.bench.decider import message_s
from tools.bench.measure import Row, alternated

SECTION = "4 virtual time"
BATCH_SIZE, COST_BAR, CORES_BAR = 128, 1.08, 1 / 1.8
EVENT_S, SCALING_BAR = 1 / 200_000, 2.0
CLUSTER = {"preset": "lab"}
CROWDS = (4, 16, 64, 256, 1024)


def rows(quick: bool) -> list[Row]:
    """Dense runs with gradients, without evaluation; runs without tensors; the server's machine alone."""
    pushes, repeats = (160, 1) if quick else (480, 3)
    events = 5_000 if quick else 40_000
    return [*_gradients(pushes, repeats), *_checkpoints(pushes, repeats), *_events(events, repeats),
            *_messages(events, repeats)]  # fmt: skip


def _gradients(pushes: int, repeats: int) -> list[Row]:
    found = []
    for sync, workers in (("bsp", 4), ("asp", 4), ("bsp", 16)):
        run = Run(engine="virtual", sync=sync, workers=workers, batch_size=BATCH_SIZE, pushes=pushes, eval_every=pushes,
                  learning_rate=0.1, cluster=CLUSTER)  # fmt: skip
        cores = virtual.cores()
        spent = alternated({"whole": partial(_whole, run, cores), "bare": partial(_bare, run, cores),
                            "one core": partial(_whole, run, 1)}, repeats)  # fmt: skip
        name = f"{sync}, W={workers}, batch {BATCH_SIZE}: {pushes} pushes"
        each = f"{1e3 * spent['bare'] / pushes:.3g} ms a gradient"
        found.append(Row(SECTION, name, spent["whole"], "s", f"the bare gradients on {cores} cores",
                         spent["whole"] / spent["bare"], COST_BAR, each))  # fmt: skip
        if cores > 1:
            found.append(Row(SECTION, name, spent["whole"], "s", "on one core", spent["whole"] / spent["one core"],
                             CORES_BAR, f"{spent['one core'] / spent['whole']:.2f} times sooner"))  # fmt: skip
    return found


def _whole(run: Run, cores: int) -> float:
    experiment = resolve(run)
    return float(virtual.execute(experiment, _ignore, cores).facts["turning_s"])


def _checkpoints(pushes: int, repeats: int) -> list[Row]:
    """What one takes of a run's time where they are made as often as by default: at most SHARE, and a period apart."""
    found = []
    for sync, prune in (("bsp", "none"), ("asp", "static:1%")):
        run = Run(engine="virtual", sync=sync, prune=prune, pushes=pushes, checkpoint_every=pushes // 4,
                  cluster=CLUSTER)  # fmt: skip
        name = f"checkpoints, {sync}, prune {prune}, W=4, at the default period"
        spent_s = alternated({name: partial(checkpoint_s, run)}, repeats)[name]
        share = spent_s / max(PERIOD_S, spent_s / SHARE)
        note = f"{1e3 * spent_s:.3g} ms each"
        found.append(Row(SECTION, name, 100 * share, "%", "what they may take", share / SHARE, 1.0, note))
    return found


def checkpoint_s(run: Run) -> float:
    """Seconds for one, with the wait for the gradients that are under way, and until it is on the disk."""
    with TemporaryDirectory() as folder:
        facts = execute(dataclasses.replace(resolve(run), checkpoints=CheckpointStore(Path(folder))), _ignore).facts
    return float(facts["checkpoints_s"]) / int(facts["checkpoints"])


def _bare(run: Run, cores: int) -> float:
    """As many gradients on the same processes, without a server."""
    experiment = resolve(run)
    pool = pools.acquire(cores)
    coordinator = Coordinator(pool, experiment, _ignore)
    hosts = Hosts(pool, cores, coordinator.lay_out())
    coordinator.await_prepared(hosts.numbers)
    turns = itertools.cycle(range(run.workers))
    start_s, under_way = time.perf_counter(), [next(turns) for _ in range(run.workers)]
    for worker in under_way:
        hosts.start(worker, 0, [], 0.0, NO_BASIS)
    for count in range(int(run.pushes or 0)):
        worker = under_way.pop(0)
        hosts.result(worker, lambda: None)
        if count < int(run.pushes or 0) - run.workers:
            hosts.start(worker, count // run.workers + 1, [], float(count), NO_BASIS)
            under_way.append(worker)
    return time.perf_counter() - start_s


def _events(pushes: int, repeats: int) -> list[Row]:
    """Events are those of the heap and the links; a push takes three without links, otherwise more."""
    calls: dict[tuple[int, bool], Any] = {}
    for workers, links in itertools.product((4, 64, 1024), (False, True)):
        cluster = CLUSTER if links else {"compute_s": 0.02, "compute_sigma": 0.1}
        run = Run(engine="timing", sync="ssp:3", workers=workers, batch_size=1, pushes=pushes, cluster=cluster)
        calls[workers, links] = partial(_per_event, run)
    spent = alternated({str(key): call for key, call in calls.items()}, repeats)
    found = []
    for workers, links in calls:
        event_s, few_s = spent[str((workers, links))], spent[str((4, links))]
        name = f"an event without tensors, W={workers}, {'with' if links else 'no'} links"
        rate = f"{1e-3 / event_s:.0f} thousand a second"
        if workers == 4:
            found.append(Row(SECTION, name, 1e6 * event_s, "us", "5 us", event_s / EVENT_S, 1.0, rate))
        else:
            found.append(Row(SECTION, name, 1e6 * event_s, "us", "W=4", event_s / few_s, SCALING_BAR, rate))
    return found


def _per_event(run: Run) -> float:
    facts = execute(resolve(run), _ignore).facts
    return float(facts["turning_s"]) / int(facts["events"])


def _messages(count: int, repeats: int) -> list[Row]:
    """By the number of workers: a push in the sliding window, beside a scan of all clocks for the lowest; a message,
    push or pull, at the server's machine with its policy."""
    calls: dict[tuple[str, int], Callable[[], float]] = {}
    for workers in CROWDS:
        calls["a push in the window", workers] = partial(window_s, workers, count)
        calls["scan", workers] = partial(scan_s, workers, count)
        for policy in ("ssp:3", "bsp", "asp"):
            calls[f"a message under {policy}", workers] = partial(message_s, policy, workers, count)
    spent = alternated({str(key): call for key, call in calls.items()}, repeats)
    found = []
    for name, workers in calls:
        if name == "scan":
            continue
        each_s, few_s = spent[str((name, workers))], spent[str((name, CROWDS[0]))]
        scan = f"{1e6 * spent[str(('scan', workers))]:.3g} us by a scan of all clocks" if "window" in name else ""
        found.append(Row(SECTION, f"{name}, W={workers}", 1e6 * each_s, "us", f"W={CROWDS[0]}", each_s / few_s,
                         SCALING_BAR, scan))  # fmt: skip
    return sorted(found, key=lambda row: row.name.partition(",")[0])


def window_s(workers: int, count: int) -> float:
    """Seconds of one push in a window of 4 iterations, of at least `count` that come round by round."""
    window, rounds = Window(workers, 4), -(-count // workers)
    start_s = time.perf_counter()
    for iteration in range(rounds):
        for _ in range(workers):
            window.push(iteration)
    return (time.perf_counter() - start_s) / (rounds * workers)


def scan_s(workers: int, count: int) -> float:
    """Seconds of one push with a vector of clocks, of which each push looks for the lowest."""
    clocks, count = [0] * workers, max(1, count * CROWDS[0] // workers)
    turns, start_s = itertools.cycle(range(workers)), time.perf_counter()
    for _, worker in zip(range(count), turns, strict=False):
        clocks[worker] += 1
        min(clocks)
    return (time.perf_counter() - start_s) / count


def _ignore(news: dict[str, Any]) -> None:
    """Progress is not shown."""
