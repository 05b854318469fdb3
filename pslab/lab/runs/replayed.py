"""retimed(result, cluster): a run in rounds, as it would have been on another cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pslab.engines.server.ledger import PUSH_COLUMNS
from pslab.engines.virtual.timing import retime
from pslab.lab.judge.tables import tables_of
from pslab.lab.records.record import Derived, Result
from pslab.lab.runs.resolve import resolve


def retimed(result: Result, cluster: str | Mapping[str, Any]) -> Derived:
    """The same pushes and accuracies, at the instants of another cluster in virtual time. A run that was ended by its
    time, or by a target, ends there after as many pushes; of its last answers some may be missing.

    Raises:
        ConfigError: a policy whose steps are not made of a push of every worker, or what `resolve` refuses.
    """
    manifest, run = result.manifest, result.run.but(cluster=cluster, engine="virtual")
    pushes, budget = result.pushes[list(PUSH_COLUMNS)].to_numpy(float), manifest["pushes"]
    if manifest["outcome"] == "seconds" and budget:
        run = run.but(pushes=budget, seconds=None)
    if manifest["outcome"] in ("budget", "diverged"):
        budget = run.pushes or np.iinfo(int).max
    experiment = resolve(run)
    outcome = retime(experiment, pushes, budget, manifest["diverged"])
    tables, _, facts = tables_of(run, outcome)
    if manifest["outcome"] == "target":  # a run ends with the step whose weights reach it
        facts["seconds"] = tables["pushes"].seconds.max()
    evaluated, applied = result.accuracy.copy(), tables["pushes"]
    named = zip(applied.worker.astype(int), applied.iteration.astype(int), strict=True)
    gradients = np.cumsum([experiment.traits.unassigned(*name) for name in named])
    at = np.searchsorted(gradients, evaluated.pushes.to_numpy())
    instants = applied.seconds.to_numpy()[np.minimum(at, len(applied) - 1)]
    evaluated["seconds"] = np.where(evaluated.pushes > 0, instants, 0.0)
    facts = {**manifest, "run": run.plain(), "digest": run.digest, "seconds": facts["seconds"],
             "retimed": result.digest}  # fmt: skip
    return Derived(run, result.path, facts, tables={**tables, "accuracy": evaluated})
