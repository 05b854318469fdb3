"""The machine: its cores and memory as a process may use them."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import platform
import time
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from pslab.config.free_memory import free_memory_bytes, words_of
from pslab.config.run import Run
from pslab.engines.processes.precedence import cores
from pslab.errors import ConfigError, Unwritable
from pslab.lab.records.disk import free_bytes, in_bytes
from pslab.lab.records.record import environment

if TYPE_CHECKING:
    from pslab.engines.experiment.checkpoint.store import CheckpointStore
    from pslab.engines.experiment.experiment import Experiment

ROWS_BYTES = 400  # that a push of a range takes in a record at least: its row, and the rows of its phases
CHECKPOINTS = "checkpoints"  # the folder of all runs' checkpoints, among their results
CUDA_BYTES = 300 * 2**20  # of a device, for each process that uses it, at least
CHECKPOINTS_HELD = 2  # by the parent of servers that are replaced: the newest whole one, and the next


def usable_cores() -> float:
    """Cores that this process may use: by affinity, and by the container's quota."""
    count = float(cores())
    quota = words_of(Path("/sys/fs/cgroup/cpu.max"))
    if len(quota) == 2 and quota[0].isdigit():
        count = min(count, int(quota[0]) / int(quota[1]))
    return count


def check_memory(run: Run, weights: int) -> None:
    """Refuse what this machine's memory cannot hold: `weights` of the model, as often as a run has them at once.

    The parent has them twice, and the server once; each worker has two gradients and what a backward pass makes; each
    evaluation has the weights that it is of; and the parent holds checkpoints of servers that are to be replaced. Where
    keys are pulled, only the servers have the weights. The servers and workers of a Ray cluster are not counted.

    Raises:
        ConfigError: it is larger than the free memory.
    """
    period, free = run.evaluation_period, free_memory_bytes()
    evaluations = 2 + (20 if period is None or run.pushes is None else run.pushes // period)
    checkpoints = CHECKPOINTS_HELD if run.engine == "local" and run.on_death == "restart" else 0
    processes = 0 if run.engine == "ray" else 1 + 3 * run.workers
    copies = 1 if run.pull == "keys" else 2 + processes + evaluations + checkpoints
    needed = weights * (8 if run.dtype == "float64" else 4) * copies
    _check_device_memory(run, weights)
    if free is None or needed <= free:
        return
    problem = f"its {weights:,} weights, {run.workers} workers and {evaluations} evaluations take at least "
    problem += f"{needed / 2**30:,.1f} GiB of memory, and {free / 2**30:,.1f} GiB are free here: use a smaller model, "
    raise ConfigError("model", run.model, f"{problem}fewer workers, or evaluate less often (eval_every)")


def _check_device_memory(run: Run, weights: int) -> None:
    """Check the memory of a device, where each worker has weights, gradients and activations, and a process that
    evaluates has the weights once more; CUDA itself takes memory in each of these processes."""
    from pslab.tensors.device import DEVICES

    free = DEVICES[run.device].free_bytes() if run.engine != "timing" else []
    for number, here in enumerate(free):
        workers = len(range(number, run.workers, len(free)))
        processes = workers if run.engine == "local" else min(1, workers)
        needed = processes * CUDA_BYTES + workers * 4 * weights * (8 if run.dtype == "float64" else 4)
        if needed > here:
            problem = (f"{workers} workers compute on device {number}: with {weights:,} weights they take at least "
                       f"{needed / 2**30:,.1f} GiB, and {here / 2**30:,.1f} GiB are free there: use fewer "
                       "workers, or a smaller model")  # fmt: skip
            raise ConfigError("device", run.device, problem)


def record_bytes(experiment: Experiment) -> int:
    """The least bytes of a run's record, as far as its budget says."""
    run = experiment.run
    weights = experiment.keyspace.size * experiment.weights.element_size() * run.keep_weights
    return weights + ROWS_BYTES * (run.pushes or 0) * len(experiment.parts)


def check_disk(experiment: Experiment, results: Path) -> None:
    """Refuse a run whose record cannot be written.

    Raises:
        Unwritable: it takes more room than there is.
    """
    folder, free = free_bytes(results)
    if (needed := record_bytes(experiment)) > free:
        room = f"{in_bytes(free)} are free in {folder}"
        raise Unwritable(f"the record needs {in_bytes(needed)} at least, {room}: fewer pushes or key ranges need less")


def with_checkpoints(experiment: Experiment, results: Path) -> Experiment:
    """An experiment that is checkpointed among these results, and goes on from there."""
    return dataclasses.replace(experiment, checkpoints=checkpoints(experiment.run, results))


def forget_checkpoints(run: Run, results: Path) -> None:
    """Remove a run's checkpoints, which are of no use any more."""
    from pslab.engines.experiment.checkpoint.store import CheckpointStore

    if not run.unknown:
        CheckpointStore(_checkpoints_of(run, results)).clear()


def forget_old_checkpoints(results: Path) -> str:
    """Remove the checkpoints of runs that were not asked for again for long; how many, in a sentence, or ""."""
    from pslab.engines.experiment.checkpoint.store import OLD_S, forget_old

    folder = results / CHECKPOINTS
    count, size_bytes = forget_old(folder, time.time())
    days = f"for {OLD_S / 86400:g} days nobody had asked for them again"
    return f"checkpoints of {count} runs were removed from {folder} ({in_bytes(size_bytes)}): {days}" if count else ""


def checkpoints(run: Run, results: Path) -> CheckpointStore | None:
    """The folder of a run's checkpoints, for this machine and this source; None if nothing names the run.

    The last bits of a gradient depend on torch, NumPy and the processor's instructions.
    """
    from pslab.engines.experiment.checkpoint.store import CheckpointStore

    if run.unknown:
        return None
    here = {name: value for name, value in environment().items() if name != "cores"}
    facts = {"digest": run.digest, **here, "numpy": version("numpy"), "source": _source()}
    return CheckpointStore(_checkpoints_of(run, results), facts)


def _checkpoints_of(run: Run, results: Path) -> Path:
    return results / CHECKPOINTS / run.digest


@lru_cache(maxsize=1)
def _source() -> str:
    """A digest of the source files whose classes make up the state of a run."""
    package, digest = Path(__file__).parents[2], hashlib.sha256()
    for room in ("config", "protocol", "policies", "tensors", "engines"):
        for file in sorted((package / room).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def resident_bytes() -> int | None:
    """Memory that this process holds."""
    words = words_of(Path("/proc/self/statm"))
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE") if words else None


def processor() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()
