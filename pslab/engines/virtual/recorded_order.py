"""Recompute the gradients of a run of real processes in its recorded order of arrivals.

A gradient depends only on its batch and on its worker's weights. These weights depend on the order of arrivals at the
server, which is recorded, and not on the instants of the arrivals.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pslab.engines.experiment.experiment import Experiment, OnProgress, Outcome
from pslab.engines.experiment.job import Job
from pslab.engines.experiment.wire import Diverged, Frame
from pslab.engines.server.ledger import JOINED, LEFT, PULLED, PUSHED
from pslab.engines.virtual import engine
from pslab.engines.virtual.simulator import Simulator
from pslab.errors import ConfigError, ProtocolError
from pslab.protocol.messages import NO_WORKER, Pull, Push

CLUSTER = {"compute_s": 1e-6}  # any time will do: the recorded order decides when messages are handled


def unrepeatable(experiment: Experiment, arrivals: np.ndarray) -> str:
    """Return why the gradients do not follow from the arrivals alone; "" if they do."""
    if getattr(experiment.prune, "fitted", False):
        return "its ranges were fitted to the speed of its machine, which is not recorded"
    joined, named = (arrivals[:, 0] == JOINED).any(), arrivals[arrivals[:, 0] == PULLED, :4]
    if joined or len(named) > len(np.unique(named, axis=0)):
        return "a worker joined or was replaced, and the state of its new process is not recorded"
    return ""


def execute(
    experiment: Experiment, arrivals: np.ndarray, outcome: str, seconds: float, first: int = NO_WORKER
) -> Outcome:
    """Compute a run's gradients again, and apply them in the recorded order, at the recorded instants.

    Args:
        experiment: the experiment of the run, in virtual time and on CLUSTER.
        arrivals: [arrivals, ARRIVAL_COLUMNS] of the recorded run.
        outcome: the recorded outcome, at the instant `seconds`.
        first: the first worker that told the server of a gradient that is not finite, if the run diverged; other
            workers may have had such gradients, too.

    Raises:
        ConfigError: see `unrepeatable`.
        ProtocolError: the record has an arrival that no worker sends.
    """
    if problem := unrepeatable(experiment, arrivals):
        raise ConfigError("record", experiment.run.digest, problem)

    def simulator(*given: Any) -> Simulator:
        return _Recorded(arrivals, (outcome, seconds, first), *given)

    return engine.execute(experiment, lambda news: None, simulator=simulator)


class _Recorded(Simulator):
    """Workers compute as soon as they can; their messages wait until the recorded order reaches them."""

    def __init__(self, arrivals: np.ndarray, ends: tuple[str, float, int], job: Job, *given: Any) -> None:
        super().__init__(job, *given)
        self._arrivals, self._ends = arrivals, ends
        self._sent: dict[tuple[float, ...], Push | Pull] = {}  # by kind, worker, range and iteration
        self._diverged: dict[int, Diverged] = {}  # by worker

    def run(self, on_progress: OnProgress, after: Callable[[], None] = lambda: None) -> None:
        """Let the server handle the recorded arrivals, then end the run; `after` is not called."""
        self._start()
        for kind, worker, index, iteration, _, now in self._arrivals.tolist():
            # so that each worker has sent all that it can send before this arrival
            self._settle()
            if self.driver.outcome:
                raise ProtocolError(f"the record has an arrival at {now:.6g} s, but the run is over before it")
            if kind == LEFT:
                self._leaves(int(worker), now)
            elif (message := self._sent.get((kind, worker, index, iteration))) is not None:
                # at the recorded instant: a policy may decide by it
                self._server.deal([message], now)
            else:
                what = f"{'push' if kind == PUSHED else 'pull'} of range {index:g} in iteration {iteration:g}"
                raise ProtocolError(f"the record has a {what} by worker {worker:g}, which the worker does not send")
        self._settle()
        outcome, seconds, first = self._ends
        if outcome == "diverged" and self._diverged:
            self.driver.diverge(self._diverged.get(first, min(self._diverged.values())), seconds)
        elif not self.driver.outcome:
            self.driver.end(outcome, seconds)
        self.driver.ended_s = seconds  # as recorded: the instants of CLUSTER mean nothing

    def _settle(self) -> None:
        """Perform all events until the workers wait for the server, or the run is over."""
        while not self.driver.outcome and self.scheduler.turn(np.inf):
            pass

    def send(self, worker: int, frame: Frame, now: float) -> None:
        for message in frame:
            if isinstance(message, (Push, Pull)):
                kind = PUSHED if isinstance(message, Push) else PULLED
                # not to the server: the record says when it handles the message
                self._sent[kind, worker, message.range, message.iteration] = message

    def diverge(self, message: Diverged, now: float) -> None:
        self._diverged[message.worker] = message
