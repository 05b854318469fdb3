"""Runs that end before their time: all by an interrupt, noted at once and heeded where nothing is torn, or some."""

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

Ended = Callable[[Result], Iterable[str] | None]  # told a result, it names runs that are not wanted any more

HEED_S = 0.1
UNHEEDED_S = 2.0  # after an interrupt that has no effect another one takes effect at once
_heeded: weakref.WeakSet[threading.Event] = weakref.WeakSet()


@contextlib.contextmanager
def noted(stop: threading.Event) -> Iterator[threading.Event]:
    """An interrupt sets `stop`, which is checked many times a second; so does SIGTERM, which then takes effect.

    At an arbitrary instruction it would tear a message, a record or the import of torch.
    """
    if threading.current_thread() is not threading.main_thread():
        yield stop  # interrupts are the main thread's
        return
    received: list[tuple[int, float]] = []

    def note(number: int, frame: object) -> None:
        received.append((number, time.monotonic()))
        stop.set()
        if stop not in _heeded and received[-1][1] - received[0][1] > UNHEEDED_S:  # a policy may loop for ever
            raise KeyboardInterrupt("interrupted where it was")

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if signal.SIGTERM in [number for number, _ in received]:  # finished runs are recorded; the process may end
            signal.raise_signal(signal.SIGTERM)
    heed(stop)


class Unwanted:
    """The digests of the runs of a sweep that are not wanted any more, by what `ended` says of each result."""

    def __init__(self, ended: Ended | None) -> None:
        self._ended = ended
        self.digests: set[str] = set()

    def told(self, result: Result | Exception) -> None:
        """Take the end of a run; its error says nothing of others."""
        if self._ended is not None and isinstance(result, Result):
            self.digests.update(self._ended(result) or ())


def heed(stop: threading.Event) -> None:
    """Raise RunsInterrupted if an interrupt was noted, or another thread wants an end."""
    if stop.is_set():
        _heeded.add(stop)  # a record that is written now is not to be torn
        raise RunsInterrupted("interrupted; every run that was finished is recorded")


def import_torch(stop: threading.Event) -> None:
    """Import torch in a thread, which goes on if the cell is interrupted: half an import cannot be completed later."""

    def load() -> None:
        with contextlib.suppress(Exception):  # an error is raised again where it is used
            importlib.import_module("pslab.lab.runs.execution")

    loading = threading.Thread(target=load, daemon=True)
    loading.start()
    while loading.is_alive():
        loading.join(HEED_S)
        heed(stop)
