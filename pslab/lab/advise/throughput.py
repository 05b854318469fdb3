"""The seconds per iteration under each policy, for models too large to train on this machine: ``throughput(base)``.

An iteration is one gradient per worker. Without training it is unknown how many iterations a policy takes to reach an
accuracy: a policy with shorter iterations may take more of them.
"""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from pslab.config import spec
from pslab.config.cluster import resolve_cluster
from pslab.config.run import Run
from pslab.lab.advise.space import candidates, refusal
from pslab.lab.records.summary import iteration_s
from pslab.lab.runs.run import sweep
from pslab.protocol.server import least_budget

ROUNDS = 4  # the run's budget, in multiples of the pushes before a policy's first step
ENDS = ("layers", "whole")  # exchange and computation overlap as far as layers allow, or not at all


def throughput(
    base: Run, space: Any = None, *, results: Path | str | None = None, progress: bool | None = None
) -> pd.DataFrame:
    """Return the seconds per iteration of each policy under two schedules, a row each, sorted by `whole_s`.

    In column `layers_s` the exchange of each layer begins as soon as its gradient is ready; in `whole_s` the exchange
    begins after the last gradient. A value is NaN if the policy cannot run so. With small layers `layers_s` may be the
    larger one, because each layer's message takes the cluster's `message_s` at the server. `attrs["refused"]` has the
    policies that cannot run, with the reasons; `attrs["costs"]` names the table of costs.

    Args:
        space: the policies, as axes for `grid` or as its table; None: pslab.lab.advise.space.DEFAULT_SPACE.

    Raises:
        ConfigError: `grid` or Run refuses a value; nothing was started.
    """
    base = base.but(engine="timing", seconds=None, target_accuracy=None, target_held=False, eval_every=None, ray=None)
    policies, refused = candidates(base, space)
    wanted: dict[tuple[str, str], Run] = {}
    for (words, fields), end in product(policies.items(), ENDS):
        run = base.but(**fields).but(ranges=end)
        first = least_budget(spec.resolve("sync", run.sync), run.workers) or 0
        short = run.but(pushes=ROUNDS * max(first, run.workers))
        if not refusal(base, short):
            wanted[words, end] = short
    results_ = sweep([*wanted.values()], results=results, progress=progress)
    paces_s = dict(zip(wanted, map(iteration_s, results_), strict=True))
    columns = {f"{end}_s": [paces_s.get((words, end), math.nan) for words in policies] for end in ENDS}
    table = pd.DataFrame(columns, index=pd.Index(policies, name="policy")).sort_values("whole_s")
    table.attrs |= {"refused": refused, "costs": resolve_cluster(base.cluster).costs}
    return table
