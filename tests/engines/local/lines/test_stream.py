"""Lines between processes without shared memory: frames and what they are about, whatever the streams do."""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from mirrored import SIZE, Setup, pair, pull, push, weights

from pslab.engines.experiment.wire import WHOLE, Frame, Go, Stop, pack
from pslab.engines.local.lines import stream
from pslab.engines.local.lines.framed_pipe import HEADER, NoFrame, ready
from pslab.engines.local.lines.message_buffers import TO_SERVER, TO_WORKER
from pslab.engines.local.lines.stream import Stream


class Ends:
    """Worker 1's end, and the server's, with an arena each."""

    def __init__(self, **fields: Any) -> None:
        self.here, self.there = Setup(**fields), Setup(**fields)
        self.pipes = pair()
        self.worker = Stream(self.pipes[0], self.here.mirror, TO_WORKER, waits=True, lease_s=60.0)
        self.server = Stream(self.pipes[1], self.there.mirror, TO_SERVER, waits=False, lease_s=60.0)

    def fill(self, setup: Setup, offset: int, seed: int) -> torch.Tensor:
        found = setup.arena.tensor(offset, SIZE, torch.float32)
        return found.copy_(torch.randn(SIZE, generator=torch.Generator().manual_seed(seed)))

    def heard(self, end: Stream) -> list[Frame]:
        while not (found := end.frames()):
            ready((end.descriptor,))
        return found


@pytest.fixture
def ends() -> Iterator[Ends]:
    found = Ends()
    yield found
    for pipe in found.pipes:
        pipe.close()


def test_what_a_frame_is_about_is_in_its_place_when_the_frame_is_here(ends: Ends):
    gradients = [ends.fill(ends.here, at, seed) for seed, at in enumerate(ends.here.layout.gradients[1])]
    frames = [[push(WHOLE, 0, iteration), pull(87)] for iteration in range(2)]
    for frame in frames:
        ends.worker.send(frame)
    found = ends.heard(ends.server)
    while len(found) < 2:
        found += ends.heard(ends.server)
    assert found == frames
    for at, gradient in zip(ends.there.layout.gradients[1], gradients, strict=True):
        assert torch.equal(ends.there.arena.tensor(at, SIZE, torch.float32), gradient)


@pytest.mark.parametrize("step", [1, 7, 100, 5000])
def test_a_frame_that_comes_in_pieces_is_one_frame(ends: Ends, step: int):
    gradient = ends.fill(ends.here, ends.here.layout.gradients[1][1], 3)
    data = b"".join(HEADER.pack(len(body), 0.0) + body + behind for body, behind in
                    [(pack([push(WHOLE), pull(87)]), gradient.numpy().tobytes()), (pack([Stop(1)]), b"")])  # fmt: skip
    found: list[Frame] = []
    for at in range(0, len(data), step):
        os.write(ends.pipes[0].fileno(), data[at : at + step])
        found += ends.server.frames()
    while len(found) < 2:
        found += ends.heard(ends.server)
    assert found == [[push(WHOLE), pull(87)], [Stop(1)]]
    assert torch.equal(ends.there.arena.tensor(ends.there.layout.gradients[1][1], SIZE, torch.float32), gradient)


def narrow(ends: Ends) -> None:
    """Sockets that take little."""
    for pipe in ends.pipes:
        with socket.socket(fileno=os.dup(pipe.fileno())) as own:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
            own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)


def serve(server: Stream) -> None:
    """Read and send until there is nothing to do for a while."""
    while ready((server.descriptor,), 0.2):
        server.frames()


def test_a_server_does_not_wait_for_who_does_not_read_and_both_may_send_at_once(ends: Ends):
    narrow(ends)
    sent, count = ends.fill(ends.there, 0, 5), 200
    for iteration in range(count):  # 1.5 MB, of which nobody reads anything
        ends.server.send([weights(WHOLE, 0, iteration)])
    gradient = ends.fill(ends.here, ends.here.layout.gradients[1][1], 3)
    sender = threading.Thread(target=lambda: [ends.worker.send([push(WHOLE)]) for _ in range(count)])
    sender.start()
    found: list[Frame] = []
    while len(found) < count:
        found += ends.heard(ends.server)
    sender.join()
    assert found == [[push(WHOLE)]] * count
    assert torch.equal(ends.there.arena.tensor(ends.there.layout.gradients[1][1], SIZE, torch.float32), gradient)
    server = threading.Thread(target=serve, args=(ends.server,))
    server.start()
    heard: list[Frame] = []
    while len(heard) < count:
        heard += ends.heard(ends.worker)
    server.join()
    assert heard == [[weights(WHOLE, 0, iteration)] for iteration in range(count)]
    assert torch.equal(ends.here.arena.tensor(0, SIZE, torch.float32), sent)


def test_what_a_slow_reader_has_not_taken_arrives_as_it_was_when_its_place_is_about_to_change(ends: Ends):
    narrow(ends)
    sent, count = ends.fill(ends.there, 0, 5).clone(), 0
    while not ends.server._to_send:
        ends.server.send([weights(WHOLE, 0, count)])
        count += 1
    ends.server.keep()
    ends.fill(ends.there, 0, 6)
    server = threading.Thread(target=serve, args=(ends.server,))
    server.start()
    found: list[Frame] = []
    while len(found) < count:
        found += ends.heard(ends.worker)
    server.join()
    assert torch.equal(ends.here.arena.tensor(0, SIZE, torch.float32), sent)


@pytest.mark.parametrize("lease_s", [0.0, 60.0])
def test_who_reads_nothing_for_a_lease_is_dead(ends: Ends, lease_s: float):
    """So what waits for it in a server is no more than is sent within one."""
    narrow(ends)
    server = Stream(ends.pipes[1], ends.there.mirror, TO_SERVER, waits=False, lease_s=lease_s)
    while not server._to_send:
        server.send([weights(WHOLE)])
    if lease_s:
        server.send([weights(WHOLE)])
        return
    with pytest.raises(TimeoutError):
        server.send([weights(WHOLE)])
    assert ready((server.descriptor,), 0) == [server.descriptor]
    with pytest.raises(NoFrame, match="has read nothing that was sent to it for its lease of 0 s"):
        server.frames()
    assert not server._to_send


def test_who_reads_slowly_is_alive(ends: Ends):
    narrow(ends)
    server = Stream(ends.pipes[1], ends.there.mirror, TO_SERVER, waits=False, lease_s=60.0)
    for _ in range(1000):
        server.send([weights(WHOLE)])
    server._took_s -= 61.0
    for _ in range(50):
        ends.worker.frames()
    assert server.frames() == []  # it takes what there is room for now
    assert server._to_send
    server.send([weights(WHOLE)])


def test_what_was_read_while_something_was_sent_is_ready(ends: Ends):
    narrow(ends)
    ends.server.send([Go(1.0)])
    reader = threading.Thread(target=serve, args=(ends.server,))
    reader.start()
    for _ in range(10):
        ends.worker.send([push(WHOLE)])
    reader.join()
    assert ready((ends.worker.descriptor,), 0) == [ends.worker.descriptor]
    assert ends.worker.frames() == [[Go(1.0)]]
    assert ready((ends.worker.descriptor,), 0) == []


def test_frames_before_the_end_are_read_first(ends: Ends):
    ends.worker.send([push(WHOLE)])
    ends.pipes[0].close()
    ends.worker._socket.close()
    assert ends.heard(ends.server) == [[push(WHOLE)]]
    with pytest.raises(EOFError, match="has ended its line"):
        ends.heard(ends.server)


def test_an_end_amid_a_frame_is_an_end(ends: Ends):
    body = pack([push(WHOLE)])
    os.write(ends.pipes[0].fileno(), HEADER.pack(len(body), 0.0) + body + bytes(100))
    ends.pipes[0].close()
    ends.worker._socket.close()
    with pytest.raises(EOFError, match="amid a frame"):
        ends.heard(ends.server)


@pytest.mark.parametrize(
    ("data", "words"),
    [(HEADER.pack(2**31, 0.0), "messages of 2147483648 bytes; a frame has 1 to 4194304"),
     (HEADER.pack(0, 0.0), "messages of 0 bytes"),
     (HEADER.pack(3, 0.0) + b"\xff\0\0", "no kind of message has the number 255"),
     (HEADER.pack(2, 0.0) + pack([Stop(1)])[:2], "requires a buffer"),
     (HEADER.pack(len(pack([push(10**6)])), 0.0) + pack([push(10**6)]), "brings 1000000 bytes; there is room for")],
)  # fmt: skip
def test_what_is_no_frame_ends_the_line_and_says_why(ends: Ends, data: bytes, words: str):
    os.write(ends.pipes[0].fileno(), data)
    with pytest.raises(EOFError, match=words):
        ends.heard(ends.server)


def test_random_bytes_end_the_line(ends: Ends, monkeypatch: pytest.MonkeyPatch):
    chance = random.Random(7)
    monkeypatch.setattr(stream, "FRAME_BYTES", 64)
    for _ in range(200):
        found = Ends()
        found.worker.send([Stop(1)])
        os.write(found.pipes[0].fileno(), HEADER.pack(chance.randrange(1, 64), 0.0) + chance.randbytes(200))
        found.pipes[0].close()
        found.worker._socket.close()
        with pytest.raises(EOFError):
            to_the_end(found)
        found.pipes[1].close()


def to_the_end(ends: Ends) -> None:
    for _ in range(3):
        ends.heard(ends.server)
