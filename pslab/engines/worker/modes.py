"""Choose the classes of a run's workers by the run's mode; a run imports the code of its mode only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pslab.engines.worker.tensors import Producer

if TYPE_CHECKING:
    from pslab.engines.experiment.job import Job
    from pslab.engines.experiment.shared_memory import Arena
    from pslab.engines.worker.keyed import Requests
    from pslab.engines.worker.range_schedule import RangeSchedule


def producer_of(job: Job, worker: int, *given: Any, requests: Requests | None = None, **named: Any) -> Producer:
    """Return the Producer of a worker for the run's mode; `given` and `named`: the other arguments of Producer."""
    if job.keyed:
        from pslab.engines.worker.keyed import KeyedProducer

        return KeyedProducer(job, worker, *given, requests=requests, **named)
    framed = job.sends_frames or job.run.pull != "whole" or job.downlink is not None
    if job.layered and job.run.engine == "local":  # in virtual time, only the links know layers
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
    """Return the Requests of a run whose workers pull keys; None for any other run."""
    if not job.keyed:
        return None
    from pslab.engines.worker.keyed import Requests

    return Requests(job, arena, job.shelf.dataset(data))


def range_schedule_of(job: Job, worker: int) -> RangeSchedule | None:
    """Return the ranges of keys of a worker's iterations; None unless pull="range"."""
    if job.run.pull != "range":
        return None
    from pslab.engines.worker.range_schedule import RangeSchedule

    return RangeSchedule(job, worker)
