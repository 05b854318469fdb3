"""Streams between processes, frames whole and in order, and emulated links."""

from __future__ import annotations

import math
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from pathlib import Path

import pytest
from tiny import tiny

from pslab.engines.experiment.wire import (
    REQUEST_BYTES,
    WHOLE,
    Answer,
    Blocked,
    Frame,
    Go,
    PushInfo,
    Stop,
    Wanted,
    pack,
)
from pslab.engines.local.lines import stream
from pslab.engines.local.lines.emulated_links import EmulatedLinks
from pslab.engines.local.lines.ends import TO_SERVER, TO_WORKER
from pslab.engines.local.lines.stream import HEADER, NoFrame, Stream, ready
from pslab.engines.virtual.timing import job_without_tensors
from pslab.lab.runs.resolve import resolve
from pslab.lab.runs.run import run
from pslab.protocol.messages import Pull, Push, Weights

COUNT, LIMIT_S = 200, 60.0  # frames, more than narrow sockets take; until one of them comes
PUSH, PULL = Push(1, 0, 3, 2, PushInfo(WHOLE, 7, 0.5, 0.1)), Pull(1, 0, 3, 2, Wanted(0, 0, 0.1, 87))
FRAMES: list[Frame] = [[PUSH, PULL], [Stop(1), Blocked(1, 0)], [Stop(1)]]


def weights(iteration: int = 3, worker: int = 1) -> Weights:
    return Weights(worker, 0, iteration, 2, Answer(WHOLE, 0, *[0.0] * 5))


def heard(stream: Stream, count: int = 1) -> list[Frame]:
    """At least so many frames, as they come."""
    found: list[Frame] = []
    while len(found) < count:
        assert ready((stream.descriptor,), LIMIT_S), "nothing comes"
        found += stream.frames()
    return found


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
    found = Ends()
    yield found
    for pipe in found.pipes:
        pipe.close()


def beside(call: Callable[[], object]) -> threading.Thread:
    found = threading.Thread(target=call)
    found.start()
    return found


@pytest.mark.parametrize("step", [1, 100, 5000])
def test_a_frame_that_comes_in_pieces_is_one_frame_and_is_read_before_the_end(ends: Ends, step: int):
    data, found = b"".join(raw(*frame) for frame in FRAMES), list[Frame]()
    for at in range(0, len(data), step):
        ends.write(data[at : at + step])
        found += ends.server.frames()
    ends.worker.send(FRAMES[0])
    ends.end_worker()
    assert found + heard(ends.server, 4 - len(found)) == [*FRAMES, FRAMES[0]]
    with pytest.raises(EOFError, match="has ended its stream"):
        heard(ends.server)


@pytest.mark.parametrize(
    ("data", "words"),
    [(HEADER.pack(2**31, 0.0), "messages of 2147483648 bytes, but a frame may have 1 to 4194304"),
     (HEADER.pack(0, 0.0), "messages of 0 bytes"),
     (HEADER.pack(3, 0.0) + b"\xff\0\0", "no kind of message has the number 255"),
     (HEADER.pack(2, 0.0) + pack([Stop(1)])[:2], ".* requires a buffer"), (raw(Go(0.0)), "a Go"),
     (raw(Stop(1)) + HEADER.pack(63, 0.0) + random.Random(7).randbytes(200), "")],
    ids=["too long", "empty", "no kind", "half a record", "not sent here", "noise"])  # fmt: skip
def test_what_is_no_frame_ends_the_stream_and_says_why(ends: Ends, data: bytes, words: str):
    ends.write(data)
    with pytest.raises(NoFrame, match=f"has sent bytes that are no frame of this run: {words}"):
        heard(ends.server, 100)


def test_a_server_does_not_wait_for_a_worker_that_does_not_read_and_both_may_send_at_once(ends: Ends):
    ends.narrow()
    for iteration in range(COUNT):
        ends.server.send([weights(iteration)])
    sender = beside(lambda: [ends.worker.send([PUSH]) for _ in range(COUNT)])
    assert heard(ends.server, COUNT) == [[PUSH]] * COUNT
    sender.join()
    server = beside(lambda: serve(ends.server))
    assert heard(ends.worker, COUNT) == [[weights(iteration)] for iteration in range(COUNT)]
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
        ends.server.send([weights()])
    monkeypatch.setattr(stream.time, "monotonic", lambda: now_s + 61.0)
    if reads:
        for _ in range(50):
            ends.worker.frames()
        assert ends.server.frames() == []  # it sends what there is room for now
        ends.server.send([weights()])
        return
    with pytest.raises(TimeoutError):
        ends.server.send([weights()])
    assert ready((ends.server.descriptor,), 0) == [ends.server.descriptor]
    with pytest.raises(NoFrame, match="has read no message for its lease of 60 s"):
        ends.server.frames()


# --- emulated links ---------------------------------------------------------------------------------------------------


def test_what_a_process_has_sent_arrives_and_what_was_sent_to_it_is_lost():
    now_s, run = [0.0], tiny(workers=2, cluster={"compute_s": 1.0, "latency_s": 0.5}, engine="timing")
    links = EmulatedLinks(job_without_tensors(resolve(run)), lambda: now_s[0])
    links.send_up(1, sent := [PUSH])
    links.send_down(1, [weights(1)])
    links.send_down(0, [weights(1, worker=0)])
    assert links.travelling(1)
    assert not links.sent_all(1)
    links.renew(1)
    links.send_down(1, [weights(2)])
    now_s[0] = 1.0
    assert [(worker, frame[0].iteration) for worker, frame in links.collect()] == [(0, 1), (1, 2)]
    assert links.take() == (1, sent)
    assert links.sent_all(1)
    assert not links.travelling(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked", [{"latency_s": 0.02}, {"bandwidth_bit_s": 2e6}, {"bandwidth_bit_s": 1e7, "latency_s": 5e-3}], ids=str
)
def test_real_processes_keep_to_the_bandwidth_and_the_latency_that_were_asked_for(tmp_path: Path, asked: dict):
    """In the middle of many exchanges, each four times slower than asked for: bandwidth to 5 %, latency to 1 ms."""
    wanted = tiny(workers=1, sync="asp", pushes=80, cluster={"compute_s": 0.02, **asked}, dilation=4.0)
    result = run(wanted, results=tmp_path, progress=False)
    took_s = (result.phases.end_s - result.phases.begin_s).groupby(result.phases.phase).median()
    up, down = result.pushes[["bytes_up", "bytes_down"]].median()
    for phase, size_bytes in (("push", up + REQUEST_BYTES), ("pull", down)):
        expected_s = asked.get("latency_s", 0.0) + 8 * size_bytes / asked.get("bandwidth_bit_s", math.inf)
        slack_s = 1e-3 if "latency_s" in asked else 0.05 * expected_s
        assert took_s[phase] == pytest.approx(expected_s, abs=slack_s), phase
