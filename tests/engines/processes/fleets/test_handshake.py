"""Processes that meet prove that they have the key; strangers are turned away soon and keep nobody waiting."""

from __future__ import annotations

import random
import socket
import threading
import time
from contextlib import closing, suppress
from functools import partial

import pytest

from pslab.engines.processes.fleets import handshake
from pslab.engines.processes.fleets.handshake import (
    HELLO,
    KEY_BYTES,
    MAGIC,
    Listener,
    Refused,
    address_in,
    dial,
    new_key,
)
from pslab.errors import ConfigError, StartFailed

KEY = bytes(range(KEY_BYTES))


@pytest.fixture
def listener():
    with closing(Listener(KEY)) as found:
        yield found


def beside(call):
    """A call that goes on beside the test; calling what comes back waits for its result, or what it raised."""
    found = []

    def act():
        try:
            found.append(call())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=act, daemon=True)
    thread.start()

    def result():
        thread.join(20)
        return found[0]

    result.is_here = lambda: bool(found)
    return result


def test_two_that_have_the_key_meet_and_talk(listener):
    other = beside(partial(dial, listener.address, 3, KEY))
    with listener.accept(3) as here, other().line as there:
        here.send_bytes(b"one")
        there.send_bytes(b"two")
        assert (there.recv_bytes(), here.recv_bytes()) == (b"one", b"two")
    assert listener.refused == []


def test_who_waits_for_a_process_heeds_an_interrupt(listener):
    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        listener.accept(3, heed=interrupt)


def test_others_wait_until_they_are_asked_for(listener):
    waiting = {number: beside(partial(dial, listener.address, number, KEY)) for number in (2, 0, 1)}
    for number in (0, 1, 2):
        with listener.accept(number) as here, waiting[number]().line as there:
            there.send_bytes(b"%d" % number)
            assert here.recv_bytes() == b"%d" % number


def test_of_two_with_one_number_the_last_one_stays(listener):
    with closing(dial_beside(listener, 0)) as first, closing(dial_beside(listener, 0)) as last:
        with listener.accept(0) as here:
            last.send_bytes(b"again")
            assert here.recv_bytes() == b"again"
        with pytest.raises((EOFError, OSError)):
            first.recv_bytes()


def dial_beside(listener, number):
    """The line of a process that has met the listener, and is not yet asked for."""
    met = beside(partial(dial, listener.address, number, KEY))
    while not met.is_here():
        with suppress(TimeoutError):
            listener.accept(99, limit_s=0.01)
    return met().line


def test_another_key_is_refused_on_both_sides_within_a_second(listener):
    stranger = beside(partial(dial, listener.address, 3, new_key()))
    with pytest.raises(TimeoutError, match=r"process 3 has not dialled 127\.0\.0\.1"):
        listener.accept(3, limit_s=0.3)
    error = stranger()
    assert isinstance(error, Refused)
    assert "has another key" in str(error)
    assert listener.refused == ["a stranger hung up"]


def test_a_proof_without_the_key_is_refused(listener):
    def forge():
        with socket.create_connection(listener.address) as line:
            line.sendall(HELLO.pack(MAGIC, 0, bytes(96), bytes(32)))
            line.recv(handshake.ANSWER.size, socket.MSG_WAITALL)
            line.sendall(bytes(handshake.PROOF.size))
            return line.recv(1)

    forger = beside(forge)
    with pytest.raises(TimeoutError, match="dialled with another key"):
        listener.accept(0, limit_s=0.3)
    assert forger() == b""


def test_what_was_said_in_one_meeting_is_no_proof_in_another(listener):
    heard, replayed = [], []

    def relay():
        """Somebody who hears everything that the two say, and says it again."""
        with socket.create_connection(listener.address) as line:
            for words in heard:
                line.sendall(words)
                if not line.recv(4096):
                    return
            replayed.append(line)

    real = socket.socket.sendall
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "sendall", lambda line, words: (heard.append(bytes(words)), real(line, words))[1])
        other = beside(partial(dial, listener.address, 5, KEY))
        listener.accept(5).close()
        other().line.close()
    again = beside(relay)
    with pytest.raises(TimeoutError, match="another key"):
        listener.accept(5, limit_s=0.3)
    again()
    assert replayed == []


def test_other_versions_are_named_on_both_sides(listener, monkeypatch):
    monkeypatch.setattr(handshake, "versions", lambda: "Python 3.11, torch 2.13.0" if threading.current_thread()
                        is threading.main_thread() else "Python 3.12, torch 2.9.0")  # fmt: skip
    other = beside(partial(dial, listener.address, 0, KEY))
    with pytest.raises(Refused, match=r"it has Python 3\.12, torch 2\.9\.0, who listens has Python 3\.11"):
        listener.accept(0)
    assert "refused process 0: it has Python 3.12, torch 2.9.0, who listens has Python 3.11" in str(other())


def test_strangers_keep_nobody_waiting_and_are_gone_soon(listener, monkeypatch):
    monkeypatch.setattr(handshake, "HELLO_LIMIT_S", 0.2)
    draw = random.Random(3)
    silent = [socket.create_connection(listener.address) for _ in range(20)]
    for size in (1, 7, HELLO.size, 5000):
        with socket.create_connection(listener.address) as line:
            line.sendall(draw.randbytes(size))
    other = beside(partial(dial, listener.address, 0, KEY))
    with listener.accept(0), other().line, pytest.raises(TimeoutError):
        listener.accept(1, limit_s=0.5)
    for line in silent:
        line.settimeout(5)
        assert line.recv(1) == b""
        line.close()
    assert len(listener.refused) == 24
    assert set(listener.refused) <= {"a stranger said nothing more for 0.2 s", "a stranger hung up",
                                     "a stranger that is no process of pslab"} | {
        why for why in listener.refused if "Connection reset" in why}  # fmt: skip


def test_clocks_that_are_a_thousand_seconds_apart_are_known_to_be(monkeypatch):
    with closing(Listener(KEY, clock=lambda: time.monotonic() + 1000.0)) as listener:
        other = beside(partial(dial, listener.address, 0, KEY))
        listener.accept(0).close()
        line, clock = other()
        line.close()
        assert abs(clock.seconds - 1000.0) <= clock.bound_s


def test_ports_are_of_the_range_and_the_named_address_alone():
    with closing(Listener(KEY, "127.0.0.0/8")) as first:
        host, port = first.address
        assert host == "127.0.0.1"
        with pytest.raises(StartFailed, match=f"no port from {port} to {port} of 127.0.0.1 is free"):
            Listener(KEY, ports=(port, port))


@pytest.mark.parametrize(
    ("network", "problem"), [("10.0.0", "must be a network"), ("203.0.113.0/24", "has no address in it")]
)
def test_a_network_that_is_none_or_not_here_is_refused(network, problem):
    with pytest.raises(ConfigError, match=problem):
        address_in(network)


def test_who_dials_a_listener_that_attends_does_not_wait_until_it_is_accepted():
    key = new_key()
    listener = Listener(key)
    listener.attend()
    met = dial(listener.address, 3, key)  # this thread alone would accept it
    line = listener.accept(3)
    met.line.send_bytes(b"here")
    assert line.recv_bytes() == b"here"
    with pytest.raises(TimeoutError, match="process 4 has not dialled"):
        listener.accept(4, 0.01)
    met.line.close()
    line.close()
