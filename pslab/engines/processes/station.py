"""A child between two runs: it keeps torch warm and does what it is ordered to."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import torch

from pslab.engines.job.experiment import Experiment
from pslab.engines.job.job import Job, Shelf
from pslab.engines.job.notes import SERVER
from pslab.engines.job.shared_memory import Arena
from pslab.engines.local.layered_worker import LayeredWorking
from pslab.engines.local.server import Serving
from pslab.engines.local.worker import Working
from pslab.engines.processes.channel import report
from pslab.engines.server.evaluate import Evaluator
from pslab.engines.virtual.hosts import Hosting
from pslab.engines.virtual.whole_run import Solo, tell


class Station:
    """Server or worker process. Orders: prepare and run; host and produce (virtual workers); solo (a whole virtual
    run); evaluate."""

    def __init__(
        self, number: int, parent: Connection, pipes: list[Connection], arenas: tuple[Arena, Arena, Arena]
    ) -> None:
        self.number, self.parent, self.pipes = number, parent, pipes
        self.arena, self.data, self.snapshots = arenas
        self.job: Job | None = None
        self._task: Serving | Working | Hosting | Solo | None = None
        self._evaluator: Evaluator | None = None
        torch.set_num_threads(1)  # one and two threads give different bits; parallelism is between gradients

    @property
    def iteration(self) -> int:
        """The iteration that this process is in, for error messages."""
        return self._task.iteration if self._task is not None else 0

    def obey(self, verb: str, argument: Any) -> None:
        """Do one order of the parent."""
        if verb == "prepare":
            self._prepare(argument)
        elif verb == "run" and isinstance(self._task, Serving | Working):
            self._task.run()
        elif verb == "host":
            self._host(*argument)
        elif verb == "produce" and isinstance(self._task, Hosting):
            self._task.produce(*argument)
        elif verb == "solo":
            self._solo(*argument)
        elif verb == "evaluate" and self.job is not None:
            self._evaluate(*argument)

    def _prepare(self, job: Job) -> None:
        self.job, self._evaluator, self._task = job, None, None
        if self.number == SERVER:
            self._task = Serving(job, self.pipes[: job.run.workers], self.parent, self.arena, self.snapshots)
        elif self.number < job.run.workers:
            kind = LayeredWorking if job.layered else Working
            self._task = kind(job, self.number, self.pipes[0], self.parent, self.arena, self.data)

    def _host(self, job: Job, workers: list[int]) -> None:
        self.job, self._evaluator = job, None
        self._task = Hosting(job, workers, self.parent, self.arena, self.data)

    def _solo(self, experiment: Experiment, shelf: Shelf) -> None:
        self._task = solo = Solo(experiment, shelf, self.data)
        try:
            tell(solo.conduct(lambda news: report(self.parent, "news", news)), self.parent)
        finally:
            solo.close()

    def _evaluate(self, index: int, device: str) -> None:
        assert self.job is not None
        if self._evaluator is None:
            self._evaluator = Evaluator(self.job, self.data, torch.device(device))
        self._evaluator.report(index, self.snapshots, self.parent)
