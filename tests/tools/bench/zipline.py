"""The variants of ZipLine, compared with their published times (C++, 24 Xeon cores) and each other."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from functools import partial
from typing import Any

from pslab.policies.planning.baselines import BASELINES
from pslab.policies.planning.zipline import ZIPLINES
from tools.bench.measure import Row, interleaved

BAR = 0.25  # of the published time of OptBS, at the largest size
Size = tuple[int, int]  # workers, points of each
SMALL, LARGEST = (4, 8), (1000, 150)  # 4096 plans in all, of which the baselines examine every one; and the largest
#: Microseconds. Zhao et al. (ICDM 2019), table II; opt, optbs and n = 500 are read off a figure (DSAA 2021), to 2 %
#: or by eye.
PUBLISHED_US: dict[Size, dict[str, float]] = {
    (100, 15): {"zipline": 6370}, (100, 150): {"zipline": 49_900, "opt": 20_700, "optbs": 22_800},
    (500, 150): {"zipline": 610_000, "opt": 204_000, "optbs": 170_000},
    (1000, 15): {"zipline": 253_000, "opt": 94_000, "optbs": 77_000},
    LARGEST: {"zipline": 2_380_000, "opt": 774_000, "optbs": 560_000},
}  # fmt: skip


def rows(quick: bool) -> Iterator[Row]:
    """Each variant beside its published time, else OptBS's, else ZipLine's in this call; the baselines at one size."""
    for size in (SMALL, *PUBLISHED_US):
        points, published = instance(size), PUBLISHED_US.get(size, {})
        searches: dict[str, Any] = {**ZIPLINES, **(BASELINES if size == SMALL else {})}
        spent = interleaved({name: partial(search, points) for name, search in searches.items()}, 0.1 if quick else 1.5)
        for name, took_s in spent.items():
            against, other_s = "ZipLine here", spent["zipline"]
            if (like := name if name in published else "optbs") in published:
                against, other_s = f"{like} as published", 1e-6 * published[like]
            bar = BAR if size == LARGEST and name in ("optbs", "lru", "sweep") else None
            yield Row(f"{name}, n={size[0]}, R={size[1]}", took_s, other_s, against, bar,
                      note=f"{1e9 * took_s / (size[0] * size[1]):.3g} ns a point")  # fmt: skip


def instance(size: Size, seed: int = 0) -> list[list[float]]:
    """Return data as the authors': intervals of 1000 to 1500 ms, and predictions from a common time on."""
    (workers, count), rng = size, random.Random(seed)
    made = [(rng.randint(1000, 1500), rng.randrange(workers), rng.randint(10, 20)) for _ in range(workers)]
    common = max(offset + interval * pushes for interval, offset, pushes in made)
    last = [offset + interval * math.ceil((common - offset) / interval) for interval, offset, _ in made]
    return [[float(start + interval * place) for place in range(1, count + 1)]
            for start, (interval, _, _) in zip(last, made, strict=True)]  # fmt: skip
