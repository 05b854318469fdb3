"""Lines to several servers: what goes by way of which, and how a run's end leaves them empty."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
from mirrored import SIZE, Setup, pair, push, weights

from pslab.engines.experiment.wire import WHOLE, Frame, Go, Gradient, Stop
from pslab.engines.local.lines.frame_assembly import AHEAD, Fan, FrameAssembly, Relayed
from pslab.engines.local.lines.framed_pipe import ready
from pslab.engines.local.lines.message_buffers import TO_SERVER, TO_WORKER, MessageBuffers
from pslab.engines.local.lines.stream import Stream
from pslab.errors import FrameError
from pslab.protocol.messages import Push

LOST = [Gradient(WHOLE, 7, float("nan"), 0.1) for _ in range(2)]


class Ends:
    """Worker 1's ends of its lines to two servers, and the servers'."""

    def __init__(self) -> None:
        self.sides = [Setup(servers=2) for _ in range(3)]  # of the worker, and of each server
        self.pipes = [pair() for _ in range(2)]
        self.servers = [self.stream(1 + server, server, ends[1], waits=False) for server, ends in enumerate(self.pipes)]
        self.worker = Fan([self.stream(0, server, ends[0], waits=True) for server, ends in enumerate(self.pipes)],
                          self.sides[0].job.server_of)  # fmt: skip

    def stream(self, side: int, server: int, pipe: Connection, *, waits: bool) -> Stream:
        setup, kinds = self.sides[side], TO_WORKER if waits else TO_SERVER
        mirror = MessageBuffers(setup.job, setup.arena, 1, server)
        return Stream(pipe, mirror, kinds, waits=waits, lease_s=60.0)

    def gradient(self, side: int) -> torch.Tensor:
        return self.sides[side].arena.tensor(self.sides[side].layout.gradients[1][1], SIZE, torch.float32)


@pytest.fixture
def ends() -> Iterator[Ends]:
    found = Ends()
    yield found
    for each in found.pipes:
        for pipe in each:
            pipe.close()


def heard(line: Any) -> list[Frame]:
    while not (found := line.frames()):
        ready((line.descriptor,))
    return list(found)


def test_numbers_go_to_the_server_of_their_range_and_to_no_other(ends: Ends):
    ends.gradient(0).uniform_(1.0, 2.0)
    frame = [push(WHOLE, 0), push(WHOLE, 1)]
    ends.worker.send(frame)
    assert [heard(server) for server in ends.servers] == [[frame], [frame[1:]]]
    half = SIZE // 2
    for side, here, there in ((1, slice(half), slice(half, SIZE)), (2, slice(half, SIZE), slice(half))):
        assert torch.equal(ends.gradient(side)[here], ends.gradient(0)[here])
        assert not ends.gradient(side)[there].any()


def test_a_worker_hears_all_servers(ends: Ends):
    ends.servers[1].send([weights(WHOLE, 1)])
    assert heard(ends.worker) == [[weights(WHOLE, 1)]]
    ends.servers[0].send([weights(WHOLE, 0)])
    assert heard(ends.worker) == [[weights(WHOLE, 0)]]


def test_a_range_of_another_server_is_no_message_of_a_line(ends: Ends):
    ends.servers[1]._mirror = None
    ends.servers[1].send([weights(WHOLE, 0)])
    with pytest.raises(EOFError, match="names range 0 of server 0 to server 1"):
        heard(ends.worker._lines[1])


def test_every_line_ends_with_a_last_message_whoever_speaks_first(ends: Ends):
    ends.servers[1].send([weights(WHOLE, 1)])
    ends.servers[1].send([Stop(1)])
    found = heard(ends.worker)
    assert found == [[weights(WHOLE, 1)]]  # that a server has nothing more is not the run's end
    ends.worker.frames()
    ends.servers[0].send([Stop(1)])
    assert heard(ends.worker) == [[Stop(1)]]
    ends.worker.send([Stop(1)])
    assert [heard(server) for server in ends.servers] == [[[Stop(1)]]] * 2


def test_that_another_server_is_gone_is_no_end_of_the_line(ends: Ends):
    ends.pipes[1][1].close()
    ends.servers[1]._socket.close()
    ends.servers[0].send([Go(0.0)])
    found: list[Frame] = []
    while not found:
        found = heard(ends.worker)
    assert found == [[Go(0.0)]]
    for _ in range(3):
        ends.worker.send([push(WHOLE, 1)])


def test_what_is_about_another_servers_range_is_relayed(ends: Ends):
    relayed = list[tuple[int, Frame]]()
    line = Relayed(ends.servers[0], ends.sides[1].job.server_of, lambda server, frame: relayed.append((server, frame)))
    for frame in ([weights(WHOLE, 1)], [weights(WHOLE, 0)], [Go(0.0)]):
        line.send(frame)
    assert relayed == [(1, [weights(WHOLE, 1)])]
    found: list[Frame] = []
    while len(found) < 2:
        found += heard(ends.worker)
    assert found == [[weights(WHOLE, 0)], [Go(0.0)]]


def test_a_frame_has_come_when_all_servers_have_its_numbers_and_not_before_one_that_was_sent_earlier():
    gathering, first, second = FrameAssembly(2, (0, 1, 2)), [push(WHOLE, i) for i in range(3)], [push(WHOLE, 0, 4)]
    assert gathering.part(1, 2, first[2:]) == []
    assert gathering.frame(1, first) == []
    assert gathering.frame(1, second) == []
    assert gathering.under_way() == [1]
    assert gathering.part(1, 1, first[1:2]) == [first, second]
    assert gathering.under_way() == []


def test_of_a_process_that_has_ended_amid_a_frame_nothing_comes():
    gathering, frame = FrameAssembly(2, (0, 1)), [push(WHOLE, 0), push(WHOLE, 1)]
    assert gathering.frame(1, frame) == gathering.part(0, 1, frame[1:]) == []
    for worker in range(2):
        gathering.forget(worker)
    assert gathering.part(1, 1, frame[1:]) == gathering.frame(0, frame) == []
    assert gathering.frame(1, frame) == [frame]


@pytest.mark.parametrize("other", [push(24, 1), push(WHOLE, 1, 4)])
def test_who_tells_one_server_something_else_is_found_out(other: Push):
    gathering = FrameAssembly(2, (0, 1))
    gathering.frame(1, [push(WHOLE, 0), push(WHOLE, 1)])
    with pytest.raises(FrameError, match="other messages than the one that decides"):
        gathering.part(1, 1, [other])


def test_a_loss_that_is_no_number_is_no_other_message():
    """Each end reads its own."""
    gathering, (frame, part) = FrameAssembly(2, (0, 1)), ([push(WHOLE, 1)._replace(payload=lost)] for lost in LOST)
    gathering.frame(1, frame)
    assert gathering.part(1, 1, part) == [frame]


def test_who_tells_one_server_alone_is_not_kept_in_mind_for_ever():
    for tell in (lambda gathering: gathering.part(1, 1, [push(WHOLE, 1)]),
                 lambda gathering: gathering.frame(1, [push(WHOLE, 1)])):  # fmt: skip
        gathering = FrameAssembly(2, (0, 1))
        for _ in range(AHEAD):
            tell(gathering)
        with pytest.raises(FrameError, match="of which another one knows nothing"):
            tell(gathering)
