"""The record of an observation: statistics of the gradients of one machine's training.

    results/observations/<digest>/
        layers.csv         one row per observed iteration and layer: deviation, kurtosis, tails, norm in the top 1 %
        histogram.csv      at the moments: entries by log10 |g|, in bins of 1 / BINS
        concentration.csv  at the moments: share of the squared norm that the largest entries carry
        rules.csv          what each rule would send of each layer's gradient
        costs.csv          seconds of a gradient, of a standard deviation and of each rule's selection, by device
        manifest.json      the request and the devices; written last
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pslab.lab.records.disk import check_sums, find_whole, read_manifest, read_table, write_record
from pslab.lab.records.record import environment

FOLDER = "observations"
TABLES = ("layers", "histogram", "concentration", "rules", "costs")
NAMES = {"layer": "str", "rule": "str", "operation": "str"}  # a layer may be called 1


@dataclass(frozen=True)
class Observed:
    """A completed observation, read from its folder."""

    path: Path
    manifest: Mapping[str, Any]
    cached: bool = field(default=True, compare=False)  #: whether it existed before it was asked for

    @classmethod
    def find(cls, digest: str, results: Path) -> Observed | None:
        """The completed record of a request, if there is one; a damaged one is moved aside, see `find_whole`.

        Raises:
            RecordError: it cannot be opened now.
        """
        path = results / FOLDER / digest

        def read() -> dict[str, Any]:
            manifest = read_manifest(path, names := [f"{name}.csv" for name in TABLES])
            check_sums(path, manifest, names)
            return manifest

        manifest = find_whole(read) if path.is_dir() else None
        return None if manifest is None else cls(path, manifest)

    @classmethod
    def save(cls, digest: str, tables: Mapping[str, pd.DataFrame], facts: Mapping[str, Any], results: Path) -> Observed:
        """Write a record into a draft in its folder, and rename the draft when it is complete.

        Raises:
            Unwritable: the disk is full, or the folder cannot be written to.
        """
        path = results / FOLDER / digest
        files = {f"{name}.csv": partial(tables[name].to_csv, index=False) for name in TABLES}
        manifest = write_record(path, {"digest": digest, **facts, "environment": environment()}, files)
        return cls(path, manifest, cached=False)

    @cached_property
    def layers(self) -> pd.DataFrame:
        """iteration, layer, entries, zeros, std, kurtosis, tail1 to tail3 (shares beyond), top_share (of the norm)."""
        return self._table("layers")

    @cached_property
    def histogram(self) -> pd.DataFrame:
        """iteration, layer, log10 (the bin's lower edge), count. Zeros are in no bin."""
        return self._table("histogram")

    @cached_property
    def concentration(self) -> pd.DataFrame:
        """iteration, layer, sent_share (of the entries, the largest first), norm_share (of the squared norm)."""
        return self._table("concentration")

    @cached_property
    def rules(self) -> pd.DataFrame:
        """iteration, layer, rule, entries, sent, threshold (smallest |g| sent), norm_share."""
        return self._table("rules")

    @cached_property
    def costs(self) -> pd.DataFrame:
        """device, operation (gradient, deviation or a rule), round, repeat, seconds."""
        return self._table("costs")

    @cached_property
    def shares(self) -> pd.DataFrame:
        """By device and operation: median seconds, share of a gradient's median, and share_low and share_high, the
        lowest and the highest share of a round."""
        rounds = self._of_gradients(["device", "round"]).groupby(["device", "operation"], sort=False).share
        costs = self._of_gradients(["device"]).set_index(["device", "operation"])
        low, high = rounds.min(), rounds.max()
        return costs.assign(share_low=np.minimum(costs.share, low), share_high=np.maximum(costs.share, high))

    def _of_gradients(self, keys: list[str]) -> pd.DataFrame:
        """The median of each operation's seconds, and its share of the gradient's median."""
        medians = self.costs.groupby([*keys, "operation"], sort=False).seconds.median().reset_index()
        gradient = medians[medians.operation == "gradient"].drop(columns="operation")
        medians = medians.merge(gradient, on=keys, suffixes=("", "_gradient"))
        return medians.assign(share=medians.seconds / medians.seconds_gradient).drop(columns="seconds_gradient")

    def _table(self, name: str) -> pd.DataFrame:
        return read_table(self.path, name, self.manifest, NAMES)
