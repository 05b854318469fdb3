"""How long ZipLine, and the searches that it is compared with, take to find a barrier: measured once, then recorded.

    results/searches/<digest>/
        times.csv       one row per instance and search: workers, ends, repeat, search, seconds, excess (of the spread)
        manifest.json   what was measured, on what; written last
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd

from pslab.config.parameters import Bounds, check
from pslab.config.run import digest_of
from pslab.errors import ConfigError
from pslab.lab.records.record import default_results
from pslab.lab.runs.machine import processor
from pslab.lab.studies.measurement import Measurement
from pslab.policies.planning.baselines import BASELINES
from pslab.policies.planning.zipline import ZIPLINES, Points
from pslab.tensors.random_streams import numpy_generator

FORMAT = 1  # raise it whenever the same Searches would be measured otherwise
ALL = {**ZIPLINES, **BASELINES}
SIZES = range(1, 2001)  # what workers and ends may be
SEARCHES = ("zipline", "opt", "optbs", "lru", "sweep", "grid", "fullgrid")
INTERVAL_MS = (1000, 1500)  # of an iteration, uniform: the data set of the authors' program
GENTLE = 2_000_000  # workers^2 * ends, beyond which FullGridScan takes longer than all others together
LARGE = 100  # workers from which growth is fitted; below it the fixed costs of a search count


@dataclass(frozen=True, kw_only=True)
class Searches:
    """The numbers of workers and of predicted ends to search with; every search gets the same instances.

    Raises:
        ConfigError: an empty list, a number out of its bounds, or an unknown search.
    """

    sizes: Sequence[int] = (10, 30, 100, 300, 1000)
    ends: Sequence[int] = (15, 50, 150)
    searches: Sequence[str] = SEARCHES
    repeats: Annotated[int, Bounds(at_least=1, at_most=1000), "instances of each size"] = 3

    def __post_init__(self) -> None:
        for name in ("sizes", "ends"):
            values = getattr(self, name)
            if not isinstance(values, (list, tuple)) or not values or any(each not in SIZES for each in values):
                raise ConfigError(name, values, f"must be a list of whole numbers from 1 to {max(SIZES)}")
            object.__setattr__(self, name, tuple(sorted({int(each) for each in values})))
        check(self)
        if isinstance(self.searches, str) or not self.searches or not {*self.searches} <= {*ALL}:
            raise ConfigError("searches", self.searches, f"must be a list of {', '.join(ALL)}")
        object.__setattr__(self, "searches", tuple(self.searches))

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that name the record."""
        return digest_of({"searches": FORMAT, **asdict(self)})


class SearchTimes(Measurement):
    """Completed measurements, read from their folder."""

    folder = "searches"
    tables = ("times",)

    @cached_property
    def times(self) -> pd.DataFrame:
        """workers, ends, repeat, search, seconds, excess: by what share the spread found exceeds the least one."""
        return self.table("times")

    @cached_property
    def medians(self) -> pd.DataFrame:
        """Median seconds and mean excess over the repeats: search, workers, ends, seconds, excess."""
        groups = self.times.groupby(["search", "workers", "ends"], sort=False)
        return groups.agg(seconds=("seconds", "median"), excess=("excess", "mean")).reset_index()

    def growth(self) -> pd.DataFrame:
        """The exponents with which the time of each search grows: with `workers`, from LARGE on, and with `ends`.

        Each is fitted at the largest value of the other number for which a search was timed at two sizes or more; NaN
        if there is none.
        """
        return pd.DataFrame({
            name: {"workers": exponent(own[own.workers >= LARGE], "workers", "ends"),
                   "ends": exponent(own, "ends", "workers")}
            for name, own in self.medians.groupby("search", sort=False)}).T  # fmt: skip


def exponent(table: pd.DataFrame, by: str, fixed: str) -> float:
    """The slope of seconds against `by` on logarithmic axes, at the largest `fixed` for which there are two points."""
    chosen = [own for _, own in table.groupby(fixed) if len(own) > 1]
    if not chosen:
        return math.nan
    sizes, seconds = (chosen[-1][name].to_numpy(float) for name in (by, "seconds"))
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def search(wanted: Searches, *, results: Path | str | None = None) -> SearchTimes:
    """The measurements: from disk, else taken now, on one thread, one search after another."""
    place = default_results() if results is None else Path(results)
    if (found := SearchTimes.find(wanted, place)) is not None:
        return found
    start_s = time.monotonic()
    tables = {"times": measured(wanted)}
    facts = {"searches": asdict(wanted), "processor": processor(), "seconds": time.monotonic() - start_s}
    return SearchTimes.save(wanted, tables, facts, place)


def instance(workers: int, ends: int, repeat: int) -> Points:
    """Per worker, in s, the predicted ends of its next iterations: intervals of 1 to 1.5 s and a random phase.

    Source: the generator of Zhao et al.'s program (github.com/xingzhaoo/ElasticBSP); the phase is uniform here.
    """
    chance = numpy_generator(repeat, "searches", workers)
    intervals = chance.integers(INTERVAL_MS[0], INTERVAL_MS[1] + 1, workers) / 1e3
    lasts = chance.random(workers) * intervals
    return [[float(last + place * interval) for place in range(1, ends + 1)]
            for last, interval in zip(lasts, intervals, strict=True)]  # fmt: skip


def measured(wanted: Searches) -> pd.DataFrame:
    """The table of times: in each repeat all searches in turn, so that a busy moment slows all of them."""
    rows = []
    for repeat in range(wanted.repeats):
        for workers in wanted.sizes:
            for ends in wanted.ends:
                points = instance(workers, ends, repeat)
                least = ZIPLINES["sweep"](points).spread
                for name in wanted.searches:
                    if name == "fullgrid" and workers * workers * ends > GENTLE:
                        continue
                    seconds, spread = _once(name, points)
                    excess = (spread - least) / least if least > 0 else 0.0
                    rows.append({"workers": workers, "ends": ends, "repeat": repeat, "search": name,
                                 "seconds": seconds, "excess": excess})  # fmt: skip
    return pd.DataFrame(rows)


def _once(name: str, points: Points) -> tuple[float, float]:
    gc.collect(0)
    start_s = time.perf_counter()
    plan = ALL[name](points)
    return time.perf_counter() - start_s, plan.spread
