"""Files that somebody else may have written, or that a crash has torn: their size is looked at before they are read."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

from pslab.config.free_memory import free_memory_bytes

JSON_TIMES = 32  # the memory of a JSON value, in sizes of its text: `[],` is an object of 56 bytes in a list


def read_bytes(path: Path, times: int) -> bytes:
    """Return the content of a regular file that fits in the free memory.

    Args:
        times: how many times the file's size its reader needs.

    Raises:
        OSError: it is larger, or a device, a pipe or a folder.
    """
    with open(path, "rb", opener=_open_without_waiting) as file:
        status, free = os.fstat(file.fileno()), free_memory_bytes()
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        if free is not None and times * status.st_size > free:
            problem = f"its {status.st_size:,} bytes do not fit in the memory, of which {free:,} bytes are free"
            raise OSError(errno.EFBIG, problem, str(path))
        return file.read(status.st_size)


def read_json(path: Path) -> Any:
    """Return the value of a JSON file.

    Raises:
        OSError: as `read_bytes`.
        ValueError: it is no JSON.
    """
    try:
        return json.loads(read_bytes(path, JSON_TIMES))
    except (RecursionError, MemoryError) as error:
        raise ValueError(f"it is nested too deeply or too large: {error}") from error


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe without a writer would be waited for
