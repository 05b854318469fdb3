"""Which host each process of a fleet is started on: a plan by the cores and GPUs that hosts have free."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from pslab.config.fleet import Fleet
from pslab.engines.processes.child import SERVER


class Share(NamedTuple):
    """What is kept for one process."""

    kind: str  #: "worker", "server", "evaluator"
    cpus: float
    gpus: float


class Room(NamedTuple):
    """A host, and what is free there."""

    host: str
    cpus: float
    gpus: float
    address: str = ""

    def less(self, share: Share) -> Room:
        """The host, once it has that process, too."""
        return self._replace(cpus=self.cpus - share.cpus, gpus=self.gpus - share.gpus)

    def takes(self, share: Share) -> bool:
        """Whether there is as much as that."""
        return self.cpus >= share.cpus - 1e-6 and self.gpus >= share.gpus - 1e-6


def share_of(kind: str, fleet: Fleet) -> Share:
    """What a fleet keeps for a process of this kind: an evaluator computes on the CPU, as servers do."""
    if kind == "worker":
        return Share(kind, fleet.worker_cpus, fleet.worker_gpus)
    return Share(kind, fleet.server_cpus, 0.0)


def placed(
    shares: Mapping[int, Share], rooms: Sequence[Room], fleet: Fleet, there: Iterable[tuple[Share, str]] = (),
) -> dict[int, str] | None:  # fmt: skip
    """The host of each process; None only if there is no room for all.

    Processes share as few hosts as possible, the first of `rooms` before others. No host has more workers than the
    fleet allows; servers that are to be `apart` have a host without other servers, and workers one without servers, as
    far as there are enough; where only another plan has room for all, that one is taken.

    Args:
        there: processes that already run, and where; `rooms` are without what they use.
    """
    there = list(there)
    free, most = {room.host: room for room in rooms}, fleet.workers_per_node
    present = Counter(host for share, host in there if share.kind == "worker")
    workers = present.copy()
    servers = Counter(host for share, host in there if share.kind == "server")
    found: dict[int, str] = {}
    for number in _largest_first(shares):
        share = shares[number]
        works = share.kind == "worker"
        fitting = [host for host, room in free.items()
                   if room.takes(share) and not (works and most is not None and workers[host] >= most)]  # fmt: skip
        if not fitting:
            return _packed(shares, rooms, lambda host: math.inf if most is None else most - present[host])

        def cost(host: str, share: Share = share, works: bool = works) -> tuple[int, int]:
            apart = fleet.servers_apart and share.kind != "evaluator"
            others = servers[host] + (0 if works else workers[host])
            return others if apart else 0, 0 if workers[host] + servers[host] else 1

        host = min(fitting, key=cost)  # the first of those that are equally good
        found[number], free[host] = host, free[host].less(share)
        (workers if works else servers)[host] += share.kind != "evaluator"
    return found


def _packed(
    shares: Mapping[int, Share], rooms: Sequence[Room], most: Callable[[str], float]
) -> dict[int, str] | None:
    """Any plan that has room for all; None only if there is none. Shares have two sizes: of a worker, and of others.

    With the first hosts taken, best has for each number of others there how many workers fit beside them, and how.
    """
    works = [number for number, share in shares.items() if share.kind == "worker"]
    others = [number for number in shares if number not in works]
    best: dict[int, tuple[float, list[tuple[str, int, int]]]] = {0: (0, [])}
    for room in rooms:
        beside, left = [_count(shares, works, room, most(room.host))], room
        for number in others:
            if not left.takes(shares[number]):
                break
            left = left.less(shares[number])
            beside.append(_count(shares, works, left, most(room.host)))
        then: dict[int, tuple[float, list[tuple[str, int, int]]]] = {}
        for (before, (fit, plan)), (here, more) in product(best.items(), enumerate(beside)):
            if before + here <= len(others) and fit + more > then.get(before + here, (-1,))[0]:
                then[before + here] = fit + more, [*plan, (room.host, here, more)]
        best = then
    fit, plan = best.get(len(others), (-1, []))
    if fit < len(works):
        return None
    hosts = [host for host, _, more in plan for _ in range(more)], [host for host, here, _ in plan for _ in range(here)]
    return dict(zip([*works, *others], [*hosts[0][: len(works)], *hosts[1]], strict=True))


def _count(shares: Mapping[int, Share], works: Sequence[int], room: Room, most: float) -> int:
    """How many of these workers, which are alike, a host has room for."""
    count = 0
    while count < min(len(works), most) and room.takes(shares[works[count]]):
        room, count = room.less(shares[works[count]]), count + 1
    return count


def _largest_first(shares: Mapping[int, Share]) -> list[int]:
    """In this order small ones take no room that a large one needs; the server that decides before its equals."""
    return sorted(shares, key=lambda n: (-shares[n].gpus, -shares[n].cpus, n != SERVER, n))


def sizes(rooms: Iterable[Room]) -> str:
    """The hosts in messages: "10.0.0.1 with 4 cores and 2 GPUs"."""
    return "; ".join(f"{room.address} with {room.cpus:g} cores and {room.gpus:g} GPUs" for room in rooms) or "no host"


def described(shares: Iterable[Share]) -> str:
    """The processes in messages: "2 x worker with 1 cores and 0.5 GPUs"."""
    each = Counter(shares)
    return " and ".join(f"{count} x {share.kind} with {share.cpus:g} cores and {share.gpus:g} GPUs"
                        for share, count in each.items())  # fmt: skip
