"""A map of clusters by hand: seven policies on six bandwidths and five spreads of speeds."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pandas as pd

from pslab.lab.advise.map import CAPPED, COMPUTED, Map
from pslab.lab.plots.labels import name
from pslab.lab.records.frames import table as frame_of

POLICIES = [("bsp", "none"), ("bsp", "static:1%"), ("local:8", "none"), ("backup:1", "static:1%"),
            ("ssp:3", "static:1%"), ("asp", "none"), ("asp", "static:1%")]  # fmt: skip
BANDWIDTHS, SPREADS = [4e6, 1.2e7, 3.7e7, 1.1e8, 3.3e8, 1e9], [1.0, 1.5, 2.0, 3.0, 5.0]


def taken(sync: str, prune: str, bandwidth_bit_s: float, spread: float) -> float:
    """Seconds: a wait for the slowest where there is one, bytes over the bandwidth, and more iterations if stale."""
    compute = spread if sync in ("bsp", "local:8") else (1 + spread) / 2 if sync in ("backup:1", "ssp:3") else 1.0
    sent = (1e8 if prune == "none" else 3e6) / bandwidth_bit_s / (8 if sync == "local:8" else 1)
    more = {"bsp": 1.0, "local:8": 1.3, "backup:1": 1.2, "ssp:3": 1.2, "asp": 1.2 + 0.1 * spread}[sync]
    return 10 * (compute + sent) * more * (1.03 if prune != "none" else 1.0)


def atlas(policies: Any = None, bandwidths: Any = None, spreads: Any = None) -> Map:
    """Every policy is computed on every cluster; one of them never arrives on slow links."""
    rows, chosen = [], policies or POLICIES
    names = {pair: ", ".join((name("sync", pair[0]), name("prune", pair[1]))) for pair in chosen}
    for bandwidth, spread in product(bandwidths or BANDWIDTHS, spreads or SPREADS):
        for sync, prune in chosen:
            seconds = taken(sync, prune, bandwidth, spread)
            far = (sync, prune) == ("asp", "none") and bandwidth < 1e7
            how = CAPPED if far else COMPUTED
            rows.append({"bandwidth_bit_s": bandwidth, "spread": spread, "policy": names[sync, prune],
                         "seconds": math.inf if far else seconds, "low": 0.4 * seconds if far else 0.9 * seconds,
                         "high": math.inf if far else 1.1 * seconds, "how": how, "learning_rate": 0.1})  # fmt: skip
    table = pd.DataFrame(rows)
    table.attrs |= {"axes": ["bandwidth_bit_s", "spread"], "default": names[chosen[0]], "tie": 0.05, "goal": 0.9,
                    "policies": {label: dict(zip(("sync", "prune"), pair, strict=True))
                                 for pair, label in names.items()},
                    "caption": ["MLP, width 64, 4 workers", "30 cells computed"]}  # fmt: skip
    return Map.of(table, frame_of([]))
