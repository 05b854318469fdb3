"""Which streams a process of a run has, to which others, and what may come on them.

Where memory is shared each worker has one stream, to the server that decides, and each other server one to that; the
messages name places that both ends see. Elsewhere every worker has a stream to each server, which brings the bytes.
"""

from __future__ import annotations

from multiprocessing.connection import Connection

from pslab.engines.experiment.job import Job
from pslab.engines.experiment.wire import Carried, ComputedOn, Ended, Go, Joined, Ordered, Stop
from pslab.engines.local.lines.frame_assembly import ServerStreams
from pslab.engines.local.lines.message_buffers import TO_SERVER, TO_WORKER, MessageBuffers
from pslab.engines.local.lines.stream import Stream
from pslab.engines.processes.child import ProcessContext
from pslab.protocol.messages import Ack, Pull, Push, Weights

TO_STORE = (Ordered, ComputedOn, Push, Pull, Weights, Ack, Go, Joined, Ended, Stop)
TO_DECIDER = (Carried, Push, Pull, Ended, Stop)


def number_of(workers: int, server: int) -> int:
    """The number of a server's process in the pool; not of server 0."""
    return workers + server - 1


def worker_stream(job: Job, context: ProcessContext) -> Stream | ServerStreams:
    """A worker's stream to its servers."""
    lease_s, pipes = job.run.lease_s, [(context.pipes[0], context.offset[0])]
    if context.arena.shared:
        return Stream(context.pipes[0], TO_WORKER, lease_s=lease_s, waits=True)
    pipes += [context.line_to(number_of(job.run.workers, server)) for server in range(1, job.run.servers)]
    streams = [Stream(pipe, TO_WORKER, MessageBuffers(job, context.arena, context.number, server), lease_s=lease_s,
                      waits=True, offset_s=offset_s) for server, (pipe, offset_s) in enumerate(pipes)]  # fmt: skip
    return ServerStreams(streams, job.server_of) if len(streams) > 1 else streams[0]


def server_stream(job: Job, context: ProcessContext, pipe: Connection, worker: int, server: int = 0) -> Stream:
    """A server's stream to a worker; only where memory is not shared has one that does not decide any."""
    buffers = None
    if not context.arena.shared:
        buffers = MessageBuffers(job, context.arena, worker, server, serves=server == 0)
    return Stream(pipe, TO_SERVER, buffers, lease_s=job.run.lease_s)


def order_stream(job: Job, context: ProcessContext, number: int, *, decides: bool) -> Stream:
    """The stream between the deciding server and another one, on the pipe of this number."""
    return Stream(context.pipes[number], TO_DECIDER if decides else TO_STORE, lease_s=job.run.lease_s)
