"""The pace of a policy: what an iteration takes, by a short run without evaluations. It orders and caps; it answers
nothing."""

from __future__ import annotations

from pslab.config.run import Run
from pslab.protocol.server import least_budget

PROBED = 12  # iterations
STEPS = 3  # of policies whose workers compute many gradients for each: the first and the last are no part of the pace
FREE_OF_BOUND = 3  # times a policy's bound, in iterations more: it runs freely until some worker is there


def probe(run: Run) -> Run:
    """The short run that tells the pace of this one; see `iteration_s` in pslab.lab.records.summary."""
    from pslab.lab.runs.resolve import resolve  # with torch, which an answer that is read does without

    experiment = resolve(run)
    freely = run.workers * (PROBED + FREE_OF_BOUND * (experiment.traits.window or 0))
    pushes = max(freely, STEPS * (least_budget(experiment.sync, run.workers) or 0))
    return run.but(pushes=pushes, eval_every=pushes, seconds=None, target_accuracy=None, target_held=False)
