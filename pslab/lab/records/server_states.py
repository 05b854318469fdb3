"""When each range of the server was in which of its two states (see `pslab.protocol.server`), from a record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pslab.config.spec import build
from pslab.errors import ConfigError
from pslab.protocol.traits import traits_of

if TYPE_CHECKING:
    from pslab.lab.records.record import Result

ALL = -1  # the range of a phase that is about all of them


def pulling(result: Result) -> pd.DataFrame:
    """The intervals in which a range answered pulls: range, begin_s, end_s, answers. In all others it took pushes.

    Answers that one event led to are one interval, as are those without a time between them; an interval ends where
    the range takes a message later than that. Ranges on which the policy decides together are in the same state.

    Raises:
        RecordError: the record is from before arrivals were recorded.
    """
    served = result.phases[result.phases.phase == "serve"].sort_values("begin_s", kind="stable")
    arrivals, ranges = result.arrivals, ranges_of(result)
    together = len(ranges) > 1 and _together(result.run.sync)
    found: list[tuple[int, float, float, int]] = []
    for scope in [ranges] if together else [[index] for index in ranges]:
        own = served[served.range.isin([*scope, ALL])]
        events = np.sort(arrivals.seconds[arrivals.range.isin([*scope, ALL])].to_numpy(float))
        begins, ends = own.begin_s.to_numpy(float), own.end_s.to_numpy(float)
        if not len(own):
            continue
        taken = np.searchsorted(events, begins[1:], side="right") > np.searchsorted(events, ends[:-1], side="right")
        first = np.flatnonzero(np.concatenate([[True], taken]))
        last = np.concatenate([first[1:], [len(own)]]) - 1
        found += [(index, begins[a], ends[b], b - a + 1) for index in scope for a, b in zip(first, last, strict=True)]
    return pd.DataFrame(found, columns=["range", "begin_s", "end_s", "answers"])


def ranges_of(result: Result) -> list[int]:
    """The ranges of a run."""
    return list(range(int(max(result.pushes.range.max(), 0)) + 1 if len(result.pushes) else 1))


def _together(sync: Any) -> bool:
    """Whether a policy decides on all ranges at once; a user's policy in a record is unknown, and taken not to."""
    try:
        return traits_of(build("sync", sync) if isinstance(sync, str) else sync).whole
    except ConfigError:
        return False
