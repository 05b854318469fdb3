"""A worker's tensors before its run starts."""

from __future__ import annotations

import pytest
from tiny import tiny

from pslab.engines.experiment.experiment import Experiment
from pslab.engines.experiment.job import Job, SharedDataset
from pslab.engines.experiment.layout import Layout
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.worker.tensors import Producer
from pslab.lab.runs.resolve import resolve


@pytest.fixture(params=[{}, {"prune": "static:5%"}, {"sync": "asp", "ranges": "layers"}], ids=str)
def experiment(request: pytest.FixtureRequest) -> Experiment:
    return resolve(tiny(workers=1, model="mlp:64", data="mnist:train=64,test=16", **request.param))


def prepared(experiment: Experiment, arena: Arena, **how: bool) -> Layout:
    """A worker's process has its role, and waits for the run to start."""
    layout, data = Layout.of(experiment), Arena()
    arena.reserve(layout.end)
    arena.tensor(layout.server, layout.size, layout.dtype).copy_(experiment.weights)
    Producer(Job.of(experiment, layout, SharedDataset.store(data, experiment.dataset)), 0, arena, data, **how).warm_up()
    return layout


def test_the_pages_of_all_gradients_are_there_before_the_run_starts(experiment: Experiment):
    layout = prepared(experiment, arena := Arena())
    for place in layout.gradients[0]:
        size_bytes = layout.size * layout.dtype.itemsize
        assert sum(len(piece) for _, piece in arena.written(place, size_bytes)) == size_bytes


def test_a_successor_leaves_the_gradients_as_they_are(experiment: Experiment):
    arena, layout = Arena(), Layout.of(experiment)
    arena.reserve(layout.end)
    buffers = [arena.tensor(place, layout.size, layout.dtype).fill_(0.5) for place in layout.gradients[0]]
    prepared(experiment, arena, successor=True)
    assert all((buffer == 0.5).all() for buffer in buffers)
