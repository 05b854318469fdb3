"""Restore a server's state, except tensors, by a replay of the arrivals that it has handled.

The state machine, the policy, the learning rate and the accounts of pushes depend only on the arrivals and their
instants. So the same arrivals lead a new server to the same state, including the objects of a user's policy, and a
checkpoint stores the number of arrivals instead of this state. In a replay the clock shows each arrival's recorded
instant, no frame is sent, and no weight changes. The table of pushes has the two facts that a replay needs beside the
arrivals: the instant at which a push was applied, and the length of a reply.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from pslab.engines.experiment.wire import Frame
from pslab.engines.server.clock import Clock
from pslab.engines.server.driver import ServerDriver, Transport
from pslab.engines.server.ledger import JOINED, LEFT, PUSH_COLUMNS, message_of
from pslab.engines.server.store import Details, Finished, Store
from pslab.errors import CheckpointError, ProtocolError
from pslab.protocol.server import Discard, Reply, Server, Step
from pslab.protocol.store import Order

RECORDED = [PUSH_COLUMNS.index(column) for column in ("seconds", "bytes_down", "version_applied")]
WAY_OUT = "begin the run again: run(..., fresh=True), or pslab run --fresh"


class Recorded(Clock, Transport, Store):
    """The clock, the transport and the store of a driver in a replay.

    Args:
        pushes: the table of pushes [rows, PUSH_COLUMNS].
        sync: the policy that an error message names.
    """

    def __init__(self, pushes: np.ndarray, sync: object) -> None:
        self.at = 0.0  #: the instant of the arrival
        self._sync = sync
        rows = zip(pushes[:, 1:4].astype(int).tolist(), pushes[:, RECORDED].tolist(), strict=True)
        # (worker, iteration, range) of a push: when it was applied, the bytes of the next reply, and the version
        self._rows = {tuple(name): row for name, row in rows}

    def now(self) -> float:
        return self.at

    def spend(self, on: str, since_s: float, count: int = 1, share: float = 1.0) -> None:
        return

    def send(self, worker: int, frame: Frame, now: float) -> None:
        return

    def hand(self, order: Order, details: Details) -> Finished:
        size_bytes, done_s, free = 0, self.at, order.pushes if isinstance(order, Step) else ()
        if isinstance(order, Step):
            names = [(push.worker, push.iteration, order.range) for push in order.pushes]
            rows = [self._rows[name] for name in names if name in self._rows]  # a killed server's last orders have none
            # each row has the version that the run made: another one shows that the policy has decided otherwise
            if any(version != order.version for _, _, version in rows):
                raise otherwise(self._sync, "steps")
            done_s = max((seconds for seconds, _, _ in rows), default=self.at)
        elif isinstance(order, Reply):
            # no weights are prepared: the row of the push before the pull has the length of the reply
            name = order.pull.worker, order.pull.iteration - 1, order.pull.range
            size_bytes = int(self._rows[name][1]) if name in self._rows else 0
        elif isinstance(order, Discard):
            free = (order.push,)
        return Finished(order, details, free, isinstance(order, Reply), size_bytes, self.at, done_s)

    def finish(self) -> Iterable[Finished]:
        return ()


def replay(driver: ServerDriver, arrivals: np.ndarray, pushes: np.ndarray) -> None:
    """Replay these arrivals on the driver of a run that has not started.

    Args:
        arrivals: [arrivals, REPLAYED_COLUMNS].
        pushes: see `Recorded`.

    Raises:
        CheckpointError: the policy's decisions depend on more than the arrivals.
    """
    recorded = Recorded(pushes, driver.machine.sync)
    # the driver's own code decides again, so a change of it cannot leave the replay behind
    with driver.replaying(recorded):
        for row in arrivals.tolist():
            kind, worker, _, _, _, recorded.at, *_ = row  # sets the clock before the arrival is handled
            if kind == LEFT:
                driver.leave(int(worker))
            elif kind == JOINED:
                driver.join(int(worker), recorded.at)
            else:
                driver.repeat(message_of(row))


def marks_of(machine: Server) -> dict[str, Any]:
    """Return numbers that differ if two states of a machine differ: counted gradients, versions and clocks."""
    # not the policy's state, which may be any object; nearly every other decision changes one of these numbers
    clocks = [[*part.clocks.items()] for part in machine.ranges]
    return {"gradients": machine.gradients, "versions": [part.version for part in machine.ranges],
            "ranges": [[list(pair) for pair in pairs] for pairs in clocks]}  # fmt: skip


def check_marks(machine: Server, marks: Any) -> None:
    """Refuse the state after a replay if its marks differ from the saved marks.

    Raises:
        CheckpointError: the policy's decisions depend on more than the arrivals, or the checkpoint is another run's.
    """
    if (here := marks_of(machine)) != marks:
        differs = [name for name in here if not isinstance(marks, dict) or here[name] != marks.get(name)]
        raise otherwise(machine.sync, ", ".join(differs))


def otherwise(sync: object, differs: str) -> CheckpointError:
    """Return the error for a replay whose decisions differ from the run's."""
    problem = f"{sync} decides by more than its events and its state, perhaps by random numbers or a clock"
    return CheckpointError(f"a replay of the recorded arrivals leads to other {differs}: {problem}; {WAY_OUT}")


def refused(error: Exception) -> CheckpointError:
    """Return the error for a checkpoint whose state does not match the run."""
    problem = f"{type(error).__name__}: {error}"
    return CheckpointError(f"the checkpoint does not match this run's state: {problem}; {WAY_OUT}")


REFUSED = (KeyError, IndexError, TypeError, ValueError, RuntimeError, ProtocolError)  # raised by unfit states
