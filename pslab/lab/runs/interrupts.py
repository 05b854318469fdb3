"""Ends all runs early after an interrupt, at a safe point, or single runs that a sweep no longer wants."""

from __future__ import annotations

import contextlib
import importlib
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator

from pslab.errors import RunsInterrupted
from pslab.lab.records.record import Result

Ended = Callable[[Result], Iterable[str] | None]  # gets a result; returns digests of runs that are no longer wanted

HEED_S = 0.1
UNHEEDED_S = 2.0  # if an interrupt has had no effect for this long, the next interrupt acts at once
_heeded: weakref.WeakSet[threading.Event] = weakref.WeakSet()


@contextlib.contextmanager
def noted(stop: threading.Event) -> Iterator[threading.Event]:
    """Let SIGINT and SIGTERM set `stop`, which runs check many times a second; at the end, repeat a received SIGTERM.

    An interrupt at an arbitrary instruction could damage a message, a record or the import of torch.
    """
    if threading.current_thread() is not threading.main_thread():
        yield stop  # only the main thread gets interrupts
        return
    received: list[tuple[int, float]] = []

    def note(number: int, frame: object) -> None:
        received.append((number, time.monotonic()))
        stop.set()
        if stop not in _heeded and received[-1][1] - received[0][1] > UNHEEDED_S:  # a policy may loop for ever
            raise KeyboardInterrupt(f"interrupted at once, after an interrupt without effect for {UNHEEDED_S:g} s")

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if signal.SIGTERM in [number for number, _ in received]:  # finished runs are recorded, so the process may end
            signal.raise_signal(signal.SIGTERM)
    heed(stop)


class Unwanted:
    """The digests of runs that a sweep no longer wants, as its function `ended` returns them for each result."""

    def __init__(self, ended: Ended | None) -> None:
        self._ended = ended
        self.digests: set[str] = set()

    def told(self, result: Result | Exception) -> None:
        """Pass a result to `ended`, and add the digests that it returns; ignore an error."""
        if self._ended is not None and isinstance(result, Result):
            self.digests.update(self._ended(result) or ())


def heed(stop: threading.Event) -> None:
    """Raise RunsInterrupted if `stop` was set, by an interrupt or by another thread."""
    if stop.is_set():
        _heeded.add(stop)  # later interrupts must not damage a record that is being written
        raise RunsInterrupted("interrupted; every run that was finished is recorded")


def import_torch(stop: threading.Event) -> None:
    """Import torch in a thread that an interrupt does not end, because half an import cannot be completed later."""

    def load() -> None:
        with contextlib.suppress(Exception):  # an error is raised again when torch is used
            importlib.import_module("pslab.lab.runs.execution")

    loading = threading.Thread(target=load, daemon=True)
    loading.start()
    while loading.is_alive():
        loading.join(HEED_S)
        heed(stop)
