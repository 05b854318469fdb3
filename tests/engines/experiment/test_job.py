"""A run as its processes get it: what is as long as there are keys or examples lies where all of them have it once."""

from __future__ import annotations

import dataclasses
import pickle

import cloudpickle
import numpy as np
import pytest
from contexts import laid_out
from tiny import tiny

from pslab.engines.experiment.experiment import Experiment
from pslab.engines.experiment.job import ARRAYS, Job, SharedDataset, store_arrays
from pslab.engines.experiment.layout import Layout
from pslab.engines.experiment.shared_memory import Arena
from pslab.lab.runs.resolve import resolve

KEYED = {"data": "planted:rows=200,keys=240,per_row=6,communities=4", "model": "linear", "pull": "keys",
         "batch_size": 8, "workers": 2, "servers": 2}  # fmt: skip


def sent(experiment: Experiment, data: Arena) -> tuple[Job, bytes]:
    """A job in the parent, and as it is sent."""
    shelf = SharedDataset.store(data, experiment.dataset)
    job = Job.of(experiment, Layout.of(experiment), shelf, store_arrays(data, experiment, shelf.end))
    return job, cloudpickle.dumps(job)


@pytest.mark.parametrize("fields", [{}, {"placement": "parsa", "partition": "two-step"}], ids=str)
def test_a_process_has_the_arrays_of_the_parents_job_as_views_of_the_data_arena(fields: dict[str, object]):
    data = Arena()
    job, message = sent(resolve(tiny(**KEYED, **fields)), data)
    there = pickle.loads(message).on(data)
    for name in ARRAYS:
        wanted, found = getattr(job, name), getattr(there, name)
        assert (found is None) == (wanted is None)
        assert wanted is None or (np.array_equal(found, wanted) and found.dtype == np.int64)
    assert there.evaluated is not None
    assert (there.places is not None) == bool(fields)
    data.bytes(there.located["evaluated"].offset, 8)[:] = bytes(8)
    assert there.evaluated[0] == 0  # it is no copy


def test_an_order_does_not_grow_with_the_keys_or_examples():
    experiment, arena = resolve(tiny(**KEYED, placement="parsa", partition="two-step")), Arena()
    many = dataclasses.replace(experiment, assignment=np.zeros(10**5, np.int64), places=np.arange(10**5))
    assert len(sent(many, arena)[1]) < len(sent(experiment, arena)[1]) + 100


def test_a_process_that_does_not_look_where_the_arrays_lie_raises_and_reads_nothing_else():
    there = pickle.loads(sent(resolve(tiny(**KEYED, placement="parsa", partition="two-step")), Arena())[1])
    with pytest.raises(TypeError):
        there.places[np.arange(3)]


def test_the_learning_rate_follows_a_cosine_over_the_steps_of_this_run():
    job, *_ = laid_out(resolve(tiny(schedule="cosine:warm=2,end=0.1", pushes=40, workers=4, learning_rate=0.2)))
    assert [job.learning_rate(pushes) for pushes in (0, 4, 8, 24, 40)] == pytest.approx([0.1, 0.2, 0.2, 0.11, 0.02])
