"""The pace of a policy: what an iteration takes, by a short run without evaluations. It orders and caps; it answers
nothing."""

from __future__ import annotations

from pslab.config.run import Run

PROBED = 12  # iterations
FREE_OF_BOUND = 3  # times a policy's bound, in iterations more: it runs freely until some worker is there


def probe(run: Run) -> Run:
    """The short run that tells the pace of this one; see `iteration_s` in pslab.lab.records.summary."""
    from pslab.lab.runs.resolve import resolve  # with torch, which an answer that is read does without

    pushes = run.workers * (PROBED + FREE_OF_BOUND * (resolve(run).traits.window or 0))
    return run.but(pushes=pushes, eval_every=pushes, seconds=None, target_accuracy=None, target_held=False)
