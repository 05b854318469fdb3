"""Which lines a process of a run has: plain ones where memory is shared, and streams that bring the numbers if not."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.connection import Connection

from pslab.engines.experiment.job import Job
from pslab.engines.experiment.wire import Carried, ComputedOn, Ended, Frame, Go, Joined, Ordered, PartSaved, Stop
from pslab.engines.local.lines.frame_assembly import Fan, Relayed
from pslab.engines.local.lines.framed_pipe import SPIN_S, Line
from pslab.engines.local.lines.message_buffers import TO_SERVER, TO_WORKER, MessageBuffers
from pslab.engines.local.lines.stream import Stream
from pslab.engines.processes.child import ProcessContext
from pslab.protocol.messages import Ack, Pull, Push, Weights

TO_STORE = (Ordered, ComputedOn, Push, Pull, Weights, Ack, Go, Joined, Ended, Stop)
TO_DECIDER = (Carried, PartSaved, Push, Pull, Ended, Stop)


def number_of(workers: int, server: int) -> int:
    """The number of a server's process in the pool; not of server 0."""
    return workers + server - 1


def worker_line(job: Job, seat: ProcessContext) -> Line:
    """A worker's to its servers."""
    spin_s, lease_s = 0.0 if job.cluster.emulated else SPIN_S, job.run.lease_s
    if seat.arena.shared:
        return Line(seat.pipes[0], spin_s)
    others = [seat.line_to(number_of(job.run.workers, server)) for server in range(1, job.run.servers)]
    lines = [Stream(pipe, MessageBuffers(job, seat.arena, seat.number, server), TO_WORKER, waits=True, lease_s=lease_s,
                    spin_s=spin_s, apart_s=apart_s)
             for server, (pipe, apart_s) in enumerate([(seat.pipes[0], seat.apart[0]), *others])]  # fmt: skip
    return Fan(lines, job.server_of) if len(lines) > 1 else lines[0]


def decider_line(job: Job, seat: ProcessContext, worker: int, relay: Callable[[int, Frame], None]) -> Line:
    """The deciding server's to a worker. What is about a range of another server may be sent by a `relay`."""
    pipe = seat.pipes[worker]
    if seat.arena.shared:
        return Line(pipe)
    mirror = MessageBuffers(job, seat.arena, worker, serves=True)
    line = Stream(pipe, mirror, TO_SERVER, waits=False, lease_s=job.run.lease_s)
    return Relayed(line, job.server_of, relay) if job.run.servers > 1 else line


def store_line(job: Job, seat: ProcessContext, pipe: Connection, worker: int, server: int) -> Line:
    """That of a server that does not decide to a worker's process, where memory is not shared."""
    buffers = MessageBuffers(job, seat.arena, worker, server)
    return Stream(pipe, buffers, TO_SERVER, waits=False, lease_s=job.run.lease_s)


def order_line(job: Job, seat: ProcessContext, number: int, *, decides: bool) -> Line:
    """Between the deciding server and another one, the pipe of this number."""
    pipe, spin_s = seat.pipes[number], 0.0 if job.cluster.emulated else SPIN_S
    if seat.arena.shared:
        return Line(pipe, spin_s)
    return Stream(pipe, None, TO_DECIDER if decides else TO_STORE, waits=False, lease_s=job.run.lease_s, spin_s=spin_s)
