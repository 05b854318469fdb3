"""One run of a campaign, and what must hold of it: it ends, audit and replay find nothing."""

from __future__ import annotations

import time
import traceback
from typing import Any

import numpy as np

from pslab.config.run import Run
from pslab.engines.execute import execute
from pslab.engines.experiment.experiment import Experiment, Interrupted, Outcome
from pslab.engines.virtual.timing import exchange, job_without_tensors
from pslab.lab.runs.resolve import resolve
from pslab.tensors.compression.sparse import Ranges
from tools.audit.rules import judged
from tools.chaos.replay import SumGradients, SumShard, pushes_of, replay, replayed

LIMIT_S = {"timing": 60.0, "local": 120.0}  # for one run; the longest takes a second
ENDS = ("budget", "died")


class Endless(KeyboardInterrupt):
    """A run has not ended within its limit."""


def performed(run: Run) -> tuple[Outcome | None, list[str]]:
    """Return a run's outcome, if it has one, and what is wrong with it: without tensors, or on real processes."""
    limit_s = LIMIT_S[run.engine]
    until_s = time.monotonic() + limit_s

    def on_progress(news: dict[str, Any]) -> None:
        if time.monotonic() > until_s:
            raise Endless

    try:
        experiment = resolve(run)
        if run.engine == "local":
            outcome = execute(experiment, on_progress)
        else:
            job = job_without_tensors(experiment)
            shard = SumShard(job)
            outcome = exchange(job, shard, SumGradients(job, shard), on_progress)
        verdict, facts = judged(run, outcome), outcome.facts
        found = list(verdict.violations) if facts["pushes"] or verdict.verdict == "invalid" else []
        if facts["outcome"] not in ENDS:
            found.append(f"it ended as {facts['outcome']}")
        if found or (run.engine == "local" and not replayable(experiment)):
            return outcome, found
        if run.engine == "local":
            same = np.array_equal(replay(experiment, pushes_of(outcome)).numpy(), outcome.weights)
        else:
            same = shard.weights == replayed(outcome.pushes, len(job.parts))
        return outcome, [] if same else ["the weights are not what a sequential replay of the applied pushes leaves"]
    except (Endless, Interrupted):
        if time.monotonic() < until_s:
            raise
        return None, [f"it had not ended after {limit_s:g} s"]
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return None, [f"{type(error).__name__}: {error} ({last.filename.rpartition('/')[2]}, line {last.lineno})"]


def replayable(experiment: Experiment) -> bool:
    """Return whether the pushes alone determine the weights: all gradients are pushed, no answer is compressed, and the
    server keeps nothing for the rule."""
    traits, made = experiment.traits, experiment.compression
    if made is not None and (made.rule.combine is not None or made.rule.tells):
        return False
    whole = len(experiment.parts) == 1 and not isinstance(experiment.prune, Ranges) and not traits.accumulates
    whole = whole and experiment.run.downlink == "none"
    return whole and not traits.eager and not (traits.whole and experiment.sends_frames)
