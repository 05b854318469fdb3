"""Many virtual runs: as many side by side as there are cores, each of them whole in a child of the pool."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pslab.engines.job.experiment import Experiment
from pslab.engines.outcome import Outcome
from pslab.engines.processes import pool as pools
from pslab.engines.processes.channel import Report
from pslab.engines.virtual import engine as virtual
from pslab.engines.virtual import whole_run as solo

POLL_S = 0.1
WITHOUT_DATA: dict[str, Any] = {"dataset": None}  # it lies on the shelf
LARGEST = 2**22  # weights; of a larger model several runs at once would take much memory, and no less time


def fits(experiment: Experiment) -> bool:
    """Whether a run is one for the crowd: in virtual time, with gradients on a model that is not large."""
    return experiment.run.engine == "virtual" and experiment.keyspace.size <= LARGEST


def conduct(
    experiments: Iterable[Experiment], heed: Callable[[], None]
) -> Iterator[tuple[int, dict[str, Any] | Outcome]]:
    """Runs side by side, as (place in `experiments`, what is new): {} when it begins, news, and at last its outcome.

    `heed` is called many times a second; what it raises ends everything, as does what a run raises.

    Raises:
        WorkerFailed, WorkerDied, StartFailed: a child did; the pool is closed then.
    """
    pool = pools.acquire(virtual.cores(), heed)
    try:
        yield from _Crowd(pool, heed).conduct(experiments)
    except BaseException:
        pools.release(kill=True)
        raise


class _Crowd:
    """Children, and the experiment that each of them has."""

    def __init__(self, pool: pools.Pool, heed: Callable[[], None]) -> None:
        self._pool, self._heed = pool, heed
        self._idle = list(range(virtual.cores()))
        self._busy: dict[int, tuple[int, Experiment]] = {}
        self._said: dict[int, list[Report]] = {}
        self._dataset: Any = None

    def conduct(self, experiments: Iterable[Experiment]) -> Iterator[tuple[int, dict[str, Any] | Outcome]]:
        for place, experiment in enumerate(experiments):
            # there is one place for a dataset, which the runs that are under way read
            while not self._idle or (self._busy and experiment.dataset is not self._dataset):
                yield from self._hear()
            self._dataset, number = experiment.dataset, self._idle.pop()
            self._busy[number], self._said[number] = (place, experiment), []
            shelf = self._pool.shelve(experiment.dataset)
            light: Any = dataclasses.replace(experiment, **WITHOUT_DATA)
            self._pool.order(number, "solo", (light, shelf))
            yield place, {}
        while self._busy:
            yield from self._hear()

    def _hear(self) -> Iterator[tuple[int, dict[str, Any] | Outcome]]:
        self._heed()
        for number, report in self._pool.reports(set(self._busy), POLL_S, lambda number: False):
            place, experiment = self._busy[number]
            if report.kind == "news":
                yield place, report.body
                continue
            self._said[number].append(report)
            if report.kind == "facts":
                del self._busy[number]
                self._idle.append(number)
                yield place, solo.heard(experiment, self._said.pop(number))
