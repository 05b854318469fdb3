"""Runs one of whose processes is on a host of its own, as far as the network is concerned, and the way there is cut.

unshare --user --map-root-user --net python unreachable.py NUMBER FIELDS    JSON of what came of it

In the namespace of this process are the parent and all processes but one, which moves to another namespace before it
dials: a pair of virtual interfaces joins the two. Once some pushes are made that host's interface goes down: nothing
comes from there any more, and nothing says so. Its processes go on, and no system call of this side tells of them.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from typing import Any

from processes import listens

from pslab.engines.processes import pool
from pslab.engines.processes.fleets import loopback
from pslab.errors import RunError

NETWORK, HERE, THERE = "10.77.0.0/24", "10.77.0.1/24", "10.77.0.2/24"
NEW_NETWORK = 0x40000000  # CLONE_NEWNET of sched.h
AWAY = "PSLAB_TEST_AWAY"  # the number of the process that is to move, and whose namespace it moves to
PUSHES = 20  # before the link goes down
POSSIBLE = ["unshare", "--user", "--map-root-user", "--net", "ip", "link", "add", "type", "veth"]
_begin, _launched = loopback.begin, loopback.LoopbackFleet._launched


def possible() -> str:
    """Why namespaces cannot be had here, or an empty string."""
    try:
        done = subprocess.run(POSSIBLE, capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return done.stderr.strip() if done.returncode else ""


def begin(number: int, way: loopback.Rendezvous, *, pulse: bool = False) -> None:
    """As the fleet's own, but on the other host if this process is the one; as actors do, it says that it computes."""
    away, holder = map(int, os.environ[AWAY].split())
    if number == away:
        _enter(holder)
    _begin(number, way, pulse=True)


def _enter(holder: int) -> None:
    """The network of another process, as long as it is up: who comes later is on a host that can be reached."""
    if "DOWN" in _in(holder, "ip", "-brief", "link", "show", "there"):
        return
    with open(f"/proc/{holder}/ns/net", "rb") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), NEW_NETWORK):
            raise OSError(ctypes.get_errno(), "cannot enter the namespace")


def _in(holder: int, *command: str) -> str:
    return subprocess.check_output(["nsenter", "--target", str(holder), "--net", *command], text=True)


class Unseen:
    """A process of which this machine's /proc says nothing, as of those on other hosts."""

    pid = -1

    def __init__(self, process: Any) -> None:
        self._process = process

    def __getattr__(self, name: str) -> Any:
        return getattr(self._process, name)


def launched(fleet: Any, numbers: Any) -> dict[int, Any]:
    return {number: Unseen(process) for number, process in _launched(fleet, numbers).items()}


class Cut:
    """The receiver of a run's news, which takes the link down."""

    def __init__(self, holder: int) -> None:
        self._holder, self.at_s, self.listens = holder, 0.0, dict[int, list[str]]()

    def __call__(self, news: dict[str, Any]) -> None:
        if news.get("pushes", 0) > PUSHES and not self.at_s:
            assert pool._kept is not None
            self.listens = {number: listens(each._process.pid) for number, each in pool._kept.processes.items()}
            _in(self._holder, "ip", "link", "set", "there", "down")
            self.at_s = time.monotonic()


def main(number: int, fields: dict[str, Any]) -> dict[str, Any]:
    from tiny import tiny

    from pslab.engines.execute import execute
    from pslab.engines.local.recovery.replacing import Recovery
    from pslab.lab.judge import tables_of
    from pslab.lab.runs.resolve import resolve

    holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
    try:
        while os.readlink(f"/proc/{holder.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            pass
        for command in ("ip link set lo up", f"ip link add here type veth peer name there netns {holder.pid}",
                        f"ip address add {HERE} dev here", "ip link set here up"):  # fmt: skip
            subprocess.check_call(command.split())
        for command in (f"ip address add {THERE} dev there", "ip link set there up", "ip link set lo up"):
            _in(holder.pid, *command.split())
        os.environ[AWAY] = f"{number} {holder.pid}"
        loopback.begin, loopback.LoopbackFleet._launched = begin, launched  # type: ignore[method-assign]
        cut, noticed = Cut(holder.pid), list[float]()
        for name in ("lost", "ended"):  # a worker of which the server knows, or anyone of whom the parent does
            original = getattr(Recovery, name)

            def noting(self: Any, *given: Any, original: Any = original) -> None:
                noticed.append(time.monotonic() - cut.at_s)
                original(self, *given)

            setattr(Recovery, name, noting)
        run = tiny(**fields, fleet={"place": "loopback", "network": NETWORK})
        try:
            outcome = execute(resolve(run), cut)
        except RunError as error:
            return {"error": type(error).__name__, "words": str(error), "noticed_s": noticed,
                    "saved": error.outcome is not None}  # fmt: skip
        facts = tables_of(run, outcome)[2]
        names = ("outcome", "pushes", "deaths", "lives", "rewinds", "verdict", "violations")
        return {"noticed_s": noticed, "listens": cut.listens, **{name: facts[name] for name in names if name in facts}}
    finally:
        pool.release(kill=True)
        holder.kill()
        holder.wait()


if __name__ == "__main__":
    import unreachable  # children find its functions under its name

    print(json.dumps(unreachable.main(int(sys.argv[1]), json.loads(sys.argv[2]))))
