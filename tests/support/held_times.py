"""Held seconds of six clusters, on which races are played: python tests/support/held_times.py RESULTS makes the table.

A row for each cluster, arm (policy and learning rate) and seed: the seconds at which the run holds 50 %, infinite if it
does not within PUSHES pushes, and those that it took in all. The runs are recorded in RESULTS: asked again, it goes on.
"""

from __future__ import annotations

import math
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from pslab.config.run import Run

TABLE = Path(__file__).parents[1] / "lab" / "advise" / "tables" / "held.csv"
KEY = ["cluster", "policy", "learning_rate", "seed"]
GOAL, PUSHES, EVERY = 0.5, 320, 8
SEEDS, FRESH, BEST = range(8), range(8, 20), 5  # of all arms; of the best ones alone, for the truth
POLICIES: dict[str, dict[str, Any]] = {
    "bsp": {"sync": "bsp"},
    "asp": {"sync": "asp"},
    "local:8": {"sync": "local:8"},
    "bsp 1%": {"sync": "bsp", "prune": "static:1%"},
    "backup:1 1%": {"sync": "backup:1", "prune": "static:1%"},
    "ssp:3 1%": {"sync": "ssp:3", "prune": "static:1%"},
    "asp 1%": {"sync": "asp", "prune": "static:1%"},
    "elastic:15 1%": {"sync": "elastic:15", "prune": "static:1%"},
}
DENSE, PRUNED = (0.1, 0.2, 0.4, 0.8), (0.2, 0.4, 0.8, 1.6)  # learning rates
ARMS = [(policy, rate) for policy, fields in POLICIES.items() for rate in (PRUNED if "prune" in fields else DENSE)]
STALLS = {"stall_probability": 0.05, "stall_factor": 5.0}
CLUSTERS: dict[str, dict[str, Any]] = {
    "no network": {"compute_s": 0.02, "compute_sigma": 0.1},
    "lab": {"preset": "lab"},
    "10 Mbit/s": {"preset": "steady", "bandwidth_bit_s": 1e7},
    "slow worker": {"preset": "steady", "slow": {0: 5.0}},
    "spread speeds": {"preset": "steady", "bandwidth_bit_s": 1e8, "slow": {0: 3.0, 1: 2.1, 2: 1.4}},
    "slow and narrow": {"preset": "steady", "bandwidth_bit_s": 2e7, "slow": {0: 2.0}, **STALLS},
}


def run_of(cluster: str, policy: str, rate: float, seed: int) -> Run:
    """The run of one row."""
    return Run(model="mlp:16", data="mnist:4096,1000", workers=4, batch_size=64, pull="changed", pushes=PUSHES,
               eval_every=EVERY, engine="virtual", cluster=CLUSTERS[cluster], learning_rate=rate, seed=seed,
               **POLICIES[policy])  # fmt: skip


@lru_cache(maxsize=1)
def table() -> dict[tuple[str, str, float, int], tuple[float, float]]:
    """(held_s, ended_s) by cluster, policy, learning rate and seed."""
    rows = pd.read_csv(TABLE).itertuples(index=False)
    return {(row.cluster, row.policy, row.learning_rate, row.seed): (row.held_s, row.ended_s) for row in rows}


def main(results: Path) -> None:
    """Make the table: of every arm eight seeds, and of each cluster's arms with the least mean of log T twelve more."""
    from pslab.lab.records.summary import held
    from pslab.lab.runs.run import sweep

    def rows(keys: list[tuple[str, str, float, int]]) -> pd.DataFrame:
        found = {each.digest: each for each in sweep([run_of(*key) for key in keys], results=results)}
        ended = [(key, found[run_of(*key).digest]) for key in keys]
        return pd.DataFrame([(*key, held(result, GOAL)[0], result.seconds) for key, result in ended],
                            columns=[*KEY, "held_s", "ended_s"])  # fmt: skip

    frame = rows([(cluster, *arm, seed) for seed in SEEDS for cluster in CLUSTERS for arm in ARMS])
    logs = frame.held_s.map(math.log).groupby([frame[name] for name in KEY[:3]]).mean()
    best = [arm for cluster in CLUSTERS for arm in logs.xs(cluster, drop_level=False).nsmallest(BEST).index]
    frame = pd.concat([frame, rows([(*arm, seed) for seed in FRESH for arm in best])])
    TABLE.parent.mkdir(exist_ok=True)
    frame.to_csv(TABLE, index=False, float_format="%.4g")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
