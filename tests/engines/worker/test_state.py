"""What a worker keeps, and what its successor finds wherever the worker was killed."""

from __future__ import annotations

import pytest
from tiny import tiny

from pslab.engines.experiment.layout import Layout
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.worker.state import WorkerState
from pslab.lab.runs.resolve import resolve


class Setup:
    """Worker 1 of a run, and its successor's view."""

    def __init__(self, **fields) -> None:
        experiment = resolve(tiny(**{"prune": "dgc", "workers": 2, "on_death": "restart", **fields}))
        self.arena, self.layout = Arena(), Layout.of(experiment)
        self.arena.reserve(self.layout.end)
        self.kept = self.view()
        self.kept.clear()

    def view(self) -> WorkerState:
        return WorkerState(type("Job", (), {"layout": self.layout}), 1, self.arena)

    def residual(self):
        memory = self.layout.memories["residual"]
        return self.arena.tensor(self.layout.memory_offsets[1]["residual"], memory.entries, memory.dtype)

    def iterate(self, iteration: int) -> None:
        self.kept.begin(iteration)
        self.residual().fill_(iteration + 1.0)
        self.kept.end(iteration)


@pytest.mark.parametrize("sync", ["asp", "eager"])
@pytest.mark.parametrize(
    ("whole", "begun", "iteration", "found", "value"),
    [(2, 0, 2, True, 2.0), (3, 0, 2, True, 2.0), (1, 1, 1, True, 1.0), (0, 1, 0, True, 0.0), (9, 0, 3, False, 0.0),
     (1, 2, 1, True, 1.0)],
    ids=["the iteration before", "repeats an iteration", "torn", "before the first", "not here", "begun twice"],
)  # fmt: skip
def test_a_successor_finds_the_last_whole_state_or_zero(sync, whole, begun, iteration, found, value):
    """After so many whole iterations, and the next one begun so often: it changes part of the state before it ends."""
    setup = Setup(sync=sync)
    for each in range(whole):
        setup.iterate(each)
    for _ in range(begun):
        setup.kept.begin(whole)
        setup.residual()[7:].fill_(99.0)
    assert setup.view().resume(iteration) == found
    assert (setup.residual() == value).all()


def test_a_worker_that_asks_ahead_has_as_many_copies_as_pushes_under_way():
    setup = Setup(sync="eager")
    for iteration in range(5):
        setup.iterate(iteration)
    setup.kept.begin(5)
    assert [setup.view().after(iteration) is not None for iteration in (2, 3, 4)] == [True] * 3
    assert setup.view().after(1) is None
