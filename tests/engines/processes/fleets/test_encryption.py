"""On an encrypted line nobody on the way reads or alters a byte, and no process without the certificate takes part."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection

import pytest
from tiny import tiny

from pslab.engines.execute import execute
from pslab.engines.processes.fleets import encryption
from pslab.engines.processes.fleets.encryption import encrypted, new_certificate
from pslab.errors import StartFailed
from pslab.lab.runs.resolve import resolve

LIMIT_S = 20.0


@pytest.fixture(scope="module")
def certificate() -> bytes:
    return new_certificate()


@pytest.fixture
def middle() -> Iterator[tuple[socket.socket, socket.socket, bytearray]]:
    """Both ends of a line, and what a man in the middle hears of it."""
    (one, his), (here, other) = socket.socketpair(), socket.socketpair()
    heard = bytearray()

    def carry(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                heard.extend(data)
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    threads = [threading.Thread(target=carry, args=ends) for ends in ((his, here), (here, his))]
    for thread in threads:
        thread.start()
    yield one, other, heard
    for end in (one, other, his, here):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
    for thread in threads:
        thread.join()


def test_what_one_end_sends_the_other_one_reads_and_nobody_between_them(middle, certificate: bytes):
    one, other, heard = middle
    dialled = Connection(encrypted(one, certificate, dials=True, limit_s=LIMIT_S).detach())
    listens = Connection(encrypted(other, certificate, dials=False, limit_s=LIMIT_S).detach())
    sent = [os.urandom(1 << 20), b"weights of the thesis", b""]
    with dialled, listens:
        sender = threading.Thread(target=lambda: [dialled.send_bytes(message) for message in sent])
        sender.start()
        assert [listens.recv_bytes() for _ in sent] == sent
        sender.join()
        listens.send_bytes(b"and back")
        assert dialled.recv_bytes() == b"and back"
    assert len(heard) > 1 << 20
    assert not any(part in heard for part in (sent[0][:64], sent[1], b"and back"))


def test_the_end_of_one_process_is_seen_by_the_other_behind_its_last_message(middle, certificate: bytes):
    one, other, _ = middle
    dialled = Connection(encrypted(one, certificate, dials=True, limit_s=LIMIT_S).detach())
    with Connection(encrypted(other, certificate, dials=False, limit_s=LIMIT_S).detach()) as listens:
        dialled.send_bytes(b"last")
        dialled.close()
        assert listens.recv_bytes() == b"last"
        with pytest.raises(EOFError):
            listens.recv_bytes()


@pytest.mark.parametrize("dials", [True, False])
def test_another_certificate_takes_no_part(middle, certificate: bytes, dials: bool):
    one, other, _ = middle
    own = Connection(encrypted(one, certificate, dials=dials, limit_s=LIMIT_S).detach())
    stranger = Connection(encrypted(other, new_certificate(), dials=not dials, limit_s=LIMIT_S).detach())
    with own, stranger, suppress(OSError):
        stranger.send_bytes(b"stop")
        with pytest.raises((EOFError, OSError)):
            own.recv_bytes()


def test_without_openssl_the_lack_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(encryption, "MAKE", ["openssl-that-is-not-here"])
    with pytest.raises(StartFailed, match="payload: encrypted needs the command openssl on this host"):
        new_certificate()


@pytest.mark.usefixtures("small_pool")
@pytest.mark.parametrize("payload", ["authenticated", "encrypted"])
def test_a_run_leaves_the_bits_of_one_in_the_open(payload: str):
    runs = [tiny(workers=1, servers=2, pushes=20, fleet=fleet, keep_weights=True)
            for fleet in ("loopback", {"place": "loopback", "payload": payload})]  # fmt: skip
    plain, protected = (execute(resolve(run), lambda news: None) for run in runs)
    assert protected.weights.tobytes() == plain.weights.tobytes()
    assert protected.facts["pushes"] == plain.facts["pushes"] == 20
