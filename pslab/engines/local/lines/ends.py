"""The streams between the processes of a run, and the messages that may come on each.

Each worker has one stream, to the server that decides, and each other server one to that.
"""

from __future__ import annotations

from multiprocessing.connection import Connection

from pslab.engines.experiment.job import Job
from pslab.engines.experiment.wire import Blocked, Carried, ComputedOn, Diverged, Go, Ordered, Stop
from pslab.engines.local.lines.stream import Stream
from pslab.protocol.messages import Ack, Pull, Push, Weights

TO_SERVER = (Push, Pull, Stop, Diverged, Blocked)
TO_WORKER = (Weights, Ack, Go, Stop)
TO_STORE = (Ordered, ComputedOn, Push, Pull, Go, Stop)
TO_DECIDER = (Carried, Stop)


def worker_stream(job: Job, pipe: Connection) -> Stream:
    """A worker's stream to the server that decides."""
    return Stream(pipe, TO_WORKER, lease_s=job.run.lease_s, waits=True)


def server_stream(job: Job, pipe: Connection) -> Stream:
    """The stream of the server that decides to a worker."""
    return Stream(pipe, TO_SERVER, lease_s=job.run.lease_s)


def order_stream(job: Job, pipe: Connection, *, decides: bool) -> Stream:
    """The stream between the deciding server and another one."""
    return Stream(pipe, TO_DECIDER if decides else TO_STORE, lease_s=job.run.lease_s)
