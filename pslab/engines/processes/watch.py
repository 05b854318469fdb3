"""The rule by which a process that must report counts as dead; every wait of the parent uses it.

A process must report while it prepares, computes, evaluates or serves. Signs of its life are

- a report, or a message to the server of which the server has told the parent;
- CPU time used since the last check, or waiting for a core or a disk: a process that computes cannot report.

A process without a sign of life for a lease counts as dead: it may be stopped, deadlocked, or waiting for a message
that never comes. A process that waits on purpose, such as for the end of a modelled computation, or uses little CPU
time, reports "alive" a few times in each lease. The server reports often, and all workers wait for it. So CPU time is a
sign of its life for MUTE_S only (or a lease, if that is longer), since a policy may be in an endless loop.

A process with a long gradient or evaluation therefore never counts as dead, nor does an endless loop: an interrupt ends
it. Only Linux shows the state of a process (/proc); on other systems, set a lease longer than the longest gradient.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

LEASE_S = 60.0  # the lease outside runs
MUTE_S = 10.0  # how long a server may compute without a report, if the lease is not longer
LOOKS = 8  # checks per lease
LOOK_S = 0.1  # the shortest time between two checks

PREPARING, COMPUTING, WAITING, EVALUATING, SERVING, STORING, ENDING = (
    "preparing", "computing", "waiting", "evaluating", "serving", "storing", "ending")  # fmt: skip

STOPPED = "was stopped by a signal"  # the beginning of the message about a stopped process

Phases = Mapping[int, str]  # process number: the phase in which a report is due; "" if no report is due


@dataclass
class _Silence:
    phase: str
    used: tuple[str, int]  # the process's state, and its CPU time
    quiet_s: float = 0.0  # without any sign of life
    mute_s: float = 0.0  # without a report


class Watch:
    """Measures for how long each process has been silent.

    The time during which this process itself was stopped, or the machine slept, does not count.
    """

    def __init__(self, lease_s: float = LEASE_S, clock: Callable[[], float] = time.monotonic) -> None:
        self.lease_s, self._clock = lease_s, clock
        self._looked_s = clock()
        self._silences: dict[int, _Silence] = {}

    def heard(self, numbers: Iterable[int]) -> None:
        """Note a sign of life from each of these processes."""
        for number in numbers:
            self._silences.pop(number, None)

    def silent(self, owed: Phases, process: Callable[[int], int]) -> dict[int, str]:
        """Return the processes that count as dead, each with the reason in words; their silences begin anew.

        `process` maps a process number to a PID.
        """
        now = self._clock()
        passed_s = min(now - self._looked_s, self.lease_s / LOOKS + LOOK_S)
        if passed_s < min(LOOK_S, self.lease_s / LOOKS):
            return {}
        self._looked_s, silent = now, {}
        for number in [number for number in self._silences if not owed.get(number)]:
            del self._silences[number]
        for number, phase in owed.items():
            if phase and (words := self._of(number, phase, passed_s, process(number))):
                silent[number] = words
                del self._silences[number]
        return silent

    def _of(self, number: int, phase: str, passed_s: float, process: int) -> str:
        before, used = self._silences.get(number), used_by(process)
        if before is None or before.phase != phase:
            self._silences[number] = _Silence(phase, used)
            return ""
        before.mute_s += passed_s
        before.quiet_s = before.quiet_s + passed_s if used == before.used and used[0] not in ("R", "D") else 0.0
        before.used = used
        if before.quiet_s >= self.lease_s:
            stopped = f"{STOPPED} and " if used[0] == "T" else ""
            return f"{stopped}has been silent for longer than its lease of {self.lease_s:g} s while {phase}"
        if phase == SERVING and before.mute_s >= (limit_s := max(self.lease_s, MUTE_S)):
            return f"computes and has not reported for {limit_s:g} s while {phase}: a policy's step may not end"
        return ""


def used_by(process: int) -> tuple[str, int]:
    """Return the state of a process and the CPU time that it has used, in ticks; ("", 0) if the system does not say.

    States: "R" runs or waits for a core, "D" waits for a disk, "S" sleeps, "T" is stopped; see proc_pid_stat(5).
    """
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return "", 0
    return fields[0].decode(), int(fields[11]) + int(fields[12])
