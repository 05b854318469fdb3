"""Processes without shared memory that cannot take part: the parent hears why, at once."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from typing import Any

import pytest

from pslab.config.fleet import Fleet
from pslab.engines.processes import pool
from pslab.engines.processes.authentication import receive, send
from pslab.engines.processes.child import SERVER
from pslab.engines.processes.fleets import loopback
from pslab.engines.processes.fleets.handshake import Listener, new_key
from pslab.engines.processes.fleets.loopback import Rendezvous, begin
from pslab.errors import StartFailed


def goes(number: int, way: Rendezvous) -> None:
    """Instead of a process of the pool."""
    os._exit(9)


def a_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


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
        assert json.loads(receive(pipe))[0] == "127.0.0.1"
        known = {"book": [[SERVER, ["127.0.0.1", port]]], "others": [], "data": ["another host", "/proc/1/fd/3", 0, 0]}
        send(pipe, json.dumps(known).encode())
        assert json.loads(receive(pipe)) is False  # it does not map what lies on another host
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
