"""Many workers and servers, of whom one decides; and a model that fills memory: 10^9 parameters pushed and pulled in
ranges, plain SGD, one worker."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd

from pslab.engines.local.engine import execute
from pslab.engines.processes import pool as pools
from pslab.engines.server.ledger import PUSH_COLUMNS
from tools.bench import decider
from tools.bench.flat import exchange
from tools.bench.measure import Row, copy_s

SECTION = "7 scale"
SIZE, RANGES, ROUNDS = 10**9, 16, 7
TOUCHED = 3  # rounds in which some memory is touched for the first time
MEMORY_BAR, TIME_BAR = 1.3, 2.0
NEEDED_BYTES = 4 * 4 * SIZE  # the weights, the worker's two gradients, and as much again for the copy


def rows(quick: bool) -> list[Row]:
    """The server that decides; and, where there is memory for it, the large model."""
    found = decider.rows(quick)
    if _available_bytes() < NEEDED_BYTES:
        print(f"  left out: a model of 10^9 parameters needs {NEEDED_BYTES / 2**30:.0f} GiB of free memory")
        return found
    return [*found, *_large_model()]


def _large_model() -> list[Row]:
    """The memory of the server compared with the model; a round compared with one copy of the model."""
    pools.release()
    experiment = exchange(SIZE, RANGES, workers=1, sync="bsp", pushes=ROUNDS)
    ends = _round_ends(execute(experiment, lambda news: None).pushes)
    per_round, first = median(np.diff(ends[TOUCHED - 1 :])), float(ends[0])
    resident = _resident_bytes(pools.acquire(1).processes[pools.SERVER].pid)
    pools.release()
    copy = copy_s(SIZE, 2.0)
    model = 4 * experiment.keyspace.size
    server = (resident["Anonymous"] + model) / model
    return [
        Row(SECTION, f"10^9 parameters in {RANGES} ranges, a round", per_round, "s", "one copy, one thread",
            per_round / copy, TIME_BAR, f"the first, which touches the memory, {first:.1f} s"),
        Row(SECTION, "the server's own memory and the weights", server * model / 2**30, "GiB", "the model", server,
            MEMORY_BAR, f"also mapped: the worker's gradients; {resident['Rss'] / 2**30:.1f} GiB in all"),
    ]  # fmt: skip


def _round_ends(pushes: np.ndarray) -> np.ndarray:
    """When the last range of each iteration was applied, in seconds."""
    table = pd.DataFrame(pushes, columns=PUSH_COLUMNS)
    return table.groupby("iteration").seconds.max().to_numpy()


def _resident_bytes(process: int) -> dict[str, int]:
    text = Path(f"/proc/{process}/smaps_rollup").read_text()
    return {name: 1024 * int(size) for name, size in re.findall(r"^(\w+): +(\d+) kB", text, re.MULTILINE)}


def _available_bytes() -> int:
    found = re.search(r"^MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return 1024 * int(found[1]) if found else 0
