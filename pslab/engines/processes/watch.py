"""When a process that owes a report counts as dead: the one rule for every wait of the parent.

A process owes a report while it prepares, rehearses, computes, evaluates or serves. Signs of its life are

- a report, or a message of which the server has told the parent;
- CPU time used since the last look, or that it wants a core or waits for a disk: a process that computes cannot report.

A process that gives no sign for a lease is dead: stopped, deadlocked, or waiting for a message that never comes. A
process that waits on purpose, for a modelled computation to end, or does little at a time, reports "alive" a few times
in each lease. The server reports all the time, and all others wait for it: that it computes is a sign of its life for
MUTE_S and not for ever, since a policy may loop.

A long gradient or evaluation is therefore never taken for dead, nor is one that loops for ever: an interrupt ends it.
Only Linux says what a process does (/proc); elsewhere a lease must be longer than the longest gradient.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

LEASE_S = 60.0  # where no run says otherwise
MUTE_S = 10.0  # for which a server may compute without a report, if a lease is not longer
LOOKS = 8  # in a lease
LOOK_S = 0.1  # at least between two looks

PREPARING, REHEARSING, COMPUTING, WAITING, EVALUATING, SERVING, STORING, ENDING = (
    "preparing", "rehearsing", "computing", "waiting", "evaluating", "serving", "storing", "ending")  # fmt: skip

STOPPED = "was stopped by a signal"  # how the words for such a silence begin

Phases = Mapping[int, str]  # of processes by number, what they do while they owe a report; "" if they owe none


@dataclass
class _Silence:
    phase: str
    used: tuple[str, int]  # the process's state, and its CPU time
    quiet_s: float = 0.0  # without any sign of life
    mute_s: float = 0.0  # without a report


class Watch:
    """The processes that have been silent, and for how long.

    Only time counts in which this process looked: while it was stopped itself, or the machine slept, no silence grew.
    """

    def __init__(self, lease_s: float = LEASE_S, clock: Callable[[], float] = time.monotonic) -> None:
        self.lease_s, self._clock = lease_s, clock
        self._looked_s = clock()
        self._silences: dict[int, _Silence] = {}

    def heard(self, numbers: Iterable[int]) -> None:
        """Take the reports of these processes as signs of life."""
        for number in numbers:
            self._silences.pop(number, None)

    def silent(self, owed: Phases, process: Callable[[int], int]) -> dict[int, str]:
        """The processes that count as dead, and why.

        `process` gives a process's number in the system. A silence that was named begins anew.
        """
        now = self._clock()
        passed_s = min(now - self._looked_s, self.lease_s / LOOKS + LOOK_S)
        if passed_s < min(LOOK_S, self.lease_s / LOOKS):
            return {}
        self._looked_s, found = now, {}
        for number in [number for number in self._silences if not owed.get(number)]:
            del self._silences[number]
        for number, phase in owed.items():
            if phase and (words := self._of(number, phase, passed_s, process(number))):
                found[number] = words
                del self._silences[number]
        return found

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
    """The state of a process and the CPU time that it has used, in ticks; ("", 0) where the system does not say.

    "R" runs or wants to, "D" waits for a disk, "S" sleeps, "T" is stopped; see proc_pid_stat(5).
    """
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return "", 0
    return fields[0].decode(), int(fields[11]) + int(fields[12])
