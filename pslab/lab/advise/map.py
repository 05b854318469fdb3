"""The soonest policy of each cluster of a grid: every policy runs on every cluster, in virtual time."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pslab.config.cluster import Cluster, cluster_fields
from pslab.config.metric import metric_of
from pslab.config.parameters import parameters, plain
from pslab.config.run import FIELDS, FREE, Run
from pslab.errors import ConfigError, nearest
from pslab.lab.advise.race import rounded_up
from pslab.lab.advise.search import AT_ONCE, EVALUATIONS, WIDER
from pslab.lab.plots.labels import caption, cluster_words, label_of
from pslab.lab.records.frames import labels, runs_in, values
from pslab.lab.records.frames import table as frame_of
from pslab.lab.records.intervals import records
from pslab.lab.records.record import Result
from pslab.lab.records.summary import best_accuracy, held
from pslab.lab.records.tuning import beyond
from pslab.lab.runs.grid import grid
from pslab.lab.runs.run import sweep

#: Waiting and not, in rounds and not, with all of a gradient and with a hundredth of it.
SPACE: Mapping[str, Any] = {"policy": {
    "bsp": {"sync": "bsp", "prune": ["none", "static:1%"]}, "local": {"sync": "local:8"},
    "backup": {"sync": "backup:1", "prune": "static:1%"}, "ssp": {"sync": "ssp:3", "prune": "static:1%"},
    "asp": {"sync": "asp", "prune": ["none", "static:1%"]},
}}  # fmt: skip
RATES = (0.5, 1.0, 2.0)  # times the learning rate of the base
FACTOR, BELOW, ABOVE = 3.0, 3, 2  # of the default bandwidths: from one to the next, and how many lie around the base's
SPREADS = (1.0, 1.5, 2.0, 3.0, 5.0)  # of speeds: the slowest worker's time over the fastest's
CAP = 2.0  # times the soonest policy: then a run ends
POLICY = ("sync", "prune", "quantize", "rate", "ranges", "order", "push_weight")  # fields of a policy
SOONEST = 1.005  # times the soonest of each cell: a policy that takes no more is the soonest everywhere
COMPUTED, CAPPED, LEFT = "computed", "capped", "not run"


class Time(NamedTuple):
    """The time of a policy in a cell."""

    seconds: float = math.inf  #: the geometric mean over seeds; infinite if one of them does not arrive
    low: float = math.nan  #: over seeds; of CAPPED, what it takes at least
    high: float = math.inf
    how: str = LEFT
    learning_rate: float = math.nan


Cell = tuple[Any, ...]  # a value of each axis


@dataclass(frozen=True)
class Map:
    """The soonest policy on each cluster. `plots.where` draws it.

    table: a row for each policy and cell: the axes, policy, seconds (infinite: not within its cap), low, high,
        how (computed; capped: low is what it takes at least; not run: the minutes were used up), learning_rate.
    winner: a row for each cell: the axes, policy, sooner (times, than the default; at least, if at_least), at_least,
        ties (the policies within `tie` of it), how (not run, if a policy was not).
    regret: how many times the soonest of its cell each policy takes; rows by the worst, a column for each cell.
    best_everywhere: the policy whose worst regret is the least.
    results: all runs, at their cell and policy.
    """

    table: pd.DataFrame
    winner: pd.DataFrame
    regret: pd.DataFrame
    best_everywhere: str
    results: pd.DataFrame

    @classmethod
    def of(cls, table: pd.DataFrame, results: pd.DataFrame) -> Map:
        """The map of such a table. Its `attrs`: the axes; the default policy; tie; the policies, with their
        fields by name; goal and caption for figures."""
        facts, axes = table.attrs, table.attrs["axes"]
        winners = [_winner(own, dict(zip(axes, cell, strict=True)), facts)
                   for cell, own in table.groupby(axes, sort=False)]  # fmt: skip
        soonest = table.groupby(axes, sort=False).seconds.transform("min")
        shares = (table.assign(times=table[column] / soonest) for column in ("seconds", "low"))
        regret, least = (each.pivot(index="policy", columns=axes, values="times") for each in shares)
        names = list(facts["policies"])
        order = sorted(names, key=lambda name: (regret.loc[name].max(), least.loc[name].max(), names.index(name)))
        return cls(table, pd.DataFrame(winners), regret.loc[order], order[0], results)

    def __repr__(self) -> str:
        return f"{self.words}\n{self.regret.round(2)}"

    @property
    def words(self) -> str:
        """The finding in a sentence."""
        worst = self.regret.max(axis=1)
        first, last = worst[self.best_everywhere], worst.index[-1]
        words = f"never takes more than {_times(first)} the soonest" if math.isfinite(first) else "loses the least"
        words = "is the soonest everywhere" if first < SOONEST else words
        if last == self.best_everywhere:
            return f"{last} {words}"
        most = f"takes up to {_times(worst[last])} it" if math.isfinite(worst[last]) else "does not arrive everywhere"
        return f"{self.best_everywhere} {words}; {last} {most}"


def _times(value: float) -> str:
    return f"{value:.{2 if value < 2 else 1 if value < 10 else 0}f} times"


def _winner(own: pd.DataFrame, cell: Mapping[str, Any], facts: Mapping[Any, Any]) -> dict[str, Any]:
    """The row of a cell, given those of its policies."""
    times = {row.policy: row for row in records(own[["policy", "seconds", "low", "how"]])}
    best = min(times.values(), key=lambda row: row.seconds)
    default = times[facts["default"]]
    ties = tuple(name for name, row in times.items()
                 if row is not best and row.seconds <= (1 + facts["tie"]) * best.seconds)  # fmt: skip
    there, capped = math.isfinite(best.seconds), default.how == CAPPED
    return {**cell, "policy": best.policy if there else "", "ties": ties if there else (),
            "sooner": (default.low if capped else default.seconds) / best.seconds, "at_least": capped,
            "how": LEFT if any(row.how == LEFT for row in times.values()) else COMPUTED}  # fmt: skip


def advise_map(
    base: Run, *, target: float, minutes: float = 30.0, seeds: Sequence[int] = (0, 1, 2), tie: float = 0.05,
    space: Mapping[str, Any] | pd.DataFrame | None = None, learning_rates: Sequence[float] | None = None,
    progress: bool | None = None, results: Path | str | None = None, **axes: Any,
) -> Map:  # fmt: skip
    """The soonest policy to hold a goal on each of many clusters, in virtual time.

    Each policy has the learning rate that is best on the nearest of some clusters, the corners and the centre, where
    others are tried while the best one lies at an end. Every cell is computed: a run ends at CAP times the soonest of
    its cell and seed, and a policy that takes longer with the first seed runs no other.

    Args:
        base: model, data, cluster and all else; its own policy is the default that others are compared with, and its
            `pushes` end every run.
        target: the accuracy (0 to 1), or value of the run's metric, that is to be held; see `held`.
        minutes: no further cells are computed after so long; the ones that are left stay empty.
        tie: shares of the soonest time by which a policy may be longer and count as equal.
        space: the policies: axes of a grid, or runs; None: SPACE.
        learning_rates: that each policy is tried with first; None: half, all of and twice the base's.
        axes: two, or three, of which figures have a panel for each value of the third; each a field of Cluster with a
            list of values, or a name with {name: fields of Cluster}. None: bandwidth_bit_s, six around the base's, and
            the spread h of speeds over all workers, of which w takes h^((W-1-w) / (W-1)) times as long as the last one.

    Raises:
        ConfigError: what no run can have; an unknown axis; no policy holds the target.
    """
    plan = _planned(base, target)
    axes = axes or _default_axes(plan)
    cells = _cells(plan, axes)
    rates = tuple(learning_rates or (factor * plan.learning_rate for factor in RATES))
    survey = _Survey(_policies(plan, space), cells, target, tuple(seeds), rates, time.monotonic() + 60 * minutes,
                     {"results": results, "progress": progress})  # fmt: skip
    survey.try_rates()
    survey.compute()
    return survey.map(list(axes), tie)


# -- what is asked ---------------------------------------------------------------------------------


def _planned(base: Run, target: float) -> Run:
    """The base in virtual time, ended by its pushes, or once it holds the target.

    Raises:
        ConfigError: there is no such goal, no cluster, or no budget.
    """
    base.but(target_accuracy=target)
    if base.cluster == FREE:
        raise ConfigError("cluster", base.cluster, "a map needs a modelled cluster to begin with: name one, such as "
                          "cluster='lab', or measure this machine's with calibrate(run)")  # fmt: skip
    if base.pushes is None:
        raise ConfigError("pushes", None, "a map needs a budget, the pushes after which a run has missed the target: "
                          "set pushes")  # fmt: skip
    return base.but(
        engine="virtual", target_accuracy=target, target_held=True, seconds=None, schedule="constant",
        pull="changed" if base.pull == "whole" else base.pull,
        eval_every=base.eval_every or max(base.workers, base.pushes // EVALUATIONS))  # fmt: skip


def _policies(base: Run, space: Mapping[str, Any] | pd.DataFrame | None) -> list[Run]:
    """The default, and the others of the space, each once."""
    others = (runs_in(space) if isinstance(space, pd.DataFrame) else
              grid(base, refused="drop", **(SPACE if space is None else space)))  # fmt: skip
    runs = [base, *(base.but(**{field: getattr(run, field) for field in POLICY}) for run in others.run)]
    return list({run.digest: run for run in runs}.values())


def _default_axes(base: Run) -> dict[str, Any]:
    if base.workers == 1:
        raise ConfigError("workers", 1, "the speeds of one worker have no spread: give the map two axes")
    middle, last = cluster_fields(base.cluster).get("bandwidth_bit_s") or 1e9, base.workers - 1
    slow = {spread: {worker: spread ** ((last - worker) / last) for worker in range(last)} if spread > 1 else {}
            for spread in SPREADS}  # fmt: skip
    return {"bandwidth_bit_s": [float(f"{middle * FACTOR**step:.2g}") for step in range(-BELOW, ABOVE + 1)],
            "spread": {spread: {"slow": own} for spread, own in slow.items()}}  # fmt: skip


def _cells(base: Run, axes: Mapping[str, Any]) -> dict[Cell, Run]:
    """The base on the cluster of each cell, the last axis changing fastest; `point` names its values."""
    if len(axes) not in (2, 3):
        raise ConfigError("axes", [*axes], "a map has two axes, or three, or none: then bandwidth_bit_s and spread")
    named: dict[str, Any] = {axis: {entry: {"cluster": fields} for entry, fields in _entries(axis, values).items()}
                             for axis, values in axes.items()}  # fmt: skip
    runs = grid(base, **named)
    return dict(zip(zip(*(values(runs, axis) for axis in axes), strict=True), runs.run, strict=True))


def _entries(axis: str, values: Any) -> dict[Any, Mapping[str, Any]]:
    """Entry -> fields of Cluster that are laid over the base's."""
    known = parameters(Cluster)
    if isinstance(values, Mapping) and values and all(isinstance(fields, Mapping) for fields in values.values()):
        if axis in FIELDS:
            raise ConfigError(axis, values, "is a field of Run: give this axis of clusters another name")
        return dict(values)
    if axis not in known:
        problem = f"a cluster has no such field; {nearest(axis, known)}; an axis of another name maps names to fields"
        raise ConfigError(axis, values, problem)
    if isinstance(values, (str, Mapping)) or not isinstance(values, Sequence) or not len(values):
        raise ConfigError(axis, values, "must be a list of values, or map names to fields of Cluster")
    return {_entry(axis, value): {axis: value} for value in values}


def _entry(axis: str, value: Any) -> Any:
    """A value by its name on the axis: itself, or its words."""
    return value if isinstance(value, (int, float, str)) else ", ".join(cluster_words({axis: value})) or "none"


# -- what is found out -----------------------------------------------------------------------------

Key = tuple[int, Cell]  # a policy, by its number, in a cell


class _Survey:
    """The runs of each policy in each cell, and the times that follow from them."""

    def __init__(
        self, policies: Sequence[Run], cells: Mapping[Cell, Run], goal: float, seeds: tuple[int, ...],
        rates: tuple[float, ...], until_s: float, how: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.policies, self.goal, self.seeds, self.rates, self._how = policies, goal, seeds, rates, how
        self._until_s = until_s
        self.clusters = {cell: run.cluster for cell, run in cells.items()}
        levels = [list(dict.fromkeys(own)) for own in zip(*cells, strict=True)]
        self._places = {cell: [own.index(value) / max(1, len(own) - 1) for own, value in zip(levels, cell, strict=True)]
                        for cell in cells}  # fmt: skip
        corners = product(*((own[0], own[-1]) for own in levels))
        self.anchors: list[Cell] = list(dict.fromkeys([*corners, tuple(own[len(own) // 2] for own in levels)]))
        self._found: dict[Key, dict[float, dict[int, tuple[float, float]]]] = {}  # by learning rate and seed:
        self.results: list[tuple[Result, int, Cell]] = []  # the seconds at which it holds the goal, and of its end

    def try_rates(self) -> None:
        """Run each policy at the anchors with the first seed: each rate, and the next one beyond the best while that
        arrives and lies at an end.

        Raises:
            ConfigError: no policy arrives anywhere.
        """
        rates = dict.fromkeys(product(range(len(self.policies)), self.anchors), self.rates)
        for _ in range(1 + WIDER):
            for number in range(len(self.policies)):  # one after another: who comes first caps the next ones
                self._sweep([(key, rate, self.seeds[0]) for key, own in rates.items() if key[0] == number
                             for rate in own])  # fmt: skip
            rates = {key: (rate,) for key in rates if (rate := self._beyond(key)) is not None}
        if not any(math.isfinite(self.time(key).seconds) for key in self._found):
            metric = metric_of(self.policies[0])
            highest = metric.best(best_accuracy(result) for result, _, _ in self.results)
            problem = (f"no policy holds it within {self.policies[0].pushes} pushes; the best evaluation is "
                       f"{metric.text(highest)}: take a goal below that, or more pushes")  # fmt: skip
            raise ConfigError("target", self.goal, problem)

    def compute(self) -> None:
        """Run all cells with a seed, before the next seed, while there is time."""
        cells = [*self.clusters]
        for seed, first in product(self.seeds, range(0, len(cells), AT_ONCE)):
            # what is the soonest nearby comes first, and caps the others
            for number in sorted(range(len(self.policies)), key=lambda number: self._nearby((number, cells[first]))[0]):
                if time.monotonic() > self._until_s:
                    return
                keys = [(number, cell) for cell in cells[first : first + AT_ONCE]]
                wanted = [(key, self._rate(key), seed) for key in keys if seed not in self._runs(key)
                          and (seed == self.seeds[0] or math.isfinite(self.time(key).seconds))]  # fmt: skip
                self._sweep(wanted)

    def _nearby(self, key: Key) -> tuple[float, float]:
        """The seconds of a policy at the nearest anchor that it arrives at, if it does, and its best learning rate."""
        number, cell = key
        arrives = [anchor for anchor in self.anchors if math.isfinite(self.time((number, anchor)).seconds)]
        near = min(arrives or self.anchors, key=lambda anchor: math.dist(self._places[anchor], self._places[cell]))
        return self.time((number, near)).seconds, self._best_rate((number, near))

    def _rate(self, key: Key) -> float:
        return self._best_rate(key) if key in self._found else self._nearby(key)[1]

    def _runs(self, key: Key) -> Mapping[int, tuple[float, float]]:
        return self._found[key][self._best_rate(key)] if key in self._found else {}

    def _beyond(self, key: Key) -> float | None:
        """The next learning rate beyond the best one, if that arrives and lies at an end of the rates tried there."""
        if math.isinf(self.time(key).seconds):
            return None
        return beyond((self._best_rate(key),), [(rate,) for rate in self._found[key]])

    def _sweep(self, wanted: Sequence[tuple[Key, float, int]]) -> None:
        """Run (policy and cell, learning rate, seed), each ended at CAP times the soonest of its cell and seed."""
        runs = []
        for (number, cell), rate, seed in wanted:
            soonest = min((own[seed][0] for (_, there), rates in self._found.items() if there == cell
                           for own in rates.values() if seed in own), default=math.inf)  # fmt: skip
            runs.append(self.policies[number].but(
                cluster=self.clusters[cell], learning_rate=rate, seed=seed,
                seconds=rounded_up(CAP * soonest) if 0 < soonest < math.inf else None))  # fmt: skip
        for (key, rate, seed), result in zip(wanted, sweep(runs, **self._how) if runs else (), strict=True):
            seeds = self._found.setdefault(key, {}).setdefault(rate, {})
            seeds[seed] = held(result, self.goal)[0], result.seconds
            self.results.append((result, *key))

    # -- what is known

    def time(self, key: Key) -> Time:
        """Return the time that a policy takes in a cell."""
        if not (own := self._runs(key)):
            return Time()
        rate, each_s = self._best_rate(key), [seconds for seconds, _ in own.values()]
        if any(map(math.isinf, each_s)):
            return Time(low=_mean(map(min, own.values())), how=CAPPED, learning_rate=rate)
        return Time(_mean(each_s), min(each_s), max(each_s), COMPUTED, rate)

    def _best_rate(self, key: Key) -> float:
        """With which most seeds arrive, then the soonest."""
        def rank(rate: float) -> tuple[int, float]:
            own = self._found[key][rate].values()
            return -sum(math.isfinite(seconds) for seconds, _ in own), _mean(map(min, own))

        return min(self._found[key], key=rank)

    def map(self, axes: list[str], tie: float) -> Map:
        """The times of all cells, and their basis."""
        policies = self.policies
        columns = list(dict.fromkeys(["sync", "prune", *labels(frame_of(policies))]))
        names = [label_of({}, [column for column in columns if column in columns[:2]
                               or getattr(policy, column) != FIELDS[column].default], policy) for policy in policies]
        places = {cell: dict(zip(axes, cell, strict=True)) for cell in self.clusters}
        table = pd.DataFrame([{**place, "policy": name, **self.time((number, cell))._asdict()}
                              for cell, place in places.items() for number, name in enumerate(names)])  # fmt: skip
        points = [{**places[cell], "policy": names[number]} for _, number, cell in self.results]
        results = frame_of([result for result, _, _ in self.results], points)
        shared = caption(results, ("cluster", "seconds", "learning_rate", *columns), "means over")
        table.attrs |= {"axes": axes, "default": names[0], "tie": tie, "goal": self.goal,
                        "policies": {name: {column: plain(getattr(run, column)) for column in columns}
                                     for name, run in zip(names, policies, strict=True)}}  # fmt: skip
        found = Map.of(table, results)
        left = int((found.winner.how == LEFT).sum())
        seeds = [len(self._runs((number, cell))) for number, cell in product(range(len(names)), places)
                 if math.isfinite(self.time((number, cell)).seconds)]  # fmt: skip
        few = min(seeds, default=0) < len(self.seeds)
        words = "time was up: not every policy has every seed" if few else f"{len(places)} cells computed"
        words = f"time was up before {left} of {len(places)} cells were computed" if left else words
        table.attrs["caption"] = [*shared, words]
        return found


def _mean(values: Iterable[float]) -> float:
    """The geometric mean."""
    return math.exp(float(np.mean([math.log(max(value, 1e-9)) for value in values])))
