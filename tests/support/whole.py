"""A virtual run whole in this process, and the memory and the parent that a process has."""

from __future__ import annotations

from pslab.config.run import Run
from pslab.engines.experiment.experiment import Experiment, Outcome
from pslab.engines.experiment.job import Job
from pslab.engines.experiment.layout import Layout
from pslab.engines.experiment.shared_dataset import SharedDataset
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.processes.channel import Report, await_report
from pslab.engines.processes.child import ProcessContext
from pslab.engines.virtual.parallel_runs import WholeRun, outcome_of
from pslab.lab.runs.resolve import resolve
from pslab.tensors.device import one_thread


class Line:
    """The pipe to a parent, which keeps what it gets."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send_bytes(self, message: bytes) -> None:
        self.sent.append(message)

    def recv_bytes(self) -> bytes:
        return self.sent.pop(0)

    def poll(self) -> bool:
        return False

    def reports(self) -> list[Report]:
        return [await_report(self) for _ in range(len(self.sent))]  # type: ignore[arg-type]


def laid_out(experiment: Experiment) -> tuple[Job, ProcessContext]:
    """Return the job of a run, and a process's context: the first weights and the data lie in its memory."""
    context = ProcessContext(0, Line(), [], Arena(), Arena(), Arena(), (Arena(), Arena()))  # type: ignore[arg-type]
    layout = Layout.of(experiment)
    context.arena.reserve(layout.end)
    context.arena.tensor(layout.server, layout.size, layout.dtype).copy_(experiment.weights)
    return Job.of(experiment, layout, SharedDataset.store(context.data, experiment.dataset)), context


def in_process(run: Run) -> Outcome:
    """What a virtual run leaves that nobody watches, without the processes of hosts."""
    experiment, line, data = resolve(run), Line(), Arena()
    context = ProcessContext(0, line, [], Arena(), data, Arena(), (Arena(), Arena()))  # type: ignore[arg-type]
    try:
        with one_thread():
            WholeRun(context, experiment, SharedDataset.store(data, experiment.dataset)).conduct()
    finally:
        for arena in (context.arena, data, context.snapshots, *context.ledger):
            arena.close()
    return outcome_of(experiment, [found for found in line.reports() if found.kind != "news"])
