"""The verdict on a completed run, local or virtual: whether its tables satisfy every rule.

What is allowed follows from the policy object (its traits and its decisions), never from its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pslab.config.cluster import resolve_cluster
from pslab.config.metric import metric_of
from pslab.config.run import Run
from pslab.config.spec import build, resolve
from pslab.errors import ConfigError
from pslab.lab.judge.capabilities import Rules
from pslab.lab.judge.phases import PHASES_JUDGED, SLACK_S, Phases
from pslab.lab.judge.pushes import PUSHES_JUDGED, History, Unreadable
from pslab.lab.judge.replay import replay
from pslab.protocol.traits import Traits, traits_of

SHOWN = 5  # violations in a manifest
FACTS = ("outcome", "seconds", "pushes", "accepted", "dropped", "deaths")


@dataclass(frozen=True)
class Verdict:
    """What was judged of a history, and what was found. It depends on the history alone."""

    verdict: str  #: valid, invalid, unknown
    checked: tuple[str, ...] = ()  #: what was judged
    violations: tuple[str, ...] = ()  #: why it is invalid: which worker, when, and what was expected
    unjudged: tuple[str, ...] = ()  #: what was not judged and why; unknown because of it, or otherwise valid

    def facts(self) -> dict[str, Any]:
        """The facts for the manifest."""
        facts: dict[str, Any] = {"verdict": self.verdict}
        if self.verdict == "invalid":
            facts["violations"] = list(self.violations[:SHOWN])
        elif self.verdict == "unknown":
            facts["unjudged"] = list(self.unjudged[:SHOWN])
        return facts


def judge(run: Run, tables: Mapping[str, pd.DataFrame], facts: Mapping[str, Any]) -> Verdict:
    """Whether a history satisfies every rule of the server, the workers and the run's policy.

    Args:
        tables: "pushes" and "phases" of a record; "accuracy" for a stop at a target.
        facts: FACTS, as a manifest has them.
    """
    if absent := [name for name in FACTS if name not in facts]:
        return Verdict("unknown", unjudged=(f"the manifest has no {', '.join(absent)}",))
    return _Judgement(run, tables, facts).verdict()


class _Judgement:
    """A verdict in the making, from the checks that need least to those that need most."""

    def __init__(self, run: Run, tables: Mapping[str, pd.DataFrame], facts: Mapping[str, Any]) -> None:
        self.run, self.tables, self.facts = run, tables, facts
        self.moved_s = _moved_s(run, facts)
        self.checked: list[str] = []
        self.violations: list[str] = []
        self.missing: list[str] = []  # what no valid history lacks
        self.left_out: list[str] = []

    def verdict(self) -> Verdict:
        self._judge()
        word = "invalid" if self.violations else "unknown" if self.missing else "valid"
        return Verdict(word, tuple(self.checked), tuple(self.violations), (*self.missing, *self.left_out))

    def _judge(self) -> None:
        sync, unknown = self._policy()
        rules = Rules(Traits() if sync is None else traits_of(sync), sync is not None, self._layered())
        try:
            history = History.of(self.tables.get("pushes"), self.run.workers, self.moved_s, rules)
        except Unreadable as problem:
            self.missing.append(str(problem))
            in_hand = self.run.workers * sum(map(rules.traits.gradients, range(rules.in_hand)))
            accepted = self.facts["accepted"]
            if rules.known and accepted > in_hand and not self.facts["pushes"]:
                self._hold("the stop rule", [f"{accepted} pushes are counted as accepted and none was applied"])
            return
        if self.facts["outcome"] == "interrupted":
            self.missing.append("the run was interrupted: how it would have ended is unknown")
        for name, check in PUSHES_JUDGED.items():
            if not self._hold(name, check(history)):
                return  # the other checks read the tables by worker, iteration and version
        self._stop(history)
        self.missing += unknown
        try:
            phases = Phases.of(self.tables.get("phases"), history)
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
        if history.rules.traits.barrier and not history.rules.layered:  # layered workers compute while a range changes
            self._hold("no step while a worker computes", phases.steps_inside(history))

    def _stop(self, history: History) -> None:
        """The run stopped where its stop rule says."""
        run, seconds, outcome = self.run, self.facts["seconds"], self.facts["outcome"]
        found = self._counts(history) if history.rules.known else []
        if outcome == "seconds" and not seconds >= (run.seconds or np.inf) - SLACK_S:
            found.append(f"the run stopped for its time of {run.seconds} s after {seconds:.6g} s")
        if outcome == "target" and not self._reached():
            what = metric_of(run).name
            found.append(f"the run stopped for its target, {what} {run.target_accuracy}, which it never reached")
        if outcome == "stalled":
            found.append("the run stalled: every worker waited, and no message was under way")
        self._hold("the stop rule", found)

    def _counts(self, history: History) -> list[str]:
        """The numbers of gradients accepted and applied; the last push may have more of them than were left."""
        run, accepted, found = self.run, self.facts["accepted"], list[str]()
        complete, most, in_hand = history.complete(), history.most(), history.rules.in_hand
        if run.pushes is not None and complete >= run.pushes + most:
            found.append(f"{complete} pushes were applied; the budget is {run.pushes}")
        if (reported := self.facts["pushes"]) != complete:
            found.append(f"the server applied {reported} pushes, the table has {complete}")
        if not complete <= accepted <= complete + run.workers * in_hand * most:
            found.append(f"{accepted} pushes are counted as accepted and {complete} were applied; at most "
                         f"{'one' if in_hand == 1 else in_hand} of each of the {run.workers} workers may be in hand"
                         + f", each of {most} gradients at most" * (most > 1))  # fmt: skip
        if self.facts["outcome"] == "budget" and not (run.pushes or 0) <= accepted < (run.pushes or 0) + most:
            found.append(f"the run stopped at its budget of {run.pushes} pushes after {accepted}")
        return found

    def _dropped(self, history: History, phases: Phases | None) -> None:
        """Pushes that are missing among those of a worker were dropped, and the manifest has their number."""
        dropped, ranges = self.facts["dropped"], int(history.range.max()) + 1
        gaps, found = int(history.gaps.sum()), list[str]()
        if not history.rules.drops:
            if dropped:
                found.append(f"{dropped} pushes were dropped; the policy cannot drop any")
        elif gaps > dropped:
            found.append(f"{gaps} pushes are missing among those of their workers; {dropped} were dropped")
        elif phases is not None and not phases.movers:
            lost = ranges * len(phases.dropped(history)[0])
            if not lost <= dropped <= lost + ranges * self.run.workers:
                found.append(f"{dropped} pushes were dropped; {lost} were answered and never applied, and one more of "
                             f"each of the {self.run.workers} workers may have been")  # fmt: skip
        self._hold("dropped pushes", found)

    def _reached(self) -> bool:
        accuracy, target, metric = self.tables.get("accuracy"), self.run.target_accuracy, metric_of(self.run)
        if accuracy is None or target is None:
            return accuracy is None
        return any(metric.reaches(value, target) for value in accuracy["accuracy"])

    def _layered(self) -> bool:
        """Whether requests are layer by layer; also where that is unknown, since less is demanded then."""
        ranges = self.run.ranges
        if isinstance(ranges, str):
            try:
                ranges = build("ranges", ranges)
            except ConfigError:
                return True
        return bool(getattr(ranges, "layered", True))

    def _policy(self) -> tuple[Any, list[str]]:
        """The policy object; None, and why, if the record does not determine it."""
        sync = self.run.sync
        try:
            return resolve("sync", sync), []
        except ConfigError as error:
            if not isinstance(sync, str):
                return None, [f"{sync!r} is no synchronization policy: it {error.problem}"]
            problem = f"the policy cannot be built from its record ({sync})"
            return None, [f"{problem}: its bound and its decisions were not judged"]

    def _replay(self, history: History, phases: Phases | None, sync: Any) -> None:
        present = [worker for worker in range(self.run.workers) if self.moved_s.get(worker, [0.0])[0] == 0.0]
        until_s = min((s for times in self.moved_s.values() for s in times if s > 0.0), default=np.inf)
        again = replay(history, phases, sync, present, until_s)
        self.left_out += again.unjudged
        if again.events:
            part = "" if again.events == history.size else f", the first {again.events} of {history.size} pushes"
            self._hold(f"the policy's decisions, replayed{part}", again.violations)


def _moved_s(run: Run, facts: Mapping[str, Any]) -> dict[int, list[float]]:
    """When each worker that joined or left did so, in order; 0 first if it was present at the start."""
    cluster, end_s = resolve_cluster(run.cluster), float(facts["seconds"])
    found: dict[int, list[float]] = {}
    for worker in range(run.workers):
        moved = sorted(at[worker] for at in (cluster.leave, cluster.join) if worker in at and at[worker] <= end_s)
        if moved or not cluster.present(worker):
            found[worker] = [0.0, *moved] if cluster.present(worker) else moved or [np.inf]
    for death in facts["deaths"]:
        found.setdefault(int(death["worker"]), [0.0]).append(float(death["seconds"]))
    return found
