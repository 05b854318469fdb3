"""The verdict on a completed run, local or virtual: whether its tables satisfy every rule.

What is allowed follows from the policy object (its traits and its decisions), never from its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pslab.config.cluster import Cluster, resolve_cluster
from pslab.config.metric import metric_of
from pslab.config.run import Run
from pslab.config.spec import build, resolve
from pslab.engines.emulation.faults import KILL
from pslab.engines.experiment.compatibility import lengths
from pslab.errors import ConfigError
from pslab.lab.judge.arrivals import ARRIVALS_JUDGED, Arrivals, faults
from pslab.lab.judge.capabilities import Rules
from pslab.lab.judge.facts import FACTS_JUDGED, Facts, names
from pslab.lab.judge.numbers import NUMBERS_JUDGED, Numbers
from pslab.lab.judge.phases import PHASES_JUDGED, Phases
from pslab.lab.judge.pushes import PUSHES_JUDGED, History
from pslab.lab.judge.replay import replay
from pslab.lab.judge.report import SLACK_S, Unreadable
from pslab.lab.records.facts import wrong_facts
from pslab.protocol.traits import Traits, sized, traits_of

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
        tables: "arrivals", "pushes" and "phases" of a record; "accuracy" for a stop at a target.
        facts: FACTS, as a manifest has them.
    """
    if absent := [name for name in FACTS if name not in facts]:
        return Verdict("unknown", unjudged=(f"the manifest has no {', '.join(absent)}",))
    if wrong := wrong_facts(facts):
        return Verdict("unknown", unjudged=tuple(f"the manifest cannot be read: {words}" for words in wrong))
    try:
        return _Judgement(run, tables, facts).verdict()
    except ConfigError as error:
        return Verdict("unknown", unjudged=(f"the run cannot be made from its record: {error}",))


class _Judgement:
    """A verdict in the making, from the checks that need least to those that need most."""

    def __init__(self, run: Run, tables: Mapping[str, pd.DataFrame], facts: Mapping[str, Any]) -> None:
        self.run, self.tables, self.facts = run, tables, facts
        self.checked: list[str] = []
        self.violations: list[str] = []
        self.missing: list[str] = []  # what no valid history lacks

    def verdict(self) -> Verdict:
        self._judge()
        word = "invalid" if self.violations else "unknown" if self.missing else "valid"
        return Verdict(word, tuple(self.checked), tuple(self.violations), tuple(self.missing))

    def _judge(self) -> None:
        sync, unknown = self._policy()
        rules = Rules(Traits() if sync is None else traits_of(sync), sync is not None, self._layered(),
                      self.run.servers)  # fmt: skip
        cluster, workers = resolve_cluster(self.run.cluster), self.run.workers
        try:
            present = set(filter(cluster.present, range(workers)))
            arrivals = Arrivals.of(self.tables.get("arrivals"), workers, present, dict(self._replaced()))
            for name, arrived in ARRIVALS_JUDGED.items():
                if not self._hold(name, arrived(arrivals)):
                    return  # the other checks read the tables by worker, iteration and version
            given = Facts(self.run, cluster, self.facts, arrivals)
            if not self._hold("what the manifest names", names(given)):
                return
            for name, said in FACTS_JUDGED.items():
                self._hold(name, said(given))
            history = History.of(self.tables.get("pushes"), arrivals, rules)
        except Unreadable as problem:
            self.missing.append(str(problem))
            return
        if self.facts["outcome"] == "interrupted":
            self.missing.append("the run was interrupted: how it would have ended is unknown")
        if not history.size:
            self.missing.append("the table of pushes is empty")
            self._replay(history, sync)
            return
        for name, applied in PUSHES_JUDGED.items():
            if not self._hold(name, applied(history)):
                return
        self._hold("the stop rule", self._stop(sync))
        if not self._hold("faults of the cluster's plan", faults(self.run, cluster, self.facts, arrivals, rules)):
            return
        self.missing += unknown
        phases = None
        try:
            phases = Phases.of(self.tables.get("phases"), arrivals, self.facts.get("phases_lost", ()))
            self._hold("who left and who joined", self._moves(arrivals, cluster, phases))
            if self._phases(history, phases):
                self._numbers(Numbers.of(self.run, cluster, self.facts, history, phases, self.tables))
        except Unreadable as problem:
            self.missing.append(str(problem))
        if not self.violations:
            self._replay(history, sync, phases)

    def _replay(self, history: History, sync: Any, phases: Phases | None = None) -> None:
        if sync is not None:
            found = replay(history, sync, self.run.pushes, self.facts, phases)
            self._hold("the policy's decisions, replayed", [found] if found else [])

    def _hold(self, name: str, found: list[str]) -> bool:
        self.checked.append(name)
        self.violations += found
        return not found

    def _phases(self, history: History, phases: Phases) -> bool:
        """Whether they have numbers that can be read by worker, iteration and range."""
        for name, check in PHASES_JUDGED.items():
            if not self._hold(name, check(phases, history)):
                return False
        if (window := history.rules.traits.window) is not None:
            self._hold("the bound of the policy's window", phases.beyond(window, history))
        if history.rules.traits.barrier and not history.rules.layered:  # layered workers compute while a range changes
            self._hold("no step while a worker computes", phases.steps_inside(history))
        return True

    def _numbers(self, numbers: Numbers) -> None:
        for name, check in NUMBERS_JUDGED.items():
            if not self._hold(name, check(numbers)):
                return

    def _stop(self, sync: Any) -> list[str]:
        """The run stopped where its stop rule says; how many pushes that took, a replay counts."""
        run, seconds, outcome, found = self.run, self.facts["seconds"], self.facts["outcome"], list[str]()
        if outcome == "seconds" and not seconds >= (run.seconds or np.inf) - SLACK_S:
            found.append(f"the run stopped for its time of {run.seconds} s after {seconds:.6g} s")
        if outcome == "target" and not self._reached():
            what = metric_of(run).name
            found.append(f"the run stopped for its target, {what} {run.target_accuracy}, which it never reached")
        if outcome == "converged" and not self._converged(sync):
            found.append("the run stopped because its residuals were small; the last that are recorded are not")
        if outcome == "stalled":
            found.append("the run stalled: every worker waited, and no message was under way")
        return found

    def _moves(self, arrivals: Arrivals, cluster: Cluster, phases: Phases) -> list[str]:
        """Workers leave and join when the cluster says so, or die, or where a new process takes their place."""
        found = list[str]()
        died = [(int(death["worker"]), float(death["seconds"])) for death in self.facts["deaths"]]
        replaced = self._replaced()
        due = {"leave": [*cluster.leave.items(), *died, *replaced], "join": [*cluster.join.items(), *replaced]}
        moves = np.flatnonzero((arrivals.kind == "leave") | (arrivals.kind == "join"))
        for row in moves.tolist():
            name, at_s = (arrivals.kind[row], int(arrivals.worker[row])), arrivals.seconds[row]
            planned = min((at for worker, at in due[name[0]] if worker == name[1]), default=None)
            if planned is None or at_s < planned - SLACK_S:
                when = "never" if planned is None else f"not before {planned:.6g} s"
                found.append(f"the server heard at {at_s:.6g} s {arrivals.name(row)}; it {name[0]}s {when}")
            else:
                due[name[0]].remove((name[1], planned))  # once each
        left = set(arrivals.worker[arrivals.kind == "leave"].tolist())
        found += [f"worker {worker} died at {at:.6g} s, and the server never heard of it"
                  for worker, at in died if worker not in left]  # fmt: skip
        last_s = phases.begin[phases.phase == "push"].max(initial=-np.inf)  # sent then, dealt with later
        left |= {row[2] for row in self.facts.get("faulted", ()) if row[0] == KILL}  # the dead do not take their leave
        return found + [f"worker {worker} leaves at {at:.6g} s, and the server never heard of it"
                        for worker, at in cluster.leave.items() if at < last_s and worker not in left]  # fmt: skip

    def _replaced(self) -> list[tuple[int, float]]:
        """The workers whose place a new process took, and when the one before had ended."""
        return [(int(life["worker"]), float(life["seconds"])) for life in self.facts.get("lives", ())]

    def _reached(self) -> bool:
        accuracy, target, metric = self.tables.get("accuracy"), self.run.target_accuracy, metric_of(self.run)
        if accuracy is None or target is None:
            return accuracy is None
        return any(metric.reaches(value, target) for value in accuracy["accuracy"])

    def _converged(self, sync: Any) -> bool:
        residuals = self.facts.get("residuals")
        return sync is None or bool(residuals and sync.converged(*residuals[-1][-2:]))

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
            policy, passed = resolve("sync", sync), self.facts.get("pass_iterations")
            if not hasattr(policy, "sized"):
                return policy, []
            if passed is None:
                return None, ["the manifest has no pass_iterations, which the policy counts in"]
            return sized(policy, lengths(self.run, passed)), []
        except ConfigError as error:
            if not isinstance(sync, str):
                return None, [f"{sync!r} is no synchronization policy: it {error.problem}"]
            problem = f"the policy cannot be built from its record ({sync})"
            return None, [f"{problem}: its bound and its decisions were not judged"]
