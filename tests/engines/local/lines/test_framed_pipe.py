"""Lines between worker and server: frames whole and in order, however the bytes come."""

from __future__ import annotations

import math
import os
from multiprocessing import Pipe

import pytest

from pslab.engines.experiment.wire import Blocked, Gradient, Message, Stop, pack
from pslab.engines.local.lines import framed_pipe
from pslab.engines.local.lines.framed_pipe import HEADER, Line, NoFrame, ready
from pslab.protocol.messages import Push

FRAMES = [[Push(1, 0, 7, 3, Gradient(-1, 5, 0.25))], [Stop(1), Blocked(2, 1)], [Stop(3)]]


def raw(frame: list[Message]) -> bytes:
    body = pack(frame)
    return HEADER.pack(len(body), 0.0) + body


@pytest.fixture
def ends():
    here, there = Pipe()
    yield here, there
    here.close()
    there.close()


def test_frames_arrive_whole_and_in_order(ends):
    here, there = map(Line, ends)
    for frame in FRAMES:
        there.send(frame)
    assert here.frames() == FRAMES
    assert here.frames() == []


@pytest.mark.parametrize("garbage", [
    HEADER.pack(3, 0.0) + b"\xff\xff\xff", raw(FRAMES[0])[:-1] + b"", HEADER.pack(2, 0.0) + pack(FRAMES[1])[:2],
    b"\xff" * 100,
], ids=["no kind", "cut", "half a record", "too long"])  # fmt: skip
def test_what_is_no_frame_ends_the_line_with_words(ends, garbage):
    here = Line(ends[0])
    os.write(ends[1].fileno(), garbage)
    if len(garbage) == len(raw(FRAMES[0])) - 1:  # there may be more to come
        assert here.frames() == []
        return
    with pytest.raises(NoFrame, match="has sent what is no frame of this run"):
        here.frames()


@pytest.mark.parametrize("step", [1, 3, 50, 120])
def test_a_frame_that_comes_in_pieces_is_one_frame(ends, step):
    here, data, found = Line(ends[0]), b"".join(map(raw, FRAMES)), []
    for at in range(0, len(data), step):
        os.write(ends[1].fileno(), data[at : at + step])
        found += here.frames()
    assert found == FRAMES


def test_frames_sent_before_the_end_are_read_first(ends):
    here, there = map(Line, ends)
    there.send(FRAMES[0])
    ends[1].close()
    assert here.wait() == FRAMES[:1]
    with pytest.raises(EOFError):
        here.wait()


@pytest.mark.parametrize(("since_s", "waits_s", "sent_s", "read_s", "late_s"), [
    (math.inf, 10.0, 11.0, 15.0, 4.0), (math.inf, 20.0, 11.0, 20.5, 0.5), (10.0, 20.0, 11.0, 20.5, 9.5),
], ids=["it is waited for", "it was there already", "it was kept from waiting"])  # fmt: skip
def test_how_late_a_frame_is_read_counts_from_when_it_is_there_and_waited_for(
    since_s, waits_s, sent_s, read_s, late_s, ends, monkeypatch
):
    here, there = map(Line, ends)
    instants = iter([sent_s, waits_s, read_s])
    monkeypatch.setattr(framed_pipe.time, "monotonic", lambda: next(instants))
    there.send(FRAMES[0])
    here.wait(since_s)
    assert here.late_s == late_s


def test_more_than_the_stream_holds_is_sent_as_it_is_read(ends):
    import threading

    here, there = map(Line, ends)
    many = [Push(0, 0, i, 0, Gradient(0, 0, 0.0)) for i in range(20_000)]  # 1.3 MB
    sender = threading.Thread(target=there.send, args=(many,))
    sender.start()
    assert here.wait() == [many]
    sender.join()


def test_ready_gives_those_that_can_be_read_in_their_order(ends):
    other_here, other_there = Pipe()
    sources = [ends[0].fileno(), other_here.fileno()]
    assert ready(sources, 0) == []
    assert ready(sources, 1e-4) == []
    other_there.send_bytes(b"x")
    assert ready(sources) == sources[1:]
    ends[1].close()
    assert ready(sources) == sources  # an end is something to read
