"""Processes without shared memory that cannot take part: the parent hears why, at once."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import elsewhere
import numpy as np
import pytest

from pslab.config.fleet import Fleet
from pslab.engines.processes import pool
from pslab.engines.processes.authentication import receive, send
from pslab.engines.processes.channel import report
from pslab.engines.processes.child import SERVER, ProcessContext
from pslab.engines.processes.fleets import loopback, private_memory
from pslab.engines.processes.fleets.handshake import Listener, new_key
from pslab.engines.processes.fleets.loopback import Rendezvous, begin
from pslab.engines.processes.fleets.private_memory import Patch, PatchedPipe, PrivateArena
from pslab.engines.processes.watch import PREPARING
from pslab.errors import StartFailed


def goes(number: int, way: Rendezvous) -> None:
    """Instead of a process of the pool."""
    os._exit(9)


def a_free_port() -> int:
    """Below those that the system gives to connections: one of them may take what was free before."""
    for port in range(20_000 + os.getpid() % 10_000, 32_000):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


def test_a_process_that_cannot_listen_says_so_before_it_goes():
    port = a_free_port()
    with pytest.raises(StartFailed, match=f"cannot listen: no port from {port} to {port} of 127.0.0.1 is free"):
        pool.Pool(1, lambda: None, Fleet("loopback", ports=f"{port}-{port}"))  # the parent's own takes it


def test_a_process_that_does_not_reach_another_names_it_and_where_it_should_be():
    key, port = new_key(), a_free_port()
    parent = Listener(key)
    child = threading.Thread(target=begin, args=(0, Rendezvous(parent.address, key, "127.0.0.1", (0, 0))))
    child.start()
    with parent.accept(0) as pipe:
        host, _, own, _ = json.loads(receive(pipe))
        assert host == "127.0.0.1"
        data = [["another host", "/proc/1/fd/3", 0, 0]]
        known = {"book": [[SERVER, ["127.0.0.1", port]]], "others": [], "data": data}
        send(pipe, json.dumps(known).encode())
        assert json.loads(receive(pipe)) == own  # it does not map what lies on another host
        receive(pipe)  # patches
        last = receive(pipe).decode(errors="replace")
    child.join()
    parent.close()
    assert '"kind": "gone"' in last
    assert f"server cannot be reached at 127.0.0.1:{port}" in last
    assert "firewall" in last


def test_a_process_that_ends_before_it_comes_is_noticed_with_its_own_words(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loopback, "begin", goes)
    with pytest.raises(StartFailed, match=r"server has ended before it came \(exit code 9\)"):
        pool.Pool(1, lambda: None, Fleet("loopback"))


def test_whoever_ends_the_waiting_for_a_process_ends_all_that_were_started_with_it(monkeypatch: pytest.MonkeyPatch):
    started: list[Any] = []

    def launched(self: Any, numbers: Any, heed: Any, launch: Any = loopback.LoopbackFleet._launched) -> Any:
        found = launch(self, numbers, heed)
        started.extend(found.values())
        return found

    def heed() -> None:
        if started:
            raise KeyboardInterrupt

    monkeypatch.setattr(loopback.LoopbackFleet, "_launched", launched)
    with pytest.raises(KeyboardInterrupt):
        pool.Pool(1, heed, Fleet("loopback"))
    for process in started:
        process.join(10)
        assert process.exitcode == -signal.SIGKILL


# --- data of several hosts --------------------------------------------------------------------------------------------

DATA_BYTES, DATA = 1 << 22, 1  # more than the system takes for a process that does not read; the number of the arena


class Hosts:
    """A pool, all of whose workers but worker 0 are on another host than the parent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
        self.sent = Counter[int]()  # bytes of data, by the processes that they were sent to
        send_ = PatchedPipe._send

        def counted(pipe: PatchedPipe, patches: Any, message: bytes) -> None:
            self.sent[pipe._reader] += sum(p.size_bytes for number, p in patches if number == DATA and p.kept)
            send_(pipe, patches, message)

        monkeypatch.setattr(loopback, "begin", elsewhere.begin)
        monkeypatch.setattr(PatchedPipe, "_send", counted)
        self.pool = pool.Pool(workers, lambda: None, Fleet("loopback"))
        self.all = {SERVER, *range(workers)}

    def share(self, content: int) -> dict[int, int]:
        """Other data; how many bytes of them each process was sent."""
        self.pool.data.reserve(DATA_BYTES)
        self.pool.data.bytes(0, DATA_BYTES)[:] = bytes([content]) * DATA_BYTES
        self.pool.data.show(0, DATA_BYTES)
        self.sent.clear()
        self.pool.share_data(lambda: None, lambda number: True)
        return dict(+self.sent)

    def seen(self) -> dict[int, int]:
        """What the processes that are there see in each byte of the data; -1 if they differ."""

        def reads(context: ProcessContext) -> None:
            data = np.frombuffer(context.data.bytes(0, context.data.size_bytes), np.uint8)
            report(context.parent, "seen", {"value": int(data[0]) if (data == data[0]).all() else -1})

        found, there = dict[int, int](), self.all - self.pool.ended.keys()
        for number in there:
            self.pool.start(number, reads)
        while len(found) < len(there):
            for number, each in self.pool.reports(dict.fromkeys(there - found.keys(), PREPARING), 10.0):
                found |= {number: each.body["value"]} if each.kind == "seen" else {}
        return found

    def kill(self, number: int) -> None:
        """End a process, which the pool notices."""
        os.kill(self.pool.processes[number].pid, signal.SIGKILL)
        while number not in self.pool.ended:
            self.pool.reports({number: PREPARING}, 10.0, lambda number: True)


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Hosts]]:
    found = list[Hosts]()
    yield lambda workers: found.append(Hosts(monkeypatch, workers)) or found[-1]  # type: ignore[func-returns-value]
    found[0].pool.close(kill=True)


@pytest.mark.parametrize("workers", [2, 4])
def test_another_host_is_sent_the_data_once_however_many_processes_it_has(
    workers: int, hosts: Callable[[int], Hosts]
):
    both = hosts(workers)
    for content in (1, 2):
        assert both.share(content) == {1: DATA_BYTES}
        assert both.seen() == dict.fromkeys(both.all, content)


def test_a_new_process_maps_what_another_one_of_its_host_was_sent_or_is_sent_it_if_there_is_none(
    hosts: Callable[[int], Hosts]
):
    both = hosts(3)
    both.share(1)
    both.sent.clear()
    both.kill(1)
    both.pool.replace(1, lambda: None)
    assert both.seen() == dict.fromkeys(both.all, 1)
    assert not +both.sent
    both.kill(1)
    both.kill(2)
    both.pool.replace(2, lambda: None)
    both.pool.replace(1, lambda: None)
    assert both.seen() == dict.fromkeys(both.all, 1)
    assert +both.sent == {2: DATA_BYTES}
    assert both.share(2) == {2: DATA_BYTES}
    assert both.seen() == dict.fromkeys(both.all, 2)


def test_new_processes_of_all_find_the_data_that_others_of_their_host_have(hosts: Callable[[int], Hosts]):
    both = hosts(4)
    both.share(1)
    both.sent.clear()
    both.pool.renew(range(3), lambda: None)  # worker 3 stays
    assert both.seen() == dict.fromkeys(both.all, 1)
    assert not +both.sent
    both.pool.renew(range(4), lambda: None)
    assert both.seen() == dict.fromkeys(both.all, 1)
    assert +both.sent == {1: DATA_BYTES}


def test_where_the_carrier_of_a_host_ends_amid_the_data_another_one_takes_them_all(
    hosts: Callable[[int], Hosts], monkeypatch: pytest.MonkeyPatch
):
    both = hosts(4)
    both.share(1)
    process, pieces = both.pool.processes[1].pid, list[Patch]()

    def sent(arena: PrivateArena, piece: Patch) -> None:
        pieces.append(piece)
        if len(pieces) == 20:
            os.kill(process, signal.SIGKILL)

    monkeypatch.setattr(private_memory, "PIECE_BYTES", 1 << 16)
    monkeypatch.setattr(PrivateArena, "sent", sent)
    assert both.share(2) == {1: DATA_BYTES, 2: DATA_BYTES}
    assert both.pool.ended.keys() == {1}
    assert [report.kind for _, report in both.pool.reports({2: ""}, 0.0, lambda number: True)] == ["gone"]  # still
    assert both.seen() == dict.fromkeys({SERVER, 0, 2, 3}, 2)


def test_no_process_of_a_host_is_told_of_data_that_the_carrier_does_not_have_yet(hosts: Callable[[int], Hosts]):
    both = hosts(3)
    process, looks = both.pool.processes[1].pid, list[int]()

    def heed() -> None:
        looks.append(1)
        if len(looks) == 3:
            os.kill(process, signal.SIGCONT)

    os.kill(process, signal.SIGSTOP)
    both.pool.data.reserve(8)
    both.pool.share_data(heed, lambda number: False)
    assert len(looks) >= 3


def test_processes_say_what_memory_is_free_on_their_host(hosts: Callable[[int], Hosts]):
    ((host, (numbers, free_bytes)),) = hosts(2).pool.free([SERVER, 1]).items()
    assert (host, numbers) == ("127.0.0.1", [SERVER, 1])
    assert free_bytes is not None
    assert free_bytes > 0
