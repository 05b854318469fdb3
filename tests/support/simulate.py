"""A cluster in a heap: the real server and worker machines, constant compute times, free links. For tests only."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

from pslab.protocol.messages import Ack, Push, Searched, Weights
from pslab.protocol.server import Discard, Refuse, Reply, Server, Step
from pslab.protocol.worker import Compute, Send, worker_of


@dataclass
class Trace:
    """What happened: instants of pushes, time spent waiting, and the server's effects."""

    pushes: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    waited: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    steps: list[Step] = field(default_factory=list)
    refused: list[Refuse] = field(default_factory=list)
    dropped: list[Push] = field(default_factory=list)
    gap_max: int = 0  # iterations between the fastest and the slowest worker
    lead_max: int = 0  # ... when a worker is started
    searched: list[tuple[float, int]] = field(default_factory=list)  # (instant, points)


def simulate(sync: Any, compute_s: list[float], until_s: float, *, ranges: int = 1, copies: int = 1) -> Trace:
    """Run workers with these compute times; every message is delivered `copies` times."""
    server = Server(range(len(compute_s)), ranges, sync)
    workers = [worker_of(w, ranges, sync) for w in range(len(compute_s))]
    trace, heap, sequence, asked_s = Trace(), [], 0, {}

    def perform(worker: int, effects: list[Any], now: float) -> None:
        nonlocal sequence
        for effect in effects:
            if isinstance(effect, Compute):
                trace.waited[worker] += now - asked_s.get(worker, now)
                sequence += 1
                heappush(heap, (now + compute_s[worker], worker, sequence))
            elif isinstance(effect, Send):
                for _ in range(copies):
                    deliver(effect.request, now)

    def acknowledge(push: Push, now: float, times: int) -> None:
        for _ in range(times):
            perform(push.worker, workers[push.worker].ack(Ack(push.worker, push.range, push.iteration)), now)

    def deliver(request: Any, now: float) -> None:
        pending = server.handle(request, now)
        while pending:
            effect = pending.pop(0)
            if isinstance(effect, Step):
                trace.steps.append(effect)
                for push in effect.pushes:
                    acknowledge(push, now, copies)
            elif isinstance(effect, Discard):
                trace.dropped.append(effect.push)
                acknowledge(effect.push, now, 1)
            elif isinstance(effect, Reply):
                worker, index, iteration, *_ = effect.pull
                trace.lead_max = max(trace.lead_max, iteration - server.ranges[index].window.base)
                pending += server.answered(index)
                message = Weights(worker, index, iteration, effect.version, own_pushes=effect.own_pushes)
                for _ in range(copies):
                    perform(worker, workers[worker].weights(message), now)
            elif isinstance(effect, Searched):
                trace.searched.append((now, effect.points))
            else:
                trace.refused.append(effect)

    for w, machine in enumerate(workers):
        perform(w, machine.start(), 0.0)
    while heap and heap[0][0] <= until_s:
        now, worker, _ = heappop(heap)
        trace.pushes[worker].append(now)
        asked_s[worker] = now
        for index in range(ranges):
            perform(worker, workers[worker].computed(index), now)
        clocks = [min(part.clocks[w] for part in server.ranges) for w in range(len(workers))]
        trace.gap_max = max(trace.gap_max, max(clocks) - min(clocks))
    for worker, since_s in asked_s.items():  # those that still wait at the end
        if not workers[worker].computing:
            trace.waited[worker] += until_s - since_s
    return trace
