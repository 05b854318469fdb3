"""Processes that connect prove that they have the key; strangers are turned away soon and keep no process waiting."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from threading import current_thread
from typing import Any

import pytest

from pslab.engines.processes.fleets import handshake
from pslab.engines.processes.fleets.handshake import (
    HELLO,
    KEY_BYTES,
    MAGIC,
    SAME,
    Listener,
    Refused,
    address_in,
    dial,
    new_key,
    offset,
)
from pslab.errors import ConfigError, StartFailed
from pslab.version import source_digest

KEY = bytes(range(KEY_BYTES))
Beside = Callable[..., "Future[Any]"]


@pytest.fixture
def listener() -> Iterator[Listener]:
    with closing(Listener(KEY)) as found:
        yield found


@pytest.fixture
def beside() -> Iterator[Beside]:
    """Calls that go on beside the test."""
    with ThreadPoolExecutor() as threads:
        yield threads.submit


def test_processes_that_have_the_key_connect_and_wait_until_they_are_asked_for(listener: Listener, beside: Beside):
    waiting = {number: beside(dial, listener.address, number, KEY) for number in (2, 0, 1)}
    for number in range(3):
        with listener.accept(number) as here, waiting[number].result().line as there:
            here.send_bytes(b"one")
            there.send_bytes(b"%d" % number)
            assert (there.recv_bytes(), here.recv_bytes()) == (b"one", b"%d" % number)
    assert not listener.refused


def test_a_process_that_waits_for_another_heeds_an_interrupt(listener: Listener):
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        listener.accept(3, heed=interrupt)


def test_of_two_with_one_number_the_last_one_stays(listener: Listener, beside: Beside):
    lines = []
    for _ in range(2):
        met = beside(dial, listener.address, 0, KEY)
        while not met.done():
            with suppress(TimeoutError):
                listener.accept(99, limit_s=0.01)
        lines.append(met.result().line)
    first, last = lines
    with listener.accept(0) as here, first, last:
        last.send_bytes(b"again")
        assert here.recv_bytes() == b"again"
        with pytest.raises((EOFError, OSError)):
            first.recv_bytes()


def test_another_key_is_refused_on_both_sides_within_a_second(listener: Listener, beside: Beside):
    stranger = beside(dial, listener.address, 3, new_key())
    with pytest.raises(TimeoutError, match=r"process 3 has not dialled 127\.0\.0\.1"):
        listener.accept(3, limit_s=0.3)
    with pytest.raises(Refused, match="has another key"):
        stranger.result()
    assert list(listener.refused) == ["a stranger hung up"]


def test_a_proof_without_the_key_is_refused(listener: Listener, beside: Beside):
    def forge() -> bytes:
        with socket.create_connection(listener.address) as line:
            line.sendall(HELLO.pack(MAGIC, 0, bytes(96), bytes(32)))
            line.recv(handshake.ANSWER.size, socket.MSG_WAITALL)
            line.sendall(bytes(handshake.PROOF.size))
            return line.recv(1)

    forger = beside(forge)
    with pytest.raises(TimeoutError, match="dialled with another key"):
        listener.accept(0, limit_s=0.3)
    assert forger.result() == b""


def test_the_bytes_of_one_handshake_are_no_proof_in_another(
    listener: Listener, beside: Beside, monkeypatch: pytest.MonkeyPatch
):
    """A stranger hears all that the caller sends, and sends it again."""
    heard, real = list[bytes](), socket.socket.sendall

    def replay() -> bytes:
        with socket.create_connection(listener.address) as line:
            for data in heard:
                line.sendall(data)
                if not (last := line.recv(4096)):
                    break
            return last

    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "sendall", lambda line, data: (heard.append(bytes(data)), real(line, data))[1])
        other = beside(dial, listener.address, 5, KEY)
        listener.accept(5).close()
        other.result().line.close()
    again = beside(replay)
    with pytest.raises(TimeoutError, match="another key"):
        listener.accept(5, limit_s=0.3)
    assert again.result() == b""


def test_other_versions_are_named_on_both_sides(listener: Listener, beside: Beside, monkeypatch: pytest.MonkeyPatch):
    here = current_thread()
    monkeypatch.setattr(handshake, "versions", lambda: "Python 3.12" if current_thread() is here else "Python 3.11")
    words = r"it has Python 3\.12, the listener has Python 3\.11"
    with pytest.raises(Refused, match=f"refused process 0: {words}"):
        dial(listener.address, 0, KEY)
    with pytest.raises(Refused, match=words):
        listener.accept(0)


def test_another_commit_is_another_version(monkeypatch: pytest.MonkeyPatch):
    assert source_digest() in handshake.versions()
    assert "+" not in handshake.versions()  # of a build of torch for GPUs or none


def test_a_handshake_that_is_broken_off_is_begun_again(listener: Listener, monkeypatch: pytest.MonkeyPatch):
    real, tries = handshake.Listener._welcome, list[int]()

    def break_off_the_first(own: Listener) -> None:
        tries.append(1)
        real(own)
        if len(tries) == 1:
            own._dismiss(next(iter(own._callers.values())), "it was busy")

    monkeypatch.setattr(handshake.Listener, "_welcome", break_off_the_first)
    with dial(listener.address, 3, KEY).line, listener.accept(3):
        assert len(tries) == 2


def test_of_many_strangers_the_oldest_gives_way(listener: Listener, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(handshake, "STRANGERS", 3)
    silent = [socket.create_connection(listener.address) for _ in range(5)]
    with dial(listener.address, 0, KEY).line, listener.accept(0):
        assert list(listener.refused) == ["more than 3 strangers at once"] * 3
    for line in silent:
        line.close()


def test_strangers_keep_no_process_waiting_and_are_gone_soon(
    listener: Listener, beside: Beside, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(handshake, "HELLO_LIMIT_S", 0.2)
    draw = random.Random(3)
    silent = [socket.create_connection(listener.address) for _ in range(20)]
    for size in (1, 7, HELLO.size, 5000):
        with socket.create_connection(listener.address) as line:
            line.sendall(draw.randbytes(size))
    other = beside(dial, listener.address, 0, KEY)
    with listener.accept(0), other.result().line, pytest.raises(TimeoutError):
        listener.accept(1, limit_s=0.5)
    for line in silent:
        line.settimeout(5)
        assert line.recv(1) == b""
        line.close()
    usual = {"a stranger sent nothing more for 0.2 s", "a stranger hung up", "a stranger that is no process of pslab"}
    assert len(listener.refused) == 24
    assert all(why in usual or "Connection reset" in why for why in listener.refused)


def test_a_caller_does_not_wait_until_a_listener_accepts_it(listener: Listener):
    with dial(listener.address, 3, KEY).line as there, listener.accept(3) as here:  # this thread alone accepts it
        there.send_bytes(b"here")
        assert here.recv_bytes() == b"here"
        with pytest.raises(TimeoutError, match="process 4 has not dialled"):
            listener.accept(4, 0.01)


def test_ports_are_of_the_range_and_the_named_address_alone():
    with closing(Listener(KEY, "127.0.0.0/8")) as first:
        host, port = first.address
        assert host == "127.0.0.1"
        with pytest.raises(StartFailed, match=f"no port from {port} to {port} of 127.0.0.1 is free"):
            Listener(KEY, ports=(port, port))


@pytest.mark.parametrize(
    ("network", "problem"), [("10.0.0", "must be a network"), ("203.0.113.0/24", "has no address in it")]
)
def test_a_network_that_is_none_or_not_here_is_refused(network: str, problem: str):
    with pytest.raises(ConfigError, match=problem):
        address_in(network)


# --- clocks -----------------------------------------------------------------------------------------------------------


def test_clocks_that_are_a_thousand_seconds_apart_are_known_to_be(beside: Beside):
    with closing(Listener(KEY, clock=lambda: time.monotonic() + 1000.0)) as listener:
        other = beside(dial, listener.address, 0, KEY)
        listener.accept(0).close()
        line, clock = other.result()
        line.close()
        assert abs(clock.seconds - 1000.0) <= clock.bound_s


@pytest.mark.parametrize("offset_s", [0.01, 1000.0, -1000.0])
def test_an_offset_is_found_within_its_bound_whichever_way_takes_longer(offset_s: float):
    draw, pings, now = random.Random(7), [], 50.0
    for _ in range(32):
        there_s, back_s = draw.uniform(1e-5, 1e-3), draw.uniform(1e-5, 1e-3)
        pings.append((now, now + there_s + offset_s, now + there_s + back_s))
        now += 0.01
    found = offset(pings)
    assert abs(found.seconds - offset_s) <= found.bound_s + 1e-12
    assert found.bound_s == pytest.approx(min(received - sent for sent, _, received in pings) / 2)


def test_clocks_that_agree_within_the_bound_are_one():
    assert offset([(0.0, 0.3, 1.0)]) == SAME
    assert offset([(0.0, 1.1, 1.0)]).seconds == pytest.approx(0.6)
