"""The variants of ZipLine, compared with their published times (C++, 24 Xeon cores) and each other.

The heuristics bisect their rows here; the published ones go through them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from pslab.policies.planning.baselines import BASELINES
from pslab.policies.planning.zipline import ZIPLINES
from tools.bench.measure import Row, interleaved

BAR = 0.25  # of the published time of OptBS, at the largest size
Size = tuple[int, int]  # workers, points of each
SIZES: tuple[Size, ...] = ((10, 15), (10, 150), (100, 15), (100, 150), (500, 15), (500, 150), (1000, 15), (1000, 150))
LARGEST = SIZES[-1]
SMALL = (4, 8)  # 4096 plans in all
MOST = {"naive": 5_000.0, "grid": 3e5, "fullgrid": 2e5}  # plans, or points, that are examined in 0.3 s or less
#: Microseconds. Zhao et al. (ICDM 2019), table II; opt, optbs and n = 500 are read off a figure (DSAA 2021), to 2 %
#: or by eye.
PUBLISHED_US: dict[str, dict[Size, float]] = {
    "zipline": {(10, 15): 149, (10, 150): 1320, (100, 15): 6370, (100, 150): 49_900, (500, 15): 92_000,
                (500, 150): 610_000, (1000, 15): 253_000, (1000, 150): 2_380_000},
    "opt": {(100, 150): 20_700, (500, 15): 38_000, (500, 150): 204_000, (1000, 15): 94_000, (1000, 150): 774_000},
    "optbs": {(100, 150): 22_800, (500, 15): 30_000, (500, 150): 170_000, (1000, 15): 77_000, (1000, 150): 560_000},
    "fullgrid": {(10, 15): 1540, (10, 150): 46_700, (100, 15): 81_300, (100, 150): 2_150_000, (1000, 15): 4_040_000,
                 (1000, 150): 207_000_000},
    "grid": {(10, 15): 168, (10, 150): 5500, (100, 15): 1110, (100, 150): 43_800, (1000, 15): 7450,
             (1000, 150): 257_000},
}  # fmt: skip


def rows(quick: bool) -> Iterator[Row]:
    """Every search at every size that it can solve."""
    yield from beside({size: searched(size, 0.1 if quick else 1.5) for size in (SMALL, *SIZES)})


def instance(size: Size, seed: int = 0) -> list[list[float]]:
    """The data of the authors: intervals of 1000 to 1500 ms, and predictions from a common time on."""
    (workers, count), rng = size, random.Random(seed)
    made = [(rng.randint(1000, 1500), rng.randrange(workers), rng.randint(10, 20)) for _ in range(workers)]
    common = max(offset + interval * pushes for interval, offset, pushes in made)
    last = [offset + interval * math.ceil((common - offset) / interval) for interval, offset, _ in made]
    return [[float(start + interval * place) for place in range(1, count + 1)]
            for start, (interval, _, _) in zip(last, made, strict=True)]  # fmt: skip


def searched(size: Size, seconds: float) -> dict[str, float]:
    """Seconds of each search."""
    workers, count = size
    work = {"naive": count**workers, "grid": workers * count, "fullgrid": workers * workers * count}
    points = instance(size)
    able: dict[str, Any] = {**ZIPLINES, **{name: search for name, search in BASELINES.items()
                                           if work[name] <= MOST[name]}}  # fmt: skip
    return interleaved({name: partial(search, points) for name, search in able.items()}, seconds)


def beside(spent: Mapping[Size, Mapping[str, float]]) -> Iterator[Row]:
    """Each time as a ratio to the published one; without one, to that of OptBS, or to that of ZipLine in this call."""
    for size, times in spent.items():
        for name, took_s in times.items():
            published = PUBLISHED_US.get(name if name in PUBLISHED_US else "optbs", {}).get(size)
            against, other_s = "ZipLine here", times["zipline"]
            if published is not None:
                against, other_s = "as published" if name in PUBLISHED_US else "OptBS as published", 1e-6 * published
            bar = BAR if size == LARGEST and name in ("optbs", "lru", "sweep") else None
            yield Row(f"{name}, n={size[0]}, R={size[1]}", took_s, other_s, against, bar,
                      note=f"{1e9 * took_s / (size[0] * size[1]):.3g} ns a point")  # fmt: skip
