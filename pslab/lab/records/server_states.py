"""The times at which each range of the server was in each of its two states (see `pslab.protocol.server`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pslab.config.spec import build
from pslab.errors import ConfigError
from pslab.protocol.traits import traits_of

if TYPE_CHECKING:
    from pslab.lab.records.record import Result

ALL = -1  # the range of a phase that concerns all ranges


def pulling(result: Result) -> pd.DataFrame:
    """Return the intervals in which a range answered pulls: range, begin_s, end_s, answers.

    At all other times a range accepts pushes. Consecutive answers form one interval, unless a message arrives between
    them. If the policy decides on all ranges together, all ranges have the same intervals.

    Raises:
        RecordError: an older version of pslab made the record, without arrivals.
    """
    served = result.phases[result.phases.phase == "serve"].sort_values("begin_s", kind="stable")
    arrivals, ranges = result.arrivals, ranges_of(result)
    together = len(ranges) > 1 and _together(result.run.sync)
    rows: list[tuple[int, float, float, int]] = []
    for scope in [ranges] if together else [[index] for index in ranges]:
        answers = served[served.range.isin([*scope, ALL])]
        events = np.sort(arrivals.seconds[arrivals.range.isin([*scope, ALL])].to_numpy(float))
        begins, ends = answers.begin_s.to_numpy(float), answers.end_s.to_numpy(float)
        if not len(answers):
            continue
        taken = np.searchsorted(events, begins[1:], side="right") > np.searchsorted(events, ends[:-1], side="right")
        first = np.flatnonzero(np.concatenate([[True], taken]))
        last = np.concatenate([first[1:], [len(answers)]]) - 1
        rows += [(index, begins[a], ends[b], b - a + 1) for index in scope for a, b in zip(first, last, strict=True)]
    return pd.DataFrame(rows, columns=["range", "begin_s", "end_s", "answers"])


def ranges_of(result: Result) -> list[int]:
    """Return the numbers of a run's ranges; [0] if no push was applied."""
    return list(range(int(max(result.pushes.range.max(), 0)) + 1 if len(result.pushes) else 1))


def _together(sync: Any) -> bool:
    # whether the policy decides on all ranges at once; False for a user's policy, which the record does not contain
    try:
        return traits_of(build("sync", sync) if isinstance(sync, str) else sync).whole
    except ConfigError:
        return False
