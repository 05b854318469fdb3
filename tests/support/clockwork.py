"""When things happen, computed another way: links as fluids in steps, a server and its workers as a queue. Nothing here
knows a message, a window or a driver.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush

import pandas as pd

Sent = tuple[float, int, float, int]  # instant, worker, bytes, server


def fluid(
    sent: list[Sent], worker_s: Callable[[int, float], float], server_s: float, flies_s: Callable[[int], float],
    overhead_s: float, changes: list[float], per_host: int = 1,
) -> list[float]:  # fmt: skip
    """When each message of one direction has arrived. A worker's messages to one server go one behind the other; the
    messages on a host's and on a server's link share it. `worker_s(worker, t)` is the bytes a second of
    its link, which change at `changes`, and `flies_s(worker)` its latency."""
    left = {n: size + overhead_s * worker_s(worker, 0) for n, (_, worker, size, _) in enumerate(sent)}
    order, done, now = sorted(left, key=lambda n: (sent[n][0], n)), dict[int, float](), 0.0
    while left:
        first: dict[tuple[int, int], int] = {}
        for n in order:
            if n in left and sent[n][0] <= now:
                first.setdefault((sent[n][1], sent[n][3]), n)
        on = list(first.values())
        rate = {n: min(worker_s(sent[n][1], now) / sum(sent[n][1] // per_host == sent[m][1] // per_host for m in on),
                       server_s / sum(sent[n][3] == sent[m][3] for m in on)) for n in on}  # fmt: skip
        ends = [now + left[n] / rate[n] for n in on]
        coming = [sent[n][0] for n in left if sent[n][0] > now] + [at for at in changes if at > now]
        until = min(ends + coming)
        for n in on:
            left[n] = left[n] - rate[n] * (until - now)
            if left[n] <= 1e-9 * (1 + sent[n][2]):
                done[n] = until + flies_s(sent[n][1])
                del left[n]
        now = until
    return [done[n] for n in range(len(sent))]


def queue(
    sync: str, compute_s: list[float], *, size: float, request: float, byte_s: float, latency_s: float, apply_s: float,
    serve_s: float, message_s: float, until: int,
) -> pd.DataFrame:  # fmt: skip
    """(worker, iteration, computed, applied) of `until` pushes under bsp, asp or ssp, with its own links."""
    workers = len(compute_s)
    bound = {"bsp": 0, "asp": math.inf}[sync] if sync in ("bsp", "asp") else float(sync[4:])
    events: list[tuple[float, int, int, str]] = []
    computed, rows, free_s = dict[tuple[int, int], float](), [], 0.0
    clock, waiting, pushed = [0] * workers, list[int](), list[int]()

    def computes(worker: int, at: float) -> None:
        end = at + compute_s[worker]
        computed[worker, clock[worker]] = end
        heappush(events, (end + (size + request) / byte_s + latency_s, worker, clock[worker], "arrives"))

    for worker in range(workers):
        computes(worker, 0.0)
    while events and len(rows) < until:
        at, worker, _, what = heappop(events)
        if what == "here":
            computes(worker, at)
            continue
        free_s = max(free_s, at) + message_s
        clock[worker] += 1
        waiting.append(worker)
        pushed.append(worker)
        if sync != "bsp" or len(pushed) == workers:
            free_s += apply_s * len(pushed)
            rows += [(each, clock[each] - 1, computed[each, clock[each] - 1], free_s) for each in sorted(pushed)]
            pushed.clear()
        for each in [each for each in waiting if clock[each] - min(clock) <= bound]:  # in the order of their requests
            free_s += serve_s
            waiting.remove(each)
            heappush(events, (free_s + size / byte_s + latency_s, each, clock[each], "here"))
    return pd.DataFrame(rows, columns=["worker", "iteration", "computed", "applied"])
