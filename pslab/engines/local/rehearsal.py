"""How fast this machine is for a run: measured by its processes, which have their roles, before it starts."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection

import numpy as np
import torch

from pslab.engines.experiment.job import Job
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.local.lines.stream import Spin, ready
from pslab.engines.local.pace import Pace
from pslab.engines.processes.coordinator import Coordinator
from pslab.engines.processes.pool import SERVER
from pslab.engines.processes.precedence import Precedence
from pslab.engines.processes.watch import REHEARSING
from pslab.engines.worker.gradient import Computing, module_of
from pslab.engines.worker.tensors import Producer
from pslab.tensors.compression import frame
from pslab.tensors.finite import NonFinite

GRADIENTS, GRADIENTS_S = 6, 0.5  # of a rehearsal: so many, and no other one after so long
WAKES, WAKE_S, WAKING_S = 60, 1e-3, 0.2  # of the server: how often it sleeps, how long each time and in all
STARVED = 1.25  # workers that let others first may compute so much longer
STARVING_LIMIT_S = 0.5  # for which a rehearsal may starve workers that let others first

# --- the parent -------------------------------------------------------------------------------------------------------


def rehearse(run: Coordinator, workers: Collection[int], precedence: Precedence) -> Pace:
    """The pace of a run; `precedence` says then whether its workers let others first."""
    begin_s = time.monotonic()
    pace = measured(run, workers, precedence)
    if precedence.asked is False:
        return pace
    with precedence.yielding(True) as done:
        behind = measured(run, workers, precedence, max(STARVING_LIMIT_S, 2 * (time.monotonic() - begin_s)))
    precedence.yields = done and (bool(precedence.asked) or behind.gradient_s <= STARVED * pace.gradient_s)
    return behind if precedence.yields else pace


def measured(run: Coordinator, workers: Collection[int], precedence: Precedence, limit_s: float = math.inf) -> Pace:
    """The pace while all workers compute side by side; if they let others first, for no longer than `limit_s`."""
    until_s = time.monotonic() + limit_s
    numbers = [*sorted(workers), SERVER]
    for number in numbers:
        run.pool.order(number, "rehearse")

    def meanwhile() -> None:
        if time.monotonic() > until_s:
            precedence.as_usual()

    reports = run.await_reports(numbers, REHEARSING, meanwhile)
    gradients_s, delays_s = ([each for report in reports for each in report.body.get(name, ())]
                             for name in ("gradients_s", "delays_s"))  # fmt: skip
    delayed_s = max(0.0, float(np.mean(delays_s or 0.0)))
    return Pace(tuple(gradients_s), sum(report.body.get("late_s", 0.0) for report in reports), delayed_s)


# --- a worker's process -----------------------------------------------------------------------------------------------


def rehearsed(job: Job, worker: int, arena: Arena, data: Arena) -> dict[str, list[float]]:
    """A few of a worker's gradients, on copies of the model, the server's weights and the rule: the real seconds of
    each, and for how many of them choosing its entries waited for other processes.

    The first one allocates and compiles, and is left out unless gradients take long.
    """
    if not job.trains:
        return {"gradients_s": [], "delays_s": []}
    compute, choose = (_of_keys if job.keyed else _of_copies)(job, worker, arena, data)
    spent_s, delays_s = list[float](), list[float]()
    while len(spent_s) < GRADIENTS and sum(spent_s) < GRADIENTS_S:
        begin_s = time.monotonic()
        compute(len(spent_s))
        spent_s.append(time.monotonic() - begin_s)
        if job.sparse:
            begin_s, used_s = time.monotonic(), time.thread_time()
            with contextlib.suppress(NonFinite):  # the run will say so
                choose(len(delays_s))
            delays_s.append(time.monotonic() - begin_s - (time.thread_time() - used_s))
    return {"gradients_s": spent_s[1:] or spent_s, "delays_s": delays_s[1:] or delays_s}


Acts = tuple[Callable[[int], object], Callable[[int], object]]  # compute the gradient of a step; choose its entries


def _of_copies(job: Job, worker: int, arena: Arena, data: Arena) -> Acts:
    layout, device = job.layout, job.device.of(worker)
    weights = device.to(arena.tensor(layout.server, layout.size, layout.dtype).clone())
    buffer = torch.zeros_like(weights)
    computing = Computing(job, worker, job.shelf.dataset(data), weights, [buffer], module_of(job, device))
    room = memoryview(bytearray(max(size for _, size in job.layout.frames)))
    kept = {name: memory.zeros(device.place) for name, memory in layout.memories.items()}

    def choose(step: int) -> None:
        if (rules := job.compression) is None:
            return
        for index in range(len(job.parts)):
            pieces, _ = rules.push(index, buffer, kept, worker=worker, step=step, slices=[slice(0, 64)])
            frame.write(room, pieces)

    return lambda step: computing.gradient(step, 0), choose


def _of_keys(job: Job, worker: int, arena: Arena, data: Arena) -> Acts:
    """The first one again and again: of no other are the weights here."""
    producer = Producer(job, worker, arena, data)
    return lambda step: producer.gradient(0), lambda step: producer.payloads(0, 0.0)


# --- the server's process ---------------------------------------------------------------------------------------------


def waking_late_s(source: int, spin: Spin | None) -> float:
    """How late this process wakes, in mean real seconds, while the workers compute; `source` may wake it."""
    late_s, until_s = list[float](), time.monotonic() + WAKING_S
    while len(late_s) < WAKES and (begin_s := time.monotonic()) < until_s:
        ready((source,), WAKE_S, spin)
        late_s.append(time.monotonic() - begin_s - WAKE_S)
    return sum(late_s) / len(late_s)
