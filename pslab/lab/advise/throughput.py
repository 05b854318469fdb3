"""throughput(base): the seconds of an iteration under each policy, for models that are too large to be trained here.

An iteration is as many gradients as there are workers. How many of them a policy needs to an accuracy is not known
without tensors: a policy with shorter iterations may need more of them.
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

ROUNDS = 4  # times what a policy needs for its first step
ENDS = ("layers", "whole")  # how much of an exchange is hidden: as much as layers allow, nothing


def throughput(
    base: Run, space: Any = None, *, results: Path | str | None = None, progress: bool | None = None
) -> pd.DataFrame:
    """Return a row for each policy, the soonest first: `layers_s` and `whole_s`, the seconds of an iteration where each
    layer's exchange begins as soon as its gradient is ready, and where all of it waits for the last one.

    How much of an exchange a real system hides lies between these. A policy that cannot run by layers has NaN there.
    Policies that cannot run at all, and why, are in `attrs["refused"]`, the table of costs in `attrs["costs"]`.

    Args:
        space: the policies: axes as `grid` takes them, or its table; None: pslab.lab.advise.space.DEFAULT_SPACE.

    Raises:
        ConfigError: what `grid` or the base's run refuse; nothing was started.
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
    """Return a run of a few steps; None if its policy cannot run by layers."""
    from pslab.lab.runs.resolve import resolve  # with torch, which an answer that is read does without

    first = least_budget(spec.resolve("sync", run.sync), run.workers) or run.workers
    short = run.but(pushes=ROUNDS * max(first, run.workers))
    try:
        resolve(short)
    except ConfigError:
        return None
    return short
