"""Virtual time: its cost compared with the gradients alone, the gain of a second core, and events per second."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from functools import partial

from pslab.config import available
from pslab.config.run import Run
from pslab.engines.processes import pool as pools
from pslab.engines.processes.coordinator import Coordinator
from pslab.engines.virtual import engine as virtual
from pslab.engines.virtual.hosts import Hosts
from pslab.engines.worker.tensors import NO_BASIS
from pslab.lab.runs.resolve import resolve
from tools.bench.measure import Row, alternated, facts_of, ignore

BATCH_SIZE, COST_BAR, CORES_BAR = 128, 1.08, 1 / 1.8
EVENT_S, SCALING_BAR = 1 / 200_000, 2.0
CLUSTER = {"preset": "lab"}


def rows(quick: bool) -> Iterator[Row]:
    """Whole runs with gradients, beside their gradients alone and beside one core; then events of runs without tensors.

    Events are those of the heap and the links; a push takes three without links, otherwise more.
    """
    pushes, events, repeats = (160, 5_000, 1) if quick else (480, 40_000, 3)
    cores = available.cores()
    for sync, workers in (("bsp", 4), ("asp", 4), ("bsp", 16)):
        run = Run(engine="virtual", sync=sync, workers=workers, batch_size=BATCH_SIZE, pushes=pushes, eval_every=pushes,
                  learning_rate=0.1, cluster=CLUSTER)  # fmt: skip
        spent = alternated({"whole": partial(_whole_s, run, cores), "bare": partial(_bare_s, run, cores),
                            "one core": partial(_whole_s, run, 1)}, repeats)  # fmt: skip
        name = f"{sync}, W={workers}, batch {BATCH_SIZE}: {pushes} pushes"
        yield Row(name, spent["whole"], spent["bare"], f"the bare gradients on {cores} cores", COST_BAR, "s",
                  f"{1e3 * spent['bare'] / pushes:.3g} ms a gradient")  # fmt: skip
        if cores > 1:
            yield Row(name, spent["whole"], spent["one core"], "on one core", CORES_BAR, "s")
    calls = {}
    for workers, links in itertools.product((4, 64, 1024), (False, True)):
        cluster = CLUSTER if links else {"compute_s": 0.02, "compute_sigma": 0.1}
        run = Run(engine="timing", sync="ssp:3", workers=workers, batch_size=1, pushes=events, cluster=cluster)
        calls[workers, links] = partial(event_s, run)
    taken = alternated(calls, repeats)
    for (workers, links), one_s in taken.items():
        name = f"an event without tensors, W={workers}, {'with' if links else 'no'} links"
        reference = (EVENT_S, "5 us", 1.0) if workers == 4 else (taken[4, links], "W=4", SCALING_BAR)
        yield Row(name, one_s, *reference, "us", f"{1e-3 / one_s:.0f} thousand a second")


def _whole_s(run: Run, cores: int) -> float:
    return float(virtual.execute(resolve(run), ignore, cores).facts["turning_s"])


def _bare_s(run: Run, cores: int) -> float:
    """Return the seconds of as many gradients on the same processes, without a server."""
    experiment, pushes = resolve(run), int(run.pushes or 0)
    pool = pools.acquire(cores)
    hosts = Hosts(pool, cores, (coordinator := Coordinator(pool, experiment, ignore)).lay_out())
    coordinator.await_prepared(hosts.numbers)
    start_s, under_way = time.perf_counter(), list(range(run.workers))
    for worker in under_way:
        hosts.start(worker, 0, [], 0.0, NO_BASIS)
    for count in range(pushes):
        worker = under_way.pop(0)
        hosts.result(worker, lambda: None)
        if count < pushes - run.workers:
            hosts.start(worker, count // run.workers + 1, [], float(count), NO_BASIS)
            under_way.append(worker)
    return time.perf_counter() - start_s


def event_s(run: Run) -> float:
    """Return the seconds of one event."""
    facts = facts_of(run)
    return float(facts["turning_s"]) / int(facts["events"])
