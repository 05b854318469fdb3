"""What a server of a run has, in this process: its memory, its stream, and a parent that keeps the reports."""

from __future__ import annotations

from multiprocessing import Pipe
from typing import Any

from tiny import tiny
from whole import Line as Parent

from pslab.engines.experiment.experiment import Experiment
from pslab.engines.experiment.job import Job
from pslab.engines.experiment.layout import Layout
from pslab.engines.experiment.shared_dataset import SharedDataset
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.local.lines.ends import TO_DECIDER
from pslab.engines.local.lines.stream import Stream
from pslab.engines.processes.child import ProcessContext
from pslab.lab.runs.resolve import resolve


def laid_out(experiment: Experiment) -> tuple[Job, Arena, Arena]:
    """The job of a run, its memory with the first weights, and that with the data."""
    layout, arena, data = Layout.of(experiment), Arena(), Arena()
    arena.reserve(layout.end)
    arena.tensor(layout.server, layout.size, layout.dtype).copy_(experiment.weights)
    return Job.of(experiment, layout, SharedDataset.store(data, experiment.dataset)), arena, data


def context_of_a_server(**fields: Any) -> tuple[Job, ProcessContext, Stream]:
    """The context of the second of two servers, and the decider's end of its stream."""
    job, arena, data = laid_out(resolve(tiny(**{"workers": 2, "servers": 2, "sync": "asp", **fields})))
    (here, there), (snapshots, *ledger) = Pipe(), (Arena() for _ in range(3))
    context = ProcessContext(2, Parent(), [there], arena, data, snapshots, tuple(ledger))  # type: ignore[arg-type]
    stream = Stream(here, TO_DECIDER, lease_s=60.0)
    return job, context, stream
