"""What a man in the middle alters, leaves out, repeats or adds behind a handshake is accepted nowhere."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable
from contextlib import closing

import pytest
from buffers import Buffers, push
from hypothesis import given, settings
from hypothesis import strategies as st

from pslab.engines.experiment.wire import WHOLE, Frame, Stop
from pslab.engines.local.lines.message_buffers import TO_SERVER, TO_WORKER
from pslab.engines.local.lines.stream import Stream
from pslab.engines.processes.authentication import TaggedLine, Tags, receive, send
from pslab.engines.processes.fleets.private_memory import PatchedPipe, PrivateArena
from pslab.errors import FrameError, PslabError

SECRET = bytes(32)
TAMPERINGS: list[Callable[[random.Random, bytes], bytes]] = []


def tampering(alter: Callable[[random.Random, bytes], bytes]) -> Callable[[random.Random, bytes], bytes]:
    TAMPERINGS.append(alter)
    return alter


@tampering
def flip(draw: random.Random, sent: bytes) -> bytes:
    at = draw.randrange(len(sent))
    return sent[:at] + bytes([sent[at] ^ 1 << draw.randrange(8)]) + sent[at + 1 :]


@tampering
def drop(draw: random.Random, sent: bytes) -> bytes:
    begin, end = sorted(draw.sample(range(len(sent) + 1), 2))
    return sent[:begin] + sent[end:]


@tampering
def replay(draw: random.Random, sent: bytes) -> bytes:
    begin, end = sorted(draw.sample(range(len(sent) + 1), 2))
    return sent[:end] + sent[begin:end] + sent[end:]


@tampering
def inject(draw: random.Random, sent: bytes) -> bytes:
    at = draw.randrange(len(sent) + 1)
    return sent[:at] + draw.randbytes(draw.randrange(1, 200)) + sent[at:]


def line(own: socket.socket, *, dials: bool, payload: bool = True, secret: bytes = SECRET) -> TaggedLine:
    found = TaggedLine(own.detach())
    found.tags = Tags(secret, dials=dials, payload=payload)
    return found


def lines(payload: bool = True) -> tuple[TaggedLine, TaggedLine, socket.socket, socket.socket]:
    """The line of one that has dialled, that of the listener, and the ends of the man in the middle."""
    (own, his), (here, other) = socket.socketpair(), socket.socketpair()
    return line(own, dials=True, payload=payload), line(other, dials=False, payload=payload), his, here


def forwarded(his: socket.socket, here: socket.socket, alter: Callable[[bytes], bytes]) -> bool:
    """What has come so far goes on, altered; nothing follows. Whether more was altered than what comes behind it."""
    his.setblocking(False)
    sent = b"".join(iter(lambda: _some(his), b""))
    altered = alter(sent)
    here.sendall(altered)
    here.close()
    return not altered.startswith(sent)


def _some(his: socket.socket) -> bytes:
    try:
        return his.recv(1 << 20)
    except BlockingIOError:
        return b""


CASES = given(seed=st.integers(0, 2**32), kind=st.sampled_from(TAMPERINGS))
MANY = pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.slow)])


def tampered(check: Callable[[random.Random, Callable[[random.Random, bytes], bytes]], None], count: int) -> None:
    settings(max_examples=count, deadline=None)(CASES(lambda seed, kind: check(random.Random(seed), kind)))()


@MANY
def test_no_order_is_accepted_that_its_parent_has_not_sent_next(count: int):
    orders = [b"start", b"run", b"stop" * 40]

    def check(draw: random.Random, kind: Callable[[random.Random, bytes], bytes]) -> None:
        parent, child, his, here = lines()
        arenas, copies = [PrivateArena()], [PrivateArena()]
        with closing(parent), closing(child), his:
            down, up = PatchedPipe(parent, arenas, 0), PatchedPipe(child, copies, -1)
            arenas[0].reserve(1 << 12)
            for number, order in enumerate(orders):
                arenas[0].bytes(number * 8, 8)[:] = b"%08d" % number
                arenas[0].show(number * 8, 8)
                down.send_bytes(order)
            altered, accepted = forwarded(his, here, lambda sent: kind(draw, sent)), list[bytes]()
            try:
                while True:
                    accepted.append(up.recv_bytes())
                    number = len(accepted) - 1
                    assert bytes(copies[0].bytes(number * 8, 8)) == b"%08d" % number
            except (PslabError, EOFError, OSError):
                pass
            assert accepted == orders[: len(accepted)]
            assert len(accepted) < len(orders) or not altered

    tampered(check, count)


@MANY
@pytest.mark.parametrize("payload", [False, True])
def test_no_message_of_the_protocol_is_accepted_that_its_process_has_not_sent_next(count: int, payload: bool):
    def check(draw: random.Random, kind: Callable[[random.Random, bytes], bytes]) -> None:
        worker_line, server_line, his, here = lines(payload)
        ours, theirs = Buffers(), Buffers()
        with closing(worker_line), closing(server_line), his:
            worker = Stream(worker_line, TO_WORKER, ours.messages, waits=True, lease_s=60.0)
            server = Stream(server_line, TO_SERVER, theirs.messages, lease_s=60.0)
            brings = ours.gradient.uniform_(-1.0, 1.0).numpy().tobytes()
            frames: list[Frame] = [[push(WHOLE)], [Stop(1)], [Stop(1)]]
            for frame in frames:
                worker.send(frame)
            altered, accepted = forwarded(his, here, lambda sent: kind(draw, sent)), list[Frame]()
            try:
                while True:
                    accepted += server.frames()
            except EOFError:
                pass
            assert accepted == frames[: len(accepted)]
            if payload:
                assert not accepted or theirs.gradient.numpy().tobytes() == brings
                assert len(accepted) < len(frames) or not altered

    tampered(check, count)


def test_what_was_sent_one_way_is_not_accepted_the_other_way():
    dialled, listens, his, here = lines()
    with closing(dialled), closing(listens), here:
        send(dialled, b"stop")
        his.sendall(his.recv(1 << 10))
        with pytest.raises(FrameError, match="altered on the way"):
            receive(dialled)
    his.close()


def test_the_tags_of_one_line_are_not_those_of_another():
    (own, his), (here, other) = socket.socketpair(), socket.socketpair()
    with closing(line(own, dials=True)) as dialled, closing(line(other, dials=False, secret=os.urandom(32))) as listens:
        send(dialled, b"stop")
        forwarded(his, here, lambda sent: sent)
        with pytest.raises(FrameError):
            receive(listens)
    his.close()


def test_a_stream_goes_on_with_the_counts_of_the_one_before():
    worker_line, server_line, his, here = lines()
    with closing(worker_line), closing(server_line), his, here:
        for _ in range(2):  # runs
            worker = Stream(worker_line, TO_WORKER, None, lease_s=60.0)
            server = Stream(server_line, TO_SERVER, None, lease_s=60.0)
            worker.send([Stop(1)])
            here.sendall(his.recv(1 << 10))
            assert server.frames() == [[Stop(1)]]


@pytest.mark.parametrize("come", [(0, 0), (1,), (1, 0), (0, 2)])
@pytest.mark.parametrize("as_stream", [False, True])
def test_whole_messages_that_are_repeated_left_out_or_exchanged_end_a_line(come: tuple[int, ...], as_stream: bool):
    worker_line, server_line, his, here = lines()
    with closing(worker_line), closing(server_line), his, here:
        worker = Stream(worker_line, TO_WORKER, None, lease_s=60.0)
        sent = []
        for number in range(3):
            worker.send([Stop(1)]) if as_stream else send(worker_line, b"%d" % number)
            sent.append(his.recv(1 << 10))
        here.sendall(b"".join(sent[number] for number in come))
        here.close()
        accepted = 0
        server = Stream(server_line, TO_SERVER, None, lease_s=60.0)
        with pytest.raises((EOFError, FrameError)):  # NOQA: PT012
            while True:
                accepted += len(server.frames()) if as_stream else len(receive(server_line))
        assert accepted == (come[0] == 0)
