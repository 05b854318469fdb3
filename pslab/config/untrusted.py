"""Files from an untrusted source, or damaged by a crash: their size is checked before they are read."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

from pslab.config.available import free_memory_bytes

JSON_TIMES = 32  # memory of a JSON value per byte of its text: `[],` becomes an object of 56 bytes in a list


def read_bytes(path: Path, times: int) -> bytes:
    """Return the content of a regular file that fits in the free memory.

    Args:
        times: memory that the reader needs, as a multiple of the file's size.

    Raises:
        OSError: the file is larger, or is a device, a pipe or a folder.
    """
    with open(path, "rb", opener=_open_without_waiting) as file:
        status, free = os.fstat(file.fileno()), free_memory_bytes()
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file, so it is not read", str(path))
        if free is not None and times * status.st_size > free:
            problem = (
                f"its {status.st_size:,} bytes, times {times} to read, do not fit in the memory: {free:,} are free"
            )
            raise OSError(errno.EFBIG, problem, str(path))
        return file.read(status.st_size)


def read_json(path: Path) -> Any:
    """Return the value of a JSON file.

    Raises:
        OSError: as for `read_bytes`.
        ValueError: the content is not JSON.
    """
    try:
        return json.loads(read_bytes(path, JSON_TIMES))
    except (RecursionError, MemoryError) as error:
        raise ValueError(f"it is nested too deeply or too large: {error}") from error


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # opening a pipe without a writer would block
