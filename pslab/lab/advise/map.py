"""Which policy wins on which cluster: runs where policies are near each other, predictions elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
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
from pslab.lab.advise.pace import probe
from pslab.lab.advise.race import rounded_up
from pslab.lab.advise.search import EVALUATIONS, WIDER
from pslab.lab.plots.labels import caption, cluster_words, label_of
from pslab.lab.records.intervals import records
from pslab.lab.records.record import Result
from pslab.lab.records.results import Results, Runs
from pslab.lab.records.summary import best_accuracy, held, iteration_s
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
LEAST_SIGMA, FIRST_SIGMA = 0.05, 0.2  # of the logarithm of a prediction; the second where none can be compared
SOONEST = 1.005  # times the soonest of each cell: a policy that takes no more is the soonest everywhere
BATCH = 4  # cells that are computed before all are ranked again
COMPUTED, CAPPED, PREDICTED = "computed", "capped", "predicted"


class Arrival(NamedTuple):
    """Where a run holds the goal, and where it ended."""

    seconds: float
    pushes: float
    end_s: float

    @property
    def least_s(self) -> float:
        """What it takes at least."""
        return min(self.seconds, self.end_s)


class Time(NamedTuple):
    """What a policy takes in a cell."""

    seconds: float = math.inf  #: the geometric mean over seeds; infinite if one of them does not arrive
    low: float = math.nan  #: over seeds, or of a prediction; of CAPPED, what it takes at least
    high: float = math.inf
    how: str = PREDICTED
    learning_rate: float = math.nan


Cell = tuple[Any, ...]  # a value of each axis


@dataclass(frozen=True)
class Map:
    """Which policy is the soonest on which cluster. `plots.where` draws it.

    table: a row for each policy and cell: the axes, policy, seconds (infinite: not within its cap), low, high,
        how (computed: exact; capped: low is what it takes at least; predicted), learning_rate.
    winner: a row for each cell: the axes, policy, sooner (times, than the default; at least, if at_least), at_least,
        ties (the policies within `tie` of it), how (predicted, if a policy that may be the soonest is predicted only).
    regret: how many times the soonest of its cell each policy takes; rows by the worst, a column for each cell.
    best_everywhere: the policy whose worst regret is the least.
    results: all runs, at their cell and policy.
    """

    table: pd.DataFrame
    winner: pd.DataFrame
    regret: pd.DataFrame
    best_everywhere: str
    results: Results

    @classmethod
    def of(cls, table: pd.DataFrame, results: Results) -> Map:
        """The map of such a table. Its `attrs`: the axes; the default policy; tie; sigma, the spread of the logarithm
        of a prediction; the policies, with their fields by name; goal and caption for figures."""
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
    near = any(row.how == PREDICTED and row.seconds <= best.seconds * math.exp(2 * facts["sigma"])
               for row in times.values())  # fmt: skip
    there, capped = math.isfinite(best.seconds), default.how == CAPPED
    return {**cell, "policy": best.policy if there else "", "ties": ties if there else (),
            "sooner": (default.low if capped else default.seconds) / best.seconds, "at_least": capped,
            "how": PREDICTED if near else COMPUTED}  # fmt: skip


def advise_map(
    base: Run, *, target: float, minutes: float = 30.0, seeds: Sequence[int] = (0, 1, 2), tie: float = 0.05,
    space: Mapping[str, Any] | Runs | None = None, learning_rates: Sequence[float] | None = None,
    progress: bool | None = None, results: Path | str | None = None, **axes: Any,
) -> Map:  # fmt: skip
    """The soonest policy to hold a goal on each of many clusters, in virtual time.

    Each policy has its best learning rate on the nearest of some clusters, the corners and the centre, where others are
    tried while the best one lies at an end. Policies are computed where the two soonest are too near each other to be
    predicted; a prediction is the pushes on the nearest of those clusters times the pace here.

    Args:
        base: model, data, cluster and all else; its own policy is the default that others are compared with, and its
            `pushes` end every run.
        target: the accuracy (0 to 1), or value of the run's metric, that is to be held; see `held`.
        minutes: no further cells are computed after so long; those that are left stay predicted.
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
    begun_s = time.monotonic()
    survey = _Survey(_policies(plan, space), cells, target, tuple(seeds), rates,
                     {"results": results, "progress": progress})  # fmt: skip
    survey.try_rates()
    survey.probe()
    while (uncertain := survey.uncertain()) and time.monotonic() - begun_s < 60 * minutes:
        survey.compute(uncertain[:BATCH])
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
        raise ConfigError("pushes", None, "a map needs a budget: after so many pushes a run has not arrived")
    return base.but(
        engine="virtual", target_accuracy=target, target_held=True, seconds=None, schedule="constant",
        pull="changed" if base.pull == "whole" else base.pull,
        eval_every=base.eval_every or max(base.workers, base.pushes // EVALUATIONS))  # fmt: skip


def _policies(base: Run, space: Mapping[str, Any] | Runs | None) -> list[Run]:
    """The default, and the others of the space, each once."""
    others = space if isinstance(space, Runs) else grid(base, refused="drop", **(SPACE if space is None else space))
    return list(Runs(base) + Runs([base.but(**{field: getattr(run, field) for field in POLICY}) for run in others]))


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
    return {tuple(point[axis] for axis in axes): run for point, run in grid(base, **named).placed()}


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


class _Survey:
    """What is known of each policy, by its number, in each cell, and what is to be found out next."""

    def __init__(
        self, policies: Sequence[Run], cells: Mapping[Cell, Run], goal: float, seeds: tuple[int, ...],
        rates: tuple[float, ...], how: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.policies, self.goal, self.seeds, self.rates, self._how = policies, goal, seeds, rates, how
        self.clusters = {cell: run.cluster for cell, run in cells.items()}
        levels = [list(dict.fromkeys(own)) for own in zip(*cells, strict=True)]
        self._places = {cell: [own.index(value) / max(1, len(own) - 1) for own, value in zip(levels, cell, strict=True)]
                        for cell in cells}  # fmt: skip
        middle = tuple(own[len(own) // 2] for own in levels)
        corners = product(*((own[0], own[-1]) for own in levels))
        self.anchors: list[Cell] = list(dict.fromkeys([*corners, middle]))
        self._found: dict[tuple[int, Cell], dict[float, dict[int, Arrival]]] = {}  # by learning rate and seed
        self._pace: dict[tuple[int, Cell], float] = {}  # seconds of as many gradients as workers
        self.results: list[tuple[Result, int, Cell]] = []

    # what is run

    def try_rates(self) -> None:
        """Each policy at the anchors: each rate with the first seed, and the best with all, unless it takes more than
        CAP times the soonest.

        Raises:
            ConfigError: no policy arrives anywhere.
        """
        first, *more = self.seeds
        keys = list(product(range(len(self.policies)), self.anchors))
        self._tune(keys, [first])
        goes_on = [key for key in keys if self.time(*key).seconds <= CAP * self._soonest(key[1], first) < math.inf]
        self._sweep([(*key, self._best_rate(*key), seed) for key in goes_on for seed in more])
        if not any(math.isfinite(self.time(*key).seconds) for key in self._found):
            metric = metric_of(self.policies[0])
            highest = metric.best(best_accuracy(result) for result, _, _ in self.results)
            problem = (f"no policy holds it within {self.policies[0].pushes} pushes; the best evaluation is "
                       f"{metric.text(highest)}: take a goal below that, or more pushes")  # fmt: skip
            raise ConfigError("target", self.goal, problem)

    def probe(self) -> None:
        """What an iteration takes in each cell, of the policies that arrive at an anchor."""
        wanted = [(number, cell) for number in range(len(self.policies)) if self._nearest(number, self.anchors[0])
                  for cell in self.clusters]  # fmt: skip
        runs = [probe(self.policies[number].but(cluster=self.clusters[cell], seed=self.seeds[0]))
                for number, cell in wanted]  # fmt: skip
        self._pace = {key: iteration_s(result) for key, result in zip(wanted, sweep(runs, **self._how), strict=True)}

    def compute(self, cells: Iterable[Cell]) -> None:
        """In these cells every policy that is predicted to be about the soonest."""
        self._sweep([(number, cell, self.time(number, cell).learning_rate, seed) for cell in cells
                     for number in self.near(cell) for seed in self.seeds])  # fmt: skip

    def _tune(self, keys: Sequence[tuple[int, Cell]], seeds: Sequence[int]) -> None:
        """Each rate at these (policy, cell), and the next one beyond the best while that arrives and lies at an end."""
        rates = dict.fromkeys(keys, self.rates)
        for _ in range(1 + WIDER):
            self._sweep([(*key, rate, seed) for key, own in rates.items() for rate in own for seed in seeds])
            rates = {key: (rate,) for key in rates if (rate := self._beyond(*key)) is not None}

    def _beyond(self, number: int, cell: Cell) -> float | None:
        """The next learning rate beyond the best one, if that arrives and lies at an end of those tried there."""
        best = self._best_rate(number, cell)
        if any(math.isinf(each.seconds) for each in self._arrivals(number, cell, best)):
            return None
        return beyond((best,), [(rate,) for rate in self._found[number, cell]])

    def _sweep(self, wanted: Sequence[tuple[int, Cell, float, int]]) -> None:
        """Note the results of (policy, cell, rate, seed), each ended at CAP times the soonest of its cell."""
        runs = []
        for number, cell, rate, seed in wanted:
            soonest = self._soonest(cell, seed)
            runs.append(self.policies[number].but(
                cluster=self.clusters[cell], learning_rate=rate, seed=seed,
                seconds=rounded_up(CAP * soonest) if 0 < soonest < math.inf else None))  # fmt: skip
        for (number, cell, _, _), result in zip(wanted, sweep(runs, **self._how), strict=True):
            self._note(result, number, cell)

    def _soonest(self, cell: Cell, seed: int) -> float:
        """Seconds of the soonest policy: with this seed, or where none is known by the other seeds or a prediction."""
        known = [own[seed].seconds for (_, there), rates in self._found.items() if there == cell
                 for own in rates.values() if seed in own]  # fmt: skip
        return min(known or [self.time(number, cell).seconds for number in range(len(self.policies))])

    def _note(self, result: Result, number: int, cell: Cell) -> None:
        seeds = self._found.setdefault((number, cell), {}).setdefault(result.run.learning_rate, {})
        seeds[result.run.seed] = Arrival(*held(result, self.goal), result.seconds)
        self.results.append((result, number, cell))

    def map(self, axes: list[str], tie: float) -> Map:
        """What is known, and how."""
        policies = Runs(self.policies)
        columns = list(dict.fromkeys(["sync", "prune", *policies.differing()]))
        names = [label_of({}, [column for column in columns if column in columns[:2]
                               or getattr(policy, column) != FIELDS[column].default], policy) for policy in policies]
        places = {cell: dict(zip(axes, cell, strict=True)) for cell in self.clusters}
        table = pd.DataFrame([{**place, "policy": name, **self.time(number, cell)._asdict()}
                              for cell, place in places.items() for number, name in enumerate(names)])  # fmt: skip
        points = [[{**places[cell], "policy": names[number]}] for _, number, cell in self.results]
        results = Results([result for result, _, _ in self.results], points)
        shared = caption(results, ("cluster", "seconds", "learning_rate", *columns), "means over")
        table.attrs |= {"axes": axes, "default": names[0], "tie": tie, "sigma": self.sigma, "goal": self.goal,
                        "policies": {name: {column: plain(getattr(run, column)) for column in columns}
                                     for name, run in zip(names, policies, strict=True)}}  # fmt: skip
        found = Map.of(table, results)
        count, many, left = int((found.winner.how == COMPUTED).sum()), len(places), len(self.uncertain())
        words = f"{count} of {many} cells computed, {many - count} predicted" + (
            f"; time was up before {left} of them, in which two policies are near each other" * bool(left))  # fmt: skip
        table.attrs["caption"] = [*shared, words]
        return found

    # what is known

    def time(self, number: int, cell: Cell) -> Time:
        """What a policy takes in a cell, or would take."""
        if (number, cell) in self._found:
            rate = self._best_rate(number, cell)
            own = self._arrivals(number, cell, rate)
            if any(math.isinf(each.seconds) for each in own):
                return Time(low=_mean(each.least_s for each in own), how=CAPPED, learning_rate=rate)
            each_s = [each.seconds for each in own]
            return Time(_mean(each_s), min(each_s), max(each_s), COMPUTED, rate)
        if not (near := self._nearest(number, cell)):
            return Time()
        seconds = self._predicted(number, cell, near[0])
        spread = math.exp(2 * self.sigma)
        return Time(seconds, seconds / spread, seconds * spread, PREDICTED, self._best_rate(number, near[0]))

    def near(self, cell: Cell) -> list[int]:
        """The predicted policies that may be the soonest of a cell where the two soonest are near each other."""
        times = [self.time(number, cell) for number in range(len(self.policies))]
        first, second, *_ = sorted([*(each.seconds for each in times), math.inf])
        if not second < first * math.exp(2 * self.sigma):
            return []
        return [number for number, each in enumerate(times)
                if each.how == PREDICTED and each.seconds < first * math.exp(2 * self.sigma)]  # fmt: skip

    def uncertain(self) -> list[Cell]:
        """The cells with such policies, those first in which the two soonest are nearest."""
        def gap(cell: Cell) -> float:
            first, second, *_ = sorted(self.time(number, cell).seconds for number in range(len(self.policies)))
            return second / first

        return sorted(filter(self.near, self.clusters), key=gap)

    @cached_property
    def sigma(self) -> float:
        """The spread of log(predicted / computed) at the anchors, each predicted from the nearest of the others."""
        errors = []
        for number, cell in product(range(len(self.policies)), self.anchors):
            near = [other for other in self._nearest(number, cell) if other != cell]
            if (number, cell) in self._pace and near and math.isfinite(seconds := self.time(number, cell).seconds):
                errors.append(math.log(self._predicted(number, cell, near[0]) / seconds))
        return max(LEAST_SIGMA, float(np.sqrt(np.mean(np.square(errors))))) if errors else FIRST_SIGMA

    def _predicted(self, number: int, cell: Cell, anchor: Cell) -> float:
        """Seconds: the gradients until the goal at an anchor times the pace here."""
        own = self._arrivals(number, anchor, self._best_rate(number, anchor))
        return _mean(each.pushes for each in own) / self.policies[number].workers * self._pace[number, cell]

    def _nearest(self, number: int, cell: Cell) -> list[Cell]:
        """The anchors at which a policy arrives with all seeds, the nearest first."""
        known = [anchor for anchor in self.anchors if (number, anchor) in self._found and all(
            math.isfinite(each.seconds) for each in self._arrivals(number, anchor, self._best_rate(number, anchor)))]
        return sorted(known, key=lambda anchor: math.dist(self._places[anchor], self._places[cell]))

    def _arrivals(self, number: int, cell: Cell, rate: float) -> list[Arrival]:
        return [*self._found[number, cell][rate].values()]

    def _best_rate(self, number: int, cell: Cell) -> float:
        """With which most seeds arrive, then the soonest."""
        def rank(rate: float) -> tuple[int, float]:
            own = self._arrivals(number, cell, rate)
            return -sum(math.isfinite(each.seconds) for each in own), _mean(each.least_s for each in own)

        return min(self._found[number, cell], key=rank)


def _mean(values: Iterable[float]) -> float:
    """The geometric mean."""
    return math.exp(float(np.mean([math.log(max(value, 1e-9)) for value in values])))
