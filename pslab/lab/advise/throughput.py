"""The seconds per iteration under each policy, for models too large to train on this machine: ``throughput(base)``.

An iteration is one gradient per worker. Without training it is unknown how many iterations a policy takes to reach an
accuracy: a policy with shorter iterations may take more of them.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd

from pslab.config import spec
from pslab.config.cluster import resolve_cluster
from pslab.config.run import Run
from pslab.errors import ConfigError
from pslab.lab.advise.space import candidates
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
    wanted = {(words, end): run for words, fields in policies.items() for end in ENDS
              if (run := _short(base.but(**fields, ranges=end)))}  # fmt: skip
    recorded = dict(zip(wanted, sweep(list(wanted.values()), results=results, progress=progress), strict=True))
    rows = [{"policy": words, **{f"{end}_s": iteration_s(recorded[words, end]) if (words, end) in recorded else math.nan
                                 for end in ENDS}} for words in policies]  # fmt: skip
    table = pd.DataFrame(rows).set_index("policy").sort_values("whole_s")
    table.attrs |= {"refused": refused, "costs": resolve_cluster(base.cluster).costs}
    return table


def _short(run: Run) -> Run | None:
    """Return the run with a budget of a few steps; None if its policy cannot run with its `ranges`."""
    from pslab.lab.runs.resolve import resolve  # imported late, because it loads torch

    first = least_budget(spec.resolve("sync", run.sync), run.workers) or run.workers
    short = run.but(pushes=ROUNDS * max(first, run.workers))
    try:
        resolve(short)
    except ConfigError:
        return None
    return short
