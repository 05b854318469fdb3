"""Which processes a test has left behind: they carry a token in their environment; and where a process listens."""

from __future__ import annotations

import os
import select
import socket
from pathlib import Path

LISTENS = "0A"  # a socket's state, in proc_pid_net(5)
LIMIT_S = 10.0  # for a child that is still importing torch when its parent dies; one that runs ends at once


def living(token: str) -> list[int]:
    """The processes that have inherited a token in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if token.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def wait_for_end(process: int, limit_s: float = LIMIT_S) -> None:
    """Until the process has ended, or the limit is over."""
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return
    try:
        select.select([handle], [], [], limit_s)
    finally:
        os.close(handle)


def listens(process: int) -> list[str]:
    """The addresses on which a process listens for TCP."""
    own = set()
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        try:
            own.add(os.readlink(descriptor))
        except OSError:
            continue
    found = []
    for family, table in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == LISTENS and f"socket:[{inode}]" in own:
                words = bytes.fromhex(local.partition(":")[0])  # each four bytes in this machine's order
                address = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
                found.append(socket.inet_ntop(family, address))
    return found
