"""A Ray cluster of several nodes on this machine, which die or freeze as hosts do: with all their processes."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any


class Nodes:
    """A head without room, where the notebook is, and two nodes with room: what is on one may move to the other. Or
    the head `alone`, which has that room."""

    def __init__(self, *, alone: bool = False) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        from ray.cluster_utils import Cluster

        # the log reader and the autoscaler are of no use here, and dear to begin
        head = {"num_cpus": 16 if alone else 0, "include_dashboard": False, "include_log_monitor": False,
                "no_monitor": True}  # fmt: skip
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address: str = self._cluster.address
        self.raylets, self._fallen = list[int](), set[int]()
        if not alone:
            self.fill()

    def fill(self) -> None:
        """Two nodes, whatever became of those before."""
        for raylet in sorted(self._fallen):
            self.signal(raylet, signal.SIGKILL)  # it may only have been stopped
        self.raylets = [raylet for raylet in self.raylets if raylet not in self._fallen]
        while len(self.raylets) < 2:
            node = self._cluster.add_node(num_cpus=8, include_log_monitor=False)
            self.raylets.append(node.all_processes["raylet"][0].process.pid)

    def of(self, actor: Any) -> int:
        """The raylet of the node on which an actor is."""
        number = number_of(actor)
        return next(raylet for raylet in self.raylets if number in family(raylet))

    def signal(self, raylet: int, by: int) -> None:
        """A signal to all processes of a node, which is none any more."""
        self._fallen.add(raylet)
        for number in family(raylet):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, by)

    def close(self) -> None:
        """None of its processes is left, also of those that were stopped."""
        import ray

        ray.shutdown()
        for raylet in [*self.raylets, *self._fallen]:
            self.signal(raylet, signal.SIGKILL)
        self._cluster.shutdown()


def number_of(actor: Any) -> int:
    """The pid of an actor's process."""
    from ray._private.state import actors

    return int(actors(actor._actor_id.hex())["Pid"])


def family(process: int) -> list[int]:
    """A process and its children, and theirs."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = [process]
    for each in found:  # which grows meanwhile
        found += [number for number, parent in parents.items() if parent == each]
    return found
