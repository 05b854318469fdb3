"""The verdict on a finished run, local or virtual: what must hold of every history, read from its tables alone.

What is allowed is derived from the policy object (its `window`, its `barrier`, its decisions), never from a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pslab.config.cluster import resolve_cluster
from pslab.config.run import Run
from pslab.config.spec import build, resolve
from pslab.errors import ConfigError
from pslab.lab.judge.capabilities import Rules
from pslab.lab.judge.phases import PHASES_JUDGED, SLACK_S, Phases
from pslab.lab.judge.pushes import PUSHES_JUDGED, History, Unreadable
from pslab.lab.judge.replay import replay

FEW = 5  # violations that a manifest tells


@dataclass(frozen=True)
class Verdict:
    """What was judged of a history, and what was found. It depends on nothing but the history."""

    verdict: str  #: valid, invalid, unknown
    checked: tuple[str, ...] = ()  #: what was judged
    violations: tuple[str, ...] = ()  #: why it is invalid: who, when, and what was expected
    unjudged: tuple[str, ...] = ()  #: what was not judged and why; unknown because of it, or valid but for that

    def facts(self) -> dict[str, Any]:
        """What a manifest tells."""
        told: dict[str, Any] = {"verdict": self.verdict}
        if self.verdict == "invalid":
            told["violations"] = list(self.violations[:FEW])
        elif self.verdict == "unknown":
            told["unjudged"] = list(self.unjudged[:FEW])
        return told


def judge(run: Run, tables: Mapping[str, pd.DataFrame], facts: Mapping[str, Any] | None = None) -> Verdict:
    """Whether a history keeps every rule that binds the server, the workers and the run's policy.

    Args:
        tables: "pushes" and "phases" as a record has them; "accuracy" for a stop at a target.
        facts: the manifest, or as much of it as there is: outcome, seconds, pushes, accepted, deaths.
    """
    return _Judgement(run, tables, facts or {}).verdict()


class _Judgement:
    """One verdict as it is reached: from what needs least to what needs most."""

    def __init__(self, run: Run, tables: Mapping[str, pd.DataFrame], facts: Mapping[str, Any]) -> None:
        self.run, self.tables, self.facts = run, tables, facts
        self.moved_s = _instants(run, facts)
        self.checked: list[str] = []
        self.violations: list[str] = []
        self.missing: list[str] = []  # without it no history is valid
        self.left_out: list[str] = []

    def verdict(self) -> Verdict:
        self._judge()
        word = "invalid" if self.violations else "unknown" if self.missing else "valid"
        return Verdict(word, tuple(self.checked), tuple(self.violations), (*self.missing, *self.left_out))

    def _judge(self) -> None:
        sync, unknown = self._policy()
        rules = Rules(sync, self._layered())
        try:
            history = History.of(self.tables.get("pushes"), self.run.workers, self.moved_s, rules)
        except Unreadable as problem:
            self.missing.append(str(problem))
            in_hand = self.run.workers * sum(map(rules.gradients, range(rules.hands)))
            accepted = int(self.facts.get("accepted", 0))
            if rules.known and accepted > in_hand and not self.facts.get("pushes"):
                self._hold("the stop rule", [f"{accepted} pushes are counted as accepted and none was applied"])
            return
        if self.facts.get("outcome") == "interrupted":
            self.missing.append("the run was interrupted: how it would have ended is not known")
        for name, check in PUSHES_JUDGED.items():
            if not self._hold(name, check(history)):
                return  # what follows reads the tables by worker, iteration and version
        self._stop(history)
        self.missing += unknown
        try:
            phases = Phases.of(self.tables.get("phases"), history, deaths_known="deaths" in self.facts)
        except Unreadable as problem:
            self.missing.append(str(problem))
            phases = None
        if phases is not None:
            self._phases(history, phases)
        self._dropped(history, phases)
        if sync is not None and not self.violations:
            self._replay(history, phases, sync)

    def _hold(self, name: str, found: list[str]) -> bool:
        self.checked.append(name)
        self.violations += found
        return not found

    def _phases(self, history: History, phases: Phases) -> None:
        for name, check in PHASES_JUDGED.items():
            if not self._hold(name, check(phases, history)):
                return
        if (window := history.rules.traits.window) is not None:
            self._hold("the bound of the policy's window", phases.beyond(window))
        if history.rules.barrier and not history.rules.layered:  # else a range changes while others are computed on
            self._hold("no step while somebody computes", phases.steps_inside(history))

    def _stop(self, history: History) -> None:
        """The run stopped where its rule says."""
        run, facts, outcome = self.run, self.facts, self.facts.get("outcome")
        found = self._counts(history) if history.rules.known else []
        if outcome == "seconds" and not facts["seconds"] >= (run.seconds or np.inf) - SLACK_S:
            found.append(f"the run stopped for its time of {run.seconds} s after {facts['seconds']:.6g} s")
        if outcome == "target" and not self._reached():
            found.append(f"the run stopped for an accuracy of {run.target_accuracy}, which it never reached")
        if outcome == "stalled":
            found.append("the run stalled: every worker waited, and nothing was under way")
        if outcome is not None:
            self._hold("the stop rule", found)
        else:
            self.violations += found

    def _counts(self, history: History) -> list[str]:
        """Gradients that were accepted and applied; the last push may be made of more than were left."""
        run, facts, found = self.run, self.facts, list[str]()
        complete, most, hands = history.complete(), history.most(), history.rules.hands
        accepted = int(facts.get("accepted", complete))
        if run.pushes is not None and complete >= run.pushes + most:
            found.append(f"{complete} pushes were applied; the budget is {run.pushes}")
        if (told := facts.get("pushes")) is not None and told != complete:
            found.append(f"the server applied {told} pushes, the table has {complete}")
        if not complete <= accepted <= complete + run.workers * hands * most:
            found.append(f"{accepted} pushes are counted as accepted and {complete} were applied; at most "
                         f"{'one' if hands == 1 else hands} of each of the {run.workers} workers may be in hand"
                         + f", each of {most} gradients at most" * (most > 1))  # fmt: skip
        if facts.get("outcome") == "budget" and "accepted" in facts:
            budget = run.pushes or 0
            if not budget <= accepted < budget + most:
                found.append(f"the run stopped at its budget of {run.pushes} pushes after {accepted}")
        return found

    def _dropped(self, history: History, phases: Phases | None) -> None:
        """Pushes that are missing among those of a worker were dropped, and the manifest says how many were."""
        told, ranges = self.facts.get("dropped"), int(history.range.max()) + 1
        gaps, found = int(history.gaps.sum()), list[str]()
        if not history.rules.drops:
            if told:
                found.append(f"{told} pushes were dropped; the policy cannot drop any")
        elif told is None:
            if gaps:
                self.missing.append("the record does not tell how many pushes were dropped")
            return
        elif gaps > told:
            found.append(f"{gaps} pushes are missing among those of their workers; {told} were dropped")
        elif phases is not None and not phases.movers:
            gone = ranges * len(phases.dropped(history)[0])
            if not gone <= told <= gone + ranges * self.run.workers:
                found.append(f"{told} pushes were dropped; {gone} were answered and never applied, and one more of "
                             f"each of the {self.run.workers} workers may have been")  # fmt: skip
        self._hold("dropped pushes", found)

    def _reached(self) -> bool:
        accuracy = self.tables.get("accuracy")
        wanted = np.inf if self.run.target_accuracy is None else self.run.target_accuracy
        return accuracy is None or bool((accuracy["accuracy"] >= wanted).any())

    def _layered(self) -> bool:
        """Whether requests go by layer; also where that is not known, since less is demanded then."""
        ranges = self.run.ranges
        if isinstance(ranges, str):
            try:
                ranges = build("ranges", ranges)
            except ConfigError:
                return True
        return bool(getattr(ranges, "layered", True))

    def _policy(self) -> tuple[Any, list[str]]:
        """The policy object; None, and why, if the record does not tell it."""
        sync = self.run.sync
        try:
            return resolve("sync", sync), []
        except ConfigError as error:
            if not isinstance(sync, str):
                return None, [f"{sync!r} is no synchronization policy: it {error.problem}"]
            named = sync if len(sync) < 40 else "its source text"
            problem = f"the policy cannot be made again from its record ({named})"
            return None, [f"{problem}: its bound and its decisions were not judged"]

    def _replay(self, history: History, phases: Phases | None, sync: Any) -> None:
        begun = [worker for worker in range(self.run.workers) if self.moved_s.get(worker, [0.0])[0] == 0.0]
        until_s = min((s for instants in self.moved_s.values() for s in instants if s > 0.0), default=np.inf)
        again = replay(history, phases, sync, begun, until_s)
        self.left_out += again.unsaid
        if again.events:
            part = "" if again.events == history.size else f", the first {again.events} of {history.size} pushes"
            self._hold(f"the policy's decisions, replayed{part}", again.violations)


def _instants(run: Run, facts: Mapping[str, Any]) -> dict[int, list[float]]:
    """Of each worker that came or went the instants at which it did, in order; 0 is the first of one that was there."""
    cluster, end_s = resolve_cluster(run.cluster), float(facts.get("seconds", np.inf))
    found: dict[int, list[float]] = {}
    for worker in range(run.workers):
        moved = sorted(at[worker] for at in (cluster.leave, cluster.join) if worker in at and at[worker] <= end_s)
        if moved or not cluster.present(worker):
            found[worker] = [0.0, *moved] if cluster.present(worker) else moved or [np.inf]
    for death in facts.get("deaths") or ():
        found.setdefault(int(death["worker"]), [0.0]).append(float(death["seconds"]))
    return found
