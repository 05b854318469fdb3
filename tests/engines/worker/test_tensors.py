"""A worker's tensors before its run starts."""

from __future__ import annotations

import pytest
from contexts import laid_out
from tiny import tiny

from pslab.engines.experiment.experiment import Experiment
from pslab.engines.worker.modes import producer_of
from pslab.lab.runs.resolve import resolve


@pytest.fixture(params=[{}, {"prune": "static:5%"}, {"sync": "asp", "ranges": "layers"}], ids=str)
def experiment(request: pytest.FixtureRequest) -> Experiment:
    return resolve(tiny(workers=1, model="mlp:64", data="mnist:train=64,test=16", **request.param))


def test_the_pages_of_all_gradients_are_there_before_the_run_starts(experiment: Experiment):
    job, arena, data = laid_out(experiment)
    producer_of(job, 0, arena, data).warm_up()
    for place in job.layout.gradients[0]:
        size_bytes = job.layout.size * job.layout.dtype.itemsize
        assert sum(len(piece) for _, piece in arena.written(place, size_bytes)) == size_bytes


def test_a_successor_leaves_the_gradients_as_they_are(experiment: Experiment):
    job, arena, data = laid_out(experiment)
    buffers = [arena.tensor(place, job.layout.size, job.layout.dtype).fill_(0.5) for place in job.layout.gradients[0]]
    producer_of(job, 0, arena, data, successor=True).warm_up()
    assert all((buffer == 0.5).all() for buffer in buffers)
