"""Anonymous shared memory: a file descriptor without a name, so that no crash can leave one."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import tempfile
from collections.abc import Iterator
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any

from pslab.errors import StartFailed

if TYPE_CHECKING:  # a child is given arenas before it may spend seconds on importing torch
    import torch

PIECE_BYTES = 1 << 24  # that are moved at a time
ALIGNMENT = 64  # a cache line, and what the widest vector instructions want


def aligned(size_bytes: int, unit: int = ALIGNMENT) -> int:
    """The size rounded up to whole cache lines, or other units."""
    return -(-size_bytes // unit) * unit


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
        """Make room for `size_bytes`; what was there stays.

        Raises:
            StartFailed: the system does not have them.
        """
        if self.size_bytes < size_bytes:
            with _wanted(size_bytes):
                os.ftruncate(self._descriptor, size_bytes)

    def bytes(self, offset: int, size_bytes: int) -> memoryview:
        """A writable view."""
        return memoryview(self._mapped(offset + size_bytes))[offset : offset + size_bytes]

    def tensor(self, offset: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        """`count` elements of `dtype` from a byte offset, as a tensor on the shared bytes."""
        import torch

        end = max(offset + count * dtype.itemsize, self.size_bytes)  # so that tensors of a run lie in one map
        return torch.frombuffer(self._mapped(end), dtype=dtype, count=count, offset=offset)

    @property
    def size_bytes(self) -> int:
        """How much room there is."""
        return os.fstat(self._descriptor).st_size

    def put(self, offset: int, values: torch.Tensor) -> None:
        """Write values [n] to a place. Where they are zero no page is touched that was not written to: so the first
        weights of a model that begins with zeros take no memory."""
        import torch

        for at, piece in self.written(offset, values.nbytes):
            self.tensor(at, len(piece), torch.uint8).zero_()
        each = PIECE_BYTES // values.itemsize
        for begin in range(0, len(values), each):
            piece_of = values[begin : begin + each]
            if piece_of.contiguous().view(torch.uint8).any():  # of bits: -0.0 is not zero
                self.tensor(offset + begin * values.itemsize, len(piece_of), values.dtype).copy_(piece_of)

    def written(self, offset: int, size_bytes: int) -> Iterator[tuple[int, memoryview]]:
        """The pieces (offset, bytes) of a place that have been written to; what lies between them is zero."""
        at, end = offset, offset + size_bytes
        while at < end:
            begin, stop = self._piece(at, end)
            if stop > begin:
                yield begin, self.bytes(begin, stop - begin)
            at = stop

    def taken(self, offset: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        """What lies at a place, moved piece by piece to memory of this process alone: it takes hardly more meanwhile.

        Where pages can be given back, what was there is zero then.
        """
        from pslab.tensors.device import zeros

        found, size_bytes = zeros(count, dtype=dtype), count * dtype.itemsize
        content = memoryview(found.numpy()).cast("B")  # type: ignore[arg-type]
        for begin in range(offset, offset + size_bytes, PIECE_BYTES):
            end = min(begin + PIECE_BYTES, offset + size_bytes)
            for at, piece in self.written(begin, end - begin):
                content[at - offset : at - offset + len(piece)] = piece
            self.give_back(begin, end - begin)
        return found

    def give_back(self, offset: int = 0, size_bytes: int | None = None) -> None:
        """Give the pages of a place back, or all, where the system can: what was written there is zero then, and as if
        it never was. Pages that belong to its neighbours, too, stay.
        """
        page, all_bytes = mmap.PAGESIZE, self.size_bytes
        begin, end = aligned(offset, page), all_bytes
        if size_bytes is not None and offset + size_bytes < all_bytes:
            end = (offset + size_bytes) // page * page
        if hasattr(mmap, "MADV_REMOVE") and begin < end:
            with contextlib.suppress(OSError):
                self._mapped(end).madvise(mmap.MADV_REMOVE, begin, end - begin)

    def _piece(self, at: int, end: int) -> tuple[int, int]:
        try:
            begin = os.lseek(self._descriptor, at, os.SEEK_DATA)
            return min(begin, end), min(os.lseek(self._descriptor, begin, os.SEEK_HOLE), end)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing is behind
                return end, end
            return at, end  # not every file system tells

    def close(self) -> None:
        """Give the descriptor back; views that are still held stay valid."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._map = None

    def _mapped(self, end: int) -> mmap.mmap:
        if self._map is None or len(self._map) < end:
            size_bytes = self.size_bytes
            with _wanted(size_bytes):
                self._map = mmap.mmap(self._descriptor, size_bytes)
        return self._map


@contextlib.contextmanager
def _wanted(size_bytes: int) -> Iterator[None]:
    try:
        yield
    except (OSError, MemoryError) as error:
        raise StartFailed(f"{size_bytes:,} bytes of shared memory cannot be had: {error}") from error


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("pslab", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:  # no name either: it is unlinked at once
        return os.dup(file.fileno())


def _reopen(handle: Any) -> Arena:
    return Arena(handle.detach())
