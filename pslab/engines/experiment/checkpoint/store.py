"""A run's checkpoints on disk, and which of them a run may go on from.

    <folder>/<number>.checkpoint    the last two; a higher number is newer

A file gets its name when it is complete and on the disk. What cannot be read is passed over: then the older one is
used, then none.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pslab.config.untrusted import read_bytes
from pslab.engines.experiment.checkpoint.file import Facts, Tensors, pack, unpack
from pslab.errors import CheckpointError, shortened

if TYPE_CHECKING:
    import torch

GENERATIONS = 2
SUFFIX = ".checkpoint"
READ_TIMES = 4  # the memory that reading one takes, in sizes of it: its bytes, twice, its tensors, the run's own
OLD_S = 30 * 86400.0  # after which nobody asks for a run again
LEFT_S = 86400.0  # a file that is not complete after so long is one of a process that was killed


@dataclass(frozen=True)
class CheckpointStore:
    """The folder of a run's checkpoints, and the facts that a checkpoint must have for this run to go on from it."""

    folder: Path
    facts: Mapping[str, Any] = field(default_factory=dict)

    def clear(self) -> None:
        """Remove them all."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def write(self, facts: Facts, tensors: Tensors) -> Path:
        """Write a new one, after which only the last two are kept. OSError: it cannot be, and nothing has changed."""
        known, pieces = self._numbered(), pack({**facts, **self.facts}, tensors)
        place = self.folder / f"{max(known, default=0) + 1:06d}{SUFFIX}"
        draft = self.folder / f".{place.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            needed, free = 2 * sum(map(len, pieces)), shutil.disk_usage(self.folder).free
            if free < needed:  # what is left is the record's
                raise OSError(errno.ENOSPC, f"{free:,} bytes are free; {needed:,} are wanted, half for what follows")
            with draft.open("wb") as file:
                for piece in pieces:
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            draft.rename(place)
        except OSError:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            raise
        with contextlib.suppress(OSError):
            _flush(self.folder)
            for number in sorted(known)[: 1 - GENERATIONS]:
                known[number].unlink(missing_ok=True)
            for left in self.folder.glob(f".*{SUFFIX}.*"):  # of processes that were killed
                if left != draft and time.time() - left.stat().st_mtime > LEFT_S:
                    left.unlink(missing_ok=True)
        return place

    def newest(self, say: Callable[[str], None]) -> Iterator[tuple[dict[str, Any], dict[str, torch.Tensor]]]:
        """Yield the facts and tensors of the whole ones that this run may go on from, the newest first; `say` is called
        with the reason why another is passed over."""
        for number, path in sorted(self._numbered().items(), reverse=True):
            try:
                facts, tensors = unpack(read_bytes(path, READ_TIMES))
                if others := [name for name, value in self.facts.items() if facts.get(name) != value]:
                    theirs = ", ".join(f"{name} {shortened(facts.get(name))}" for name in others)
                    ours = ", ".join(f"{name} {shortened(self.facts[name])}" for name in others)
                    raise CheckpointError(f"it was made with {theirs}, and this run has {ours}")
            except (CheckpointError, OSError, MemoryError) as error:
                say(f"the checkpoint {path} was passed over: {error}")
                continue
            yield {**facts, "number": number}, tensors

    def _numbered(self) -> dict[int, Path]:
        with contextlib.suppress(OSError):
            found = [path for path in self.folder.glob(f"*{SUFFIX}") if path.name.removesuffix(SUFFIX).isdecimal()]
            return {int(path.name.removesuffix(SUFFIX)): path for path in found}
        return {}


def forget_old(places: Path, now: float) -> tuple[int, int]:
    """Remove those of all places in a folder to which nothing was written for OLD_S: how many, and their bytes."""
    count = size_bytes = 0
    for folder in places.iterdir() if places.is_dir() else ():
        with contextlib.suppress(OSError):
            files = [path.stat() for path in (folder, *folder.iterdir())]
            if now - max(each.st_mtime for each in files) > OLD_S:
                shutil.rmtree(folder)
                count, size_bytes = count + 1, size_bytes + sum(each.st_size for each in files[1:])
    return count, size_bytes


def _flush(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
