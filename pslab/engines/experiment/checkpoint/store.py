"""A run's checkpoints on disk, and the choice of one from which a run may continue.

    <folder>/<number>.checkpoint    the last two checkpoints; a higher number is newer

A file gets this name when it is complete and on the disk. If the newest cannot be read, the older one is used; if none
can, the run starts anew.
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
READ_TIMES = 4  # reading takes so many times its size in memory: its bytes twice, its tensors, the run's
OLD_S = 30 * 86400.0  # older checkpoints are removed by `forget_old`
LEFT_S = 86400.0  # an incomplete file of this age was left by a process that was killed


@dataclass(frozen=True)
class CheckpointStore:
    """The folder of a run's checkpoints, and the facts that a checkpoint of this run must have."""

    folder: Path
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def trained(self) -> CheckpointStore:
        """The store for the state of the run after its training; see pslab/engines/trained.py."""
        return CheckpointStore(self.folder / "trained", self.facts)

    def clear(self) -> None:
        """Remove all checkpoints."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def write(self, facts: Facts, tensors: Tensors) -> Path:
        """Write a checkpoint, and remove all but the last two. If it raises OSError, nothing has changed."""
        known, pieces = self._numbered(), pack({**facts, **self.facts}, tensors)
        path = self.folder / f"{max(known, default=0) + 1:06d}{SUFFIX}"
        draft = self.folder / f".{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            needed, free = 2 * sum(map(len, pieces)), shutil.disk_usage(self.folder).free
            if free < needed:  # the record must still fit
                problem = f"{free:,} bytes are free, but a checkpoint and the record need {needed:,}: delete files"
                raise OSError(errno.ENOSPC, problem)
            with draft.open("wb") as file:
                for piece in pieces:
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            draft.rename(path)
        except OSError:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            raise
        with contextlib.suppress(OSError):
            _flush(self.folder)
            for number in sorted(known)[: 1 - GENERATIONS]:
                known[number].unlink(missing_ok=True)
            for left in self.folder.glob(f".*{SUFFIX}.*"):  # files of processes that were killed
                if left != draft and time.time() - left.stat().st_mtime > LEFT_S:
                    left.unlink(missing_ok=True)
        return path

    def newest(self, say: Callable[[str], None]) -> Iterator[tuple[dict[str, Any], dict[str, torch.Tensor]]]:
        """Yield (facts, tensors) of the checkpoints from which this run may continue, the newest first.

        `say` is called with the reason for each checkpoint that is skipped.
        """
        for number, path in sorted(self._numbered().items(), reverse=True):
            try:
                facts, tensors = unpack(read_bytes(path, READ_TIMES))
                if others := [name for name, value in self.facts.items() if facts.get(name) != value]:
                    theirs = ", ".join(f"{name} {shortened(facts.get(name))}" for name in others)
                    ours = ", ".join(f"{name} {shortened(self.facts[name])}" for name in others)
                    raise CheckpointError(f"the checkpoint was made with {theirs}, but this run has {ours}")
            except (CheckpointError, OSError, MemoryError) as error:
                say(f"the checkpoint {path} was passed over: {error}")
                continue
            yield {**facts, "number": number}, tensors

    def _numbered(self) -> dict[int, Path]:
        with contextlib.suppress(OSError):
            paths = [path for path in self.folder.glob(f"*{SUFFIX}") if path.name.removesuffix(SUFFIX).isdecimal()]
            return {int(path.name.removesuffix(SUFFIX)): path for path in paths}
        return {}


def forget_old(stores: Path, now: float) -> tuple[int, int]:
    """Remove each store in a folder that did not change for OLD_S; return the number of stores, and their bytes."""
    count = size_bytes = 0
    for folder in stores.iterdir() if stores.is_dir() else ():
        with contextlib.suppress(OSError):
            files = [path.stat() for path in (folder, *folder.iterdir())]
            if now - max(status.st_mtime for status in files) > OLD_S:
                shutil.rmtree(folder)
                count, size_bytes = count + 1, size_bytes + sum(status.st_size for status in files[1:])
    return count, size_bytes


def _flush(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
