"""What an eager worker adds to the weights that it computes on: its own pushes that are not in them yet."""

from __future__ import annotations

from pslab.engines.job.job import Job
from pslab.engines.worker.tensors import Write
from pslab.policies.rates import Applied
from pslab.protocol.worker import EagerWorker, Worker


def own_writes(job: Job, machine: Worker) -> list[Write]:
    """Read my writes: each with the rate by which the server is going to apply it, if no other push comes between."""
    if not isinstance(machine, EagerWorker) or not job.traits.reads_own:
        return []
    run, found = job.run, []
    for push in machine.missing():
        behind = push.iteration - machine.own[push.range]
        step = Applied(run.workers, 1, False, run.push_weight, push.seen, push.seen, push.seen)
        rate = job.learning_rate(machine.versions[push.range] + behind) * job.rate.scale(step)
        found.append(Write(push.range, push.iteration, rate, push.payload.size_bytes))
    return found
