"""The objects of a run's mode at its workers, chosen once at set-up: a run loads the code of its own mode alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pslab.engines.worker.tensors import Producer

if TYPE_CHECKING:
    from pslab.engines.experiment.job import Job
    from pslab.engines.experiment.shared_memory import Arena
    from pslab.engines.worker.keyed import Requests
    from pslab.engines.worker.range_schedule import RangeSchedule


def producer_of(job: Job, worker: int, *given: Any, requests: Requests | None = None, **named: Any) -> Producer:
    """The tensors of a worker, given what Producer is, and perhaps the requests that this process writes."""
    if job.keyed:
        from pslab.engines.worker.keyed import KeyedProducer

        return KeyedProducer(job, worker, *given, requests=requests, **named)
    framed = job.sends_frames or job.run.pull != "whole" or job.downlink is not None
    if job.layered and job.run.engine == "local":  # in virtual time, layers are a matter of the links
        from pslab.engines.worker.layered import LayeredFramedProducer, LayeredProducer

        return (LayeredFramedProducer if framed else LayeredProducer)(job, worker, *given, **named)
    if job.run.pull == "range":
        from pslab.engines.worker.range_schedule import RangeProducer

        return RangeProducer(job, worker, *given, **named)
    if framed:
        from pslab.engines.worker.framed_tensors import FramedProducer

        return FramedProducer(job, worker, *given, **named)
    return Producer(job, worker, *given, **named)


def requests_of(job: Job, arena: Arena, data: Arena) -> Requests | None:
    """The requests of a run whose workers ask for keys."""
    if not job.keyed:
        return None
    from pslab.engines.worker.keyed import Requests

    return Requests(job, arena, job.shelf.dataset(data))


def range_schedule_of(job: Job, worker: int) -> RangeSchedule | None:
    """The ranges of a worker's iterations, if the run has any."""
    if job.run.pull != "range":
        return None
    from pslab.engines.worker.range_schedule import RangeSchedule

    return RangeSchedule(job, worker)
