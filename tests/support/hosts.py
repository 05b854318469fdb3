"""Several hosts on this machine, each with a network, processes, temporary files and a home of its own, whose links go
down and which die with all that runs on them. It needs root, as network namespaces do."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

SUBNET = "10.77.0"
UNABLE = "hosts of their own need root, and ip, unshare and nsenter"
INIT = """
mount -t tmpfs none /dev/shm && mount --bind "$HOST_FOLDER/ray" /tmp/ray && ip link set lo up && touch "$HOST_FOLDER/up"
exec sleep infinity
"""


class Host:
    """One of them.

    Args:
        number: from 1 on, the last part of its address.
        folder: for its home and its temporary files.
    """

    def __init__(self, number: int, folder: Path) -> None:
        self.number, self.address, self.space = number, f"{SUBNET}.{number}", f"pslab-h{number}"
        self.folder = folder / self.space
        self.environment = {**os.environ, "HOME": str(self.folder / "home"), "HOST_FOLDER": str(self.folder),
                            "RAY_USAGE_STATS_ENABLED": "0"}  # fmt: skip
        for each in ("home", "ray"):
            (self.folder / each).mkdir(parents=True)
        Path("/tmp/ray").mkdir(exist_ok=True)
        _ip("netns", "add", self.space)
        _ip("link", "add", self.space, "type", "veth", "peer", "name", "eth0", "netns", self.space)
        _ip("link", "set", self.space, "master", "pslab-br", "up")
        _ip("-n", self.space, "address", "add", f"{self.address}/24", "dev", "eth0")
        _ip("-n", self.space, "link", "set", "eth0", "up")
        _ip("-n", self.space, "route", "add", "default", "via", f"{SUBNET}.254")
        self.begin()

    def begin(self) -> None:
        """It is switched on; nothing runs there."""
        (self.folder / "up").unlink(missing_ok=True)
        self.link(True)
        unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", INIT]
        self._init = subprocess.Popen(["ip", "netns", "exec", self.space, *unshare], env=self.environment)
        while not (self.folder / "up").exists():
            assert self._init.poll() is None, "unshare has ended"
        children = Path(f"/proc/{self._init.pid}/task/{self._init.pid}/children")
        self._first = int(children.read_text().split()[0])

    def command(self, words: Sequence[str], **environment: str) -> subprocess.Popen[str]:
        """A command there, whose output can be read."""
        enter = ["nsenter", f"--target={self._first}", "--mount", "--pid", "--net", "--"]
        return subprocess.Popen([*enter, *words], env=self.environment | environment, text=True, cwd=os.getcwd(),
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip

    def run(self, *words: str, limit_s: float = 120.0, **environment: str) -> str:
        """The output of a command there that ends well."""
        process = self.command(words, **environment)
        output, _ = process.communicate(timeout=limit_s)
        assert process.returncode == 0, output
        return output

    def link(self, up: bool) -> None:
        """Its link goes down, or up again: nothing reaches it meanwhile, and nobody is told."""
        _ip("link", "set", self.space, "up" if up else "down")

    def sent_bytes(self) -> int:
        """How much has been sent to it since it was made."""
        return int(Path(f"/sys/class/net/{self.space}/statistics/tx_bytes").read_text())

    def kill(self) -> None:
        """It loses its power: not even the ends of its streams are heard of."""
        if self._init.poll() is not None:
            return
        self.link(False)
        os.kill(self._first, signal.SIGKILL)
        self._init.wait()

    def close(self) -> None:
        """It is gone, and so is its network."""
        self.kill()
        _ip("link", "delete", self.space)
        _ip("netns", "delete", self.space)


@contextlib.contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """So many hosts in one network; who asks for others waits until these are closed."""
    with open(Path(tempfile.gettempdir()) / "pslab-hosts.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield from _hosts(count)


def _hosts(count: int) -> Iterator[list[Host]]:
    _clear()
    _ip("link", "add", "pslab-br", "type", "bridge")
    _ip("address", "add", f"{SUBNET}.254/24", "dev", "pslab-br")
    _ip("link", "set", "pslab-br", "up")
    folder = Path(tempfile.mkdtemp(prefix="pslab-hosts-"))
    found: list[Host] = []
    try:
        for number in range(1, count + 1):
            found.append(Host(number, folder))
        yield found
    finally:
        for host in found:
            host.close()
        _clear()
        shutil.rmtree(folder, ignore_errors=True)


def able() -> bool:
    """Whether this machine can have such hosts."""
    return os.geteuid() == 0 and all(shutil.which(each) for each in ("ip", "unshare", "nsenter"))


def _clear() -> None:
    for number in range(1, 9):
        _ip("link", "delete", f"pslab-h{number}", check=False)
        _ip("netns", "delete", f"pslab-h{number}", check=False)
    _ip("link", "delete", "pslab-br", check=False)


def _ip(*words: str, check: bool = True) -> Mapping[str, Any] | None:
    subprocess.run(["ip", *words], check=check, capture_output=not check)
    return None
