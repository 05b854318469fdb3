"""Find the soonest policy on each cluster of a grid. Every policy runs on every cluster, in virtual time."""

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

#: The default policies: synchronous and asynchronous, with rounds and without, dense and pruned.
SPACE: Mapping[str, Any] = {"policy": {
    "bsp": {"sync": "bsp", "prune": ["none", "static:1%"]}, "local": {"sync": "local:8"},
    "backup": {"sync": "backup:1", "prune": "static:1%"}, "ssp": {"sync": "ssp:3", "prune": "static:1%"},
    "asp": {"sync": "asp", "prune": ["none", "static:1%"]},
}}  # fmt: skip
RATES = (0.5, 1.0, 2.0)  # multiples of the base's learning rate
FACTOR, BELOW, ABOVE = 3.0, 3, 2  # default bandwidths: ratio of neighbours, numbers below and above the base's
SPREADS = (1.0, 1.5, 2.0, 3.0, 5.0)  # spreads of speeds: the slowest worker's time over the fastest's
CAP = 2.0  # a run ends at this multiple of the soonest policy's time
POLICY = ("sync", "prune", "quantize", "rate", "ranges", "order", "push_weight")  # fields of Run that make a policy
NAMED = ("sync", "prune")  # fields in each policy's name; others are only in the names of policies that set them
SOONEST = 1.005  # a policy within this multiple of the soonest in each cell counts as the soonest everywhere
COMPUTED, CAPPED, LEFT = "computed", "capped", "not run"


class Time(NamedTuple):
    """The time in which a policy holds the target on one cluster."""

    seconds: float = math.inf  #: the geometric mean over seeds; infinite if a seed misses the target
    low: float = math.nan  #: the least over seeds; if CAPPED, a lower bound
    high: float = math.inf
    how: str = LEFT
    learning_rate: float = math.nan


Cell = tuple[Any, ...]  # a cluster of the grid: its value on each axis


@dataclass(frozen=True)
class Map:
    """The soonest policy on each cluster of a grid. A cell is a cluster of the grid. `plots.where` draws the map.

    table: a row for each policy and cell: the axes, policy, seconds (infinite if a seed misses the target), low, high,
        how (computed; capped: a run was stopped, and low is a lower bound; not run: time was up), learning_rate.
    winner: a row for each cell: the axes, policy ("" if none holds the target), sooner (the default's time / the
        policy's time), at_least (whether `sooner` is a lower bound), ties (the other policies within `tie` of the
        soonest), how (not run, if some policy was not).
    regret: a row for each policy, a column for each cell: the policy's time / the soonest policy's time. The policy
        with the smallest maximum is the first row.
    least: as `regret`, from `low`: the least that is known where runs were stopped.
    best_everywhere: the policy with the smallest maximum of regret.
    results: all runs, with their cell and policy.
    """

    table: pd.DataFrame
    winner: pd.DataFrame
    regret: pd.DataFrame
    least: pd.DataFrame
    best_everywhere: str
    results: pd.DataFrame

    @classmethod
    def of(cls, table: pd.DataFrame, results: pd.DataFrame) -> Map:
        """Build the map from `table` and all runs. `table.attrs` has axes, default (the name of the default policy),
        tie, policies (by name, the fields of a policy), and for figures goal and caption."""
        facts, axes = table.attrs, table.attrs["axes"]
        winners = [_winner(cell_rows, dict(zip(axes, cell, strict=True)), facts)
                   for cell, cell_rows in table.groupby(axes, sort=False)]  # fmt: skip
        soonest = table.groupby(axes, sort=False).seconds.transform("min")
        shares = (table.assign(times=table[column] / soonest) for column in ("seconds", "low"))
        regret, least = (share.pivot(index="policy", columns=axes, values="times") for share in shares)
        names = list(facts["policies"])
        order = sorted(names, key=lambda name: (regret.loc[name].max(), least.loc[name].max(), names.index(name)))
        return cls(table, pd.DataFrame(winners), regret.loc[order], least.loc[order], order[0], results)

    def __repr__(self) -> str:
        return f"{self.words}\n{self.regret.round(2)}"

    @property
    def words(self) -> str:
        """The result in one sentence."""
        worst = self.regret.max(axis=1)
        first, last = worst[self.best_everywhere], worst.index[-1]
        words = f"never takes more than {_times(first)} the soonest" if math.isfinite(first) else "loses the least"
        words = "is the soonest everywhere" if first < SOONEST else words
        if last == self.best_everywhere:
            return f"{last} {words}"
        if math.isfinite(worst[last]):
            most = f"takes up to {_times(worst[last])} it"
        elif self.least.loc[last].isna().any():
            most = "was not run in every cell"
        else:
            most = f"takes more than {_times(self.least.loc[last].max())} it"
        return f"{self.best_everywhere} {words}; {last} {most}"


def _times(value: float) -> str:
    return f"{value:.{2 if value < 2 else 1 if value < 10 else 0}f} times"


def _winner(policies: pd.DataFrame, cell: Mapping[str, Any], facts: Mapping[Any, Any]) -> dict[str, Any]:
    times = {row.policy: row for row in records(policies[["policy", "seconds", "low", "how"]])}
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
    """Find the policy that holds a target soonest on each of many clusters, in virtual time.

    Learning rates are tuned only on the clusters at the corners and in the centre of the grid. There, while a policy's
    best rate is the smallest or the largest tried, the next rate beyond it is tried, too. On every other cluster a
    policy uses its best rate on the nearest of these clusters. A run stops at CAP times the time of the soonest policy
    on its cluster and seed. A policy that misses the target with a seed runs no further seed on that cluster.

    Args:
        base: model, data, cluster and all other fields; its policy is the default for comparison, and its `pushes`
            limit every run.
        target: the accuracy (0 to 1), or the value of the run's metric, to be held; see `held`.
        minutes: a time limit, after which no further cells are computed; they stay empty.
        tie: a policy that takes longer than the soonest by at most this share counts as equal.
        space: the policies, as axes for `grid` or as a table of runs; None: SPACE.
        learning_rates: the first rates of each policy; None: 0.5, 1 and 2 times the base's.
        axes: two, each a field of Cluster with a list of values, or a new name with {value: fields of Cluster}. None:
            bandwidth_bit_s, with six values around the base's, and spread, the slowest worker's compute time over the
            fastest's. With a spread h, worker w of W takes h^((W-1-w) / (W-1)) times as long as the last one.

    Raises:
        ConfigError: Run refuses a value, an axis is unknown, or no policy holds the target.
    """
    plan = _planned(base, target)
    axes = axes or _default_axes(plan)
    cells = _cells(plan, axes)
    rates = tuple(learning_rates or (factor * plan.learning_rate for factor in RATES))
    survey = _Survey(_policies(plan, space), cells, target, seeds, {"results": results, "progress": progress})
    until_s = time.monotonic() + 60 * minutes
    survey.try_rates(rates)
    survey.compute(until_s)
    return survey.map(list(axes), tie)


# -- the question ----------------------------------------------------------------------------------


def _planned(base: Run, target: float) -> Run:
    """Return the base as a run in virtual time that stops when it holds the target, or after its pushes."""
    base.but(target_accuracy=target)
    if base.cluster == FREE:
        raise ConfigError("cluster", base.cluster, "a map varies a modelled cluster: name one, such as "
                          "cluster='lab', or measure this machine's with calibrate(run)")  # fmt: skip
    if base.pushes is None:
        raise ConfigError("pushes", None, "a map needs a budget, the pushes after which a run has missed the target: "
                          "set pushes, such as 937")  # fmt: skip
    return base.but(
        engine="virtual", target_accuracy=target, target_held=True, seconds=None, schedule="constant",
        pull="changed" if base.pull == "whole" else base.pull,
        eval_every=base.eval_every or max(base.workers, base.pushes // EVALUATIONS))  # fmt: skip


def _policies(base: Run, space: Mapping[str, Any] | pd.DataFrame | None) -> list[Run]:
    others = (runs_in(space) if isinstance(space, pd.DataFrame) else
              grid(base, refused="drop", **(SPACE if space is None else space)))  # fmt: skip
    runs = [base, *(base.but(**{field: getattr(run, field) for field in POLICY}) for run in others.run)]
    return list({run.digest: run for run in runs}.values())


def _default_axes(base: Run) -> dict[str, Any]:
    if base.workers == 1:
        raise ConfigError("workers", 1, "the default axis spread needs two or more: set workers=2, or name two axes")
    middle, last = cluster_fields(base.cluster).get("bandwidth_bit_s") or 1e9, base.workers - 1
    slow = {spread: {worker: spread ** ((last - worker) / last) for worker in range(last)} for spread in SPREADS}
    return {"bandwidth_bit_s": [float(f"{middle * FACTOR**step:.2g}") for step in range(-BELOW, ABOVE + 1)],
            "spread": {spread: {"slow": slow[spread] if spread > 1 else {}} for spread in SPREADS}}  # fmt: skip


def _cells(base: Run, axes: Mapping[str, Any]) -> dict[Cell, Run]:
    """Return, by cell, the base with the cluster of the cell; the last axis changes fastest."""
    if len(axes) != 2:
        raise ConfigError("axes", [*axes], "a map has two axes: give two, such as latency_s=[0, 0.001] and "
                          "bandwidth_bit_s=[1e8, 1e9], or none for the default axes")  # fmt: skip
    named: dict[str, Any] = {axis: {entry: {"cluster": fields} for entry, fields in _entries(axis, values).items()}
                             for axis, values in axes.items()}  # fmt: skip
    runs = grid(base, **named)
    return dict(zip(zip(*(values(runs, axis) for axis in axes), strict=True), runs.run, strict=True))


def _entries(axis: str, values: Any) -> dict[Any, Mapping[str, Any]]:
    """Return, for each value of an axis, the fields of Cluster that replace the base's."""
    known = parameters(Cluster)
    if isinstance(values, Mapping) and values and all(isinstance(fields, Mapping) for fields in values.values()):
        if axis in FIELDS:
            raise ConfigError(axis, values, f"is a field of Run, but axes vary the cluster: call the axis my_{axis}")
        return dict(values)
    if axis not in known:
        problem = f"is not a field of Cluster; {nearest(axis, known)}; or give {{value: fields of Cluster}}"
        raise ConfigError(axis, values, problem)
    if isinstance(values, (str, Mapping)) or not isinstance(values, Sequence) or not len(values):
        raise ConfigError(axis, values, "must be a list of values, such as [1, 2], or {value: fields of Cluster}")
    # a value that is no number and no string is named in words
    return {value if isinstance(value, (int, float, str)) else ", ".join(cluster_words({axis: value})) or "none":
            {axis: value} for value in values}  # fmt: skip


# -- the runs --------------------------------------------------------------------------------------

Key = tuple[str, Cell]  # a policy and a cell
Seconds = dict[int, tuple[float, float]]  # by seed: when the run holds the target, and when it ends


class _Survey:
    """Runs the policies in the cells and computes their times. Learning rates are tried at `anchors`: corners and
    centre."""

    def __init__(
        self, policies: Sequence[Run], cells: Mapping[Cell, Run], goal: float, seeds: Sequence[int],
        how: Mapping[str, Any],
    ) -> None:  # fmt: skip
        columns = list(dict.fromkeys([*NAMED, *labels(frame_of(policies))]))
        telling = [[column for column in columns if column in NAMED or
                    getattr(policy, column) != FIELDS[column].default] for policy in policies]  # fmt: skip
        self.policies = {label_of({}, shown, run): run for shown, run in zip(telling, policies, strict=True)}
        self.columns, self.cells, self.goal, self.seeds, self._how = columns, cells, goal, seeds, how
        levels = [list(dict.fromkeys(level)) for level in zip(*cells, strict=True)]
        self._shares = {cell: [level.index(value) / max(1, len(level) - 1)
                               for level, value in zip(levels, cell, strict=True)] for cell in cells}  # fmt: skip
        corners = product(*((level[0], level[-1]) for level in levels))
        self.anchors: list[Cell] = list(dict.fromkeys([*corners, tuple(level[len(level) // 2] for level in levels)]))
        self._took: dict[Key, dict[float, Seconds]] = {}  # by key and learning rate
        self._soonest: dict[tuple[Cell, int], float] = {}  # by cell and seed, when the first run holds the target
        self.results: list[tuple[Result, Key]] = []

    def try_rates(self, first: Sequence[float]) -> None:
        """Run each policy at the anchors with each learning rate and the first seed. While a best rate holds the target
        and is the smallest or the largest tried, also run the next rate beyond it."""
        rates = dict.fromkeys(product(self.policies, self.anchors), first)
        for _ in range(1 + WIDER):
            for policy in self.policies:  # policy by policy: earlier times cap the later runs
                self._run([(key, rate, self.seeds[0]) for key, tried in rates.items() if key[0] == policy
                           for rate in tried])  # fmt: skip
            arrived = [key for key in rates if math.isfinite(self.time(key).seconds)]
            following = {key: beyond((self._best(key)[0],), [(rate,) for rate in self._took[key]]) for key in arrived}
            rates = {key: (rate,) for key, rate in following.items() if rate is not None}
        if not any(math.isfinite(self.time(key).seconds) for key in self._took):
            base = next(iter(self.policies.values()))
            highest = metric_of(base).best(best_accuracy(result) for result, _ in self.results)
            problem = (f"no policy holds it within {base.pushes} pushes; the best evaluation is "
                       f"{metric_of(base).text(highest)}: set an easier target, or more pushes")  # fmt: skip
            raise ConfigError("target", self.goal, problem)

    def compute(self, until_s: float) -> None:
        """Run all policies in all cells, one seed after another, until the time is up."""
        for seed, first in product(self.seeds, range(0, len(self.cells), AT_ONCE)):
            cells = [*self.cells][first : first + AT_ONCE]
            # the policy that is the soonest at the nearest anchor runs first, so that its time caps the others
            for policy in sorted(self.policies, key=lambda name: self.time(self._nearest((name, cells[0]))).seconds):
                if time.monotonic() > until_s:
                    return
                self._run([(key, self._best(key if key in self._took else self._nearest(key))[0], seed)
                           for key in product([policy], cells) if seed not in self._best(key)[1]
                           and (seed == self.seeds[0] or math.isfinite(self.time(key).seconds))])  # fmt: skip

    def _nearest(self, key: Key) -> Key:
        """Return (policy, nearest anchor where it holds the target), or (policy, nearest anchor) if there is none."""
        policy, cell = key
        arrives = [anchor for anchor in self.anchors if math.isfinite(self.time((policy, anchor)).seconds)]
        here = self._shares[cell]
        return policy, min(arrives or self.anchors, key=lambda anchor: math.dist(self._shares[anchor], here))

    def _run(self, wanted: Sequence[tuple[Key, float, int]]) -> None:
        """Run each (policy and cell, learning rate, seed), up to CAP times the soonest time of its cell and seed."""
        runs = []
        for (policy, cell), rate, seed in wanted:
            soonest = self._soonest.get((cell, seed), math.inf)
            runs.append(self.policies[policy].but(
                cluster=self.cells[cell].cluster, learning_rate=rate, seed=seed,
                seconds=rounded_up(CAP * soonest) if 0 < soonest < math.inf else None))  # fmt: skip
        for (key, rate, seed), result in zip(wanted, sweep(runs, **self._how) if runs else (), strict=True):
            at_s, at = held(result, self.goal)[0], (key[1], seed)
            self._took.setdefault(key, {}).setdefault(rate, {})[seed] = at_s, result.seconds
            self._soonest[at] = min(at_s, self._soonest.get(at, math.inf))
            self.results.append((result, key))

    # -- results

    def time(self, key: Key) -> Time:
        """Return the time of a policy in a cell; Time() if the policy has not run there."""
        rate, runs = self._best(key)
        if not runs:
            return Time()
        each_s = [seconds for seconds, _ in runs.values()]
        if math.inf in each_s:
            return Time(low=_mean(map(min, runs.values())), how=CAPPED, learning_rate=rate)
        return Time(_mean(each_s), min(each_s), max(each_s), COMPUTED, rate)

    def _best(self, key: Key) -> tuple[float, Seconds]:
        """Return the learning rate with which most seeds hold the target (of several such rates the soonest one), and
        its runs."""

        def rank(tried: tuple[float, Seconds]) -> tuple[int, float]:
            runs = tried[1].values()
            return -sum(math.isfinite(seconds) for seconds, _ in runs), _mean(map(min, runs))

        return min(self._took.get(key, {}).items(), key=rank, default=(math.nan, {}))

    def map(self, axes: list[str], tie: float) -> Map:
        """Return the map of all times so far."""
        points = {(policy, cell): {**dict(zip(axes, cell, strict=True)), "policy": policy}
                  for cell, policy in product(self.cells, self.policies)}  # fmt: skip
        times = {key: self.time(key) for key in points}
        table = pd.DataFrame([{**point, **times[key]._asdict()} for key, point in points.items()])
        results = frame_of([result for result, _ in self.results], [points[key] for _, key in self.results])
        shared = caption(results, ("cluster", "seconds", "learning_rate", *self.columns), "means over")
        table.attrs |= {"axes": axes, "default": next(iter(self.policies)), "tie": tie, "goal": self.goal,
                        "policies": {name: {column: plain(getattr(run, column)) for column in self.columns}
                                     for name, run in self.policies.items()}}  # fmt: skip
        chart = Map.of(table, results)
        left = int((chart.winner.how == LEFT).sum())
        few = any(len(self._best(key)[1]) < len(self.seeds) for key in points if math.isfinite(times[key].seconds))
        words = "time was up: not every policy has every seed" if few else f"{len(self.cells)} cells computed"
        words = f"time was up before {left} of {len(self.cells)} cells were computed" if left else words
        table.attrs["caption"] = [*shared, words]
        return chart


def _mean(values: Iterable[float]) -> float:
    """Return the geometric mean."""
    return math.exp(float(np.mean([math.log(max(value, 1e-9)) for value in values])))
