"""What the parent sees of its children: their life, what they owe and wait for, and the cores that they get."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pslab.engines.local.liveness import Liveness
from pslab.engines.processes import precedence, watch
from pslab.engines.processes.pool import SERVER
from pslab.engines.processes.precedence import SHARE, WINDOW_S, Precedence, let_others_first
from pslab.engines.processes.watch import COMPUTING, LOOKS, MUTE_S, SERVING, STORING, WAITING, Watch, used_by
from pslab.errors import RunError, Stalled, WorkerDied, WorkerFailed

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
    words = watched.turn({1: COMPUTING, 2: ""}, 1)
    assert words == {1: "has been silent for longer than its lease of 8 s while computing"}


@pytest.mark.parametrize("sign", ["report", "time", "core", "disk"])
def test_each_sign_of_life_ends_the_silence(watched: Watched, sign: str):
    watched.turn({1: COMPUTING}, LOOKS)
    before = watched.used[1]
    watched.used[1] = {"core": ("R", 0), "disk": ("D", 0)}.get(sign, before)
    assert watched.turn({1: COMPUTING}, 1, heard=(1,) * (sign == "report"), computes=sign == "time") == {}
    watched.used[1] = before
    assert watched.turn({1: COMPUTING}, LOOKS - 2) == {}


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


@linux
def test_a_process_lets_others_first_and_comes_back_unless_somebody_else_has_chosen():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        for first, scheduled in ((True, os.SCHED_IDLE), (False, os.SCHED_OTHER)):
            assert let_others_first([process.pid], first)
            assert os.sched_getscheduler(process.pid) == scheduled
        os.sched_setscheduler(process.pid, os.SCHED_BATCH, os.sched_param(0))
        assert not let_others_first([process.pid], True)
        assert os.sched_getscheduler(process.pid) == os.SCHED_BATCH


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


# --- what they owe, and wait for --------------------------------------------------------------------------------------

WAITS = {"doing": "waiting", "for": [1], "iteration": 3}
COMPUTES = {"doing": "computing", "for": [], "iteration": 2}
MOVES = {"doing": "transferring", "for": [], "iteration": 2}
DEAD = {"doing": "dead", "for": [], "iteration": None}
GONE = WorkerDied("worker 1", None, "is gone (exit code 9)")
LONG_S = 60.0


class Seen:
    """The workers of a run as a server reports them, at instants that a test chooses."""

    def __init__(self, *doings: dict[str, Any], on_death: str = "continue", error: RunError | None = GONE,
                 stores: tuple[int, ...] = (), **more: Any) -> None:  # fmt: skip
        self.now_s, pool = 0.0, SimpleNamespace(watch=Watch(LONG_S), end_of=lambda number: error)
        self.liveness = Liveness(pool, len(doings), on_death, stores, lambda: self.now_s)  # type: ignore[arg-type]
        self.report(5, *doings, **more)

    def report(self, pushes: int, *doings: dict[str, Any], after_s: float = 0.0, **more: Any) -> str:
        """The server reports after so many seconds; what is said of waits then."""
        self.now_s += after_s
        owing = [worker for worker, does in enumerate(doings) if does["doing"] == "computing"]
        body = {"pushes": pushes, "workers": list(doings), "heard": [], "owing": owing, "travelling": False,
                **more}  # fmt: skip
        return str(self.liveness.progress(body).get("waits", ""))

    def owed(self, served: bool = False, worked: tuple[int, ...] = ()) -> dict[int, str]:
        return self.liveness.owed(served, set(worked))


@pytest.mark.parametrize(("doings", "more", "owed"), [
    ((WAITS, COMPUTES), {}, {0: "", 1: COMPUTING, SERVER: SERVING}),
    ((WAITS, MOVES), {"stores": (2,)}, {0: "", 1: "", 2: STORING, SERVER: SERVING}),
    ((WAITS, DEAD, WAITS), {"travelling": True}, {0: "", 1: "", 2: "", SERVER: SERVING}),
    ((WAITS, WAITS), {}, {0: WAITING, 1: WAITING, SERVER: SERVING}),
], ids=["computes", "a server stores whatever it was ordered", "under way", "none can go on"])  # fmt: skip
def test_a_process_owes_what_it_does(doings: tuple[dict[str, Any], ...], more: dict[str, Any], owed: dict[int, str]):
    assert Seen(*doings, **more).owed() == owed


@pytest.mark.parametrize(("error", "how"), [
    (GONE, "is gone (exit code 9)"), (WorkerFailed("worker 1", 4, "Traceback:\nValueError: no"), "ValueError: no")
])  # fmt: skip
def test_a_loss_ends_the_run_or_says_how_it_came(error: RunError, how: str):
    loss = {"worker": 1, "iteration": 4}
    with pytest.raises(type(error), match="in iteration 4"):
        Seen(COMPUTES, COMPUTES, on_death="stop", error=error).liveness.lose(loss)
    going = Seen(COMPUTES, COMPUTES, error=error).liveness
    going.lose(loss)
    assert (going.deaths, going.present) == ([{**loss, "how": how}], {0})
    with pytest.raises(type(error)):
        going.lose({"worker": 0, "iteration": 4})  # the last one


def test_a_loss_after_the_end_is_none():
    """Also of a worker that was given up in the run: the server never heard that no process takes its place."""
    ended = Seen(COMPUTES, COMPUTES, on_death="restart").liveness
    ended.lose({"worker": 1, "iteration": 3, "seconds": 0.5})
    for worker in range(2):
        ended.lose({"worker": worker, "over": True})
    assert (ended.lost, ended.deaths, ended.late) == ({0, 1}, [], {0, 1})


def test_where_no_push_comes_for_a_lease_it_is_said_once_in_each_which_worker_waits_for_which():
    seen = Seen(WAITS, WAITS)
    seen.liveness.waits(0)
    with pytest.raises(Stalled, match=r"worker 0 has been waiting for worker 1 on clock 3 for \d.*; worker 1 has"):
        seen.liveness.waits(1)
    seen = Seen(WAITS, COMPUTES)
    assert not seen.report(5, WAITS, COMPUTES)
    waits = seen.report(5, WAITS, COMPUTES, after_s=61.0)
    assert waits.startswith("no push came for 60 s: worker 0 has been waiting for worker 1 on clock 3 for ")
    assert not seen.report(5, WAITS, COMPUTES)
    assert not seen.report(6, WAITS, COMPUTES, after_s=61.0)


def test_a_gradient_that_takes_far_longer_than_others_is_named_once_in_a_lease():
    seen = Seen(COMPUTES, COMPUTES)
    found = [seen.report(6 + step, COMPUTES, {**COMPUTES, "iteration": 3 + step}, after_s=2.0) for step in range(70)]
    first, second = filter(None, found)
    assert first.startswith("worker 0 has been computing on clock 2 for 6")
    assert second.startswith("worker 0 has been computing on clock 2 for 12")
    assert "worker 1" not in first
    assert first.endswith("; the others' last took up to 2.0 s")
