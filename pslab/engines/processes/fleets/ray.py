"""Processes on the hosts of a Ray cluster: Ray places and buries them, all that they say travels on streams of ours.

Each is an actor without restarts: which one is replaced, and by what, the run decides. What Ray is told about a process
is a small argument; jobs and tensors come over the pipe to it, as to processes of this machine.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

from pslab.config.fleet import Fleet
from pslab.engines.processes.child import SERVER, name
from pslab.engines.processes.fleets.leftovers import passing_folder
from pslab.engines.processes.fleets.loopback import LoopbackFleet, Way, begin
from pslab.engines.processes.fleets.meeting import START_LIMIT_S
from pslab.errors import StartFailed

PLACED_LIMIT_S = 60.0  # in which the cluster finds room
KILLED_LIMIT_S = 10.0  # after which an actor that was killed is not waited for: its host may be gone
LOOK_S = 0.1  # between two looks at which actors have ended
#: Of a cluster that is started here: a frozen host is noticed within 6 s, and not after a minute.
HEALTH = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000, "health_check_timeout_ms": 1000,
          "health_check_failure_threshold": 3}  # fmt: skip


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise StartFailed(f"a Ray cluster needs Ray: pip install 'pslab[ray]' ({error})") from error
    return ray


class RayFleet(LoopbackFleet):
    """Each process an actor, within resources that are reserved for all of them together."""

    def __init__(self, children: int, fleet: Fleet) -> None:
        super().__init__(children, fleet)
        self._ray, self._fleet, self._processes = _ray(), fleet, list[RayProcess]()
        self._over = threading.Event()
        try:
            self._join()
            self._reserved = self._reserve()
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._look, daemon=True).start()

    def _join(self) -> None:
        ray, address = self._ray, self._fleet.address
        if ray.is_initialized():  # the user's own, or that of a pool before
            return
        own = {"include_dashboard": False, "_system_config": HEALTH}
        started: dict[str, Any] = {**own, "_temp_dir": passing_folder("pslab-ray-")} if address == "local" else {}
        try:
            ray.init(address=address, namespace="pslab", log_to_driver=False, **started)
        except Exception as error:
            problem = "is there one? `ray start --head` begins it, address: local starts one for this process"
            raise StartFailed(f"no Ray cluster answers at {address} ({error}): {problem}") from error

    def _reserve(self) -> Any:
        """Room for the server, and for all others together or so many on a host."""
        from ray.util.placement_group import placement_group, remove_placement_group

        fleet, many = self._fleet, self._fleet.workers_per_node or 1
        each = {"CPU": fleet.worker_cpus, "GPU": fleet.worker_gpus}
        hosts = [min(many, self._children - first) for first in range(0, self._children, many)]
        wanted = [{"CPU": fleet.server_cpus}]
        wanted += [{kind: count * share for kind, share in each.items() if share} for count in hosts]
        apart = "STRICT_SPREAD" if fleet.workers_per_node else "SPREAD" if fleet.servers_apart else "PACK"
        found = placement_group([bundle or {"CPU": 0.001} for bundle in wanted], strategy=apart)
        if not found.wait(PLACED_LIMIT_S):
            remove_placement_group(found)
            has = {kind: count for kind, count in self._ray.cluster_resources().items() if kind in ("CPU", "GPU")}
            raise StartFailed(f"the Ray cluster has no room for {wanted} ({apart}) within {PLACED_LIMIT_S:g} s; it has "
                              f"{has} on {len(self._ray.nodes())} hosts")  # fmt: skip
        return found

    def _launched(self, numbers: Sequence[int]) -> dict[int, Any]:
        hosts, found, waiting, until_s = self._hosts(), dict[int, Any](), set(numbers), time.monotonic() + START_LIMIT_S
        while waiting and time.monotonic() < until_s:
            for number in waiting - found.keys():
                found[number] = RayProcess(self._ray, *self._actor(number))
                self._processes.append(found[number])
            self._over.wait(LOOK_S)
            waiting = {number for number in waiting if not found[number].begun()}
            if waiting and hosts - (now := self._hosts()):  # Ray does not place again what it was placing there
                hosts = now
                if not self._reserved.wait(KILLED_LIMIT_S):
                    raise StartFailed(f"{', '.join(map(name, sorted(waiting)))}: a host is gone, no other one has room")
                for gone in map(found.pop, waiting):
                    gone.kill()
                    gone.close()
        return found

    def _hosts(self) -> set[str]:
        """Those that Ray takes for alive."""
        return {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}

    def _actor(self, number: int) -> tuple[Any, Any, Any]:
        """A new actor, what is there once it has begun, and what is once it has ended."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        fleet, many = self._fleet, self._fleet.workers_per_node or 1
        bundle = 0 if number == SERVER else 1 + number // many
        place = PlacementGroupSchedulingStrategy(self._reserved, placement_group_bundle_index=bundle)
        cpus, gpus = (fleet.server_cpus, 0.0) if number == SERVER else (fleet.worker_cpus, fleet.worker_gpus)
        actor = self._ray.remote(_Actor).options(num_cpus=cpus, num_gpus=gpus, max_restarts=0, max_task_retries=0,
                                                 scheduling_strategy=place).remote()  # fmt: skip
        return actor, actor.begun.remote(), actor.serve.remote(number, self._way, gpus > 0)

    def _look(self) -> None:
        """Notice which actors have ended, so that whoever waits for their sentinels wakes."""
        while not self._over.wait(LOOK_S):
            for process in self._processes:
                process.look()
            self._processes = [process for process in self._processes if process.is_alive()]

    def close(self) -> None:
        """Nobody dials any more, and the resources are free."""
        self._over.set()
        super().close()
        if getattr(self, "_reserved", None) is not None:
            from ray.util.placement_group import remove_placement_group

            with contextlib.suppress(Exception):  # the cluster may be gone
                remove_placement_group(self._reserved)


class RayProcess:
    """An actor, as multiprocessing shows a process; `pid` is none of this machine's."""

    pid = -1

    def __init__(self, ray: Any, actor: Any, begun: Any, serving: Any) -> None:
        self._ray, self._actor, self._begun, self._serving = ray, actor, begun, serving
        self._looking, self._ended = threading.Lock(), False
        self.sentinel, self._here = os.pipe()  # that can be read once it has ended
        self.exitcode: int | None = None

    def begun(self) -> bool:
        """Whether Ray has placed it, and it is there."""
        with contextlib.suppress(Exception):  # its host is gone
            self._ray.get(self._begun, timeout=0)
            return True
        return False

    def look(self, wait_s: float = 0.0) -> None:
        """Notice its end, if it comes within so long: what it was, Ray says."""
        with self._looking:
            if self._ended:
                return
            with contextlib.suppress(Exception):  # it was killed, or its host is gone, or Ray is
                if self._ray.wait([self._serving], timeout=wait_s)[1]:
                    return
                self._ray.get(self._serving)
                self.exitcode = 0
            self.exitcode = 1 if self.exitcode is None else self.exitcode
            self._ended = True
            os.close(self._here)

    def is_alive(self) -> bool:
        """Whether nobody has noticed its end."""
        return not self._ended

    def kill(self) -> None:
        """End it at once, wherever it is."""
        with contextlib.suppress(Exception):  # it, or the cluster, is gone
            self._ray.kill(self._actor, no_restart=True)

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end; without a limit for that of a process that was killed."""
        until_s = time.monotonic() + (KILLED_LIMIT_S if timeout is None else timeout)
        while self.is_alive() and time.monotonic() < until_s:
            self.look(LOOK_S)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.sentinel)


class _Actor:
    """One process of ours in one of Ray's."""

    def begun(self) -> None:
        """It is there, and has loaded what would keep it from giving signs of life."""
        import torch  # noqa: F401

    def serve(self, number: int, way: Way, gpus: bool) -> None:
        """Be a process of the pool until its parent hangs up."""
        if not gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        threading.current_thread().name = f"pslab-{name(number)}"
        begin(number, way, pulse=True)
