"""Loops that numba compiles for this processor, and caches on the disk: one process compiles, the others load."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryFile
from types import FunctionType, ModuleType
from typing import IO, Any, TypeVar, cast

from numpy.typing import NDArray

Loop = TypeVar("Loop", bound=Callable[..., Any])

WAIT_S = 60.0  # at most, for a process that may be stopped
LOOK_S = 0.05

waits: Callable[[], None] | None = None  #: called at each look: a process that waits on purpose is not dead


class Loops:
    """The loops of one module, which is imported late: numba's import takes a third of a second.

    Args:
        inlined: other modules, whose functions are compiled into these loops.
    """

    def __init__(self, *inlined: ModuleType) -> None:
        self._inlined, self.functions = inlined, list[FunctionType]()

    def loop(self, function: Loop) -> Loop:
        """Compiled when it is first called."""
        self.functions.append(cast(FunctionType, function))
        return cast(Loop, _compiled(self.functions[-1]))

    def warm(self, types: str, call_all: Callable[[], None]) -> None:
        """Compile every loop for these types, or load what an earlier process has compiled: `call_all` calls each."""
        try:
            source = os.stat(self.functions[0].__code__.co_filename)  # numba compiles anew after a change of these
            with in_turn(self.use_cache(), f"{types} {source.st_mtime_ns} {source.st_size}"):
                call_all()
        except Exception:  # whatever is wrong with the cached code or the disk, the loops can be compiled without them
            for function in self.functions:
                function.__globals__[function.__name__] = _compiled(function)
            call_all()

    def use_cache(self) -> Path | None:
        """Let numba cache compiled code beside Python's own, or in the user's cache folder if that cannot be written.

        numba notices when the loops' file changes; the folder's name changes with the inlined modules.
        Returns the folder; None if neither can be written.
        """
        from numba import config

        sources = b"".join(Path(str(module.__file__)).read_bytes() for module in self._inlined)
        name = f"loops-{sha256(sources).hexdigest()[:16]}"
        user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        before, beside = config.CACHE_DIR, Path(self.functions[0].__globals__["__file__"]).parent / "__pycache__"
        folders = [Path(before)] if before else [beside, user / "pslab"]
        folder = next((folder / name for folder in folders if _writable(folder / name)), None)
        if folder is None:
            return None
        config.CACHE_DIR = str(folder)
        try:
            for function in self.functions:
                function.__globals__[function.__name__].enable_caching()
        finally:
            config.CACHE_DIR = before
        return folder


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A view that cannot be written: a loop is compiled once more for arrays that can be."""
    view = array.view()
    view.flags.writeable = False
    return view


def _compiled(function: FunctionType) -> Any:
    from numba import njit

    return njit(nogil=True)(function)


@contextmanager
def in_turn(folder: Path | None, compiled: str) -> Iterator[None]:
    """Let one of the processes that use this cache compile and note that it has; the others wait, then load together.

    Raises:
        TimeoutError: another one has not been done for WAIT_S.
    """
    if folder is None:
        yield
        return
    with (folder / "lock").open("a+") as notes:
        if not _noted(notes, compiled):
            _lock(notes)
        yield
        if not _noted(notes, compiled):
            notes.write(f"{compiled}\n")


def _noted(notes: IO[str], compiled: str) -> bool:
    notes.seek(0)
    return compiled in notes.read().splitlines()


def _lock(file: IO[str]) -> None:
    until_s = time.monotonic() + WAIT_S
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until_s:
                raise TimeoutError(f"another process has been compiling for {WAIT_S:g} s") from None
        if waits is not None:
            waits()
        time.sleep(LOOK_S)


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True
