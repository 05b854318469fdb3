"""The audit of a completed run, local or virtual: whether its tables satisfy 35 rules, and its replay.

What is allowed follows from the policy object (its traits and its decisions), never from its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from pslab.config.run import Run
from pslab.errors import ConfigError
from pslab.lab.judge import judge
from tools.audit import arrivals, manifest, numbers, phases, pushes
from tools.audit.reading import Reading, Unjudged

FACTS = ("outcome", "seconds", "pushes", "accepted", "dropped", "deaths")


class Requirement(NamedTuple):
    """One rule: its check returns the violations in words, or None if the rule does not apply to a record."""

    name: str
    check: Callable[[Reading], list[str] | None]
    relied_on: bool = True  #: whether later rules rely on it: they are not judged if it does not hold


ARRIVED = (
    Requirement("arrivals", arrivals.rows_are_possible),
    Requirement("the order of arrivals", arrivals.in_order),
    Requirement("what the manifest names", manifest.names),
    Requirement("the gradient that was not finite", manifest.divergence, relied_on=False),
    Requirement("how the emulation was kept", manifest.emulation, relied_on=False),
    Requirement("ends of processes", manifest.processes, relied_on=False),
)
APPLIED = (
    Requirement("pushes are numbered", pushes.numbers),
    Requirement("each push once and in order", pushes.once),
    Requirement("versions", pushes.versions),
    Requirement("pulled versions", pushes.pulled),
    Requirement("own pushes are read", pushes.own),
    Requirement("weights are requested before the push", pushes.asked_before),
    Requirement("one decision for all ranges", pushes.alike),
    Requirement("staleness", pushes.staleness),
    Requirement("times of application", pushes.instants),
    Requirement("faults of the cluster's plan", arrivals.faults),
)
TIMED = (
    Requirement("who left and who joined", manifest.moves, relied_on=False),
    Requirement("phases", phases.spans),
    Requirement("one computation at a time", phases.computing),
    Requirement("computed before it is pushed", phases.chain),
    Requirement("dealt with as it arrived", phases.received),
    Requirement("requested eagerly", phases.eagerly),
    Requirement("the newest weights", phases.newest),
    Requirement("the bound of the policy's window", phases.beyond, relied_on=False),
    Requirement("no step while a worker computes", phases.steps_inside, relied_on=False),
    Requirement("losses", numbers.losses),
    Requirement("bytes of pushes", numbers.bytes_up),
    Requirement("bytes of pulls", numbers.bytes_down),
    Requirement("bytes on the network", numbers.network),
    Requirement("times of computation", numbers.computing),
    Requirement("times on links", numbers.travelling),
    Requirement("no gap between phases", numbers.joints),
    Requirement("evaluations", numbers.evaluations),
    Requirement("instants inside the run", numbers.inside),
)


@dataclass(frozen=True)
class Verdict:
    """The rules that a history was held to, and which it breaks."""

    verdict: str  #: valid, invalid, unknown
    checked: tuple[str, ...] = ()  #: the names of the rules
    violations: tuple[str, ...] = ()  #: why it is invalid: which worker, when, and what was expected
    unjudged: tuple[str, ...] = ()  #: what was not judged and why; unknown because of it, or otherwise valid


def audit(run: Run, tables: Mapping[str, pd.DataFrame], facts: Mapping[str, Any]) -> Verdict:
    """Whether a history satisfies every rule of the server, the workers and the run's policy.

    Args:
        tables: "arrivals", "pushes" and "phases" of a record; "accuracy" for a stop at a target.
        facts: FACTS, as a manifest has them.
    """
    if absent := [name for name in FACTS if name not in facts]:
        return Verdict("unknown", unjudged=(f"the manifest has no {', '.join(absent)}",))
    found = _Audit()
    try:
        found.hold(Reading(run, tables, facts))
    except ConfigError as error:
        return Verdict("unknown", unjudged=(f"the run cannot be made from its record: {error}",))
    except Unjudged as problem:
        found.missing.append(str(problem))
    return found.verdict()


class _Audit:
    """A verdict in the making, from the rules that need least to those that need most."""

    def __init__(self) -> None:
        self.checked: list[str] = []
        self.violations: list[str] = []
        self.missing: list[str] = []  # what no valid history lacks

    def verdict(self) -> Verdict:
        """What has been found."""
        word = "invalid" if self.violations else "unknown" if self.missing else "valid"
        return Verdict(word, tuple(self.checked), tuple(self.violations), tuple(self.missing))

    def hold(self, record: Reading) -> None:
        """Hold a record to all rules.

        Raises:
            Unjudged: nothing can be judged from its arrivals, or from its pushes.
        """
        if not self._hold(record, ARRIVED):
            return
        applied = record.pushes.size
        if record.interrupted:
            self.missing.append("the run was interrupted: how it would have ended is unknown")
        if not applied:
            self.missing.append("the table of pushes is empty")
        elif not self._hold(record, APPLIED):
            return
        else:
            self.missing += record.unknown
            try:
                self._hold(record, TIMED)
            except Unjudged as problem:
                self.missing.append(str(problem))
        if record.known and not self.violations:
            self._hold(record, [Requirement("the policy's decisions, replayed", _replayed)])

    def _hold(self, record: Reading, rules: Iterable[Requirement]) -> bool:
        """Whether these rules hold, as far as later ones rely on them."""
        for rule in rules:
            if (found := rule.check(record)) is None:
                continue
            self.checked.append(rule.name)
            self.violations += found
            if found and rule.relied_on:
                return False
        return True


def _replayed(record: Reading) -> list[str]:
    found = judge(record.run, record.tables, record.facts)
    if found.verdict == "unknown" and "losses" in found.why:
        raise Unjudged(found.why)
    return [found.why] if found.verdict == "invalid" else []
