"""Who is dead: no report, no CPU time, no wish for a core for a lease."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from pslab.engines.processes import watch
from pslab.engines.processes.watch import COMPUTING, LOOKS, MUTE_S, SERVING, WAITING, Watch, used_by

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


def test_a_stopped_process_is_named_as_such(watched: Watched):
    watched.used[1] = ("T", 7)
    assert watched.turn({1: COMPUTING}, LOOKS + 1)[1].startswith("was stopped by a signal and has been silent")


@pytest.mark.parametrize("sign", ["report", "time", "core", "disk"])
def test_each_sign_of_life_ends_the_silence(watched: Watched, sign: str):
    watched.turn({1: COMPUTING}, LOOKS)
    before = watched.used[1]
    watched.used[1] = {"core": ("R", 0), "disk": ("D", 0)}.get(sign, before)
    assert watched.turn({1: COMPUTING}, 1, heard=(1,) * (sign == "report"), computes=sign == "time") == {}
    watched.used[1] = before
    assert watched.turn({1: COMPUTING}, LOOKS - 2) == {}


@pytest.mark.parametrize("state", ["R", "D"])
def test_who_gets_no_core_or_waits_for_a_disk_all_the_time_is_not_dead(watched: Watched, state: str):
    watched.used[1] = (state, 0)
    assert watched.turn({1: COMPUTING}, 9 * LOOKS) == {}


def test_who_owes_nothing_is_never_dead(watched: Watched):
    assert watched.turn({1: "", 2: COMPUTING}, 9 * LOOKS).keys() == {2}


def test_what_another_phase_took_does_not_count(watched: Watched):
    watched.turn({1: COMPUTING}, LOOKS)
    assert watched.turn({1: WAITING}, LOOKS) == {}


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
