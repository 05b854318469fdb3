"""retimed(result, cluster): a run with a barrier, as it would have been on another cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from pslab.engines.server.ledger import PUSH_COLUMNS
from pslab.engines.virtual.replay import retime
from pslab.lab.judge.tables import tables_of
from pslab.lab.records.record import Result
from pslab.lab.runs.resolve import resolve


@dataclass(frozen=True)
class Retimed(Result):
    """A result without a record of its own; its weights are those of the run that it is made from."""

    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict, compare=False)

    def _table(self, name: str) -> pd.DataFrame:
        return self.tables[name]


def retimed(result: Result, cluster: str | Mapping[str, Any]) -> Retimed:
    """The same pushes and accuracies, at the instants of another cluster in virtual time.

    Raises:
        ConfigError: a policy without a barrier, or what `resolve` refuses.
    """
    run = result.run.but(cluster=cluster, engine="virtual")
    outcome = retime(resolve(run), result.pushes[list(PUSH_COLUMNS)].to_numpy(float), result.manifest["diverged"])
    tables, _, facts = tables_of(run, outcome)
    evaluated, instants = result.accuracy.copy(), tables["pushes"].seconds.to_numpy()
    counts = evaluated.pushes.to_numpy()
    evaluated["seconds"] = [instants[count - 1] if count else 0.0 for count in counts]
    manifest = {**result.manifest, "run": run.plain(), "digest": run.digest, "seconds": facts["seconds"],
                "retimed": result.digest}  # fmt: skip
    return Retimed(run, result.path, manifest, tables={**tables, "accuracy": evaluated})
