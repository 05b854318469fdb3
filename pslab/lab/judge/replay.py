"""The arrivals once more, through a fresh server with the same policy, whose decisions must be those recorded.

A policy is a function of what arrived and when, and both are recorded: the replay is exact, of every kind of policy.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from pslab.engines.experiment.wire import Gradient
from pslab.lab.judge.reading import SLACK_S, Phases, Reading, Unjudged
from pslab.protocol.messages import NO_WORKER, Pull, Push
from pslab.protocol.noting import NotingPolicy
from pslab.protocol.server import Discard, Effect, Refuse, Reply, Server, Step


class Other(Exception):
    """The policy's decision is not the recorded one; the message describes both."""


def replay(r: Reading, phases: Phases | None = None) -> list[str]:
    """How the replay differs from the record, in words. `phases`, if they have been judged, say whom waits were for.

    A policy that decides differently when it is asked again differs, too: it must be a function of its events.
    """
    sync, losses = NotingPolicy(r.sync), _losses(r)
    try:
        again = _Replay(r, Server(sorted(r.arrivals.present), r.ranges, sync), losses)
        again.run()
        again.compare_counts()
        if phases is not None:
            again.compare_waits(phases)
    except Exception as error:  # whatever a policy raises, which it did not when the run was recorded
        if "loss" in sync.read and np.count_nonzero(r.arrivals.kind == "push") > len(losses):
            words = "the policy reads losses, and the record has none of pushes that were not applied"
            raise Unjudged(words) from error
        return [str(error) if isinstance(error, Other) else f"the policy raised {type(error).__name__}: {error}"]
    return []


def _losses(r: Reading) -> dict[tuple[int, int, int], float]:
    """The loss of each push that was applied, by worker, range and iteration."""
    names, losses = (r.pushes.worker, r.pushes.range, r.pushes.iteration), r.tables["pushes"].get("loss")
    return {} if losses is None else dict(zip(zip(*map(np.ndarray.tolist, names), strict=True), losses, strict=True))


@dataclass
class _Replay:
    """A server, and how far the table of pushes has been compared with its steps."""

    reading: Reading
    server: Server
    losses: Mapping[tuple[int, int, int], float]
    applied: int = 0  #: gradients of which every range has been applied
    dropped: int = 0
    refused: int = 0
    reason: str = ""  #: of the last refusal
    row: int = 0  #: rows of the table of pushes that are compared
    rows: dict[int, int] = field(default_factory=dict)  #: range -> its rows that are compared
    got: dict[tuple[int, int, int], int] = field(default_factory=dict)  #: (worker, range, its turn) -> version
    #: (worker, range, iteration) -> version that its worker named
    held: dict[tuple[int, int, int], int] = field(default_factory=dict)
    released: dict[tuple[int, int, int], int] = field(default_factory=dict)  #: the same -> worker that it waited for
    assigned: dict[tuple[int, int], int] = field(default_factory=dict)  #: (worker, iteration) -> its gradients
    parts: Counter[tuple[int, int]] = field(default_factory=Counter)  #: of a push, the ranges that are applied

    def run(self) -> None:
        """Hand in everything that arrived.

        Raises:
            Other: what follows from it was not recorded.
        """
        r, a, server, budget = self.reading, self.reading.arrivals, self.server, self.reading.run.pushes
        refused = r.facts.get("refused", 0) - bool(r.facts.get("diverged"))
        self.got = {(worker, index, 0): 0 for worker in a.present for index in range(r.ranges)}
        until = np.minimum.accumulate(np.where(a.kind == "join", np.inf, a.seconds)[::-1])[::-1]
        until = np.append(until[1:], np.inf)  # before the next one is dealt with
        rows = zip(a.kind.tolist(), a.worker.tolist(), a.range.tolist(), a.iteration.tolist(), a.version.tolist(),
                   a.seconds.tolist(), until.tolist(), strict=True)  # fmt: skip
        over = False
        for at, (kind, worker, index, iteration, version, now, until_s) in enumerate(rows):
            if kind == "push":
                if over:
                    raise Other(f"{a.name(at)} was accepted after the budget of {budget} pushes was used up")
                loss = self.losses.get((worker, index, iteration), np.nan)
                effects = server.handle(Push(worker, index, iteration, version, Gradient(0, 0, loss)), now)
                if not (effects and isinstance(effects[0], Refuse)):
                    self._started(worker, index, iteration, version)
                    self._named(worker, index, iteration, version)
                self._perform(effects, now, until_s)
                over = server.spent(budget)
            elif kind == "pull":
                if version or worker not in a.replaced:  # a new process has none
                    self._named(worker, index, iteration - 1, version)
                self._perform(server.handle(Pull(worker, index, iteration, version), now), now, until_s)
            elif (kind == "leave") != (worker in server.workers):
                raise Other(f"worker {worker} {kind}s at {now:.6g} s, when it is {'not ' * (kind == 'leave')}present")
            elif kind == "leave":
                self._perform(server.leave(worker, now), now, until_s)
            elif (joined := server.join(worker)) != iteration:
                raise Other(f"worker {worker} joins with iteration {iteration}; it is to join with {joined}")
            if self.refused > refused:
                raise Other(f"{a.name(at)} is refused: {self.reason}")
        if r.facts["outcome"] == "budget" and not server.spent(budget):
            raise Other(f"the run stopped at its budget of {budget} pushes after {server.gradients}")
        if self.row < r.pushes.size:
            raise Other(f"{r.pushes.name(self.row)} was applied; the policy does not apply it")

    def compare_counts(self) -> None:
        """The manifest counts what happened; raises Other."""
        if self.steps != (stated := self.reading.facts.get("steps", [])):
            raise Other(f"the manifest says of {len(stated)} iterations how many gradients the policy assigned them; "
                        f"it assigns them to {len(self.steps)}, or others")  # fmt: skip
        found = {"accepted": self.server.gradients, "applied": self.applied, "dropped": self.dropped}
        for name, count in found.items():
            if (counted := self.reading.facts["pushes" if name == "applied" else name]) != count:
                raise Other(f"the manifest counts {counted} pushes as {name}; what arrived makes {count}")

    @property
    def steps(self) -> list[list[int]]:
        """The gradients of each iteration that the policy has assigned any, as the manifest has them."""
        return [[*name, count] for name, count in sorted(self.assigned.items())]

    def compare_waits(self, phases: Phases) -> None:
        """A worker waits for the one whose message released it, and for none in other phases; raises Other."""
        others = np.flatnonzero((phases.phase != "wait") & (phases.waits_for != NO_WORKER))
        if others.size:
            raise Other(f"{phases.name(others[0])} is said to wait for worker {phases.waits_for[others[0]]}")
        for row in phases.rows("wait").tolist():
            name = int(phases.worker[row]), int(phases.range[row]), int(phases.iteration[row]) + 1
            if (whom := self.released.get(name, phases.waits_for[row])) != phases.waits_for[row]:
                raise Other(f"{phases.name(row)} is said to be for worker {phases.waits_for[row]}; worker {whom} ended "
                            f"it ({NO_WORKER}: none)")  # fmt: skip

    def _started(self, worker: int, index: int, iteration: int, version: int) -> None:
        got = self.got.pop((worker, index, self.server.traits.rotation.turn(index, iteration)), None)
        if got != version:
            does = "does not start it" if got is None else f"starts it on version {got}"
            raise Other(f"worker {worker} started iteration {iteration} on version {version}; the policy {does}")

    def _named(self, worker: int, index: int, iteration: int, version: int) -> None:
        """A worker's push of an iteration and its request for the next one name the version that it holds.

        A worker that is back, or a new process in its place, holds none.
        """
        if worker in self.reading.arrivals.movers:
            return
        if (held := self.held.setdefault((worker, index, iteration), version)) != version:
            raise Other(f"worker {worker} holds version {held} and version {version} in iteration {iteration}, as its "
                        "push and its request for the next one say")  # fmt: skip

    def _perform(self, effects: Iterable[Effect], now: float, until_s: float) -> None:
        pending = deque(effects)
        while pending:
            effect = pending.popleft()
            if isinstance(effect, Step):
                self._step(effect, now, until_s)
            elif isinstance(effect, Reply):
                worker, index, iteration, *_ = effect.pull
                self.got[worker, index, self.server.traits.rotation.turn(index, iteration)] = effect.version
                self.released[worker, index, iteration] = effect.released_by
                if effect.steps:
                    self.assigned[worker, iteration] = effect.steps
                pending.extend(self.server.answered(effect.pull.range))
            elif isinstance(effect, Discard):
                self.dropped += 1
            elif isinstance(effect, Refuse):
                self.refused, self.reason = self.refused + 1, effect.reason

    def _step(self, step: Step, now: float, until_s: float) -> None:
        """The next rows of the table of pushes are this step's, applied before what arrived next. Several servers apply
        theirs later, and in order on each range."""
        until_s = np.inf if self.reading.several_servers else until_s
        h, rows = self.reading.pushes, self._next(step)
        made = _in_words((push.worker, push.iteration) for push in step.pushes)
        if len(rows) < len(step.pushes):
            raise Other(f"the policy makes version {step.version} of {made}, which the table of pushes lacks")
        here = [(int(h.range[r]), int(h.applied[r]), int(h.worker[r]), int(h.iteration[r])) for r in rows]
        same = np.flatnonzero((h.applied == step.version) & (h.range == step.range))
        if len(same) != len(rows) or here != [(step.range, step.version, p.worker, p.iteration) for p in step.pushes]:
            names = ((int(h.worker[r]), int(h.iteration[r])) for r in same)
            found = f"consists of {_in_words(names)}, which is {h.name(same[0])}" if len(same) else "is missing"
            raise Other(f"version {step.version} {found}; the policy makes it of {made}")
        for row, push in zip(rows, step.pushes, strict=True):
            if h.pulled[row] != push.version:
                raise Other(f"{h.name(row)} was computed on version {h.pulled[row]}; what arrived, on {push.version}")
            if not now - SLACK_S <= h.seconds[row] <= until_s + SLACK_S:
                raise Other(f"{h.name(row)} was applied at {h.seconds[row]:.6g} s; the server dealt with what led to "
                            f"it from {now:.6g} s until {until_s:.6g} s")  # fmt: skip
            name = push.worker, push.iteration
            self.parts[name] += 1
            if self.parts[name] == len(self.reading.exchanged(push.iteration)):
                self.applied += push.steps
        self.row += len(rows)
        self.rows[step.range] = self.rows.get(step.range, 0) + len(rows)

    def _next(self, step: Step) -> list[int]:
        """The rows of the table that are to be this step's, as far as there are any."""
        if not self.reading.several_servers:
            return list(range(self.row, min(self.row + len(step.pushes), self.reading.pushes.size)))
        at = self.rows.get(step.range, 0)
        return self.rows_of.get(step.range, [])[at : at + len(step.pushes)]

    @cached_property
    def rows_of(self) -> dict[int, list[int]]:
        """The rows of each range, in their order."""
        return {index: rows.tolist() for index, rows in self.reading.pushes.by_range}


def _in_words(names: Iterator[tuple[int, int]]) -> str:
    """The first few pushes in words, and the number of the others."""
    words = [f"worker {worker}'s iteration {iteration}" for worker, iteration in sorted(names)]
    return ", ".join(words[:4]) + (f" and {len(words) - 4} more" if len(words) > 4 else "")
