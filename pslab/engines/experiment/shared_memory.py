"""Anonymous shared memory: a file without a name, so that no crash can leave it behind."""

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

if TYPE_CHECKING:  # a child gets arenas before it spends seconds on importing torch
    import torch

PIECE_BYTES = 1 << 24  # copied at a time
ALIGNMENT = 64  # a cache line, and the widest vector instructions


def aligned(size_bytes: int, unit: int = ALIGNMENT) -> int:
    """Return a size rounded up to a multiple of `unit`, by default of cache lines."""
    return -(-size_bytes // unit) * unit


class Arena:
    """Shared memory that can grow, of a parent and the processes that it spawns.

    A child can get an arena only as an argument of its Process. After `reserve` in one process, other processes map the
    new bytes when they ask for a tensor there.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = _anonymous_file() if descriptor is None else descriptor
        self._map: mmap.mmap | None = None

    def __reduce__(self) -> tuple[Any, tuple[Any]]:
        return _reopen, (reduction.DupFd(self._descriptor),)

    def reserve(self, size_bytes: int) -> None:
        """Widen the arena to `size_bytes` if it is smaller; present bytes do not change.

        Raises:
            StartFailed: the system cannot allocate the bytes.
        """
        if self.size_bytes < size_bytes:
            with _wanted(size_bytes):
                os.ftruncate(self._descriptor, size_bytes)

    def bytes(self, offset: int, size_bytes: int) -> memoryview:
        """Return a writable view of bytes."""
        return memoryview(self._mapped(offset + size_bytes))[offset : offset + size_bytes]

    def tensor(self, offset: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor of `count` elements from a byte offset, as a view of the shared bytes."""
        import torch

        end = max(offset + count * dtype.itemsize, self.size_bytes)  # one map serves all tensors of a run
        return torch.frombuffer(self._mapped(end), dtype=dtype, count=count, offset=offset)

    @property
    def size_bytes(self) -> int:
        """The size of the arena in bytes."""
        return os.fstat(self._descriptor).st_size

    def put(self, offset: int, values: torch.Tensor) -> None:
        """Write values [n] from an offset on. Zeros are not written to pages that were never written, so that the
        initial weights of a model that starts at zero take no memory."""
        import torch

        for at, piece in self.written(offset, values.nbytes):
            self.tensor(at, len(piece), torch.uint8).zero_()
        count = PIECE_BYTES // values.itemsize
        for begin in range(0, len(values), count):
            piece_of = values[begin : begin + count]
            if piece_of.contiguous().view(torch.uint8).any():  # compares bits: -0.0 is not zero
                self.tensor(offset + begin * values.itemsize, len(piece_of), values.dtype).copy_(piece_of)

    def written(self, offset: int, size_bytes: int) -> Iterator[tuple[int, memoryview]]:
        """Yield (offset, bytes) of the pieces that may have been written; all bytes between pieces are zero."""
        at, end = offset, offset + size_bytes
        while at < end:
            begin, stop = self._piece(at, end)
            if stop > begin:
                yield begin, self.bytes(begin, stop - begin)
            at = stop

    def taken(self, offset: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Move `count` elements from an offset to private memory, piece by piece to save memory, and return them. The
        shared bytes are zero afterwards if the system supports `give_back`."""
        from pslab.tensors.device import zeros

        copy, size_bytes = zeros(count, dtype=dtype), count * dtype.itemsize
        content = memoryview(copy.numpy()).cast("B")  # type: ignore[arg-type]
        for begin in range(offset, offset + size_bytes, PIECE_BYTES):
            end = min(begin + PIECE_BYTES, offset + size_bytes)
            for at, piece in self.written(begin, end - begin):
                content[at - offset : at - offset + len(piece)] = piece
            self.give_back(begin, end - begin)
        return copy

    def give_back(self, offset: int = 0, size_bytes: int | None = None) -> None:
        """Release the pages of `size_bytes` bytes (by default all) from an offset on to the operating system.

        If the system supports this, the bytes are zero afterwards. Pages with bytes outside the interval are kept.
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
            if error.errno == errno.ENXIO:  # no byte was written from `at` on
                return end, end
            return at, end  # this file system does not know which pages were written

    def close(self) -> None:
        """Close the descriptor; views of the memory stay valid."""
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
        problem = f"{size_bytes:,} bytes of shared memory could not be allocated ({error})"
        raise StartFailed(f"{problem}: use fewer workers, or a smaller model or data set") from error


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("pslab", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:  # this file has no name either: it is unlinked at once
        return os.dup(file.fileno())


def _reopen(handle: Any) -> Arena:
    return Arena(handle.detach())
