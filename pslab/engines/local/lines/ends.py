"""The messages that may come on each stream between the processes of a run.

Each worker has a stream to the deciding server, and so has each other server.
"""

from __future__ import annotations

from pslab.engines.experiment.wire import Blocked, Carried, ComputedOn, Diverged, Go, Ordered, Stop
from pslab.protocol.messages import Ack, Pull, Push, Weights

TO_SERVER = (Push, Pull, Stop, Diverged, Blocked)
TO_WORKER = (Weights, Ack, Go, Stop)
TO_STORE = (Ordered, ComputedOn, Push, Pull, Go, Stop)
TO_DECIDER = (Carried, Stop)
