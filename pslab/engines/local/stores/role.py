"""The process of a server that does not decide: it holds weights, and does what it is ordered.

Orders come with the messages that they are about, and what came of each goes back. Payloads lie in shared memory; where
there is none, they come from the workers and go to them on lines of its own, whose messages it passes on.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from multiprocessing.connection import Connection

from pslab.engines.experiment.job import Job
from pslab.engines.experiment.wire import Carried, Ended, Frame, Go, Joined, Ordered, PartSaved, Stop
from pslab.engines.local.lines.ends import order_line, store_line
from pslab.engines.local.lines.framed_pipe import SPIN_S, Line, NoFrame, ready
from pslab.engines.local.recovery.generations import Keeping
from pslab.engines.local.stores.order import order_of
from pslab.engines.processes.channel import LifeSigns, report
from pslab.engines.processes.child import ProcessContext
from pslab.engines.server.clock import WallClock
from pslab.engines.server.ledger import copy_held, show_held
from pslab.engines.server.shard import TensorShard
from pslab.engines.server.store import carry_out
from pslab.errors import CheckpointError
from pslab.protocol.store import Keep

LOOK_S = 0.01  # after which is looked whether a part of a checkpoint is out, where memory is not shared


@dataclass(frozen=True)
class StoreRole:
    """The role of a process, for one run; what is given to it beside the job may be a checkpoint's number."""

    server: int
    servers: int

    @property
    def called(self) -> str:
        return f"server {self.server} of {self.servers}"

    def __call__(self, seat: ProcessContext, job: Job, checkpoint: int = 0) -> LocalStore:
        return LocalStore(seat, job, self, checkpoint)


class LocalStore:
    """A server's weights, and what is done to them."""

    iteration = 0  # it has none

    def __init__(self, seat: ProcessContext, job: Job, role: StoreRole, checkpoint: int = 0) -> None:
        seat = seat.met_again()
        self._seat, self._job, self._role, self._clock = seat, job, role, WallClock()
        self._line = order_line(job, seat, 0, decides=False)
        self._keeping = Keeping(job, role.server, seat.arena, seat.checkpoints)
        self._shard = self._keeping.restored(checkpoint)[1][0] if checkpoint else TensorShard(job, seat.arena)
        self._spin_s = 0.0 if job.cluster.emulated else SPIN_S
        self._workers: dict[int, Line] = {}  # which bring and get the numbers, where memory is not shared
        self._whose: dict[int, int] = {}  # of each of these lines
        self._over = False  # whether the decider has said so
        self._life = LifeSigns(seat.parent, job.run.lease_s)
        self._keeps = 0  # the checkpoint whose part is not yet out of this process

    def run(self, dilation: float) -> None:
        """Do what the decider orders until it says stop, or is gone."""
        self._clock.dilation, self._over = dilation, False
        try:
            for worker in range(self._job.run.workers) if not self._seat.arena.shared else ():
                self._listen(worker, self._seat.line_of(worker))
            while self._workers or not self._over:
                self._turn()
            show_held(self._job, self._seat.arena, self._job.layout.server, self._role.server)
            report(self._seat.parent, "stored")
            self._seat.show_all()  # before the decider may say that the run has ended
            self._tell([Stop(0)])
        except EOFError:
            return
        except BaseException:
            self._seat.pipes[0].close()  # the decider is not to wait for it
            raise

    def _turn(self) -> None:
        """Wait for something to do, and do it. What is done may take less CPU time than the system counts."""
        self._life.give()
        patience_s = LOOK_S if self._keeps else self._life.period_s
        for source in ready([self._line.descriptor, *self._whose], patience_s, spin_s=self._spin_s):
            if source == self._line.descriptor:
                self._obey()
            elif source in self._whose:
                self._hear(self._whose[source])
        if self._keeps and self._seat.shown:
            self._tell([PartSaved(self._keeps)])
            self._keeps = 0

    def _obey(self) -> None:
        """Do what the decider says, or pass weights on to a worker."""
        for frame in self._line.frames():
            first = frame[0]
            if isinstance(first, Stop):
                self._over = True
                for worker in self._workers:
                    self._send(worker, frame)
            elif isinstance(first, Go):
                self._clock.start(self._clock.dilation, first.zero_s - self._seat.apart[0])
            elif isinstance(first, Ordered):
                self._carry_out(frame)
            elif isinstance(first, Joined):
                self._listen(first.worker, self._seat.line_of(first.worker, anew=True))
            elif isinstance(first, Ended):  # what has come before is dealt with
                while first.worker in self._workers and self._hear(first.worker):
                    pass
                self._end(first.worker, "")
            else:
                self._send(frame[-1].worker, frame)

    def _listen(self, worker: int, pipe: Connection) -> None:
        self._workers[worker] = line = store_line(self._job, self._seat, pipe, worker, self._role.server)
        self._whose[line.descriptor] = worker

    def _hear(self, worker: int) -> bool:
        """Pass on what a worker has sent, as its numbers are here; whether there was something."""
        try:
            frames = self._workers[worker].frames()
        except EOFError as error:  # its process is there if it has sent what is no frame
            self._end(worker, str(error) if isinstance(error, NoFrame) else "")
            return False
        for frame in frames:
            if isinstance(frame[0], Stop):
                self._forget(worker)
                return False
            if not self._over:
                self._tell(frame)
        return bool(frames)

    def _end(self, worker: int, how: str) -> None:
        """Nothing more comes from a worker's process on its line to this server; that is said once."""
        if worker in self._workers:
            self._forget(worker)
            self._tell([Ended(worker, how.encode())])

    def _forget(self, worker: int) -> None:
        del self._whose[self._workers.pop(worker).descriptor]

    def _send(self, worker: int, frame: Frame) -> None:
        if worker in self._workers:
            with contextlib.suppress(OSError):  # its end is noticed where its line is read
                self._workers[worker].send(frame)

    def _tell(self, frame: Frame) -> None:
        with contextlib.suppress(OSError):  # the decider may be gone, which is noticed where its line is read
            self._line.send(frame)

    def copy(self, index: int, server: int) -> None:
        """Copy what is held here into a snapshot."""
        copy_held(self._job, self._shard.weights, self._seat.snapshots, index, server)
        report(self._seat.parent, "copied", {"index": index})

    def _carry_out(self, frame: Frame) -> None:
        order, work = order_of(frame)
        if not isinstance(order, Keep):
            took = carry_out(order, work, self._role.server, self._job, self._shard, self._clock, self)
            self._tell([Carried(*took)])
            return
        begin_s = self._clock.now()
        kept = self._keep(order.number)
        self._tell([Carried(0, begin_s, self._clock.now())])
        if kept:
            self._seat.show()
            self._keeps = order.number

    def _keep(self, number: int) -> bool:
        """Keep its part of a checkpoint; whether that could be saved: if not, the checkpoint never is whole."""
        try:
            self._keeping.generations.write(number, self._keeping.saved({}, [self._shard]))
        except CheckpointError as error:
            report(self._seat.parent, "checkpoint", {"pushes": 0, "problem": f"{self._role.called}: {error}"})
            return False
        return True
