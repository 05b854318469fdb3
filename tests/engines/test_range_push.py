"""Runs that push and pull ranges: everything as without them, entries once and in time, links beside the model."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from tiny import finished, tiny
from torch import nn
from whole import in_process

from pslab.config.run import Run
from pslab.engines.experiment.experiment import Outcome
from pslab.engines.experiment.wire import REQUEST_BYTES
from pslab.engines.server.ledger import PUSH_COLUMNS
from pslab.engines.worker.phases import PHASE_COLUMNS, PHASES
from pslab.engines.worker.range_schedule import SWEEP_COLUMNS
from pslab.tensors.compression.uncompressed import START

KEYS = 42  # of the tiny net
FREE = {"compute_s": 0.02, "compute_sigma": 0.3, "slow": {0: 2.0}}  # what is sent takes no time
THIN = {**FREE, "bandwidth_bit_s": 1e5, "latency_s": 0.01}


def ranged(size: object, **fields: object) -> Run:
    return tiny(**{"engine": "virtual", "prune": f"range:{size}", "pull": "range", **fields})


def pushes_of(outcome: Outcome) -> pd.DataFrame:
    return pd.DataFrame(outcome.pushes, columns=PUSH_COLUMNS)


# --- what is applied --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sync", "cluster"), [
    ("bsp", THIN), ("ssp:3", FREE), ("asp", THIN), ("eager", FREE), ("eager:2", THIN), ("local:2", THIN)])  # fmt: skip
def test_all_keys_are_plain_training_to_the_bit(sync, cluster):
    fields = {"sync": sync, "cluster": cluster, "schedule": "linear"}
    one, two = in_process(tiny(engine="virtual", **fields)), in_process(ranged(KEYS, **fields))
    assert np.array_equal(one.weights, two.weights)
    assert np.array_equal(one.pushes[:, :7], two.pushes[:, :7])  # a frame of a range has its indices, too


def test_one_worker_that_reads_its_writes_is_serial_training():
    """Whatever is on its way, its weights are the initial ones less all its gradients: as if nothing were ranged."""
    alone = {"workers": 1, "dtype": "float64", "pushes": 30}
    plain = pushes_of(in_process(tiny(engine="virtual", sync="bsp", cluster=FREE, **alone)))
    for sync, size, cluster in (("asp", 5, FREE), ("eager", 1, FREE), ("eager", 17, THIN)):
        mine = pushes_of(in_process(ranged(size, sync=sync, cluster=cluster, **alone)))
        assert mine.loss.tolist() == pytest.approx(plain.loss.tolist(), abs=1e-9), (sync, size)


class Constant(nn.Module):
    """Five keys of one entry; the gradient of each is a constant, whatever the weights are."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(5, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Ones.apply(self.w).sum() + torch.zeros(len(x), 10)


class _Ones(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w):
        return w.clone()

    @staticmethod
    def backward(ctx, gradient):
        return torch.ones_like(gradient)


@pytest.mark.parametrize("sync", ["bsp", "ssp:1", "eager", "elastic:4"])
def test_each_gradient_is_applied_once_and_in_time(sync):
    """After n iterations of each worker a key lacks at most K - 1 of its gradients, and has none twice."""
    cluster = {"compute_s": 0.02, "bandwidth_bit_s": 1e4}
    outcome = in_process(ranged(2, model=Constant, sync=sync, workers=2, pushes=40, learning_rate=1.0, cluster=cluster,
                                push_weight=None if sync == "bsp" else 1.0))  # fmt: skip
    expected, weight = np.zeros(5), 0.5 if sync == "bsp" else 1.0
    for _, own in pushes_of(outcome).groupby("worker"):
        last = np.array([0, 0, 0, 0, 0])
        for iteration in sorted(own.iteration.astype(int)):
            keys = slice(2 * (iteration % 3), 2 * (iteration % 3) + 2)
            expected[keys] += weight * (iteration + 1 - last[keys])
            last[keys] = iteration + 1
        assert (own.iteration.max() + 1 - last <= 2).all()
    assert (-outcome.weights).tolist() == expected.tolist()


@pytest.mark.parametrize("sync", ["bsp", "local:2"])
def test_a_warm_up_is_counted_in_batches_however_many_a_push_is_made_of(sync: str) -> None:
    wanted = tiny(sync=sync, prune="static:1%,warm_up=1", engine="virtual", cluster=FREE, pushes=80, pull="changed")
    pushes, epoch = pushes_of(in_process(wanted)), 1024 // (4 * 16) // (2 if sync == "local:2" else 1)  # in pushes
    assert pushes.iteration.max() > epoch
    assert ((pushes.density > 0.2) == (pushes.iteration < epoch)).all()


# --- how long it takes ------------------------------------------------------------------------------------------------


def even() -> nn.Module:
    """200 keys of 50 entries: 200 bytes a key."""
    return nn.Sequential(nn.Flatten(), nn.Linear(49, 200))


BYTE_S = 2000.0  # a tenth of a second for a key
FIXED_S = (REQUEST_BYTES + START + 16) / BYTE_S  # the request, a header, two runs
LINK = {"compute_s": 10.0, "bandwidth_bit_s": 8 * BYTE_S, "latency_s": 1 - FIXED_S / 2}  # alpha = 2 s, beta = 0.1 s


def timed(size: object, **fields: object) -> Outcome:
    """An eager run of one worker, without tensors."""
    plain = {"sync": "eager", "engine": "timing", "model": even, "cluster": LINK, "workers": 1}
    return finished(ranged(size, **{**plain, **fields}))


def sweeps_of(outcome: Outcome) -> pd.DataFrame:
    return pd.DataFrame(outcome.facts["sweeps"], columns=SWEEP_COLUMNS)


def test_size_is_fitted_within_three_sweeps_and_then_no_worker_is_idle():
    outcome = timed("fit", pushes=60, workers=2)
    for _, own in sweeps_of(outcome).groupby("worker"):
        assert own["keys"].tolist()[:3] == [200, 100, 200]
        assert set(own["keys"].iloc[3:]) <= {79, 80}
        assert own.alpha_s.iloc[-1] == pytest.approx(2.0, abs=0.05)
        assert own.beta_s.iloc[-1] == pytest.approx(0.1, abs=0.001)
        assert own.iteration.tolist()[:5] == [0, 1, 3, 4, 7]  # ranges tile the keys
    phases = pd.DataFrame(outcome.phases, columns=PHASE_COLUMNS)
    computing = phases[(phases.worker == 0) & (phases.phase == PHASES.index("compute"))].iloc[10:20]
    assert (computing.begin_s.shift(-1) - computing.end_s).mean() == pytest.approx(0, abs=0.2)


def test_fitted_size_follows_a_bandwidth_that_halves():
    own = sweeps_of(timed("fit", cluster={**LINK, "bandwidth_at": {300.0: 4 * BYTE_S}}, pushes=400))
    assert own["keys"].iloc[[5, -1]].tolist() == [pytest.approx(80, abs=1), pytest.approx(40, abs=3)]


def test_without_overlap_push_and_pull_are_fitted_together():
    own = sweeps_of(timed("fit", sync="asp", pushes=60))
    assert own.beta_s.iloc[-1] == pytest.approx(0.2, abs=0.002)  # both ways, one after the other
    assert own["keys"].iloc[-1] == pytest.approx((10 - 2) / 0.2, abs=1)


def test_a_worker_that_joins_asks_for_all_keys():
    outcome = timed(50, sync="asp", cluster={**LINK, "join": {1: 100.0}}, pushes=40, workers=2)
    assert pushes_of(outcome).groupby("worker").size().min() > 3
    late = ranged(5, sync="asp", cluster={**FREE, "slow": {}, "join": {1: 0.3}, "leave": {1: 0.6}}, workers=2)
    assert in_process(late).facts["outcome"] == "budget"
