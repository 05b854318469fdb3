"""What the parent sees of its children: their life, and the cores that they get."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pslab.engines.processes import precedence, watch
from pslab.engines.processes.precedence import SHARE, WINDOW_S, Precedence, let_others_first
from pslab.engines.processes.watch import COMPUTING, LOOKS, MUTE_S, SERVING, Watch, used_by

LEASE_S = 8.0
STEP_S = LEASE_S / LOOKS


class Watched:
    """A watch whose clock is turned by hand, and processes that are what a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.used = 0.0, {1: ("S", 0), 2: ("S", 0)}
        monkeypatch.setattr(watch, "used_by", lambda process: self.used[process])
        self.watch = Watch(LEASE_S, lambda: self.now)

    def turn(self, owed: dict[int, str], steps: int, *, heard: tuple[int, ...] = (), computes: bool = False):
        found: dict[int, str] = {}
        for _ in range(steps):
            self.now += STEP_S
            if computes:
                self.used = {number: (state, ticks + 1) for number, (state, ticks) in self.used.items()}
            self.watch.heard(heard)
            found |= self.watch.silent(owed, lambda number: number)
        return found


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def test_who_gives_no_sign_for_a_lease_is_dead_and_no_sooner(watched: Watched):
    assert watched.turn({1: COMPUTING}, LOOKS) == {}
    words = watched.turn({1: COMPUTING}, 1)
    assert words == {1: "has been silent for longer than its lease of 8 s while computing"}


@pytest.mark.parametrize("sign", ["report", "time", "core", "disk"])
def test_each_sign_of_life_ends_the_silence(watched: Watched, sign: str):
    watched.turn({1: COMPUTING}, LOOKS)
    before = watched.used[1]
    watched.used[1] = {"core": ("R", 0), "disk": ("D", 0)}.get(sign, before)
    assert watched.turn({1: COMPUTING}, 1, heard=(1,) * (sign == "report"), computes=sign == "time") == {}
    watched.used[1] = before
    assert watched.turn({1: COMPUTING}, LOOKS - 2) == {}


def test_who_owes_nothing_is_never_dead(watched: Watched):
    assert watched.turn({1: "", 2: COMPUTING}, 9 * LOOKS).keys() == {2}


def test_a_server_that_computes_without_a_report_is_dead_after_a_while_and_a_worker_is_not(watched: Watched):
    steps = int(MUTE_S / STEP_S)
    assert watched.turn({1: SERVING, 2: COMPUTING}, steps, computes=True) == {}
    words = watched.turn({1: SERVING, 2: COMPUTING}, 2, computes=True)
    assert words.keys() == {1}
    assert "has not reported for 10 s while serving" in words[1]


def test_time_in_which_the_parent_was_stopped_itself_does_not_count(watched: Watched):
    watched.turn({1: COMPUTING}, 2)
    watched.now += 1000 * LEASE_S
    assert watched.turn({1: COMPUTING}, LOOKS - 3) == {}


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs Linux's /proc")
def test_the_system_says_who_computes_and_who_is_stopped():
    assert used_by(os.getpid())[0] == "R"
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        assert used_by(process.pid)[0] == "T"
    finally:
        process.kill()
        process.communicate()
    assert used_by(process.pid) == ("", 0)


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
