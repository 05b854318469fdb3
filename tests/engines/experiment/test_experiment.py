"""An experiment's costs, its job as processes get it, shared memory, and messages as records of bytes."""

from __future__ import annotations

import mmap
import pickle
import struct

import cloudpickle
import numpy as np
import pytest
import torch
from ownpolicies import Largest
from tiny import tiny
from tools.audit.rules import judged
from whole import in_process

from pslab.config.cluster import APPLY_FACTORS, SELECT_FACTORS
from pslab.config.table import ROWS
from pslab.engines.experiment.job import Job
from pslab.engines.experiment.layout import Layout
from pslab.engines.experiment.shared_dataset import ARRAYS, SharedDataset, store_arrays
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.experiment.wire import (
    WHOLE,
    Answer,
    Blocked,
    Carried,
    ComputedOn,
    Diverged,
    Go,
    Ordered,
    PushInfo,
    Stop,
    Taken,
    Wanted,
    pack,
    unpack,
)
from pslab.engines.worker.phases import APPLY
from pslab.lab.runs.resolve import resolve
from pslab.protocol.messages import Ack, Pull, Push, Weights
from pslab.tensors.update import rate_state
from pslab.tensors.update.optimizers import ELEMENTWISE

SPARSE = {"prune": "static:5%", "pull": "changed"}
COSTS = {"compute_s": 1.0, "select_s": 0.25, "apply_s": 0.5}


MOMENTUM = {"optimizer": "sgd:momentum=0.9"}


@pytest.mark.parametrize(("fields", "select", "apply"), [
    ({}, 0.0, 1.0), (SPARSE, 1.0, 1.0), ({**SPARSE, "prune": "dynamic:mode=ratchet"}, SELECT_FACTORS["dynamic"], 1.0),
    ({**SPARSE, "prune": Largest()}, 1.0, 1.0), ({"rate": "adagrad"}, SELECT_FACTORS["own squares"], 1.0),
    ({**SPARSE, "rate": "adagrad"}, 1.0 + SELECT_FACTORS["own squares"], 1.0),
    ({"rate": "adagrad:server"}, 0.0, APPLY_FACTORS["squares"][0]),
    ({**SPARSE, "rate": "split"}, 1.0, APPLY_FACTORS["directions"][1]), ({"rate": "split:identity"}, 0.0, 1.0),
    (MOMENTUM, 0.0, APPLY_FACTORS["sgd"][0]), ({**SPARSE, "optimizer": "nadam"}, 1.0, APPLY_FACTORS["other"][1]),
    ({"rate": "split", "optimizer": "adam"}, 0.0, APPLY_FACTORS["directions"][0] + APPLY_FACTORS["adam"][0] - 1),
    ({"rate": "split", "cluster": {**COSTS, "apply_factor": {"directions": [7, 2]}}}, 0.0, 7.0),
    ({**SPARSE, "cluster": {**COSTS, "select_factor": {"static": 2}}}, 2.0, 1.0),
])  # fmt: skip
def test_virtual_time_passes_by_the_costs_of_the_rule_the_rate_and_the_optimizer(fields, select, apply):
    """Of a run of one worker; layers are applied one after another, and cost as much in all."""
    wanted = tiny(**{"engine": "virtual", "sync": "asp", "workers": 1, "pushes": 2, "cluster": COSTS, **fields})
    experiment = resolve(wanted)
    assert (experiment.select_factor, experiment.apply_factor) == (pytest.approx(select), pytest.approx(apply))
    for ranges in ("whole", "layers"):
        outcome = in_process(wanted.but(ranges=ranges))
        assert judged(wanted.but(ranges=ranges), outcome) == ("valid", ())
        _, iteration, phase, begin_s, end_s, *_ = outcome.phases.T
        assert (end_s - begin_s)[(phase == APPLY) & (iteration == 0)].sum() == pytest.approx(0.5 * apply)
        assert ranges == "layers" or outcome.facts["seconds"] == pytest.approx(2 * (1 + 0.25 * select + 0.5 * apply))


def test_what_factors_take_grows_with_their_rank():
    """Of a layer of 400 x 300."""
    for rule, factor in {"powersgd:1": 19.2, "powersgd:2": 20, "powersgd:6": 23.2, "lowrank:1": 19.14, "lowrank:2": 22,
                         "lowrank:6": 33.44}.items():  # fmt: skip
        run = tiny(engine="timing", cluster=COSTS, model=[(400, 300)], prune=rule)
        assert resolve(run).select_factor == pytest.approx(factor)


def test_every_rule_and_everything_that_a_rate_keeps_has_a_factor():
    assert set(ROWS["prune"]) | set(rate_state.AT_WORKER) == set(SELECT_FACTORS)
    assert set(rate_state.AT_SERVER) < set(APPLY_FACTORS)
    assert set(APPLY_FACTORS) - set(rate_state.AT_SERVER) - {"other"} < set(ELEMENTWISE)


KEYED = {"data": "planted:rows=200,keys=240,per_row=6,communities=4", "model": "linear", "pull": "keys",
         "batch_size": 8, "workers": 2, "servers": 2}  # fmt: skip


@pytest.mark.parametrize("fields", [{}, {"placement": "parsa", "partition": "two-step"}], ids=str)
def test_a_process_has_the_arrays_of_the_parents_job_as_views_of_the_data_arena(fields: dict[str, object]):
    data, experiment = Arena(), resolve(tiny(**KEYED, **fields))
    shelf = SharedDataset.store(data, experiment.dataset)
    job = Job.of(experiment, Layout.of(experiment), shelf, store_arrays(data, experiment, shelf.end))
    there = pickle.loads(cloudpickle.dumps(job)).on(data)
    for name in ARRAYS:
        wanted, found = getattr(job, name), getattr(there, name)
        assert (found is None) == (wanted is None)
        assert wanted is None or (np.array_equal(found, wanted) and found.dtype == np.int64)
    assert (there.places is not None) == bool(fields)
    data.bytes(there.located["evaluated"].offset, 8)[:] = bytes(8)
    assert there.evaluated[0] == 0  # it is no copy


def test_growing_keeps_what_was_there():
    shared = Arena()
    shared.reserve(64)
    before = shared.tensor(0, 16, torch.float32)
    before.fill_(7)
    shared.reserve(1 << 20)
    after = shared.tensor(0, 1 << 18, torch.float32)
    assert after[:16].tolist() == [7] * 16
    after[0] = 1
    assert before[0] == 1
    shared.reserve(8)  # never shrinks
    assert shared.tensor(1 << 19, 4, torch.float32).tolist() == [0] * 4


def test_the_pages_of_a_place_are_given_back_and_its_neighbours_stay():
    page, shared = mmap.PAGESIZE, Arena()
    shared.reserve(8 * page)
    shared.bytes(0, 8 * page)[:] = b"x" * 8 * page
    shared.give_back(page - 1, 3 * page)  # of four pages, in part of two
    assert sum(len(piece) for _, piece in shared.written(0, 8 * page)) == 6 * page
    assert bytes(shared.bytes(0, 8 * page)) == b"x" * page + bytes(2 * page) + b"x" * 5 * page
    shared.give_back(5 * page + 1, 10)  # less than a page
    assert shared.bytes(5 * page, 1)[0] == ord("x")
    shared.give_back()
    assert list(shared.written(0, 8 * page)) == []


def test_weights_that_are_zero_touch_no_page_and_replace_what_was_there():
    here = Arena()
    here.reserve(1 << 16)
    values = torch.zeros(1 << 14)
    here.put(0, values)
    assert not list(here.written(0, 1 << 16))
    values[3] = -0.0
    here.put(0, values)
    assert here.tensor(0, 1 << 14, torch.float32).numpy().tobytes() == values.numpy().tobytes()
    here.put(0, torch.zeros(1 << 14))
    assert not here.tensor(0, 1 << 14, torch.float32).view(torch.int32).any()
    here.close()


EVERY_KIND = [
    Push(3, 2, 2**40, 7, PushInfo(WHOLE, 5, float("inf"), 0.1), 4, 2**40), Pull(1, 70_000, 4, 9, Wanted(10, 30, 0.2)),
    Weights(1, 0, 4, 9, Answer(2**33, -1, 0.1, 0.2, 0.3, 0.4, 0.5), 6, 2**40, 2**41, 2**40),
    Ack(65_535, 2, 8, Taken(0.1, 0.2)), Go(12.5), Stop(3), Diverged(2, 2**40), Blocked(2, 9),
    Ordered(1, 70_000, 2**40, True, 0.1), ComputedOn(2**40), Carried(WHOLE, 0.1, 0.2),
]  # fmt: skip


def test_a_frame_of_every_kind_of_message_is_unpacked_as_it_was_packed_and_half_a_record_is_refused():
    assert list(unpack(pack(EVERY_KIND))) == EVERY_KIND
    for frame in (pack([Stop(1)])[:1], pack(EVERY_KIND)[:-1], bytes([11]), bytes([255, 0, 0])):
        with pytest.raises(struct.error):
            list(unpack(frame))
