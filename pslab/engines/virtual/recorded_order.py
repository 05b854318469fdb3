"""Recompute the gradients of a run of real processes in its recorded order of arrivals.

A gradient follows from its batch and from the weights that its worker was given; which weights these are follows from
the order at the server, and that is recorded. What was late, and why, plays no part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from pslab.engines.experiment.experiment import Experiment, OnProgress, Outcome
from pslab.engines.experiment.job import Job
from pslab.engines.experiment.wire import Diverged, Frame
from pslab.engines.server.ledger import JOINED, LEFT, PULLED, PUSHED
from pslab.engines.server.push_accounts import PushAccounts
from pslab.engines.server.shard import TensorShard
from pslab.engines.virtual import engine
from pslab.engines.virtual.simulator import Simulator
from pslab.errors import ConfigError, ProtocolError
from pslab.protocol.messages import NO_WORKER, Pull, Push

CLUSTER = {"compute_s": 1e-6}  # any will do: no event waits for another


def unrepeatable(experiment: Experiment, arrivals: np.ndarray) -> str:
    """Why what arrived does not say all that the gradients follow from; "" if it does."""
    if getattr(experiment.prune, "fitted", False):
        return "its ranges were fitted to how fast its machine was"
    joined, named = (arrivals[:, 0] == JOINED).any(), arrivals[arrivals[:, 0] == PULLED, :4]
    if joined or len(named) > len(np.unique(named, axis=0)):
        return "another process took a worker's place: what it had kept of that is not recorded"
    return ""


def execute(
    experiment: Experiment, arrivals: np.ndarray, outcome: str, seconds: float, first: int = NO_WORKER
) -> Outcome:
    """Compute a run's gradients again, and apply them in the recorded order. Instants are those of the arrivals.

    Args:
        experiment: of the run on CLUSTER, in virtual time.
        arrivals: [arrivals, ARRIVAL_COLUMNS] of the recorded run.
        outcome: how that ended, after so many `seconds`.
        first: the worker of whose gradient the server heard first that it was not finite, if the run ended by one:
            others may have had one, too.

    Raises:
        ConfigError: see `unrepeatable`.
        ProtocolError: something arrived that no worker sends.
    """
    if problem := unrepeatable(experiment, arrivals):
        raise ConfigError("record", experiment.run.digest, problem)

    def simulator(*given: Any) -> Simulator:
        return _Recorded(arrivals, (outcome, seconds, first), *given)

    return engine.execute(experiment, lambda news: None, simulator=simulator)


def evaluate(experiment: Experiment, weights: np.ndarray, pushes: int) -> Outcome:
    """The evaluations of a run's first weights, and of its last ones, which it had after so many pushes."""

    def simulator(job: Job, accounts: PushAccounts, shard: TensorShard, *given: Any) -> Simulator:
        return _Kept(weights, pushes, job, accounts, shard, *given)

    return engine.execute(experiment, lambda news: None, simulator=simulator)


class _Kept(Simulator):
    """Stand for a server whose weights are there."""

    def __init__(
        self, weights: np.ndarray, pushes: int, job: Job, accounts: PushAccounts, shard: TensorShard, *given: Any
    ) -> None:
        super().__init__(job, accounts, shard, *given)
        self._put, self._pushes, self._weights = weights, pushes, shard.weights

    def run(self, on_progress: OnProgress, after: Callable[[], None] = lambda: None) -> None:
        self.driver.start()
        self._weights.copy_(torch.from_numpy(self._put))
        self.driver.accounts.applied = self._pushes
        self.driver.end("budget", 0.0)


class _Recorded(Simulator):
    """Workers compute as soon as they can; what they send waits until it is its turn at the server."""

    def __init__(self, arrivals: np.ndarray, ends: tuple[str, float, int], job: Job, *given: Any) -> None:
        super().__init__(job, *given)
        self._arrivals, self._ends = arrivals, ends
        self._sent: dict[tuple[float, ...], Push | Pull] = {}  # by kind, worker, range and iteration
        self._diverged: dict[int, Diverged] = {}  # by worker

    def run(self, on_progress: OnProgress, after: Callable[[], None] = lambda: None) -> None:
        """Let the server deal with what arrived; a snapshot is evaluated at the end."""
        self._start()
        for kind, worker, index, iteration, _, now in self._arrivals.tolist():
            self._settle()
            if self.driver.outcome:
                raise ProtocolError(f"more arrived than the run takes: it is over before {now:.6g} s")
            if kind == LEFT:
                self._leaves(int(worker), now)
            elif (message := self._sent.get((kind, worker, index, iteration))) is not None:
                self._server.deal([message], now)
            else:
                what = "push" if kind == PUSHED else "request"
                raise ProtocolError(f"worker {worker:g} sends no {what} of range {index:g}, iteration {iteration:g}")
        self._settle()
        outcome, seconds, first = self._ends
        if outcome == "diverged" and self._diverged:
            self.driver.diverge(self._diverged.get(first, min(self._diverged.values())), seconds)
        elif not self.driver.outcome:
            self.driver.end(outcome, seconds)
        self.driver.ended_s = seconds

    def _settle(self) -> None:
        """Let all happen that needs nothing more from the server; after the run's end it has been done."""
        while not self.driver.outcome and self.scheduler.turn(np.inf):
            pass

    def send(self, worker: int, frame: Frame, now: float) -> None:
        for message in frame:
            if isinstance(message, (Push, Pull)):
                kind = PUSHED if isinstance(message, Push) else PULLED
                self._sent[kind, worker, message.range, message.iteration] = message

    def diverge(self, message: Diverged, now: float) -> None:
        self._diverged[message.worker] = message
