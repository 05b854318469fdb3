"""One run of a campaign, and what must hold of it: it ends, audit and replay find nothing."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pslab.config.run import Run
from pslab.engines.execute import execute
from pslab.engines.experiment.experiment import Experiment, Interrupted, Outcome
from pslab.engines.virtual.timing import exchange, job_without_tensors
from pslab.lab import judge
from pslab.lab.runs.resolve import resolve
from pslab.tensors.compression.sparse import Ranges
from tools.audit.rules import audit
from tools.chaos.draw import drawn
from tools.chaos.replay import pushes_of, replay
from tools.chaos.sums import SumGradients, SumShard, replayed

VIRTUAL, LOCAL = "virtual", "local"
LIMIT_S = {VIRTUAL: 60.0, LOCAL: 120.0}  # for one run; the longest takes a second
ENDS = ("budget", "died")


class Endless(KeyboardInterrupt):
    """A run has not ended within its limit."""


SHOWN = ("sync", "workers", "servers", "ranges", "order", "prune", "pull", "optimizer", "rate", "pushes",
         "cluster", "lease_s", "on_death")  # fmt: skip


def violation(seed: int, number: int, words: list[str], run: Run) -> str:
    """What is wrong with a run, and how to see it again."""
    engine = LOCAL if run.engine == LOCAL else VIRTUAL
    again = f"python -m pslab chaos --seed {seed} --first {number} --runs 1 --engine {engine}"
    fields = {name: value for name, value in run.plain().items() if name in SHOWN}
    return f"run {number}: {'; '.join(words)}\n  {json.dumps(fields)}\n  again: {again}"


def campaign(seed: int, numbers: Iterator[int] | range, engine: str) -> Iterator[tuple[Outcome | None, list[str], Run]]:
    """Each run's outcome, and what is wrong with it."""
    for number in numbers:
        run = drawn(seed, number, "timing" if engine == VIRTUAL else LOCAL)
        yield *performed(run), run


def performed(run: Run) -> tuple[Outcome | None, list[str]]:
    """A run's outcome, if it has one, and what is wrong with it."""
    engine = LOCAL if run.engine == LOCAL else VIRTUAL
    until_s = time.monotonic() + LIMIT_S[engine]

    def on_progress(news: dict[str, Any]) -> None:
        if time.monotonic() > until_s:
            raise Endless

    try:
        return (_on_processes if engine == LOCAL else _in_virtual_time)(run, on_progress)
    except (Endless, Interrupted):
        if time.monotonic() < until_s:
            raise
        return None, [f"it had not ended after {LIMIT_S[engine]:g} s"]
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return None, [f"{type(error).__name__}: {error} ({last.filename.rpartition('/')[2]}, line {last.lineno})"]


def _in_virtual_time(run: Run, on_progress: Callable[[dict[str, Any]], None]) -> tuple[Outcome, list[str]]:
    job = job_without_tensors(resolve(run))
    shard = SumShard(job)
    outcome = exchange(job, shard, SumGradients(job, shard), on_progress)
    found = _judged(run, outcome)
    if not found and shard.weights != replayed(outcome.pushes, len(job.parts)):
        found.append("the weights are not what a sequential replay of the applied pushes leaves")
    return outcome, found


def _on_processes(run: Run, on_progress: Callable[[dict[str, Any]], None]) -> tuple[Outcome, list[str]]:
    experiment = resolve(run)
    outcome = execute(experiment, on_progress)
    found = _judged(run, outcome)
    if found or not replayable(experiment):
        return outcome, found
    if not np.array_equal(replay(experiment, pushes_of(outcome)).numpy(), outcome.weights):
        found.append("the weights are not what a sequential replay of the applied pushes leaves")
    return outcome, found


def _judged(run: Run, outcome: Outcome) -> list[str]:
    made, _, facts = judge.tables_of(run, outcome)
    verdict = audit(run, made, facts)
    found = list(verdict.violations) if facts["pushes"] or verdict.verdict == "invalid" else []
    if facts["outcome"] not in ENDS:
        found.append(f"it ended as {facts['outcome']}")
    return found


def replayable(experiment: Experiment) -> bool:
    """Whether the pushes alone determine the weights: each gradient is pushed, and answers are not compressed."""
    traits = experiment.traits
    whole = len(experiment.parts) == 1 and not isinstance(experiment.prune, Ranges) and not traits.accumulates
    whole = whole and experiment.run.downlink == "none"
    return whole and not traits.eager and not (traits.whole and experiment.sends_frames)
