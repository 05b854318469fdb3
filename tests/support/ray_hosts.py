"""A Ray cluster on hosts of its own, begun as docs/many-machines.md says, and users there."""

from __future__ import annotations

import json
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import notebook_there
from hosts import Host
from processes import living, wait_for_end

REPOSITORY = Path(__file__).parents[2]
RAY = [sys.executable, "-m", "ray.scripts.scripts"]
TRIES = 3  # of `ray start`: it gives up after 30 s, which a busy machine may need
LINE_LIMIT_S = 150.0  # a user's process says something within that
PATHS = os.pathsep.join(map(str, (REPOSITORY, REPOSITORY / "tests" / "support")))
NETWORK = {"network": "10.77.0.0/24"}


class RayHosts:
    """A head without room, where users are, and hosts with room for two processes each."""

    def __init__(self, hosts: list[Host]) -> None:
        self.head, *self.hosts = hosts
        self._joined, self._fallen = set[int](), set[int]()
        self._start(self.head, "--head", "--port=6379", "--num-cpus=0")

    def fill(self, count: int | None = None) -> None:
        """So many hosts with room, whatever became of those before: one that fell is switched on anew."""
        for host in self.hosts:
            if host.number in self._fallen:
                host.kill()
                host.begin()
        self._fallen.clear()
        for host in self.hosts[:count]:
            if host.number not in self._joined:
                self.join(host)

    def join(self, host: Host, *words: str) -> None:
        """A host has room from now on: two cores, or what the words say."""
        self._start(host, f"--address={self.head.address}:6379", *(words or ["--num-cpus=2"]))
        self._joined.add(host.number)

    def fell(self, host: Host) -> None:
        """Something has happened to a host."""
        self._joined.discard(host.number)
        self._fallen.add(host.number)

    def at(self, address: str) -> Host:
        """The host of this address."""
        return next(host for host in self.hosts if host.address == address)

    def _start(self, host: Host, *words: str) -> None:
        for left in reversed(range(TRIES)):
            try:
                host.run(*RAY, "start", *words, PYTHONPATH=PATHS, RAY_worker_niceness="0")
                return
            except (AssertionError, subprocess.TimeoutExpired):
                if not left:
                    raise
                host.run(*RAY, "stop", "--force")


class User:
    """A run of a user on the head of a cluster, and what it says."""

    def __init__(self, cluster: RayHosts, fields: dict[str, Any], **environment: str) -> None:
        words = [sys.executable, notebook_there.__file__, json.dumps(fields)]
        self._process = cluster.head.command(words, PYTHONPATH=PATHS, **environment)
        self._lines: queue.Queue[str] = queue.Queue()
        self.said: list[dict[str, Any]] = []
        self.words = ""  # that are no lines of its own
        self.on: dict[str, tuple[str, int]] = {}  #: where each process was at first, by its number
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def until(self, name: str, least: int = 0) -> Any:
        """What it says under this name, at least so much if it is a number; AssertionError if it does not."""
        for line in self._each():
            if name in line and (not least or line[name] >= least):
                return line[name]
        raise AssertionError(f"it has ended without {name}: {self.said[-1:]} {self.words}")

    def _each(self) -> Iterator[dict[str, Any]]:
        while line := self._lines.get(timeout=LINE_LIMIT_S):
            if not line.startswith("{"):
                self.words += line
                continue
            self.said.append(found := json.loads(line))
            self.on = found.get("on", self.on)
            yield found

    def kill(self) -> None:
        """Its process is killed."""
        (process,) = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        os.kill(int(process), signal.SIGKILL)
        self._process.wait(LINE_LIMIT_S)

    def outcome(self) -> dict[str, Any]:
        """What a manifest says, or the error; the process has ended then."""
        last = next((line for line in self._each() if "done" in line or "error" in line), None)
        assert last is not None, self.words
        self._process.wait(LINE_LIMIT_S)
        return dict(last.get("done", last))


def harm(cluster: RayHosts, user: User, what: str, which: str) -> float:
    """Something happens to a process of a run, by its number, or to its host; when."""
    address, number = user.on[which]
    host = cluster.at(address)
    if what in ("kill", "stop"):
        host.run("kill", f"-{'KILL' if what == 'kill' else 'STOP'}", str(number))
    else:
        befall(cluster, host, what)
    return time.monotonic()


def befall(cluster: RayHosts, host: Host, what: str) -> None:
    """Something happens to a host."""
    cluster.fell(host)
    if what == "raylet":
        for process in (p for p in living(f"HOST_FOLDER={host.folder}") if "raylet/raylet" in command_of(p)):
            os.kill(process, signal.SIGKILL)
    elif what == "link":
        host.link(False)
    elif what == "power":
        host.kill()


class Suffered(NamedTuple):
    """What came of a run to which something happened."""

    outcome: dict[str, Any]  #: see `User.outcome`
    fell: str  #: the address of the host
    noticed_s: float  #: after which the run said so first
    on_s: float  #: after which the last process of those that were replaced at first went on
    alive: list[str]  #: hosts that Ray took for alive when the first of them did
    lost: int  #: pushes that were forgotten
    left: list[str]  #: see `left_behind`


def suffer(cluster: RayHosts, what: str, which: str, after: int, fields: dict[str, Any]) -> Suffered:
    """A run, to whose process of this number something happens after so many pushes; see `harm`."""
    user = User(cluster, fields)
    user.until("pushes", after)
    at_s = harm(cluster, user, what, which)
    outcome = user.outcome()
    does = [line for line in user.said if "does" in line]
    noticed = [line["at_s"] - at_s for line in does if line["does"] != "joined"]
    joined = [line for line in does if line["does"] == "joined"]
    lost = sum(each["pushes"] - each["to_pushes"] for each in outcome.get("rewinds") or ())
    found = Suffered(outcome, user.on[which][0], min(noticed, default=math.nan),
                     max((line["at_s"] - at_s for line in joined), default=math.nan),
                     joined[0]["alive"] if joined else [], lost, left_behind(cluster))  # fmt: skip
    print(f"\n{what} {which} after {after} pushes, {fields['sync']}: noticed after {found.noticed_s:.1f} s, on after "
          f"{found.on_s:.1f} s, {lost} pushes lost, {outcome.get('verdict', outcome)}, left {found.left}")  # fmt: skip
    return found


def left_behind(cluster: RayHosts) -> list[str]:
    """The processes of runs on hosts that are well, once they have had time to end."""
    found = []
    for host in cluster.hosts:
        for process in living(f"HOST_FOLDER={host.folder}"):
            if host.number in cluster._joined and "Actor" in command_of(process):
                wait_for_end(process)
                if words := command_of(process):
                    found.append(f"{host.address}: {words}")
    return found


def command_of(process: int) -> str:
    """A process's words; none if it is gone."""
    try:
        return Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return ""
