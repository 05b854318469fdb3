"""Processes that compute only where no other wants to."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pslab.engines.processes import precedence
from pslab.engines.processes.precedence import SHARE, WINDOW_S, Starving, let_others_first, used_and_awaited

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


def starving(monkeypatch: pytest.MonkeyPatch, used: float, awaited: float, processes: int = 2) -> list[bool]:
    """What is found in four windows, in each of which all processes have used and awaited so much of a core."""
    now = [0.0]
    monkeypatch.setattr(precedence, "cores", lambda: CORES)
    monkeypatch.setattr(precedence, "used_and_awaited", lambda process: (used * now[0], awaited * now[0]))
    look, found = Starving(lambda: now[0]), list[bool]()
    for _ in range(8):
        now[0] += WINDOW_S / 2
        found.append(look(range(processes)))
    return found


def test_who_wants_a_core_and_gets_next_to_none_starves(monkeypatch: pytest.MonkeyPatch):
    # not in the first window, of which the beginning was not seen, nor between
    assert starving(monkeypatch, 0.01, 0.9) == [False, False, False, True, False, True, False, True]


@pytest.mark.parametrize(
    ("used", "awaited"), [(0.01, 0.1), (CORES * SHARE / 2, 0.5), (0.0, 0.0)], ids=["waits for messages", "busy", "idle"]
)
def test_who_does_not_want_one_or_has_its_share_does_not(monkeypatch: pytest.MonkeyPatch, used: float, awaited: float):
    assert not any(starving(monkeypatch, used, awaited))


def test_many_that_share_the_cores_among_themselves_do_not_starve(monkeypatch: pytest.MonkeyPatch):
    assert not any(starving(monkeypatch, CORES / 16, 1 - CORES / 16, processes=16))


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="needs Linux's /proc")
def test_the_system_says_how_long_a_process_had_a_core():
    before = used_and_awaited(os.getpid())[0]
    while used_and_awaited(os.getpid())[0] == before:
        pass
    assert used_and_awaited(2**30) == (0.0, 0.0)
