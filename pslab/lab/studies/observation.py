"""Observations: statistics of the gradients of one machine's training; asked for as a value, kept as a record.

    results/observations/<digest>/
        layers.csv         one row per observed iteration and layer: deviation, kurtosis, tails, norm in the top 1 %
        histogram.csv      at the moments: entries by log10 |g|, in bins of 1 / BINS
        concentration.csv  at the moments: share of the squared norm that the largest entries carry
        rules.csv          what each rule would send of each layer's gradient
        costs.csv          seconds of a gradient, of a standard deviation and of each rule's selection, by device
        manifest.json      what was observed, on what; written last
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from pslab.config.run import Run, digest_of
from pslab.errors import ConfigError
from pslab.lab.studies.measurement import Measurement

FORMAT = 2  # raise it whenever the same Observation would give another record
BINS = 10  # of the histogram, per decade
RULES = ("static:10%", "static:1%", "static:0.1%", "std:1", "std:2", "std:3", "dynamic:5")
MOMENTS = (0.0, 0.01, 0.1, 0.5, 0.95)  # shares of the budget
PERIODS = 40  # observed in between, at equal distances


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One machine's training, and at which iterations and by which pruning rules its gradients are described.

    Raises:
        ConfigError: a run of several workers or without a budget in pushes, moments outside of it, no rules.
    """

    run: Run
    moments: Sequence[int] | None = None  #: iterations of the histograms; None: MOMENTS of the budget
    every: int | None = None  #: iterations between two densities; None: a PERIODS-th of the budget
    rules: Sequence[str] = RULES
    repeats: int = 9  #: timings per rule in each of ROUNDS rounds

    def __post_init__(self) -> None:
        if self.run.workers != 1 or self.run.pushes is None:
            raise ConfigError("pushes", self.run.pushes, "one machine is observed over a budget of pushes")
        last = self.run.pushes - 1
        moments = _whole_numbers("moments", [round(share * last) for share in MOMENTS]
                                 if self.moments is None else self.moments, 0, last)  # fmt: skip
        every = max(1, self.run.pushes // PERIODS) if self.every is None else self.every
        rules = [self.rules] if isinstance(self.rules, str) or not isinstance(self.rules, Sequence) else self.rules
        if not rules or rules == [self.rules] or not all(isinstance(rule, str) for rule in rules):
            raise ConfigError("rules", self.rules, "must be a list of pruners, such as ['static:1%', 'std:2']")
        object.__setattr__(self, "moments", tuple(sorted(set(moments))))
        object.__setattr__(self, "rules", tuple(dict.fromkeys(rules)))
        object.__setattr__(self, "every", _whole_numbers("every", [every], 1, 10**9)[0])
        _whole_numbers("repeats", [self.repeats], 1, 10_000)

    @property
    def iterations(self) -> list[int]:
        """All observed iterations: the moments, and in between those that `every` gives."""
        assert self.moments is not None
        assert self.every is not None
        assert self.run.pushes is not None
        return sorted({*self.moments, *range(0, self.run.pushes, self.every)})

    def plain(self) -> dict[str, Any]:
        """The fields as JSON can hold them."""
        chosen = {"moments": list(self.moments or ()), "every": self.every, "rules": list(self.rules)}
        return {"run": self.run.plain(), **chosen, "repeats": self.repeats}

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that name the record."""
        return digest_of({"observation": FORMAT, **self.plain(), "run": self.run.digest})


class Observed(Measurement):
    """A completed observation, read from its folder."""

    folder = "observations"
    tables = ("layers", "histogram", "concentration", "rules", "costs")

    @cached_property
    def layers(self) -> pd.DataFrame:
        """iteration, layer, entries, zeros, std, kurtosis, tail1 to tail3 (shares beyond), top_share (of the norm)."""
        return self.table("layers")

    @cached_property
    def histogram(self) -> pd.DataFrame:
        """iteration, layer, log10 (the bin's lower edge), count. Zeros are in no bin."""
        return self.table("histogram")

    @cached_property
    def concentration(self) -> pd.DataFrame:
        """iteration, layer, sent_share (of the entries, the largest first), norm_share (of the squared norm)."""
        return self.table("concentration")

    @cached_property
    def rules(self) -> pd.DataFrame:
        """iteration, layer, rule, entries, sent, threshold (smallest |g| sent), norm_share."""
        return self.table("rules")

    @cached_property
    def costs(self) -> pd.DataFrame:
        """device, operation (gradient, deviation or a rule), round, repeat, seconds."""
        return self.table("costs")

    @cached_property
    def shares(self) -> pd.DataFrame:
        """By device and operation: median seconds, share of a gradient's median, and share_low and share_high, the
        lowest and the highest share of a round."""
        rounds = self._of_gradients(["device", "round"]).groupby(["device", "operation"], sort=False).share
        found = self._of_gradients(["device"]).set_index(["device", "operation"])
        low, high = rounds.min(), rounds.max()
        return found.assign(share_low=np.minimum(found.share, low), share_high=np.maximum(found.share, high))

    def _of_gradients(self, keys: list[str]) -> pd.DataFrame:
        """The median of each operation's seconds, and its share of the gradient's median."""
        found = self.costs.groupby([*keys, "operation"], sort=False).seconds.median().reset_index()
        gradient = found[found.operation == "gradient"].drop(columns="operation")
        found = found.merge(gradient, on=keys, suffixes=("", "_gradient"))
        return found.assign(share=found.seconds / found.seconds_gradient).drop(columns="seconds_gradient")


def _whole_numbers(name: str, values: Any, low: int, high: int) -> list[int]:
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence) or not values:
        raise ConfigError(name, values, f"must be a list of iterations from {low} to {high}, or None")
    if any(isinstance(v, bool) or not isinstance(v, int) or not low <= v <= high for v in values):
        raise ConfigError(name, list(values), f"must be whole, from {low} to {high}")
    return list(values)
