"""What a worker does in an iteration: the phases of a record, and those that each message closes."""

from __future__ import annotations

from collections.abc import Iterator

from pslab.engines.job.notes import ACK, Note
from pslab.protocol.messages import NO_WORKER

PHASES = ("compute", "select", "encode", "push", "apply", "wait", "serve", "pull", "decode")
PHASE_COLUMNS = ("worker", "iteration", "phase", "begin_s", "end_s", "waits_for")


Row = tuple[int, str, float, float, int]  # iteration, phase, begin, end, the worker that was waited for


def pushed(note: Note, sent_s: dict[tuple[int, int], float]) -> Iterator[Row]:
    """The phases of a push that is acknowledged, or followed by this answer."""
    iteration = note.iteration if note.kind == ACK else note.iteration - 1
    yield iteration, "push", sent_s.pop((note.range, iteration), note.begun_s), note.begun_s, NO_WORKER
    yield iteration, "apply", note.begun_s, note.done_s, NO_WORKER


def way(note: Note, sent_s: dict[tuple[int, int], float], arrived_s: float, *, eager: bool) -> Iterator[Row]:
    """The phases that an answer closes. They belong to the iteration whose push they follow, or, eager, to the one
    that was computed meanwhile; its pushes are acknowledged by themselves."""
    iteration = note.iteration - 1
    if not eager:
        yield from pushed(note, sent_s)
    yield iteration, "wait", note.value if eager else note.done_s, note.released_s, note.other
    yield iteration, "serve", note.released_s, note.sent_s, NO_WORKER
    yield iteration, "pull", note.sent_s, arrived_s, NO_WORKER
