"""What a run's own rule, optimizer and rate cost in virtual time, in a cluster's `select_s` and `apply_s`."""

from __future__ import annotations

from typing import Any

from pslab.config.cluster import APPLY_FACTORS, SELECT_FACTORS, Cluster
from pslab.config.table import find
from pslab.tensors.update import rate_state
from pslab.tensors.update.optimizers import OptimizerSpec


def select_factor(cluster: Cluster, prune: Any, rate: Any) -> float:
    """Of one gradient at its worker: the rule's selection, 1 of a user's own; and a rate's division there, if any."""
    factors, row = {**SELECT_FACTORS, **cluster.select_factor}, find("prune", prune)
    found = factors[row.name] if row else 1.0
    return found + factors[needed] if (needed := rate_state.needs(rate)) in rate_state.AT_WORKER else found


def apply_factor(cluster: Cluster, optimizer: OptimizerSpec, rate: Any, sparse: bool) -> float:
    """Of one push at the server: 1 for plain SGD at a rate that keeps nothing there, and what others take longer."""
    factors = {**APPLY_FACTORS, **cluster.apply_factor}
    found, name, needed = 1.0, optimizer.cls.__name__.lower(), rate_state.needs(rate)
    if not optimizer.plain_sgd:
        found = factors.get(name, factors["other"])[sparse]
    return found + factors[needed][sparse] - 1.0 if needed in rate_state.AT_SERVER else found
