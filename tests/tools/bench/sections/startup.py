"""Start-up: spawning workers that have imported torch, and the next run in the same pool."""

from __future__ import annotations

import multiprocessing as mp
import time
from functools import partial

from pslab.config.run import Run
from pslab.engines.local.engine import execute
from pslab.engines.processes import pool as pools
from pslab.lab.runs.resolve import resolve
from tools.bench.measure import Row, alternated

SECTION = "6 start-up"
NEXT_RUN_S = 0.05


def rows(quick: bool) -> list[Row]:
    """Pools of 2, 4 and 8 workers; then the time until the workers of the next run start."""
    repeats, found = 1 if quick else 3, []
    for workers in (2, 4) if quick else (2, 4, 8):
        seconds = alternated({"pool": partial(_pool, workers), "bare": partial(_bare, workers + 1)}, repeats)
        ratio, against = seconds["pool"] / seconds["bare"], f"{workers + 1} spawned processes that import torch"
        found.append(Row(SECTION, f"a pool of {workers} workers and a server", seconds["pool"], "s", against, ratio))
    found.append(_next_run(5 if quick else 15))
    return found


def _next_run(repeats: int) -> Row:
    """From a Run to the start of its workers: names resolved, model checked, all processes prepared and warm."""
    spent = alternated({"next": _preparation}, repeats + 1)["next"]
    return Row(SECTION, "the next run in the same pool, 4 workers", 1e3 * spent, "ms", "50 ms", spent / NEXT_RUN_S, 1.0)


def _preparation() -> float:
    start_s = time.perf_counter()
    experiment = resolve(Run(pushes=4, eval_every=4))
    resolved_s = time.perf_counter() - start_s
    return resolved_s + float(execute(experiment, lambda news: None).facts["preparation_s"])


def _pool(workers: int) -> float:
    pools.release()
    start_s = time.perf_counter()
    pools.acquire(workers)
    return time.perf_counter() - start_s


def _bare(count: int) -> float:
    context = mp.get_context("spawn")
    start_s = time.perf_counter()
    processes = [context.Process(target=_import_torch) for _ in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return time.perf_counter() - start_s


def _import_torch() -> None:
    import torch

    torch.ones(1)
