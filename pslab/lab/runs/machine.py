"""The machine: its cores, memory and disk, and checks that a run fits on it."""

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

from pslab.config.available import free_memory_bytes, words_of
from pslab.config.run import Run
from pslab.errors import ConfigError, Unwritable
from pslab.lab.records.disk import free_bytes, in_bytes
from pslab.lab.records.record import environment

if TYPE_CHECKING:
    from pslab.engines.experiment.checkpoint.store import CheckpointStore
    from pslab.engines.experiment.experiment import Experiment

ROWS_BYTES = 400  # least bytes of a range's push in a record: its row, and the rows of its phases
CHECKPOINTS = "checkpoints"  # the folder of all runs' checkpoints, in the results folder
CUDA_BYTES = 300 * 2**20  # least memory of a device for each process that uses it
CHECKPOINTS_HELD = 2  # in the parent, for servers that may be replaced: a complete checkpoint, and the next one


def check_memory(run: Run, weights: int) -> None:
    """Refuse a run whose copies of the model's weights (`weights` is their number) do not fit in the free memory.

    The parent has two copies, the server one, each worker three (two gradients, and the results of a backward pass),
    each evaluation one, and the parent CHECKPOINTS_HELD more if a server may be replaced. If keys are pulled, only the
    servers have the weights. The servers and workers of a Ray cluster are not counted.

    Raises:
        ConfigError: the run needs more than the free memory.
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
    """Refuse a run whose workers do not fit in a device's free memory: each has four vectors of the size of the weights
    there, and each process CUDA_BYTES."""
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
    """Return a lower estimate of the bytes of a run's record, from its budget of pushes."""
    run = experiment.run
    weights = experiment.keyspace.size * experiment.weights.element_size() * run.keep_weights
    return weights + ROWS_BYTES * (run.pushes or 0) * len(experiment.parts)


def check_disk(experiment: Experiment, results: Path) -> None:
    """Refuse a run whose record needs more space than the disk has free.

    Raises:
        Unwritable: the estimated record is larger than the free space.
    """
    folder, free = free_bytes(results)
    if (needed := record_bytes(experiment)) > free:
        room = f"{in_bytes(free)} are free in {folder}"
        raise Unwritable(f"the record needs at least {in_bytes(needed)}, but {room}: use fewer pushes or key ranges")


def with_checkpoints(experiment: Experiment, results: Path) -> Experiment:
    """Return the experiment with its folder of checkpoints; it continues from the newest one, if there is any."""
    return dataclasses.replace(experiment, checkpoints=checkpoints(experiment.run, results))


def forget_checkpoints(run: Run, results: Path) -> None:
    """Remove the checkpoints of a run."""
    from pslab.engines.experiment.checkpoint.store import CheckpointStore

    if not run.unknown:
        CheckpointStore(_checkpoints_of(run, results)).clear()


def forget_old_checkpoints(results: Path) -> str:
    """Remove checkpoints that were written longer than OLD_S seconds ago; return a sentence about them, "" if none."""
    from pslab.engines.experiment.checkpoint.store import OLD_S, forget_old

    folder = results / CHECKPOINTS
    count, size_bytes = forget_old(folder, time.time())
    days = f"these runs were not requested again for {OLD_S / 86400:g} days"
    return f"checkpoints of {count} runs were removed from {folder} ({in_bytes(size_bytes)}): {days}" if count else ""


def checkpoints(run: Run, results: Path) -> CheckpointStore | None:
    """Return the folder of a run's checkpoints; None if no digest identifies the run.

    A checkpoint is used only with equal versions, sources and instructions: the last bits of a gradient depend on them.
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
    package, digest = Path(__file__).parents[2], hashlib.sha256()
    for room in ("config", "protocol", "policies", "tensors", "engines"):
        for file in sorted((package / room).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def resident_bytes() -> int | None:
    """Return the memory that this process uses, in bytes; None if the system does not report it."""
    words = words_of(Path("/proc/self/statm"))
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE") if words else None


def processor() -> str:
    """Return the processor's name, or its architecture if the system has no name for it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()
