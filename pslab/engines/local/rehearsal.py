"""How fast this machine is for a run: its processes, which have their roles, measure it before the run starts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import torch

from pslab.engines.experiment.job import Job
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.local.lines.stream import Spin, ready
from pslab.engines.worker.gradient import Computing, module_of
from pslab.engines.worker.modes import producer_of
from pslab.tensors.finite import NonFinite

GRADIENTS, GRADIENTS_S = 6, 0.5  # of a rehearsal: so many, and no other one after so long
WAKES, WAKE_S, WAKING_S = 60, 1e-3, 0.2  # of the server: how often it sleeps, how long each time and in all

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
        if job.sends_frames:
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
    if (rules := job.compression) is None:
        return lambda step: computing.gradient(step, 0), lambda step: None
    from pslab.tensors.compression import frame  # only who compresses loads it

    room = memoryview(bytearray(max(size for _, size in job.layout.frames)))
    kept = {name: memory.zeros(device.place) for name, memory in layout.memories.items()}

    def choose(step: int) -> None:
        for index in range(len(job.parts)):
            pieces, _ = rules.push(index, buffer, kept, worker=worker, step=step, slices=[slice(0, 64)])
            frame.write(room, pieces)

    return lambda step: computing.gradient(step, 0), choose


def _of_keys(job: Job, worker: int, arena: Arena, data: Arena) -> Acts:
    """The first one again and again: of no other are the weights here."""
    producer = producer_of(job, worker, arena, data)
    return lambda step: producer.gradient(0), lambda step: producer.payloads(0, 0.0)


# --- the server's process ---------------------------------------------------------------------------------------------


def waking_late_s(source: int, spin: Spin | None) -> float:
    """How late this process wakes, in mean real seconds, while the workers compute; `source` may wake it."""
    late_s, until_s = list[float](), time.monotonic() + WAKING_S
    while len(late_s) < WAKES and (begin_s := time.monotonic()) < until_s:
        ready((source,), WAKE_S, spin)
        late_s.append(time.monotonic() - begin_s - WAKE_S)
    return sum(late_s) / len(late_s)
