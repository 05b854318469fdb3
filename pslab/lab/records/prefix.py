"""A run whose record is the beginning of another one's: the same run but for its stop rules, which went further.

A stop rule changes nothing before it stops the run. So the tables of such a run are those of the other, cut where the
engine would have ended it. Which messages the server had handled by then, and what it made of them, a fresh server with
the same policy says; what else had happened follows from its instant.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pslab.config.cluster import resolve_cluster
from pslab.config.run import FIELDS, Run, digest_of
from pslab.config.spec import resolve
from pslab.config.untrusted import read_json
from pslab.errors import ConfigError, RecordError
from pslab.lab.records import record
from pslab.lab.records.disk import MANIFEST
from pslab.lab.records.record import Derived, Result, read_facts
from pslab.protocol.messages import Pull, Push, Searched
from pslab.protocol.server import Discard, Effect, Reply, Server, Step
from pslab.protocol.traits import traits_of

STOPS = ("pushes", "seconds", "target_accuracy", "target_held", "eval_every")
SLACK_S = 1e-9  # instants that are no further apart are not told apart
#: What is known of a cut run, beside how it ended; a record with other facts than these and LOST is not cut.
KEPT = ("source", "refused", "deaths", "diverged", "emulation_ok", "disturbed", "pass_iterations", "ranges", "tensors",
        "verdict", "environment", "sha256")  # fmt: skip
ENDS = ("digest", "run", "outcome", "seconds", "pushes", "accepted", "dropped", "dropped_bytes")
LOST = ("server_busy_s", "preparation_s", "turning_s", "wall_s", "events", "largest_weight", "weights_sha256",
        "evaluation_sha256", "resumed", "checkpoints", "checkpoints_s")  # fmt: skip


def find_or_cut(run: Run, results: Path) -> Result | None:
    """The record of a run; where there is none, that of one that differs in its stop rules and went further, cut where
    this run would have ended, if that can be known to the last bit. `Result.cut_from` then names it."""
    found = record.find(run, results)
    if found is not None or not _can_be_cut(run):
        return found
    for whole in _longer(run, results):
        if (cut := cut_to(run, whole)) is not None:
            return cut
    return None


def cut_to(run: Run, whole: Result) -> Derived | None:
    """The result that a run would have, from that of one that differs in STOPS alone; None if it does not say that.

    It does not where it ended sooner, where the weights with which this run ends were not evaluated, and where the
    order of two events that matter is not known because they happened at one instant.
    """
    facts = whole.manifest
    if {*facts} - {*KEPT, *ENDS, *LOST} or facts.get("verdict") != "valid" or facts.get("refused") != 0:
        return None
    try:
        return _Cut(run, whole).result()
    except (_NotRecorded, RecordError):  # what is wrong with that record is said where it is asked for
        return None


# -- which records may be cut ----------------------------------------------------------------------


def _can_be_cut(run: Run) -> bool:
    """Whether the run's history does not depend on its stop rules, and its tables say all that one needs to cut it."""
    one_range = run.ranges == "whole" and run.servers == 1 and run.pull in ("whole", "changed")
    plain = not run.keep_weights and run.evaluation_period is not None
    if run.unknown or run.engine != "virtual" or not (one_range and plain):
        return False
    try:
        policy, schedule = resolve("sync", run.sync), resolve("schedule", run.schedule)
        cluster = resolve_cluster(run.cluster)
    except ConfigError:
        return False
    moves = cluster.leave or cluster.join or cluster.faults
    return not (moves or schedule.needs_budget or hasattr(policy, "sized") or traits_of(policy).eager)


def _longer(run: Run, results: Path) -> Iterator[Result]:
    """The records that this run may be the beginning of, as far as their manifests say."""
    for place in _index(results / "runs").get(_kind(run.plain()), ()):
        try:
            manifest = read_facts(place)
            stops = {name: manifest["run"].get(name, FIELDS[name].default) for name in STOPS}
            longer = run.but(**stops)
        except (RecordError, ConfigError, AttributeError):  # it is said where that record is asked for
            continue
        # the digest also covers what is not among a record's fields, such as the user's sources
        if longer.digest == manifest.get("digest") == place.name and _went_as_far(run, longer, manifest):
            yield Result(longer, place, manifest)


def _went_as_far(run: Run, longer: Run, manifest: Mapping[str, Any]) -> bool:
    period, every = run.evaluation_period, longer.evaluation_period
    if period is None or every is None or period % every:
        return False
    pushes = run.pushes is not None and run.pushes <= manifest.get("accepted", 0)
    seconds = run.seconds is not None and run.seconds <= manifest["seconds"]
    return pushes or seconds or run.target_accuracy is not None


_known: dict[Path, dict[str, str]] = {}  # of a folder of records: of each record, by name, the kind of its run


def _index(place: Path) -> dict[str, list[Path]]:
    """The records in a folder by the kind of their runs; each manifest is read once in this process."""
    known = _known.setdefault(place.absolute(), {})
    names = sorted(path.name for path in place.glob("[!.]*")) if place.is_dir() else []
    for name in names:
        if name not in known:
            try:
                known[name] = _kind(read_json(place / name / MANIFEST)["run"])
            except (OSError, ValueError, KeyError, TypeError, AttributeError):  # said where that record is asked for
                known[name] = ""
    found: dict[str, list[Path]] = {}
    for name in names:
        found.setdefault(known[name], []).append(place / name)
    return found


def _kind(plain: Mapping[str, Any]) -> str:
    """A digest of a run's fields without its stop rules."""
    return digest_of({name: value for name, value in json.loads(json.dumps(plain)).items() if name not in STOPS})


# -- the cut ---------------------------------------------------------------------------------------


class _NotRecorded(Exception):
    """The record does not say how the run would have ended."""


@dataclass
class _Cut:
    """A server that handles again what arrived at that of the longer run, until this run ends."""

    run: Run
    whole: Result
    outcome: str = ""
    seconds: float = 0.0
    row: int = 0  #: arrivals that were handled
    rows: int = 0  #: of the table of pushes
    applied: int = 0  #: gradients
    dropped: int = 0
    answered: set[tuple[int, int]] = field(default_factory=set)  #: (worker, iteration) of pushes before an answer
    clock_s: float = 0.0  #: the server's, once it has handled them
    begun_s: float = 0.0  #: when it began with the last frame

    def __post_init__(self) -> None:
        self.server = Server(range(self.run.workers), 1, resolve("sync", self.run.sync))
        self.cluster = resolve_cluster(self.run.cluster)
        phases = self.whole.phases
        served = phases[phases.phase == "serve"]
        self.served_s = dict(zip(zip(served.worker, served.iteration, strict=True), served.end_s, strict=True))
        self.applied_s = self.whole.pushes.seconds.to_numpy(float)
        table, period = self.whole.accuracy, self.run.evaluation_period or 1
        passed = table.pushes.to_numpy() // period  # of one period, after each evaluation
        self.due = np.diff(passed, prepend=-1) > 0
        self.evaluated = {pushes: at for at, pushes in enumerate(table.pushes.tolist())}

    def result(self) -> Derived:
        """Raises _NotRecorded."""
        self._handle()
        last = self.evaluated.get(self.applied)
        if not self.rows or last is None:  # nothing was applied, or these weights were not evaluated
            raise _NotRecorded
        run, table = self.run, self.whole.accuracy
        accuracy = table[(self.due & (table.pushes <= self.applied).to_numpy()) | (table.index == last)]
        accuracy = accuracy.reset_index(drop=True)
        if not self.due[last]:
            accuracy.loc[accuracy.index[-1], "seconds"] = self.seconds
        pushes = self.whole.pushes.iloc[: self.rows].reset_index(drop=True)
        unanswered = [name not in self.answered for name in zip(pushes.worker, pushes.iteration, strict=True)]
        pushes.loc[unanswered, ["bytes_down", "bytes_down_raw"]] = 0
        tables = {"accuracy": accuracy, "pushes": pushes, "phases": self._phases(),
                  "arrivals": self.whole.arrivals.iloc[: self.row].reset_index(drop=True)}  # fmt: skip
        facts = {name: self.whole.manifest[name] for name in KEPT if name in self.whole.manifest}
        sums = {name: value for name, value in facts["sha256"].items() if name != record.WEIGHTS}
        facts |= {"digest": run.digest, "run": run.plain(), "cut_from": self.whole.digest, "outcome": self.outcome,
                  "seconds": self.seconds, "pushes": self.applied, "accepted": self.server.gradients,
                  "dropped": self.dropped, **self._dropped_bytes(), "diverged": None, "sha256": sums}  # fmt: skip
        return Derived(run, self.whole.path, facts, tables=tables)

    def _handle(self) -> None:
        """Handle what arrived until the run ends."""
        run, table = self.run, self.whole.arrivals
        rows = list(zip(table.kind, table.worker, table.iteration, table.version, table.seconds, strict=True))
        for at, (kind, worker, iteration, version, arrived_s) in enumerate(rows):
            with_push = kind == "pull" and at > 0 and rows[at - 1][:3] == ("push", worker, iteration - 1)
            if not with_push and (self._reaches_target(arrived_s) or self._out_of_time(arrived_s)):
                return
            self.row, self.clock_s = at + 1, arrived_s
            self.begun_s = self.begun_s if with_push else arrived_s
            message = (Push if kind == "push" else Pull)(worker, 0, iteration, version)
            self._perform(self.server.handle(message, arrived_s))
            if kind == "push" and self.server.spent(run.pushes):
                if not self._reaches_target(np.inf):
                    self.outcome, self.seconds = "budget", self.clock_s
                if np.isnan(self.seconds):
                    raise _NotRecorded
                return
        facts = self.whole.manifest
        if self.server.spent(self.whole.run.pushes):  # it ended in the middle of a frame
            raise _NotRecorded
        if self._reaches_target(np.inf):
            return
        if facts["outcome"] == "seconds" and run.seconds is not None and run.seconds <= facts["seconds"]:
            self.outcome, self.seconds = "seconds", float(run.seconds)
            return
        raise _NotRecorded

    def _perform(self, effects: Iterable[Effect]) -> None:
        """In the order of the driver, to whose clock the tables lead: NaN where they do not."""
        pending = list(effects)
        for effect in pending:  # to which more are added meanwhile
            if isinstance(effect, Step):
                self.rows += len(effect.pushes)
                self.applied += sum(push.steps for push in effect.pushes)
                self.clock_s = float(self.applied_s[self.rows - 1])
            elif isinstance(effect, Reply):
                name = effect.pull.worker, effect.pull.iteration - 1
                self.answered.add(name)
                self.clock_s = self.served_s.get(name, np.nan)  # if these weights were never in place
                pending.extend(self.server.answered(0))
            elif isinstance(effect, Discard):
                self.dropped += 1
            elif isinstance(effect, Searched):
                self.clock_s += self.cluster.search_s * effect.points

    def _reaches_target(self, next_s: float) -> bool:
        """Whether the run ends by its target now that a frame is dealt with; the next one arrives at this instant."""
        at = self.evaluated.get(self.applied)
        if self.outcome or self.run.target_accuracy is None or at is None or not self.due[at]:
            return bool(self.outcome)
        table = self.whole.accuracy
        if not self.run.reaches_target(table.accuracy[: at + 1][self.due[: at + 1]]):
            return False
        if next_s <= self.begun_s + SLACK_S or not self.applied:  # perhaps of the same event: evaluated together
            raise _NotRecorded
        self.outcome, self.seconds = "target", float(table.seconds.iloc[at])
        return True

    def _out_of_time(self, arrived_s: float) -> bool:
        """Whether the time is up before the frame that arrived at this instant, after its handling as a message."""
        if self.run.seconds is None or arrived_s <= self.run.seconds:
            return False
        beyond_s = arrived_s - self.cluster.message_s - self.run.seconds
        if abs(beyond_s) <= SLACK_S:
            raise _NotRecorded
        if beyond_s > 0:
            self.outcome, self.seconds = "seconds", float(self.run.seconds)
        return beyond_s > 0

    def _phases(self) -> pd.DataFrame:
        """What workers had noted when the run ended: a computation when it could be pushed, an exchange when its
        weights were in place. Of one event later in the same instant as the last nothing is known."""
        table, arrived = self.whole.phases, self.whole.arrivals.iloc[: self.row]
        names = pd.MultiIndex.from_frame(table[["worker", "iteration"]])
        own = table.phase.isin(("compute", "select", "encode"))
        noted_s = table.end_s.groupby([table.worker, table.iteration, own]).transform("max").to_numpy()
        if self.outcome == "seconds":
            return table[noted_s <= self.seconds].reset_index(drop=True)
        pushed = own & names.isin(arrived[arrived.kind == "push"].set_index(["worker", "iteration"]).index)
        before_s = self.begun_s - self.cluster.message_s - noted_s
        if (~pushed & (np.abs(before_s) <= SLACK_S)).any():
            raise _NotRecorded
        return table[pushed | (before_s > 0)].reset_index(drop=True)

    def _dropped_bytes(self) -> dict[str, int]:
        """What the dropped pushes took, if all take the same."""
        known = self.run.prune == self.run.quantize == "none" or not self.dropped
        return {"dropped_bytes": self.dropped * int(self.whole.pushes.bytes_up.iloc[0])} if known else {}
