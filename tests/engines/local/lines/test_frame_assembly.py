"""Streams to several servers: which messages go by way of which server, and how a run's end leaves them empty."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from buffers import SIZE, Buffers, heard, pair, push, weights

from pslab.engines.experiment.wire import WHOLE, Go, Gradient, Stop
from pslab.engines.local.lines.frame_assembly import AHEAD, FrameAssembly, ServerStreams
from pslab.engines.local.lines.message_buffers import TO_SERVER, TO_WORKER
from pslab.engines.local.lines.stream import Stream, ready
from pslab.errors import FrameError
from pslab.protocol.messages import Push

HALF = SIZE // 2
LOST = [Gradient(WHOLE, 7, float("nan"), 0.1) for _ in range(2)]


class Ends:
    """Worker 1's ends of its streams to two servers, and the servers'."""

    def __init__(self) -> None:
        self.pipes = [pair() for _ in range(2)]
        self.there = [Buffers(server, servers=2) for server in range(2)]
        self.servers = [Stream(pipe, TO_SERVER, buffers.messages, lease_s=60.0)
                        for (_, pipe), buffers in zip(self.pipes, self.there, strict=True)]  # fmt: skip
        self.here = [Buffers(server, servers=2) for server in range(2)]
        streams = [Stream(pipe, TO_WORKER, buffers.messages, waits=True, lease_s=60.0)
                   for (pipe, _), buffers in zip(self.pipes, self.here, strict=True)]  # fmt: skip
        self.worker = ServerStreams(streams, self.here[0].job.server_of)


@pytest.fixture
def ends() -> Iterator[Ends]:
    found = Ends()
    yield found
    for each in found.pipes:
        for pipe in each:
            pipe.close()


def test_numbers_go_to_the_server_of_their_range_and_to_no_other(ends: Ends):
    for buffers in ends.here:
        buffers.gradient.uniform_(1.0, 2.0)
    frame = [push(WHOLE, 0), push(WHOLE, 1)]
    ends.worker.send(frame)
    assert [heard(server) for server in ends.servers] == [[frame], [frame[1:]]]
    for here, there, own in zip(ends.here, ends.there, (slice(HALF), slice(HALF, SIZE)), strict=True):
        expected = torch.zeros(SIZE)
        expected[own] = here.gradient[own]
        assert torch.equal(there.gradient, expected)


def test_a_worker_hears_all_servers(ends: Ends):
    for server in (1, 0):
        ends.servers[server].send([weights(WHOLE, server)])
        assert heard(ends.worker) == [[weights(WHOLE, server)]]


def test_every_stream_ends_with_a_last_message_whichever_server_is_first(ends: Ends):
    ends.servers[1].send([weights(WHOLE, 1)])
    ends.servers[1].send([Stop(1)])
    assert heard(ends.worker) == [[weights(WHOLE, 1)]]  # that a server has nothing more is not the run's end
    ends.worker.frames()
    ends.servers[0].send([Stop(1)])
    assert heard(ends.worker) == [[Stop(1)]]
    ends.worker.send([Stop(1)])
    assert [heard(server) for server in ends.servers] == [[[Stop(1)]]] * 2


def test_a_worker_reads_what_other_servers_have_sent_before_its_last_message_is_sent(ends: Ends):
    """So the next run begins with empty streams."""
    for message in (weights(WHOLE, 1), Stop(1)):
        ends.servers[1].send([message])
    ends.worker.send([Stop(1)])
    assert ready((ends.pipes[1][0].fileno(),), 0) == []


def test_that_another_server_is_gone_is_no_end_of_the_stream(ends: Ends):
    ends.servers[1].send([Stop(1)])
    ends.pipes[1][1].close()
    ends.servers.pop()
    ends.servers[0].send([Go(0.0)])
    assert heard(ends.worker) == [[Go(0.0)]]
    for _ in range(3):
        ends.worker.send([push(WHOLE, 1)])


FRAME, NEXT = [push(WHOLE, index) for index in range(3)], [push(WHOLE, 0, 4)]


def test_a_frame_has_come_when_all_servers_have_its_numbers_and_not_before_one_that_was_sent_earlier():
    assembly = FrameAssembly(2, (0, 1, 2))
    assert assembly.add(1, 2, FRAME[2:]) == assembly.add(1, 0, FRAME) == assembly.add(1, 0, NEXT) == []
    assert assembly.under_way() == [1]
    assert assembly.add(1, 1, FRAME[1:2]) == [FRAME, NEXT]
    assert assembly.under_way() == []


def test_of_a_process_that_has_ended_amid_a_frame_nothing_comes():
    assembly, frame = FrameAssembly(2, (0, 1)), FRAME[:2]
    assert assembly.add(1, 0, frame) == assembly.add(0, 1, frame[1:]) == []
    for worker in range(2):
        assembly.forget(worker)
    assert assembly.add(1, 1, frame[1:]) == assembly.add(0, 0, frame) == []
    assert assembly.add(1, 0, frame) == [frame]


@pytest.mark.parametrize("other", [push(24, 1), push(WHOLE, 1, 4)])
def test_a_worker_that_tells_one_server_something_else_is_found_out(other: Push):
    assembly = FrameAssembly(2, (0, 1))
    assembly.add(1, 0, FRAME[:2])
    with pytest.raises(FrameError, match="other messages than the one that decides"):
        assembly.add(1, 1, [other])


def test_a_loss_that_is_no_number_is_no_other_message():
    """Each end reads its own."""
    assembly, (frame, part) = FrameAssembly(2, (0, 1)), ([push(WHOLE, 1)._replace(payload=lost)] for lost in LOST)
    assembly.add(1, 0, frame)
    assert assembly.add(1, 1, part) == [frame]


@pytest.mark.parametrize("server", [0, 1])
def test_frames_that_one_server_alone_hears_of_are_not_kept_for_ever(server: int):
    assembly = FrameAssembly(2, (0, 1))
    for _ in range(AHEAD):
        assembly.add(1, server, [push(WHOLE, 1)])
    with pytest.raises(FrameError, match="of which another one knows nothing"):
        assembly.add(1, server, [push(WHOLE, 1)])
