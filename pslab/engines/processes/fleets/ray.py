"""Processes on the hosts of a Ray cluster: Ray places and buries them, all that they say travels on streams of ours.

Each is an actor without restarts: which one is replaced, and by what, the run decides. What Ray is told about a process
is a small argument; jobs and tensors come over the pipe to it, as to processes of this machine.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from pslab.config.fleet import Fleet
from pslab.engines.processes.child import SERVER, name
from pslab.engines.processes.fleets.loopback import LoopbackFleet, Rendezvous, begin, knock
from pslab.engines.processes.fleets.temporary_ray_folder import passing_folder
from pslab.errors import StartFailed

START_LIMIT_S = 120.0  # in which the cluster finds room for processes, and starts them
KILLED_LIMIT_S = 4.0  # after which an actor that was killed is not waited for: its host may be gone
MOVED_LIMIT_S = 10.0  # in which Ray finds room elsewhere for what was on a host that is gone
LOOK_S = 0.1  # between two looks at which actors have ended
#: A cluster that is started here: a frozen host is noticed within 6 s, and not after a minute.
HEALTH = {"initial_delay_ms": 1000, "period_ms": 1000, "timeout_ms": 1000, "failure_threshold": 3}
OWN = {"include_dashboard": False, "_system_config": {f"health_check_{name}": value for name, value in HEALTH.items()}}


def load_ray() -> Any:
    """The package, as it is wanted here; StartFailed without it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")  # else what is asked after its end begins another cluster
    try:
        import ray
    except ImportError as error:
        raise StartFailed(f"a Ray cluster needs Ray: pip install 'pslab[ray]' ({error})") from error
    return ray


class RayFleet(LoopbackFleet):
    """Each process an actor, within resources that are reserved for all of them together."""

    def __init__(self, children: int, fleet: Fleet) -> None:
        super().__init__(children, fleet)
        self._ray, self._fleet, self._over, self._processes = load_ray(), fleet, threading.Event(), list[RayProcess]()
        try:
            self._join()
            self._head = self._ray.get_runtime_context().gcs_address
            self._reserved = self._reserve()
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._look, daemon=True).start()

    def _join(self) -> None:
        ray, address = self._ray, self._fleet.address
        if ray.is_initialized():  # the user's own, or that of a pool before
            with contextlib.suppress(ConnectionError):
                return knock(ray.get_runtime_context().gcs_address)
            ray.shutdown()  # else it ends this process a minute after the head
        started: dict[str, Any] = {**OWN, "_temp_dir": passing_folder("pslab-ray-")} if address == "local" else {}
        try:
            knock(os.environ.get("RAY_ADDRESS", address) if address == "auto" else address)
            ray.init(address=address, namespace="pslab", log_to_driver=False, **started)
        except Exception as error:
            problem = "is there one? `ray start --head` begins it, address: local starts one for this process"
            missing = f"no Ray cluster answers at {address} ({error}): {problem}"
            raise StartFailed(f"no Ray cluster starts here: {error}" if started else missing) from error

    def _reserve(self) -> Any:
        """Room for the server, and for all others together or so many on a host."""
        fleet, many = self._fleet, self._fleet.workers_per_node or 1
        each = {"CPU": fleet.worker_cpus, "GPU": fleet.worker_gpus}
        hosts = [min(many, self._children - first) for first in range(0, self._children, many)]
        workers = [{kind: count * share for kind, share in each.items() if share} for count in hosts]
        placed = "STRICT_SPREAD" if fleet.workers_per_node else "SPREAD" if fleet.servers_apart else "PACK"
        wanted = [bundle or {"CPU": 0.001} for bundle in ({"CPU": fleet.server_cpus}, *workers)]
        found = self._ray.util.placement_group(wanted, strategy=placed)
        if not found.wait(START_LIMIT_S):
            self._ray.util.remove_placement_group(found)
            has = {kind: count for kind, count in self._ray.cluster_resources().items() if kind in ("CPU", "GPU")}
            raise StartFailed(f"the Ray cluster has no room for {wanted} ({placed}) within {START_LIMIT_S:g} s; it has "
                              f"{has} on {len(self._ray.nodes())} hosts")  # fmt: skip
        return found

    def _launched(self, numbers: Sequence[int], heed: Callable[[], None]) -> dict[int, Any]:
        knock(self._head)  # Ray would look for it for minutes
        hosts, until_s = self._hosts(), time.monotonic() + START_LIMIT_S
        found, placing, gpus = dict[int, Any](), dict[int, Any](), self._fleet.worker_gpus > 0
        while missing := [number for number in numbers if number not in found]:
            placing = {number: placing.get(number) or self._place(number) for number in missing}
            heed()
            self._over.wait(LOOK_S)
            for number, (actor, begun) in placing.items():
                if self._there(begun):  # it dials from now on; one that is given up does not
                    found[number] = RayProcess(self._ray, actor, actor.serve.remote(number, self._way, gpus))
            names, lost = [name(number) for number in missing if number not in found], hosts - self._hosts()
            if names and (time.monotonic() > until_s or (lost and not self._reserved.wait(MOVED_LIMIT_S))):
                why = "a host is gone, and no other one has room" if lost else f"not within {START_LIMIT_S:g} s"
                raise StartFailed(f"Ray has not started {', '.join(names)}: {why}")
            if lost:  # Ray does not place again what it was placing there
                for actor in [actor for number, (actor, _) in placing.items() if number not in found]:
                    self._ray.kill(actor)
                hosts, placing = hosts - lost, {}
        self._processes += found.values()
        return found

    def _there(self, begun: Any) -> bool:
        with contextlib.suppress(self._ray.exceptions.RayActorError, self._ray.exceptions.GetTimeoutError):
            return self._ray.get(begun, timeout=0) is None
        return False

    def _hosts(self) -> set[str]:
        """The hosts that Ray takes for alive."""
        return {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}

    def _place(self, number: int) -> tuple[Any, Any]:
        """A new actor, and what is there once it has begun."""
        fleet = self._fleet
        bundle = 0 if number == SERVER else 1 + number // (fleet.workers_per_node or 1)
        within = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        place = within(self._reserved, placement_group_bundle_index=bundle)
        cpus, gpus = (fleet.server_cpus, 0.0) if number == SERVER else (fleet.worker_cpus, fleet.worker_gpus)
        actor = self._ray.remote(_Actor).options(num_cpus=cpus, num_gpus=gpus, scheduling_strategy=place).remote()
        return actor, actor.begun.remote()

    def _look(self) -> None:
        """Notice which actors have ended, so that a process that waits for their sentinels wakes."""
        while not self._over.wait(LOOK_S) and self._ray.is_initialized():
            for process in self._processes:
                process.look()

    def close(self) -> None:
        """Stop accepting connections, and free the resources."""
        self._over.set()
        super().close()
        with contextlib.suppress(Exception):  # the cluster may be gone, or nothing was reserved
            knock(self._head)
            self._ray.util.remove_placement_group(self._reserved)


class RayProcess:
    """An actor, as multiprocessing shows a process; `pid` is none of this machine's."""

    def __init__(self, ray: Any, actor: Any, serving: Any) -> None:
        self._ray, self._actor, self._serving = ray, actor, serving
        self.pid, self._looking, self._ended, self._until_s = -1, threading.Lock(), False, math.inf
        self.sentinel, self._here = os.pipe()  # which can be read once it has ended
        self.exitcode: int | None = None

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
            self.exitcode, self._ended = 1 if self.exitcode is None else self.exitcode, True
            os.close(self._here)

    def is_alive(self) -> bool:
        """Whether its end has not been noticed."""
        return not self._ended

    def kill(self) -> None:
        """End it at once, wherever it is."""
        self._until_s = min(self._until_s, time.monotonic() + KILLED_LIMIT_S)
        with contextlib.suppress(Exception):  # it, or the cluster, is gone
            self._ray.kill(self._actor, no_restart=True)

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end; of one that was killed not for long."""
        until_s = min(self._until_s, math.inf if timeout is None else time.monotonic() + timeout)
        while self.is_alive() and time.monotonic() < until_s:
            self.look(LOOK_S)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.sentinel)


class _Actor:
    """One process of ours in one of Ray's."""

    def begun(self) -> None:
        """It is there, and has loaded the module that would keep it from giving signs of life."""
        import torch  # noqa: F401

    def serve(self, number: int, way: Rendezvous, gpus: bool) -> None:
        """Be a process of the pool until its parent hangs up."""
        if number == SERVER or not gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        threading.current_thread().name = f"pslab-{name(number)}"
        begin(number, way, pulse=True)
