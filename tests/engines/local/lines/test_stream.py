"""Streams between processes: frames whole and in order, however the bytes come."""

from __future__ import annotations

import math
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import Pipe

import pytest
from buffers import heard, pull, push, weights

from pslab.engines.experiment.wire import WHOLE, Blocked, Frame, Go, Stop, pack
from pslab.engines.local.lines import stream
from pslab.engines.local.lines.ends import TO_SERVER, TO_WORKER
from pslab.engines.local.lines.stream import HEADER, NoFrame, Spin, Stream, awaited, ready

COUNT = 200  # frames, more than narrow sockets take
FRAMES: list[Frame] = [[push(WHOLE), pull(87)], [Stop(1), Blocked(1, 0)], [Stop(1)]]


def raw(*frame: object) -> bytes:
    body = pack(frame)  # type: ignore[arg-type]
    return HEADER.pack(len(body), 0.0) + body


class Ends:
    """Worker 1's end of a pipe, and the server's."""

    def __init__(self, lease_s: float = 60.0) -> None:
        self.pipes = Pipe()
        self.worker = Stream(self.pipes[0], TO_WORKER, waits=True, lease_s=lease_s)
        self.server = Stream(self.pipes[1], TO_SERVER, lease_s=lease_s)

    def narrow(self) -> Ends:
        """Let the sockets take little."""
        for pipe in self.pipes:
            with socket.socket(fileno=os.dup(pipe.fileno())) as own:
                own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 12)
                own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
        return self

    def write(self, data: bytes) -> None:
        """What worker 1's process sends, whatever it is."""
        os.write(self.pipes[0].fileno(), data)

    def end_worker(self) -> None:
        """Worker 1's process is gone."""
        with socket.socket(fileno=os.dup(self.pipes[0].fileno())) as own:
            own.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def ends() -> Iterator[Ends]:
    yield from made()


def made() -> Iterator[Ends]:
    found = Ends()
    yield found
    for pipe in found.pipes:
        pipe.close()


def beside(call: Callable[[], object]) -> threading.Thread:
    found = threading.Thread(target=call)
    found.start()
    return found


def test_frames_arrive_whole_and_in_order(ends: Ends):
    for frame in FRAMES:
        ends.worker.send(frame)
    assert heard(ends.server, len(FRAMES)) == FRAMES
    assert ends.server.frames() == []


@pytest.mark.parametrize("step", [1, 7, 100, 5000])
def test_a_frame_that_comes_in_pieces_is_one_frame(ends: Ends, step: int):
    data, found = raw(*FRAMES[0]) + raw(*FRAMES[1]) + raw(*FRAMES[2]), list[Frame]()
    for at in range(0, len(data), step):
        ends.write(data[at : at + step])
        found += ends.server.frames()
    assert found + (heard(ends.server, 3 - len(found)) if len(found) < 3 else []) == FRAMES


def test_frames_before_the_end_are_read_first(ends: Ends):
    ends.worker.send(FRAMES[0])
    ends.end_worker()
    assert heard(ends.server) == FRAMES[:1]
    with pytest.raises(EOFError, match="has ended its stream"):
        heard(ends.server)


def test_frames_before_what_is_none_are_read_first(ends: Ends):
    ends.write(raw(Stop(1)) + HEADER.pack(0, 0.0))
    assert heard(ends.server) == [[Stop(1)]]
    with pytest.raises(NoFrame):
        heard(ends.server)


def test_an_end_amid_a_frame_is_an_end(ends: Ends):
    ends.write(raw(push(WHOLE))[:-1])
    ends.end_worker()
    with pytest.raises(EOFError, match="amid a frame"):
        heard(ends.server)


@pytest.mark.parametrize(
    ("data", "words"),
    [(HEADER.pack(2**31, 0.0), "messages of 2147483648 bytes; a frame has 1 to 4194304"),
     (HEADER.pack(0, 0.0), "messages of 0 bytes"),
     (HEADER.pack(3, 0.0) + b"\xff\0\0", "no kind of message has the number 255"),
     (HEADER.pack(2, 0.0) + pack([Stop(1)])[:2], ".* requires a buffer"), (raw(Go(0.0)), "a Go")],
    ids=["too long", "empty", "no kind", "half a record", "not sent here"])  # fmt: skip
def test_what_is_no_frame_ends_the_stream_and_says_why(ends: Ends, data: bytes, words: str):
    ends.write(data)
    with pytest.raises(NoFrame, match=f"has sent what is no frame of this run: {words}"):
        heard(ends.server)


def test_random_bytes_end_the_stream():
    chance = random.Random(7)
    for _ in range(50):
        for ends in made():
            ends.write(raw(Stop(1)) + HEADER.pack(chance.randrange(1, 64), 0.0) + chance.randbytes(200))
            ends.end_worker()
            with pytest.raises(EOFError):
                heard(ends.server, 100)


def test_a_server_does_not_wait_for_a_worker_that_does_not_read_and_both_may_send_at_once(ends: Ends):
    ends.narrow()
    for iteration in range(COUNT):
        ends.server.send([weights(WHOLE, 0, iteration)])
    sender = beside(lambda: [ends.worker.send([push(WHOLE)]) for _ in range(COUNT)])
    assert heard(ends.server, COUNT) == [[push(WHOLE)]] * COUNT
    sender.join()
    server = beside(lambda: serve(ends.server))
    assert heard(ends.worker, COUNT) == [[weights(WHOLE, 0, iteration)] for iteration in range(COUNT)]
    server.join()


def serve(server: Stream) -> None:
    """Read and send until there is nothing to do for a while."""
    while ready((server.descriptor,), 0.2):
        server.frames()


@pytest.mark.parametrize("reads", [False, True])
def test_a_peer_that_reads_nothing_for_a_lease_is_dead_and_one_that_reads_slowly_is_not(
    ends: Ends, reads: bool, monkeypatch: pytest.MonkeyPatch
):
    """So no more waits for it in a server than is sent within a lease."""
    now_s = time.monotonic()
    ends.narrow()
    for _ in range(COUNT):
        ends.server.send([weights(WHOLE)])
    monkeypatch.setattr(stream.time, "monotonic", lambda: now_s + 61.0)
    if reads:
        for _ in range(50):
            ends.worker.frames()
        assert ends.server.frames() == []  # it sends what there is room for now
        ends.server.send([weights(WHOLE)])
        return
    with pytest.raises(TimeoutError):
        ends.server.send([weights(WHOLE)])
    assert ready((ends.server.descriptor,), 0) == [ends.server.descriptor]
    with pytest.raises(NoFrame, match="has read nothing that was sent to it for its lease of 60 s"):
        ends.server.frames()


def test_what_was_read_while_something_was_sent_is_ready(ends: Ends):
    ends.narrow().server.send([Go(1.0)])
    reader = beside(lambda: serve(ends.server))
    for _ in range(10):
        ends.worker.send([push(WHOLE)])
    reader.join()
    assert ready((ends.worker.descriptor,), 0) == [ends.worker.descriptor]
    assert ends.worker.frames() == [[Go(1.0)]]
    assert ready((ends.worker.descriptor,), 0) == []


@pytest.mark.parametrize(("since_s", "waits_s", "sent_s", "read_s", "late_s"), [
    (math.inf, 10.0, 11.0, 15.0, 4.0), (math.inf, 20.0, 11.0, 20.5, 0.5), (10.0, 20.0, 11.0, 20.5, 9.5),
], ids=["it is waited for", "it was there already", "it was kept from waiting"])  # fmt: skip
def test_how_late_a_frame_is_read_counts_from_when_it_is_there_and_waited_for(
    since_s: float, waits_s: float, sent_s: float, read_s: float, late_s: float, ends: Ends,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    instants = iter([sent_s, waits_s, read_s])
    monkeypatch.setattr(stream.time, "monotonic", lambda: next(instants))
    ends.worker.send([Stop(1)])
    assert awaited(ends.server, since_s) == ([[Stop(1)]], late_s)


def test_ready_gives_those_that_can_be_read_in_their_order(ends: Ends):
    other_here, other_there = Pipe()
    sources = [ends.server.descriptor, other_here.fileno()]
    assert ready(sources, 0) == ready(sources, 1e-4) == []
    other_there.send_bytes(b"x")
    assert ready(sources) == sources[1:]
    ends.end_worker()
    assert ready(sources) == sources  # an end is something to read


def test_a_wait_looks_longer_before_it_sleeps_while_waits_are_short():
    spin = Spin()
    first_s = spin.s
    for _ in range(20):
        spin.waited(1e-4)
    assert spin.s > first_s
    for _ in range(20):
        spin.waited(4e-3)
    assert spin.s == first_s


def test_a_wait_that_looked_in_vain_still_ends_in_time(ends: Ends):
    spin = Spin()
    assert ready([ends.server.descriptor], 2 * spin.s, spin) == []
    ends.worker.send([Stop(1)])
    assert ready([ends.server.descriptor], None, spin) == [ends.server.descriptor]
