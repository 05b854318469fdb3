"""Which host each process of a fleet is started on: a plan by the cores and GPUs that hosts have free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
    """The host of each process; None if there is no room for all.

    Processes share as few hosts as possible, the first of `rooms` before others. No host has more workers than the
    fleet allows; servers that are to be `apart` have a host without other servers, and workers one without servers, as
    far as there are enough.

    Args:
        there: processes that already run, and where; `rooms` are without what they use.
    """
    there = list(there)
    free, most = {room.host: room for room in rooms}, fleet.workers_per_node
    workers = Counter(host for share, host in there if share.kind == "worker")
    servers = Counter(host for share, host in there if share.kind == "server")
    found: dict[int, str] = {}
    for number in _largest_first(shares):
        share = shares[number]
        works = share.kind == "worker"
        fitting = [host for host, room in free.items()
                   if room.takes(share) and not (works and most is not None and workers[host] >= most)]  # fmt: skip
        if not fitting:
            return None

        def cost(host: str, share: Share = share, works: bool = works) -> tuple[int, int]:
            apart = fleet.servers_apart and share.kind != "evaluator"
            others = servers[host] + (0 if works else workers[host])
            return others if apart else 0, 0 if workers[host] + servers[host] else 1

        host = min(fitting, key=cost)  # the first of those that are equally good
        found[number], free[host] = host, free[host].less(share)
        (workers if works else servers)[host] += share.kind != "evaluator"
    return found


def _largest_first(shares: Mapping[int, Share]) -> list[int]:
    """In this order small ones take no room that a large one needs; the server that decides before its equals."""
    return sorted(shares, key=lambda n: (-shares[n].gpus, -shares[n].cpus, n != SERVER, n))


def sizes(rooms: Iterable[Room]) -> str:
    """The hosts in messages: "10.0.0.1 with 4 cores and 2 GPUs"."""
    return "; ".join(f"{room.address} with {room.cpus:g} cores and {room.gpus:g} GPUs" for room in rooms) or "no host"


def described(shares: Iterable[Share]) -> str:
    """The processes in messages: "2 workers with 1 core and 0.5 GPUs each"."""
    each = Counter(shares)
    return " and ".join(f"{count} x {share.kind} with {share.cpus:g} cores and {share.gpus:g} GPUs"
                        for share, count in each.items())  # fmt: skip
