"""calibrate(Run) -> cluster: what computing, selecting, coding, applying and messages cost on this machine."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pandas as pd

from pslab.config import Run

ROUNDS = 60
WARM = 10  # rounds that are not counted
MEASURED = {"select": "select_s", "encode": "encode_s", "decode": "decode_s"}


def calibrate(run: Run, *, rounds: int = ROUNDS) -> dict[str, Any]:
    """A cluster, as a mapping of its fields, for virtual runs like this one.

    A short run with all W processes busy at once is measured: the costs of this model, batch and rule. Where the run's
    cluster does not model computation, its mean and the spread of its logarithm are measured too. Links stay as given.

    Raises:
        ConfigError: the run cannot be. RunError: a worker raised or died.
    """
    from pslab.engines.cluster import resolve_cluster
    from pslab.engines.local import execute
    from pslab.engines.work import PHASE_COLUMNS, PHASES
    from pslab.lab.resolve import resolve

    budget = rounds * run.workers
    short = run.but(
        engine="local", pushes=budget, seconds=None, target_accuracy=None, eval_every=budget, evaluate="after"
    )
    outcome = execute(resolve(short), lambda news: None)
    phases = pd.DataFrame(outcome.phases, columns=PHASE_COLUMNS)
    phases["name"] = phases.phase.astype(int).map(dict(enumerate(PHASES)))
    phases["spent"] = phases.end_s - phases.begin_s
    phases = phases[phases.iteration >= min(WARM, rounds // 2)]
    cluster = resolve_cluster(run.cluster)
    fields = {f.name: getattr(cluster, f.name) for f in dataclasses.fields(cluster)} | outcome.facts["costs"]
    for name, field in MEASURED.items():
        spent = phases[phases.name == name].spent
        fields[field] = float(spent.mean()) if len(spent) else 0.0
    if cluster.compute_s is None:
        spent = phases[phases.name == "compute"].spent
        fields["compute_s"] = float(spent.mean())
        fields["compute_sigma"] = float(np.log(spent).std()) if len(spent) > 1 else 0.0
    fields["slow"] = dict(cluster.slow)
    return {name: value for name, value in fields.items() if value is not None and not _nothing(value)}


def _nothing(value: Any) -> bool:
    return isinstance(value, float) and (value == 0.0 or math.isnan(value))
