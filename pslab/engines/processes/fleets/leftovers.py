"""A folder that is not there for longer than this process, however that ends."""

from __future__ import annotations

import subprocess
import tempfile
from typing import Any

#: Once the process has hung up: until nobody has a file open there any more, who could make the folder again.
REMOVE = 'cat; while rm -rf "$0"; sleep 1; ls -l /proc/[0-9]*/fd 2>&1 | grep -qF "$0" || [ -e "$0" ]; do :; done'
_lines: list[Any] = []  # which end with this process


def passing_folder(prefix: str) -> str:
    """A new one; a shell waits for the end of this process, and removes it."""
    found = tempfile.mkdtemp(prefix=prefix)
    _lines.append(subprocess.Popen(["sh", "-c", REMOVE, found], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                   start_new_session=True))  # fmt: skip
    return found
