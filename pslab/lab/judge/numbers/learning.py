"""Losses of batches, and evaluations of the weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from pslab.config.metric import metric_of
from pslab.lab.judge.numbers.given import Numbers
from pslab.lab.judge.report import SLACK_S, columns, report


def losses(n: Numbers) -> list[str]:
    """The mean loss of a batch is a number, at least 0 unless the loss is a user's. What is not finite has ended the
    run."""
    h, loss = n.history, n.pushes["loss"]
    wrong = ~(loss >= n.least) if n.trained else ~np.isnan(loss)
    return report(np.flatnonzero(wrong), lambda r: f"{h.name(r)} has a loss of {loss[r]:g}")


def evaluations(n: Numbers) -> list[str]:
    """Weights are evaluated at the start, after each period, and at the end; accuracies lie in 0 to 1."""
    table = n.accuracy
    if table is None or not n.trained:
        return []
    values = columns(table, "accuracy", ["pushes"], ["seconds", "accuracy", "loss"])
    share = values["accuracy"]
    beyond = ~((share >= 0) & (share <= 1)) & metric_of(n.run).share
    found = report(np.flatnonzero(beyond), lambda r: (
        f"the accuracy after {values['pushes'][r]} pushes is {share[r]:g}"))  # fmt: skip
    order = np.argsort(values["pushes"], kind="stable")
    lost = np.isnan(values["loss"][order]) & (n.facts["outcome"] != "diverged")
    if (lost[:-1] & ~lost[1:]).any() or (values["loss"] < n.least).any():
        found.append("an evaluation has a loss that is too low, or no number before another one is")
    apart = n.history.rules.apart  # several servers copy their weights behind the same step, each in its own time
    if not n.history.rules.known or n.facts["outcome"] == "interrupted" or (apart and not n.run.evaluation_period):
        return found
    slack, due = (0.0, np.inf if apart else SLACK_S), list(_due(n))
    here = list(zip(values["pushes"][order].tolist(), values["seconds"][order].tolist(), strict=True))
    for at in range(max(len(due), len(here))):
        wanted, is_there = due[at : at + 1], here[at : at + 1]
        if not wanted or not is_there or (np.abs(np.subtract(wanted, is_there)) > slack).any():
            says = f"is after {is_there[0][0]} pushes, at {is_there[0][1]:.6g} s" if is_there else "is missing"
            expected = f"due after {wanted[0][0]} pushes, at {wanted[0][1]:.6g} s" if wanted else "not due"
            return [*found, f"evaluation {at + 1} {says}; it is {expected}"]
    return found


def _due(n: Numbers) -> Iterator[tuple[int, float]]:
    """(pushes, seconds) of each evaluation, as the server counts what it has applied."""
    run, h, period = n.run, n.history, n.run.evaluation_period
    step, last, applied = period if period is not None else (run.seconds or 1.0) / 20, 0, 0
    due, parts, complete = step, Counter[tuple[int, int]](), False
    yield 0, 0.0
    ends = (np.diff(h.applied, append=-1) != 0) | (np.diff(h.range, append=-1) != 0)
    rows = zip(h.worker.tolist(), h.iteration.tolist(), h.seconds.tolist(), ends.tolist(), strict=True)
    for worker, iteration, now, ended in rows:
        parts[worker, iteration] += 1
        if parts[worker, iteration] == h.arrivals.ranges:
            applied, complete = applied + h.rules.traits.gradients(iteration), True
        if ended and complete:
            measure, complete = applied if period is not None else now, False
            if measure >= due:
                due, last = (measure // step + 1) * step, applied
                yield applied, now
    if applied > last:
        yield applied, float(n.facts["seconds"])
