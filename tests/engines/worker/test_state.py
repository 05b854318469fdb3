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
        return self.arena.tensor(self.layout.kept[1]["residual"], memory.entries, memory.dtype)

    def iterate(self, iteration: int) -> None:
        self.kept.begin(iteration)
        self.residual().fill_(iteration + 1.0)
        self.kept.end(iteration)


@pytest.fixture(params=["asp", "eager"])
def setup(request):
    return Setup(sync=request.param)


def test_a_successor_goes_on_with_the_state_after_the_iteration_before(setup):
    setup.iterate(0)
    setup.iterate(1)
    assert setup.view().resume(2)
    assert (setup.residual() == 2.0).all()


def test_a_successor_that_repeats_an_iteration_finds_the_state_before_it(setup):
    for iteration in range(3):
        setup.iterate(iteration)
    assert setup.view().resume(2)
    assert (setup.residual() == 2.0).all()


def test_a_torn_state_is_never_used(setup):
    setup.iterate(0)
    setup.kept.begin(1)
    setup.residual()[7:].fill_(99.0)
    assert setup.view().resume(1)
    assert (setup.residual() == 1.0).all()


def test_before_the_first_iteration_all_is_zero(setup):
    setup.kept.begin(0)
    setup.residual()[7:].fill_(99.0)
    assert setup.view().resume(0)
    assert (setup.residual() == 0.0).all()


def test_a_state_that_is_not_here_is_declared_zero(setup):
    for iteration in range(9):
        setup.iterate(iteration)
    assert not setup.view().resume(3)
    assert (setup.residual() == 0.0).all()


def test_an_iteration_that_is_begun_twice_keeps_the_state_before_it(setup):
    setup.iterate(0)
    setup.kept.begin(1)
    setup.residual().fill_(99.0)
    setup.kept.begin(1)  # its gradient was not finite: another batch
    assert setup.view().resume(1)
    assert (setup.residual() == 1.0).all()


def test_a_worker_that_asks_ahead_has_as_many_copies_as_pushes_under_way():
    setup = Setup(sync="eager")
    for iteration in range(5):
        setup.iterate(iteration)
    setup.kept.begin(5)
    assert [setup.view().after(iteration) is not None for iteration in (2, 3, 4)] == [True] * 3
    assert setup.view().after(1) is None


@pytest.mark.parametrize("fields", [{"on_death": "continue"}, {"prune": "none"}])
def test_without_successors_or_memories_nothing_is_copied(fields):
    experiment = resolve(tiny(**{"prune": "dgc", "on_death": "restart", **fields}))
    assert Layout.of(experiment).states == ()
