"""The phases of a worker's iteration, and their rows in a record."""

from __future__ import annotations

from typing import Protocol

from pslab.engines.experiment.wire import Answer
from pslab.protocol.messages import NO_WORKER, Weights

PHASES = ("compute", "select", "encode", "push", "apply", "wait", "serve", "pull", "decode")
PHASE_COLUMNS = ("worker", "iteration", "phase", "begin_s", "end_s", "waits_for", "range")
ALL = -1  # the range of a phase that concerns all ranges
COMPUTE, SELECT, ENCODE, PUSH, APPLY, WAIT, SERVE, PULL, DECODE = map(float, range(len(PHASES)))

Row = tuple[float, ...]  # in the columns of PHASE_COLUMNS


class Log(Protocol):
    """A list of rows, or a table in memory that other processes may map."""

    def append(self, row: Row, /) -> None: ...


class PhaseLog:
    """Appends the rows of a worker, in the order in which they become known."""

    def __init__(self, worker: int, rows: Log) -> None:
        self._worker, self._rows = worker, rows

    def computed(self, iteration: int, begin_s: float, end_s: float) -> None:
        """Log computing without a wait."""
        self._rows.append((self._worker, iteration, COMPUTE, begin_s, end_s, NO_WORKER, ALL))

    def coded(self, iteration: int, computed_s: float, selected_s: float, encoded_s: float | None) -> None:
        """Log that entries were selected, and encoded unless `encoded_s` is None."""
        self._rows.append((self._worker, iteration, SELECT, computed_s, selected_s, NO_WORKER, ALL))
        if encoded_s is not None:
            self._rows.append((self._worker, iteration, ENCODE, selected_s, encoded_s, NO_WORKER, ALL))

    def pushed(self, index: int, iteration: int, sent_s: float, taken_s: float, done_s: float) -> None:
        """Log a push that was handled. By the clock of a server on another machine, this may have been before the push
        was sent; then the push counts as handled when it was sent. The same holds for weights."""
        taken_s = max(sent_s, taken_s)
        done_s = max(taken_s, done_s)
        self._rows.append((self._worker, iteration, PUSH, sent_s, taken_s, NO_WORKER, index))
        self._rows.append((self._worker, iteration, APPLY, taken_s, done_s, NO_WORKER, index))

    def answered(self, weights: Weights, since_s: float, arrived_s: float) -> None:
        """Log weights for which the worker has waited since `since_s`, as phases of the iteration before theirs."""
        iteration, index, rows, worker = weights.iteration - 1, weights.range, self._rows, self._worker
        answer: Answer = weights.payload
        # by the clock of another host the weights may be sent after they arrived: no interval may be negative
        sent_s = min(answer.sent_s, arrived_s)
        released_s = min(answer.released_s, sent_s)
        rows.append((worker, iteration, WAIT, since_s, released_s, answer.released_by, index))
        rows.append((worker, iteration, SERVE, released_s, sent_s, NO_WORKER, index))
        rows.append((worker, iteration, PULL, sent_s, arrived_s, NO_WORKER, index))

    def decoded(self, iteration: int, begin_s: float, end_s: float, index: int = ALL) -> None:
        """Log that weights were installed."""
        self._rows.append((self._worker, iteration, DECODE, begin_s, end_s, NO_WORKER, index))
