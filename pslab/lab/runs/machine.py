"""This machine: its cores, memory and disk as a process may use them, and how long a gradient takes on one core."""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pslab.errors import RecordError, StartFailed
from pslab.lab.records.atomic_folder import in_bytes

if TYPE_CHECKING:
    from pslab.engines.job.experiment import Experiment

ROWS_BYTES = 400  # that a push of a range takes in a record at least: its row, and those of its phases
HEADROOM = 1.2  # a fifth of the cores' time for messages, the server's protocol and everybody else


def measure(repeats: int = 15) -> tuple[float, float]:
    """Median seconds of one forward and backward of the MLP at batch 64, and of applying it, on one thread."""
    import torch
    from torch.nn import functional

    from pslab.tensors.workload.keyspace import Keyspace
    from pslab.tensors.workload.models import build_model

    module = build_model("mlp", 0)
    keyspace = Keyspace.of(module)
    weights = keyspace.flatten(module)
    gradient = torch.zeros_like(weights)
    keyspace.bind(module, weights, gradient)
    chance = torch.Generator().manual_seed(0)
    x, y = torch.randn(64, 784, generator=chance), torch.randint(10, (64,), generator=chance)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    times: list[tuple[float, float]] = []
    try:
        for _ in range(repeats):
            begin_s = time.perf_counter()
            gradient.zero_()
            functional.cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
            middle_s = time.perf_counter()
            weights.add_(gradient, alpha=-0.01)
            times.append((middle_s - begin_s, time.perf_counter() - middle_s))
    finally:
        torch.set_num_threads(threads)
    warm = times[repeats // 4 :]
    return statistics.median(t for t, _ in warm), statistics.median(t for _, t in warm)


def shortest_compute_s(workers: int, count: float, gradient_s: float, apply_s: float) -> float:
    """The modelled computation in which `count` cores can compute and apply a gradient of every worker."""
    return HEADROOM * max(gradient_s, workers * (gradient_s + apply_s) / count)


def usable_cores() -> float:
    """Cores that this process may use: by affinity, and by the container's quota."""
    count = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    quota = _words(Path("/sys/fs/cgroup/cpu.max"))
    if len(quota) == 2 and quota[0].isdigit():
        count = min(count, int(quota[0]) / int(quota[1]))
    return count


def free_memory_bytes() -> int | None:
    """Memory that can be had: by the machine, and by the container's limit."""
    found = _words(Path("/proc/meminfo"))
    if "MemAvailable:" not in found:
        return None
    free = int(found[found.index("MemAvailable:") + 1]) * 1024
    limit, used = (_words(Path(f"/sys/fs/cgroup/memory.{name}")) for name in ("max", "current"))
    if limit and used and limit[0].isdigit():
        free = min(free, int(limit[0]) - int(used[0]))
    return free


def shared_memory_bytes() -> int:
    """Memory that processes of this machine share: a pool's is in it, and is used again."""
    found = _words(Path("/proc/meminfo"))
    return int(found[found.index("Shmem:") + 1]) * 1024 if "Shmem:" in found else 0


def needed_bytes(experiment: Experiment) -> tuple[int, int]:
    """What a run takes at least: shared memory, for its tensors and the snapshots to be evaluated, and its record."""
    run, data = experiment.run, experiment.dataset
    flat = experiment.keyspace.size * experiment.weights.element_size()
    pushes = run.pushes or 0
    record = flat * run.keep_weights + ROWS_BYTES * pushes * len(experiment.parts)
    if not experiment.trains:
        return 0, record
    shelf = sum(x.numel() * x.element_size() for x in (data.train_x, data.train_y, data.test_x, data.test_y))
    copies = 1 + run.workers * (1 if experiment.in_place else 2)
    snapshots = 1 + pushes // (run.evaluation_period or max(pushes, 1))
    return shelf + flat * (copies + snapshots), record


def fit(experiment: Experiment, results: Path) -> None:
    """Refuse a run that there is no room for, before a process starts.

    Raises:
        StartFailed: too little memory. RecordError: too little room where the results go.
    """
    memory, record = needed_bytes(experiment)
    free = free_memory_bytes()
    if free is not None and memory > (there := free + shared_memory_bytes()):
        which = "fewer workers or a longer eval_every need less"
        raise StartFailed(f"the run needs {in_bytes(memory)} of memory at least, {in_bytes(there)} are free: {which}")
    folder = next(each for each in (results, *results.absolute().parents) if each.is_dir())
    if record > (left := shutil.disk_usage(folder).free):
        raise RecordError(f"the record needs {in_bytes(record)} at least, {in_bytes(left)} are free in {folder}")


def resident_bytes() -> int | None:
    """Memory that this process holds."""
    found = _words(Path("/proc/self/statm"))
    return int(found[1]) * os.sysconf("SC_PAGE_SIZE") if found else None


def processor() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
