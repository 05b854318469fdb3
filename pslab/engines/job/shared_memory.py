"""Anonymous shared memory: a file descriptor without a name, so that no crash can leave one."""

from __future__ import annotations

import mmap
import os
import tempfile
from multiprocessing import reduction
from typing import Any

import torch

ALIGNMENT = 64  # a cache line, and what the widest vector instructions want


def aligned(size_bytes: int) -> int:
    """The size rounded up to whole cache lines."""
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


class Arena:
    """A growing piece of memory that a parent shares with the children that it spawns.

    It can be handed to a child only as an argument of its Process. After `reserve` in one process, the others see the
    new bytes as soon as they ask for a tensor there.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = _anonymous_file() if descriptor is None else descriptor
        self._map: mmap.mmap | None = None

    def __reduce__(self) -> tuple[Any, tuple[Any]]:
        return _reopen, (reduction.DupFd(self._descriptor),)

    def reserve(self, size_bytes: int) -> None:
        """Make room for `size_bytes`; what was there stays."""
        if os.fstat(self._descriptor).st_size < size_bytes:
            os.ftruncate(self._descriptor, size_bytes)

    def bytes(self, offset: int, size_bytes: int) -> memoryview:
        """A writable view."""
        return memoryview(self._mapped(offset + size_bytes))[offset : offset + size_bytes]

    def tensor(self, offset: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        """`count` elements of `dtype` from a byte offset, as a tensor on the shared bytes."""
        end = offset + count * dtype.itemsize
        return torch.frombuffer(self._mapped(end), dtype=dtype, count=count, offset=offset)

    def close(self) -> None:
        """Give the descriptor back; views that are still held stay valid."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._map = None

    def _mapped(self, end: int) -> mmap.mmap:
        if self._map is None or len(self._map) < end:
            self._map = mmap.mmap(self._descriptor, os.fstat(self._descriptor).st_size)
        return self._map


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("pslab", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:  # no name either: it is unlinked at once
        return os.dup(file.fileno())


def _reopen(handle: Any) -> Arena:
    return Arena(handle.detach())
