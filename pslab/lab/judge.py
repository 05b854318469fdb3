"""The verdict on a finished run: its recorded arrivals, handed once more to a fresh server with the same policy, must
lead to the recorded pushes, in their order and on their versions, to the recorded waits, and to the manifest's counts.

A policy decides by messages and their instants alone, and both are recorded, so the replay is exact. The verdict trusts
the files and the clock: it finds bugs of policies and engines. A record that was forged on purpose may pass.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pslab.config.cluster import resolve_cluster
from pslab.config.run import Run
from pslab.config.spec import resolve
from pslab.engines.experiment.compatibility import lengths
from pslab.engines.experiment.wire import PushInfo
from pslab.errors import ConfigError
from pslab.protocol.messages import NO_WORKER, Pull, Push
from pslab.protocol.noting import NotingPolicy
from pslab.protocol.server import Discard, Effect, Refuse, Reply, Server, Step
from pslab.protocol.traits import sized

if TYPE_CHECKING:
    from pslab.engines.experiment.experiment import Outcome

LOST = "the policy reads losses, and the record has none of pushes that were not applied"
SLACK_S = 1e-6  # instants that are derived from others are not equal to the last bit
DECIDED = ("range", "worker", "iteration", "version_pulled", "version_applied")  # what the policy decides of a push


class Differs(Exception):
    """The record does not follow from its arrivals; the message says both."""


@dataclass(frozen=True)
class Verdict:
    """valid, invalid or unknown, and the reason."""

    verdict: str
    why: str = ""

    def facts(self) -> dict[str, Any]:
        """The facts for the manifest."""
        name = {"invalid": "violations", "unknown": "unjudged"}.get(self.verdict)
        return {"verdict": self.verdict, **({name: [self.why]} if name else {})}


def policy_of(run: Run, facts: Mapping[str, Any]) -> Any:
    """The policy object of a recorded run.

    Raises:
        ConfigError: the record does not determine the policy, as if it was an object of the user.
    """
    policy = resolve("sync", run.sync)
    return sized(policy, lengths(run, facts["pass_iterations"])) if hasattr(policy, "sized") else policy


def judge(run: Run, tables: Mapping[str, pd.DataFrame], facts: Mapping[str, Any]) -> Verdict:
    """Whether a run's tables and facts follow from its arrivals.

    Args:
        tables: "arrivals", "pushes" and "phases" of a record; "accuracy" for a stop at a target.
        facts: of its manifest.
    """
    try:
        policy = NotingPolicy(policy_of(run, facts))
    except (ConfigError, KeyError) as error:
        return Verdict("unknown", f"the policy cannot be built from its record: {error}")
    if absent := [name for name in ("arrivals", "pushes", "phases") if name not in tables]:
        return Verdict("unknown", f"the record has no table of {', '.join(absent)}")
    try:
        _Replay(run, policy, tables, facts).compare()
    except Exception as error:  # a policy of the user may raise anything
        if "loss" in policy.read and (tables["arrivals"].kind == "push").sum() > len(tables["pushes"]):
            return Verdict("unknown", LOST)
        raised = "" if isinstance(error, Differs) else f"the replay raised {type(error).__name__}: "
        return Verdict("invalid", f"{raised}{error}")
    if facts["outcome"] == "interrupted" or not len(tables["pushes"]):
        return Verdict("unknown", "the run was interrupted, or no push was applied")
    return Verdict("valid")


def tables_of(run: Run, outcome: Outcome) -> tuple[dict[str, pd.DataFrame], np.ndarray, dict[str, Any]]:
    """An engine's arrays as tidy tables; the weights; the facts, with the verdict."""
    from pslab.engines.server.ledger import ARRIVAL_COLUMNS, ARRIVALS, PUSH_COLUMNS
    from pslab.engines.worker.phases import PHASE_COLUMNS, PHASES

    accuracy = pd.DataFrame(outcome.accuracy, columns=["pushes", "seconds", "accuracy", "loss", *outcome.metrics])
    accuracy.insert(1, "iteration", accuracy.pushes / run.workers)
    phases = pd.DataFrame(outcome.phases, columns=PHASE_COLUMNS)
    phases["phase"] = phases.phase.astype(int).map(dict(enumerate(PHASES)))
    pushes = pd.DataFrame(outcome.pushes, columns=PUSH_COLUMNS)
    arrivals = pd.DataFrame(outcome.arrivals, columns=ARRIVAL_COLUMNS)
    arrivals["kind"] = arrivals.kind.astype(int).map(dict(enumerate(ARRIVALS)))
    floats = ("seconds", "begin_s", "end_s", "loss", "density", "kind", "phase")  # and words

    def typed(table: pd.DataFrame) -> pd.DataFrame:
        return table.astype({name: int for name in table if name not in floats})

    tables = {
        "accuracy": accuracy.astype({"pushes": int}),
        "phases": typed(phases).sort_values("begin_s"),
        "pushes": typed(pushes),
        "arrivals": typed(arrivals),
    }
    judged = judge(run, tables, outcome.facts).facts()
    return tables, outcome.weights, {**outcome.facts, "largest_weight": largest(outcome.weights), **judged}


def largest(weights: np.ndarray) -> float:
    """The largest absolute value; NaN if one is not a number."""
    return float(max(weights.max(initial=0.0), -weights.min(initial=0.0)))


class _Replay:
    """A fresh server, and its effects on the recorded arrivals."""

    def __init__(self, run: Run, policy: Any, tables: Mapping[str, pd.DataFrame], facts: Mapping[str, Any]) -> None:
        self.run, self.policy, self.tables, self.facts = run, policy, tables, facts
        cluster, arrivals, pushes = resolve_cluster(run.cluster), tables["arrivals"], tables["pushes"]
        present = [worker for worker in range(run.workers) if cluster.present(worker)]
        self.ranges = int(facts.get("ranges", arrivals.range.max() + 1))
        self.server = Server(present, self.ranges, policy)
        self.rotation, self.barrier = self.server.traits.rotation, self.server.traits.barrier
        # workers that were not there all the time in one process: they hold no weights when they are back
        self.movers = {*range(run.workers)} - {*present} | {record["worker"] for record in facts.get("lives", ())}
        self.movers |= {*arrivals.worker[arrivals.kind.isin(["leave", "join"])]}
        names = zip(pushes.worker, pushes.range, pushes.iteration, strict=True)
        self.losses = dict(zip(names, pushes.loss, strict=True))
        # (worker, range, its turn) -> the version on which the policy has started a worker that has not pushed since
        self.started = {(worker, index, 0): 0 for worker in present for index in range(self.ranges)}
        self.held: dict[tuple[int, int, int], int] = {}  # (worker, range, iteration) -> the version that it named
        self.released: dict[tuple[int, int, int], int] = {}  # the same -> the worker whose message ended its wait
        self.applied: list[tuple[Any, ...]] = []  # DECIDED and the instant, of each push that the policy applies
        self.parts, self.counts = Counter[tuple[int, int]](), Counter[str]()
        self.steps: dict[tuple[int, int], int] = {}  # (worker, iteration) -> its gradients, where the policy assigns

    def compare(self) -> None:
        """Replay the arrivals.

        Raises:
            Differs: the record says otherwise.
        """
        arrivals, server, spent = self.tables["arrivals"], self.server, False
        handled = arrivals[arrivals.kind != "join"].seconds  # a worker that joins takes none of the server's time
        if not np.isfinite(arrivals.seconds).all() or (handled.diff() < -SLACK_S).any():
            raise Differs("arrivals are not in the order of their instants")
        for row in _rows(arrivals):
            what = f"worker {row.worker}'s {row.kind} of iteration {row.iteration} at {row.seconds:.6g} s"
            if row.kind == "push":
                if spent:
                    raise Differs(f"{what} was accepted after the budget of {self.run.pushes} pushes was used up")
                self._push(row, what)
                spent = server.spent(self.run.pushes)
            elif row.kind == "pull":
                self._name(row.worker, row.range, row.iteration - 1, row.version, what)
                pull = Pull(row.worker, row.range, row.iteration, row.version)
                self._perform(server.handle(pull, row.seconds), row.seconds)
            elif (row.kind == "leave") != (row.worker in server.workers):
                raise Differs(f"{what}: the worker is {'' if row.kind == 'join' else 'not '}present")
            elif row.kind == "leave":
                self.started = {name: version for name, version in self.started.items() if name[0] != row.worker}
                self._perform(server.leave(row.worker, row.seconds), row.seconds)
            elif (joined := server.join(row.worker)) != row.iteration:
                raise Differs(f"{what}: the server has it join with iteration {joined}")
        self._compare_pushes()
        self._compare_facts()
        self._compare_waits()

    def _push(self, row: Any, what: str) -> None:
        name = row.worker, row.range, row.iteration
        push = Push(*name, row.version, PushInfo(0, 0, self.losses.get(name, np.nan)))
        effects = self.server.handle(push, row.seconds)
        if not (effects and isinstance(effects[0], Refuse)):
            turn = self.rotation.turn(row.range, row.iteration)
            started = self.started.pop((row.worker, row.range, turn), None)
            if started != row.version:
                says = "does not start it" if started is None else f"starts it on version {started}"
                raise Differs(f"{what} was computed on version {row.version}; the policy {says}")
            self._name(*name, row.version, what)
        self._perform(effects, row.seconds)

    def _name(self, worker: int, index: int, iteration: int, version: int, what: str) -> None:
        """Compare the versions that a worker's push of an iteration and its request for the next one name."""
        if worker not in self.movers and (had := self.held.setdefault((worker, index, iteration), version)) != version:
            raise Differs(f"{what} names version {version}; the worker holds version {had}")

    def _perform(self, effects: Iterable[Effect], now: float) -> None:
        pending = deque(effects)
        while pending:
            effect = pending.popleft()
            if isinstance(effect, Step):
                self._step(effect, now)
            elif isinstance(effect, Reply):
                worker, index, iteration, *_ = effect.pull
                self.started[worker, index, self.rotation.turn(index, iteration)] = effect.version
                self.released[worker, index, iteration] = effect.released_by
                if effect.steps:
                    self.steps[worker, iteration] = effect.steps
                pending.extend(self.server.answered(index))
            elif isinstance(effect, Discard):
                self.counts["dropped"] += 1
            elif isinstance(effect, Refuse):
                self.counts["refused"] += 1

    def _step(self, step: Step, now: float) -> None:
        computing = {worker for worker, index, _ in self.started if index == step.range} if self.barrier else set()
        if computing:
            raise Differs(f"version {step.version} is made at {now:.6g} s while worker {min(computing)} computes; the "
                          "policy claims a barrier")  # fmt: skip
        for push in step.pushes:
            self.applied.append((step.range, push.worker, push.iteration, push.version, step.version, now))
            name = push.worker, push.iteration
            self.parts[name] += 1
            if self.parts[name] == len(self.rotation.ranges(push.iteration, self.ranges)):
                self.counts["pushes"] += push.steps

    def _compare_pushes(self) -> None:
        """Compare the table of pushes with the policy's steps, each range in its order."""
        columns = (self.tables["pushes"][name].tolist() for name in (*DECIDED, "seconds", "staleness"))
        recorded, replayed = (sorted(rows, key=itemgetter(0)) for rows in (zip(*columns, strict=True), self.applied))
        if self.facts["outcome"] == "interrupted" and "accepted" not in self.facts:  # a server may die between two rows
            known, last_s = {row[:3] for row in recorded}, self.tables["arrivals"].seconds.max()
            replayed = [row for row in replayed if row[:3] in known or row[5] < last_s]
        for here, there in zip_longest(recorded, replayed):
            if here is None or there is None or here[:5] != there[:5]:
                raise Differs(f"the policy applies {_in_words(there)}; the table of pushes has {_in_words(here)}")
            *_, pulled, applied, seconds, staleness = here
            if seconds < (now := there[5]) - SLACK_S:
                raise Differs(f"{_in_words(here)} was applied at {seconds:.6g} s; its cause arrived at {now:.6g} s")
            if staleness != applied - 1 - pulled:
                raise Differs(f"{_in_words(here)} has a recorded staleness of {staleness}")

    def _compare_facts(self) -> None:
        """Compare the manifest's counts, and how the run ended."""
        facts, run, outcome = self.facts, self.run, self.facts["outcome"]
        if outcome == "interrupted" and "accepted" not in facts:  # a server that died took its counts with it
            return
        self.counts["accepted"] = self.server.gradients
        for name in ("pushes", "accepted", "dropped"):
            if facts.get(name, 0) != self.counts[name]:
                raise Differs(f"the manifest counts {facts.get(name)} as {name}; the arrivals make {self.counts[name]}")
        refused = facts.get("refused", 0) - bool(facts.get("diverged"))  # a gradient that is not finite is no arrival
        if self.counts["refused"] > refused:
            raise Differs(f"the server refuses {self.counts['refused']} messages; the manifest counts {refused}")
        if [[*name, count] for name, count in sorted(self.steps.items())] != facts.get("steps", []):
            raise Differs("the manifest has other numbers of gradients of iterations than the policy assigns")
        if outcome == "stalled":
            raise Differs("the run stalled: every worker waited, and no message was under way: the policy answered too "
                          "few pushes (Apply, Aggregate, Drop) or requests (Start)")  # fmt: skip
        accuracy, residuals = self.tables.get("accuracy"), facts.get("residuals")
        reached = {
            "budget": self.server.spent(run.pushes),
            "seconds": facts["seconds"] + SLACK_S >= (run.seconds or np.inf),
            "target": accuracy is None or run.reaches_target(accuracy.accuracy),
            "converged": residuals and self.policy.converged(*residuals[-1][-2:]),
        }
        if not reached.get(outcome, True):
            raise Differs(f"the run ended by {outcome!r} of its stop rules, which it never reached")

    def _compare_waits(self) -> None:
        """Compare for whom each worker is said to have waited."""
        phases = self.tables["phases"]
        for row in _rows(phases[(phases.phase == "wait") & ~phases.worker.isin(self.movers)]):
            whom = self.released.get((row.worker, row.range, row.iteration + 1), row.waits_for)
            if whom != row.waits_for:
                raise Differs(f"worker {row.worker}'s wait of iteration {row.iteration} is said to be for worker "
                              f"{row.waits_for}; worker {whom} ended it ({NO_WORKER}: none)")  # fmt: skip


def _rows(table: pd.DataFrame) -> Iterator[Any]:
    yield from table.itertuples(index=False)


def _in_words(push: tuple[Any, ...] | None) -> str:
    if push is None:
        return "no further push"
    index, worker, iteration, pulled, applied, *_ = push
    return f"worker {worker}'s iteration {iteration} of range {index} on version {pulled} as version {applied}"
