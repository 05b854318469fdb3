"""Processes on the hosts of a Ray cluster: Ray starts and ends them, all that they say travels on streams of ours.

Each is an actor without restarts, on the host that pslab.engines.processes.fleets.placement has chosen. A host that
does not answer gets none: Ray by default takes it for alive for a minute, and would wait for it. What Ray is told about
a process is a small argument; jobs and tensors come over the pipe to it, as to processes of this machine.
"""

from __future__ import annotations

import contextlib
import ipaddress
import math
import os
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from pslab.config.fleet import Fleet
from pslab.engines.processes.child import SERVER, name
from pslab.engines.processes.fleets.loopback import LoopbackFleet, Rendezvous, begin, knock
from pslab.engines.processes.fleets.placement import Room, Share, described, placed, share_of, sizes
from pslab.engines.processes.fleets.temporary_ray_folder import passing_folder
from pslab.errors import ConfigError, StartFailed
from pslab.version import install

START_LIMIT_S = 120.0  # in which others make room for processes
MOVED_LIMIT_S = 10.0  # in which there is room elsewhere for what was on a host that is gone
BEGIN_LIMIT_S = 120.0  # in which a host that answers begins a process: a busy one imports torch for a minute
TRIES = 3  # to begin a process, on other hosts if there are
KILLED_LIMIT_S = 4.0  # after which an actor that was killed is not waited for: its host may be gone
ANSWER_LIMIT_S = 3.0  # in which a host's Ray says something
LOOK_S = 0.1  # between two looks at which actors have begun, or ended
ASK_S = 1.0  # between two questions which hosts answer
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"  # how a gRPC client begins (RFC 9113, 3.4)
OWN = {"include_dashboard": False, "_system_config": {"worker_niceness": 0}}  # of a cluster that is started here


def load_ray() -> Any:
    """The package, as it is wanted here; StartFailed without it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")  # else what is asked after its end begins another cluster
    try:
        import ray
    except ImportError as error:
        raise StartFailed(f"a Ray cluster needs Ray: {install('ray')} ({error})") from error
    return ray


class RayFleet(LoopbackFleet):
    """Each process an actor with cores and GPUs of its own."""

    def __init__(self, kinds: Sequence[str], fleet: Fleet) -> None:
        super().__init__(kinds, fleet)
        self._ray, self._fleet, self._over = load_ray(), fleet, threading.Event()
        self._processes: dict[int, RayProcess] = {}
        self._slow: set[str] = set()  # hosts that have not begun a process in time
        try:
            self._join()
            self._head = self._ray.get_runtime_context().gcs_address
            self._refuse_network()
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
            words = _why(error)
            if started:
                raise StartFailed(f"no Ray cluster starts here: {words}") from error
            advice = "is there one? `ray start --head` begins it, address: local starts one for this process"
            if "uthentication" in words:
                advice = "its hosts and this process need the same token: see docs/many-machines.md"
            raise StartFailed(f"no Ray cluster answers at {address} ({words}): {advice}") from error

    def _refuse_network(self) -> None:
        """ConfigError if processes of other hosts cannot reach the network that this one listens on."""
        addresses = sorted({node["NodeManagerAddress"] for node in self._nodes()})
        if len(addresses) > 1 and ipaddress.ip_network(self._fleet.network, strict=False).is_loopback:
            problem = (f"no other host reaches it; the Ray cluster has {', '.join(addresses)}: name their network as "
                       "data.network, such as 10.0.0.0/8")  # fmt: skip
            raise ConfigError("fleet.network", self._fleet.network, problem)

    def _launched(self, numbers: Sequence[int], heed: Callable[[], None]) -> dict[int, Any]:
        knock(self._head)  # Ray would look for it for minutes
        shares = {number: share_of("server" if number == SERVER else self._kinds[number], self._fleet)
                  for number in numbers}  # fmt: skip
        there = [(process.share, process.host) for number, process in self._processes.items()
                 if number not in numbers and process.is_alive()]  # fmt: skip
        whole = [_room(node, node["Resources"]) for node in self._nodes()]
        if not there and placed(shares, whole, self._fleet) is None:
            raise StartFailed(f"the Ray cluster has no room for {described(shares.values())}: it has {sizes(whole)}")
        found: dict[int, RayProcess] = {}
        try:
            self._begin(shares, there, found, heed)
        except BaseException:  # whoever keeps the error keeps no process
            for process in found.values():
                process.kill()
            raise
        for process in found.values():  # it dials from now on
            process.serve(self._way)
        self._processes |= found
        return found

    def _begin(
        self, shares: Mapping[int, Share], there: Sequence[tuple[Share, str]], found: dict[int, RayProcess],
        heed: Callable[[], None],
    ) -> None:  # fmt: skip
        """Begin the processes with these shares, each on a host that answers; on another one if it does not any more.
        They are in `found` from their first moment on."""
        limit_s = MOVED_LIMIT_S if self._processes else START_LIMIT_S
        until_s, asked_s, failures, rooms = time.monotonic() + limit_s, -math.inf, Counter[int](), list[Room]()
        while not all(number in found and found[number].begun() for number in shares):
            heed()
            if time.monotonic() - asked_s > ASK_S:
                rooms = self._rooms(heed)
                for number, process in list(found.items()):
                    if process.fails(room.host for room in rooms):
                        failures[number] += 1
                        self._slow.add(process.host)
                        found.pop(number).kill()
                        if failures[number] >= TRIES:
                            where = next((room.address for room in rooms if room.host == process.host), "a host")
                            raise StartFailed(f"Ray has not started {name(number)} on {where}: {process.problem}")
                        until_s = time.monotonic() + MOVED_LIMIT_S
                waiting = {number: share for number, share in shares.items() if number not in found}
                taken = [*there, *((process.share, process.host) for process in found.values())]
                rooms.sort(key=lambda room: (room.host in self._slow, -room.gpus, -room.cpus))
                for number, host in (placed(waiting, rooms, self._fleet, taken) or {}).items():
                    found[number] = RayProcess(self._ray, self._fleet, number, waiting[number], host)
                if len(found) < len(shares) and time.monotonic() > until_s:
                    who, wanted = ", ".join(map(name, waiting)), described(waiting.values())
                    raise StartFailed(f"Ray has not started {who}: no host that answers had room for {wanted} within "
                                      f"{limit_s:g} s; free: {sizes(rooms)}")  # fmt: skip
                asked_s = time.monotonic()
            self._over.wait(LOOK_S)

    def _nodes(self) -> list[Any]:
        """The hosts that Ray takes for alive."""
        return [node for node in self._ray.nodes() if node["Alive"]]

    def _rooms(self, heed: Callable[[], None]) -> list[Room]:
        """What is free on the hosts that answer."""
        from ray._private.state import available_resources_per_node

        free, nodes = available_resources_per_node(), self._nodes()
        asking = ThreadPoolExecutor(max(1, len(nodes)))
        answers = [asking.submit(_answers, node) for node in nodes]
        asking.shutdown(wait=False)
        while wait(answers, LOOK_S).not_done:
            heed()
        return [_room(node, free.get(node["NodeID"], {}))
                for node, answer in zip(nodes, answers, strict=True) if answer.result()]  # fmt: skip

    def _look(self) -> None:
        """Notice which actors have ended, so that a process that waits for their sentinels wakes."""
        while not self._over.wait(LOOK_S) and self._ray.is_initialized():
            for process in list(self._processes.values()):
                process.look()

    def close(self) -> None:
        """End the processes by Ray's means, so that it does not report each one as a failure, and stop accepting
        connections."""
        self._over.set()
        with contextlib.suppress(Exception):  # the cluster may be gone, or was never there
            knock(self._head)
            for process in self._processes.values():
                process.kill()
            for process in self._processes.values():
                process.join()
        super().close()


def _room(node: Any, resources: Any) -> Room:
    return Room(node["NodeID"], resources.get("CPU", 0.0), resources.get("GPU", 0.0), node["NodeManagerAddress"])


def _answers(node: Any) -> bool:
    """Whether the Ray of a host says something, whatever the cluster still takes it for: the system of one that stands
    still takes connections."""
    try:
        with socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), ANSWER_LIMIT_S) as line:
            line.sendall(HTTP2)
            line.recv(1)
    except OSError:
        return False
    return True


class RayProcess:
    """An actor, as multiprocessing shows a process; `pid` is none of this machine's."""

    def __init__(self, ray: Any, fleet: Fleet, number: int, share: Share, host: str) -> None:
        there = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(host, soft=False)
        options = {"num_cpus": share.cpus, "num_gpus": share.gpus, "scheduling_strategy": there}
        self._ray, self._actor, self._number = ray, ray.remote(_Actor).options(**options).remote(), number
        self._serving = self._begun = self._actor.begun.remote()
        self.share, self.host, self.problem, self._since_s = share, host, "", time.monotonic()
        self.pid, self._looking, self._ended, self._until_s = -1, threading.Lock(), False, math.inf
        self.sentinel, self._here = os.pipe()  # which can be read once it has ended
        self.exitcode: int | None = None

    def begun(self) -> bool:
        """Whether it is there; if it never will be, `problem` says why."""
        if self._begun is not None and not self.problem:
            try:
                self._ray.get(self._begun, timeout=0)
                self._begun = None
            except self._ray.exceptions.GetTimeoutError:
                pass
            except Exception as error:
                self.problem = _said(error)
        return self._begun is None

    def fails(self, answering: Iterable[str]) -> bool:
        """Whether it is to be begun on another host, as these are the ones that answer; `problem` says why."""
        if self.host not in answering and not self.problem:
            self.problem = "its host does not answer any more"
        elif not self.begun() and not self.problem and time.monotonic() - self._since_s > BEGIN_LIMIT_S:
            self.problem = f"its host answers, and has not begun it within {BEGIN_LIMIT_S:g} s"
        return bool(self.problem)

    def serve(self, way: Rendezvous) -> None:
        """Let it dial its parent."""
        self._serving = self._actor.serve.remote(self._number, way, self.share.gpus > 0)

    def look(self, wait_s: float = 0.0) -> None:
        """Notice its end, if it comes within so long: what it was, Ray says."""
        with self._looking:
            if self._ended:
                return
            try:
                if self._ray.wait([self._serving], timeout=wait_s)[1]:
                    return
                self._ray.get(self._serving)
                self.exitcode = 0
            except Exception as error:  # it was killed, or its host is gone, or Ray is
                self.problem = _said(error)
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


def _why(error: Exception) -> str:
    """What Ray says, and the last line of what was behind it: that a token is missing is only said there."""
    behind = str(error.__cause__ or "").strip().rpartition("\n")[2]
    return f"{error}: {behind}" if behind else f"{type(error).__name__}: {error}"


def _said(error: Exception) -> str:
    """What Ray says of an actor's end, without colours; of a host that lacks a package no more than that."""
    words = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
    if "No module named" not in words:
        return words
    return f"{words.rpartition(chr(10))[2]}: each host of the cluster needs the same packages as this one"


class _Actor:
    """One process of ours in one of Ray's."""

    def begun(self) -> None:
        """It is there, and has loaded the module that would keep it from giving signs of life."""
        with contextlib.suppress(OSError):  # Ray lets its processes give way to all others; only root can alter that
            os.setpriority(os.PRIO_PROCESS, 0, 0)
        import torch  # noqa: F401

    def serve(self, number: int, way: Rendezvous, gpus: bool) -> None:
        """Be a process of the pool until its parent hangs up."""
        if not gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        threading.current_thread().name = f"pslab-{name(number)}"
        begin(number, way, pulse=True)
