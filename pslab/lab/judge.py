"""The verdict on a finished run, by a replay: a fresh server with the same policy handles the recorded arrivals again.

The replay must apply the recorded pushes, in the same order and on the same versions, end the same waits, and reach the
manifest's counts. A policy decides by messages and their times alone, and both are recorded, so the replay is exact.
The replay relies on the recorded files and times: it finds bugs of policies and engines, not forged records.
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

LOST = "the policy reads losses, and the record lacks the losses of pushes that were not applied"
SLACK_S = 1e-6  # instants that were computed in another order may differ in the last bits
DECIDED = ("range", "worker", "iteration", "version_pulled", "version_applied")  # columns that the policy determines


class Differs(Exception):
    """The record differs from the replay of its arrivals; the message has both values."""


@dataclass(frozen=True)
class Verdict:
    """The verdict on a run, "valid", "invalid" or "unknown", and why it is not valid."""

    verdict: str
    why: str = ""

    def facts(self) -> dict[str, Any]:
        """Return the manifest's facts about the verdict."""
        name = {"invalid": "violations", "unknown": "unjudged"}.get(self.verdict)
        return {"verdict": self.verdict, **({name: [self.why]} if name else {})}


def policy_of(run: Run, facts: Mapping[str, Any]) -> Any:
    """Return the policy object of a recorded run.

    Raises:
        ConfigError: the policy cannot be built from the record, such as a user's object.
    """
    policy = resolve("sync", run.sync)
    return sized(policy, lengths(run, facts["pass_iterations"])) if hasattr(policy, "sized") else policy


def judge(run: Run, tables: Mapping[str, pd.DataFrame], facts: Mapping[str, Any]) -> Verdict:
    """Return the verdict on a run, by replaying its arrivals.

    Args:
        tables: "arrivals", "pushes" and "phases" of a record; also "accuracy", if the run stopped at a target.
        facts: the manifest.
    """
    try:
        policy = NotingPolicy(policy_of(run, facts))
    except (ConfigError, KeyError) as error:
        return Verdict("unknown", f"the policy cannot be built from the record: {error}")
    if absent := [name for name in ("arrivals", "pushes", "phases") if name not in tables]:
        return Verdict("unknown", f"the record has no table of {', '.join(absent)}")
    try:
        _Replay(run, policy, tables, facts).compare()
    except Exception as error:  # a user's policy may raise any exception
        if "loss" in policy.read and (tables["arrivals"].kind == "push").sum() > len(tables["pushes"]):
            return Verdict("unknown", LOST)
        raised = "" if isinstance(error, Differs) else f"the replay raised {type(error).__name__}: "
        return Verdict("invalid", f"{raised}{error}")
    if facts["outcome"] == "interrupted" or not len(tables["pushes"]):
        return Verdict("unknown", "the run was interrupted, or no push was applied")
    return Verdict("valid")


def tables_of(run: Run, outcome: Outcome) -> tuple[dict[str, pd.DataFrame], np.ndarray, dict[str, Any]]:
    """Return a record's tables, weights and facts (with the verdict), from an engine's arrays."""
    from pslab.engines.server.ledger import ARRIVAL_COLUMNS, ARRIVALS, PUSH_COLUMNS
    from pslab.engines.worker.phases import PHASE_COLUMNS, PHASES

    accuracy = pd.DataFrame(outcome.accuracy, columns=["pushes", "seconds", "accuracy", "loss", *outcome.metrics])
    accuracy.insert(1, "iteration", accuracy.pushes / run.workers)
    phases = pd.DataFrame(outcome.phases, columns=PHASE_COLUMNS)
    phases["phase"] = phases.phase.astype(int).map(dict(enumerate(PHASES)))
    pushes = pd.DataFrame(outcome.pushes, columns=PUSH_COLUMNS)
    arrivals = pd.DataFrame(outcome.arrivals, columns=ARRIVAL_COLUMNS)
    arrivals["kind"] = arrivals.kind.astype(int).map(dict(enumerate(ARRIVALS)))
    floats = ("seconds", "begin_s", "end_s", "loss", "density", "kind", "phase")  # the last two are texts

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
    """Return the largest absolute value of the weights; NaN if a weight is NaN."""
    return float(max(weights.max(initial=0.0), -weights.min(initial=0.0)))


class _Replay:
    """A replay of a record's arrivals by a fresh server, and its comparison with the record."""

    def __init__(self, run: Run, policy: Any, tables: Mapping[str, pd.DataFrame], facts: Mapping[str, Any]) -> None:
        self.run, self.policy, self.tables, self.facts = run, policy, tables, facts
        cluster, arrivals, pushes = resolve_cluster(run.cluster), tables["arrivals"], tables["pushes"]
        present = [worker for worker in range(run.workers) if cluster.present(worker)]
        self.ranges = int(facts.get("ranges", arrivals.range.max() + 1))
        self.server = Server(present, self.ranges, policy)
        self.rotation, self.barrier = self.server.traits.rotation, self.server.traits.barrier
        # workers that were absent for a time, or whose process was replaced: they return without weights
        self.movers = {*range(run.workers)} - {*present} | {record["worker"] for record in facts.get("lives", ())}
        self.movers |= {*arrivals.worker[arrivals.kind.isin(["leave", "join"])]}
        names = zip(pushes.worker, pushes.range, pushes.iteration, strict=True)
        self.losses = dict(zip(names, pushes.loss, strict=True))
        # (worker, range, turn of the range) -> the version on which the policy started a worker that still computes
        self.started = {(worker, index, 0): 0 for worker in present for index in range(self.ranges)}
        self.held: dict[tuple[int, int, int], int] = {}  # (worker, range, iteration) -> version of its weights
        # (worker, range, iteration) -> the worker whose message ended the wait before this iteration
        self.released: dict[tuple[int, int, int], int] = {}
        self.applied: list[tuple[Any, ...]] = []  # DECIDED and the instant of each push that the replay applies
        self.parts, self.counts = Counter[tuple[int, int]](), Counter[str]()
        self.steps: dict[tuple[int, int], int] = {}  # (worker, iteration) -> its gradients, if the policy assigns steps

    def compare(self) -> None:
        """Replay the arrivals, then compare pushes, facts and waits with the record.

        Raises:
            Differs: the record differs from the replay.
        """
        arrivals, server, spent = self.tables["arrivals"], self.server, False
        handled = arrivals[arrivals.kind != "join"].seconds  # a worker that joins uses no server time
        if not np.isfinite(arrivals.seconds).all() or (handled.diff() < -SLACK_S).any():
            raise Differs("the table of arrivals is not in order of time")
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
                raise Differs(f"{what}: the worker is {'already' if row.kind == 'join' else 'not'} present")
            elif row.kind == "leave":
                self.started = {name: version for name, version in self.started.items() if name[0] != row.worker}
                self._perform(server.leave(row.worker, row.seconds), row.seconds)
            elif (joined := server.join(row.worker)) != row.iteration:
                raise Differs(f"{what}: the server lets the worker join with iteration {joined}")
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
                says = "does not start this iteration" if started is None else f"starts it on version {started}"
                raise Differs(f"{what} was computed on version {row.version}; the policy {says}")
            self._name(*name, row.version, what)
        self._perform(effects, row.seconds)

    def _name(self, worker: int, index: int, iteration: int, version: int, what: str) -> None:
        """Check that a worker's push of an iteration and its pull for the next iteration name the same version."""
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
            raise Differs(f"version {step.version} is made at {now:.6g} s while worker {min(computing)} computes, but "
                          "the policy claims a barrier")  # fmt: skip
        for push in step.pushes:
            self.applied.append((step.range, push.worker, push.iteration, push.version, step.version, now))
            name = push.worker, push.iteration
            self.parts[name] += 1
            if self.parts[name] == len(self.rotation.ranges(push.iteration, self.ranges)):
                self.counts["pushes"] += push.steps

    def _compare_pushes(self) -> None:
        # pushes are compared in order for each range
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
                late = f"at {seconds:.6g} s, before the message that led to it arrived, at {now:.6g} s"
                raise Differs(f"the table of pushes has {_in_words(here)} {late}")
            if staleness != applied - 1 - pulled:
                raise Differs(f"{_in_words(here)} has a recorded staleness of {staleness}, not {applied - 1 - pulled}")

    def _compare_facts(self) -> None:
        facts, run, outcome = self.facts, self.run, self.facts["outcome"]
        if outcome == "interrupted" and "accepted" not in facts:  # the counts of a server that died are lost
            return
        self.counts["accepted"] = self.server.gradients
        for name in ("pushes", "accepted", "dropped"):
            if facts.get(name, 0) != self.counts[name]:
                raise Differs(f"the manifest counts {facts.get(name)} as {name}; the replay counts {self.counts[name]}")
        refused = facts.get("refused", 0) - bool(facts.get("diverged"))  # a gradient that is not finite never arrives
        if self.counts["refused"] > refused:
            raise Differs(f"the replay refuses {self.counts['refused']} messages; the manifest counts {refused}")
        if [[*name, count] for name, count in sorted(self.steps.items())] != facts.get("steps", []):
            raise Differs("the gradients of iterations in the manifest differ from the numbers that the policy assigns")
        if outcome == "stalled":
            raise Differs("the run stalled: every worker waited, and no message was in transit: let the policy answer "
                          "more pushes (Apply, Aggregate, Drop) or requests (Start)")  # fmt: skip
        accuracy, residuals = self.tables.get("accuracy"), facts.get("residuals")
        reached = {
            "budget": self.server.spent(run.pushes),
            "seconds": facts["seconds"] + SLACK_S >= (run.seconds or np.inf),
            "target": accuracy is None or run.reaches_target(accuracy.accuracy),
            "converged": residuals and self.policy.converged(*residuals[-1][-2:]),
        }
        if not reached.get(outcome, True):
            raise Differs(f"the run ended by the stop rule {outcome!r}, which the replay does not reach")

    def _compare_waits(self) -> None:
        phases = self.tables["phases"]
        for row in _rows(phases[(phases.phase == "wait") & ~phases.worker.isin(self.movers)]):
            whom = self.released.get((row.worker, row.range, row.iteration + 1), row.waits_for)
            if whom != row.waits_for:
                raise Differs(f"worker {row.worker}'s wait of iteration {row.iteration} is recorded as a wait for "
                              f"worker {row.waits_for}; worker {whom} ended it ({NO_WORKER}: none)")  # fmt: skip


def _rows(table: pd.DataFrame) -> Iterator[Any]:
    yield from table.itertuples(index=False)


def _in_words(push: tuple[Any, ...] | None) -> str:
    if push is None:
        return "no further push"
    index, worker, iteration, pulled, applied, *_ = push
    return f"worker {worker}'s iteration {iteration} of range {index} on version {pulled} as version {applied}"
