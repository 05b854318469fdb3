"""A folder, and processes that know of it, which are not there for longer than this process, however that ends."""

from __future__ import annotations

import os
import subprocess
import tempfile
from typing import Any

MARK = "PSLAB_PASSING_FOLDER"  # in the environment of what this process starts from then on
#: Once the process has hung up: end whom it has started, and was told of the folder or has a file open there: it could
#: make it again. Ray's agents, and workers that were being started, would otherwise look for their node for up to a
#: minute. Others that have the folder open, such as an editor, are left alone.
REMOVE = """cat
ended=.
while [ "$ended" ] || [ -e "$0" ]; do
    ended=
    for each in $(find /proc/[0-9]*/fd -lname "$0*"; grep -lF "$0" /proc/[0-9]*/cmdline); do
        each=${each#/proc/}
        each=${each%%/*}
        grep -qzxF "MARK=$0" "/proc/$each/environ" && kill -9 "$each" && ended=$each
    done
    rm -rf "$0"
    sleep 1
done 2> /dev/null""".replace("MARK", MARK)
_lines: list[Any] = []  # which end with this process


def passing_folder(prefix: str) -> str:
    """A new one; a shell waits for the end of this process, ends those that use the folder, and removes it."""
    found = tempfile.mkdtemp(prefix=prefix)
    _lines.append(subprocess.Popen(["sh", "-c", REMOVE, found], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                   start_new_session=True))  # fmt: skip
    os.environ[MARK] = found
    return found
