"""A server in virtual time that does not decide: it does later what was decided, as it was decided."""

from __future__ import annotations

import math
from types import SimpleNamespace

from tiny import tiny

from pslab.engines.experiment.wire import WHOLE, PushInfo
from pslab.engines.server.clock import VirtualClock
from pslab.engines.server.ledger import Ledger
from pslab.engines.server.store import Work
from pslab.engines.virtual.scheduler import Scheduler
from pslab.engines.virtual.server_node import StoreNode
from pslab.engines.virtual.timing import job_without_tensors
from pslab.lab.runs.resolve import resolve
from pslab.protocol.messages import Push
from pslab.protocol.server import Step


def nothing(*of: object) -> None:
    """Nobody needs to hear of it."""


def test_a_step_is_applied_with_the_versions_that_were_in_use_when_it_was_decided():
    fields = {"sync": "asp", "rate": "dynsgd", "servers": 2, "cluster": {"compute_s": 1.0, "latency_s": 0.5}}
    job, found = job_without_tensors(resolve(tiny(engine="timing", **fields))), []
    shard = SimpleNamespace(apply=lambda step, rate, computing: found.append(sorted(computing)))
    scheduler, ledger = Scheduler(None, nothing), Ledger(job, None, None, nothing)
    store = StoreNode(1, job, shard, ledger, scheduler, VirtualClock(job))
    store.finished = nothing
    computing = {(0, 1): 1, (1, 0): 0}
    push = Push(2, 1, 0, 0, PushInfo(WHOLE, job.parts[1].size, 0.5))
    store.hand(Step(1, (push,), False, 1), Work(1.0, computing.values(), [None]))
    computing[2, 1] = 5  # decided while the order is on its way
    scheduler.turn(math.inf)
    assert found == [[0, 1]]
