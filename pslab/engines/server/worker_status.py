"""The present activity of workers, as far as the server knows it, for progress reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pslab.protocol.server import Server

SHOWN = 8  # workers in a message


def doings(server: Server, travelling: Sequence[bool]) -> list[dict[str, Any]]:
    """Return for each worker {"doing": computing, waiting, transferring or dead, "for": [workers], "iteration"}.

    `travelling`: for each worker whether a frame from it or for it is on a link.
    """
    missing: list[list[int]] = [[] for _ in travelling]  # the ranges whose weights a worker waits for
    slowest: dict[int, tuple[int, ...]] = {}  # per such range: the workers at its low bound, which others wait for
    for index, part in enumerate(server.ranges):
        for worker in part.asked:
            missing[worker].append(index)
            slowest[index] = slowest.get(index) or server.waits_for(index)
    awaited: dict[tuple[int, ...], frozenset[int]] = {}  # ranges: awaited workers; most await the same ranges
    for ranges in map(tuple, missing):
        if ranges not in awaited:
            awaited[ranges] = frozenset[int]().union(*(slowest[index] for index in ranges))
    rows, present = list[dict[str, Any]](), set(server.workers)
    for worker, (ranges, travels) in enumerate(zip(map(tuple, missing), travelling, strict=True)):
        if worker not in present:
            rows.append({"doing": "dead", "for": [], "iteration": None})
            continue
        does = "waiting" if ranges else "transferring" if travels else "computing"
        rows.append({"doing": does, "for": sorted(awaited[ranges] - {worker}), "iteration": server.clock(worker)})
    return rows


def described(workers: Sequence[dict[str, Any]], since_s: Sequence[float], only: Sequence[int] | None = None) -> str:
    """Describe all workers, or `only` some, in words: activity, awaited workers, clock, and for how many seconds."""
    words = []
    for worker, (does, spent_s) in enumerate(zip(workers, since_s, strict=True)):
        if only is not None and worker not in only:
            continue
        others = ", ".join(map(str, does["for"][:SHOWN])) + ", …" * (len(does["for"]) > SHOWN)
        awaited = f" for worker{'s' * (len(does['for']) > 1)} {others}" if does["for"] else (
            " for no one" if does["doing"] == "waiting" else "")  # fmt: skip
        clock = "" if does["iteration"] is None else f" on clock {does['iteration']}"
        words.append(f"worker {worker} has been {does['doing']}{awaited}{clock} for {spent_s:.1f} s")
    left = len(words) - SHOWN
    return "; ".join(words[:SHOWN] + ([f"and {left} more"] if left > 0 else []))
