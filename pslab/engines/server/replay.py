"""A server's state without tensors, made by a replay of the arrivals that it has dealt with.

The state machine, the policy, the learning rate and the accounts of pushes decide by the messages that arrive and by
their instants: the same arrivals lead a new server to the same state, whatever objects a policy of the user keeps. So a
checkpoint has the number of arrivals, and nothing of that state. In a replay time stands at each arrival's recorded
instant, no frame is sent, and no weight changes: the table of pushes has the instant at which a push was applied, and
the length of an answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from pslab.engines.experiment.wire import Frame
from pslab.engines.server.clock import Clock
from pslab.engines.server.driver import ServerDriver, Transport
from pslab.engines.server.ledger import JOINED, LEFT, PUSH_COLUMNS, message_of
from pslab.engines.server.store import Finished, Store, Work
from pslab.errors import CheckpointError, ProtocolError
from pslab.protocol.server import Discard, Reply, Server, Step
from pslab.protocol.store import Order

RECORDED = [PUSH_COLUMNS.index(column) for column in ("seconds", "bytes_down", "version_applied")]
WAY_OUT = "begin the run again: run(..., fresh=True), or pslab run --fresh"


class Recorded(Clock, Transport, Store):
    """Clock, transport and store of a driver in a replay.

    Args:
        pushes: the rows of the table of pushes [rows, PUSH_COLUMNS].
        sync: the policy, for the message of an error.
    """

    def __init__(self, pushes: np.ndarray, sync: object) -> None:
        self.at = 0.0  #: the instant of the arrival
        self._sync = sync
        rows = zip(pushes[:, 1:4].astype(int).tolist(), pushes[:, RECORDED].tolist(), strict=True)
        # of (worker, iteration, range): when the push was applied, the bytes of the next answer, and the version
        self._rows = {tuple(name): row for name, row in rows}

    def now(self) -> float:
        return self.at

    def spend(self, on: str, since_s: float, count: int = 1, share: float = 1.0) -> None:
        return

    def send(self, worker: int, frame: Frame, now: float) -> None:
        return

    def hand(self, order: Order, work: Work) -> Finished:
        size_bytes, done_s, free = 0, self.at, order.pushes if isinstance(order, Step) else ()
        if isinstance(order, Step):
            names = [(push.worker, push.iteration, order.range) for push in order.pushes]
            rows = [self._rows[name] for name in names if name in self._rows]  # of a killed server's last orders: none
            if any(version != order.version for _, _, version in rows):
                raise otherwise(self._sync, "steps")
            done_s = max((seconds for seconds, _, _ in rows), default=self.at)
        elif isinstance(order, Reply):
            name = order.pull.worker, order.pull.iteration - 1, order.pull.range
            size_bytes = int(self._rows[name][1]) if name in self._rows else 0
        elif isinstance(order, Discard):
            free = (order.push,)
        return Finished(order, work, free, isinstance(order, Reply), size_bytes, self.at, done_s)

    def finish(self) -> Iterable[Finished]:
        return ()


def replay(driver: ServerDriver, arrivals: np.ndarray, pushes: np.ndarray) -> None:
    """Replay these arrivals on the driver of a run that has not started.

    Args:
        arrivals: [arrivals, REPLAYED_COLUMNS].
        pushes: see `Recorded`.

    Raises:
        CheckpointError: the policy decides by more than what arrives.
    """
    recorded = Recorded(pushes, driver.machine.sync)
    with driver.replaying(recorded):
        for row in arrivals.tolist():
            kind, worker, _, _, _, recorded.at, *_ = row
            if kind == LEFT:
                driver.leave(int(worker))
            elif kind == JOINED:
                driver.join(int(worker), recorded.at)
            else:
                driver.repeat(message_of(row))


def marks_of(machine: Server) -> dict[str, Any]:
    """Return numbers by which two states of a machine are told apart: what it has counted, versions, and clocks."""
    clocks = [[*part.clocks.items()] for part in machine.ranges]
    return {"gradients": machine.gradients, "versions": [part.version for part in machine.ranges],
            "ranges": [[list(pair) for pair in own] for own in clocks]}  # fmt: skip


def check_marks(machine: Server, marks: Any) -> None:
    """Refuse the state of a replay that is not the one that was saved.

    Raises:
        CheckpointError: the policy decides by more than what arrives, or the checkpoint is another run's.
    """
    if (found := marks_of(machine)) != marks:
        differs = [name for name in found if not isinstance(marks, dict) or found[name] != marks.get(name)]
        raise otherwise(machine.sync, ", ".join(differs))


def otherwise(sync: object, differs: str) -> CheckpointError:
    """Return the error by which a replay is refused that leads to other decisions than the run's."""
    problem = f"{sync} decides by more than its events and the state that it has made of them, as by chance"
    return CheckpointError(f"the recorded arrivals lead to other {differs}: {problem}; {WAY_OUT}")


def refused(error: Exception) -> CheckpointError:
    """Return the error by which a checkpoint is refused whose state does not fit the run."""
    return CheckpointError(f"the checkpoint is the state of something else: {type(error).__name__}: {error}; {WAY_OUT}")


REFUSED = (KeyError, IndexError, TypeError, ValueError, RuntimeError, ProtocolError)  # of a state that does not fit
