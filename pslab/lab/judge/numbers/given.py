"""A record's numbers, as those that judge them are given them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pslab.config.cluster import Cluster
from pslab.config.run import Run
from pslab.config.spec import resolve
from pslab.config.table import find
from pslab.errors import ConfigError
from pslab.lab.judge.phases import Phases
from pslab.lab.judge.pushes import History
from pslab.lab.judge.report import columns
from pslab.tensors.pruning.rules import Dense

FLOATS = ["loss", "density", "bytes_up", "bytes_up_raw", "bytes_down", "bytes_down_raw"]
EXACT = 1e-9  # relative: what a sum of two instants loses


@dataclass(frozen=True)
class Numbers:
    """A record's tables and facts, whose order has been judged."""

    run: Run
    cluster: Cluster
    facts: Mapping[str, Any]
    history: History
    phases: Phases
    pushes: Mapping[str, np.ndarray]  #: the columns FLOATS
    accuracy: pd.DataFrame | None

    @property
    def least(self) -> float:
        """The lowest value of the loss: a user's may have any."""
        return 0.0 if find("loss", self.run.loss) is not None else -math.inf

    @classmethod
    def of(
        cls, run: Run, cluster: Cluster, facts: Mapping[str, Any], history: History, phases: Phases,
        tables: Mapping[str, pd.DataFrame],
    ) -> Numbers:  # fmt: skip
        """Read what the history has not.

        Raises:
            Unreadable: nothing can be judged from it.
        """
        values = columns(tables.get("pushes"), "pushes", [], FLOATS)
        return cls(run, cluster, facts, history, phases, values, tables.get("accuracy"))

    @property
    def itemsize(self) -> int:
        """Bytes of a weight."""
        return int(np.dtype(self.run.dtype).itemsize)

    @property
    def trained(self) -> bool:
        """Whether gradients were computed and weights evaluated."""
        return self.run.engine != "timing"

    @property
    def modelled(self) -> bool:
        """Whether time was virtual, and is what the cluster says."""
        return self.run.engine != "local"

    @property
    def keyed(self) -> bool:
        """Whether just the keys of batches travel, and nothing where a range has none of them."""
        return self.run.pull == "keys"

    @property
    def sparse(self) -> bool | None:
        """Whether gradients travel as frames of chosen entries; None if the record does not determine it."""
        try:
            return self.keyed or not isinstance(resolve("prune", self.run.prune), Dense)
        except ConfigError:
            return None
