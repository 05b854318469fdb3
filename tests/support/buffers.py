"""Messages of one worker of a tiny run, and both ends of a stream for them."""

from __future__ import annotations

from pslab.engines.experiment.wire import Answer, Frame, PushInfo, Wanted
from pslab.engines.local.lines.stream import Stream, ready
from pslab.protocol.messages import Pull, Push, Weights

LIMIT_S = 60.0


def push(size_bytes: int, index: int = 0, iteration: int = 3) -> Push:
    return Push(1, index, iteration, 2, PushInfo(size_bytes, 7, 0.5, 0.1))


def weights(size_bytes: int, index: int = 0, iteration: int = 3) -> Weights:
    return Weights(1, index, iteration, 2, Answer(size_bytes, 0, *[0.0] * 5))


def pull(size_bytes: int, stop: int = 0) -> Pull:
    return Pull(1, 0, 3, 2, Wanted(0, stop, 0.1, size_bytes))


def heard(stream: Stream, count: int = 1) -> list[Frame]:
    """So many frames that come, at least."""
    found: list[Frame] = []
    while len(found) < count:
        assert ready((stream.descriptor,), LIMIT_S), "nothing comes"
        found += stream.frames()
    return found
