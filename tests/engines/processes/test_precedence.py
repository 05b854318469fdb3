"""Processes that compute only where no other wants to."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pslab.engines.processes import precedence
from pslab.engines.processes.precedence import SHARE, WINDOW_S, Precedence, let_others_first, used_and_awaited

linux = pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="the system has no such class")


@pytest.fixture
def child() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid


@linux
def test_a_process_lets_others_first_and_comes_back(child: int):
    assert let_others_first([child], True)
    assert os.sched_getscheduler(child) == os.SCHED_IDLE
    assert let_others_first([child], False)
    assert os.sched_getscheduler(child) == os.SCHED_OTHER


@linux
def test_what_somebody_else_has_chosen_stays(child: int):
    os.sched_setscheduler(child, os.SCHED_BATCH, os.sched_param(0))
    assert not let_others_first([child], True)
    assert os.sched_getscheduler(child) == os.SCHED_BATCH


def test_elsewhere_nothing_happens(child: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(os, "SCHED_IDLE", raising=False)
    assert not let_others_first([child], True)


@linux
def test_a_process_that_is_gone_is_no_error(child: int):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert not let_others_first([gone.pid], True)


# --- and that starve --------------------------------------------------------------------------------------------------

CORES = 2


@pytest.mark.parametrize(("used", "awaited", "processes", "starve"), [
    (0.01, 0.9, 2, True), (0.01, 0.1, 2, False), (CORES * SHARE / 2, 0.5, 2, False), (0.0, 0.0, 2, False),
    (CORES / 16, 1 - CORES / 16, 16, False),
], ids=["wants cores and gets none", "waits for messages", "busy", "idle", "many share the cores"])  # fmt: skip
def test_processes_that_want_a_core_and_get_next_to_none_no_longer_let_others_first(
    used: float, awaited: float, processes: int, starve: bool, monkeypatch: pytest.MonkeyPatch
):
    now = [0.0]
    monkeypatch.setattr(precedence, "cores", lambda: CORES)
    monkeypatch.setattr(precedence, "used_and_awaited", lambda process: (used * now[0], awaited * now[0]))
    found, starved = Precedence(lambda: [2**30 + each for each in range(processes)], True, lambda: now[0]), []
    for _ in range(8):
        now[0] += WINDOW_S / 2
        found.relieve()
        starved.append(found.starved)
    # not in the first window, of which the beginning was not seen, nor between
    assert starved == ([False] * 3 + [True] * 5 if starve else [False] * 8)
    assert found.yields is not starve


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="needs Linux's /proc")
def test_the_system_says_how_long_a_process_had_a_core():
    before = used_and_awaited(os.getpid())[0]
    while used_and_awaited(os.getpid())[0] == before:
        pass
    assert used_and_awaited(2**30) == (0.0, 0.0)
