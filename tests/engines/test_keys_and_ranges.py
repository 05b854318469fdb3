"""Workers that pull and push just the keys of their batches: right weights, and the bytes that were predicted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tiny import finished, tiny
from tools.audit.rules import judged
from tools.chaos.replay import pushes_of
from torch import nn
from whole import in_process

from pslab.config.run import Run
from pslab.engines.experiment.experiment import Outcome
from pslab.engines.experiment.wire import REQUEST_BYTES
from pslab.engines.server.ledger import PULLED, PUSHED
from pslab.engines.worker.phases import PHASE_COLUMNS, PHASES
from pslab.engines.worker.range_schedule import SWEEP_COLUMNS
from pslab.lab.runs.resolve import resolve
from pslab.tensors.compression.uncompressed import START
from pslab.tensors.partitioning.traffic import push_bytes, reply_bytes, request_bytes
from pslab.tensors.workload.data import Batches
from pslab.tensors.workload.models import Linear

KEYS, WORKERS, BATCH = 240, 3, 8
DATA = f"planted:rows=200,keys={KEYS},per_row=6,communities=4"
VIRTUAL: dict[str, Any] = {"engine": "virtual", "cluster": "lab"}
BESIDE = {"preset": "lab", "colocated": True}


def keyed(**fields: Any) -> Run:
    return Run.of({"data": DATA, "model": "linear", "pull": "keys", "workers": WORKERS, "batch_size": BATCH,
                   "learning_rate": 2.0, "pushes": 30, "keep_weights": True, "dtype": "float64", "dilation": 1,
                   **fields})  # fmt: skip


def schedule(wanted: Run) -> tuple[Any, list[Batches]]:
    """The training rows, and each worker's batches of them."""
    experiment = resolve(wanted)
    rows, parts = experiment.dataset.train_x, experiment.assignment
    return experiment.dataset, [Batches(len(rows), wanted.workers, worker, wanted.batch_size, wanted.seed, parts=parts)
                                for worker in range(wanted.workers)]  # fmt: skip


def reference(wanted: Run) -> np.ndarray:
    """Logistic regression by rounds, in plain NumPy: the mean over the workers, or over the rows if they share them."""
    dataset, batches = schedule(wanted)
    inputs, labels = dataset.train_x, dataset.train_y.numpy()
    starts, keys, values = (each.numpy() for each in inputs.tensors)
    weights = np.zeros(inputs.key_count)
    for turn in range(wanted.pushes // wanted.workers):
        step = np.zeros_like(weights)
        for own in batches:
            for row in own.at(turn):
                here = slice(starts[row], starts[row + 1])
                score = weights[keys[here]] @ values[here]
                step[keys[here]] += (1 / (1 + np.exp(-score)) - labels[row]) * values[here] * own.share(turn) / len(
                    own.at(turn))  # fmt: skip
        weights -= wanted.learning_rate * step / wanted.workers
    return weights


@pytest.mark.parametrize("fields", [VIRTUAL, {"partition": "multilevel"}], ids=str)
def test_a_run_ends_with_the_weights_of_logistic_regression(fields):
    """Those of keys that no batch holds are never touched."""
    wanted = keyed(**fields)
    found = finished(wanted)
    assert judged(wanted, found) == ("valid", ())
    assert np.abs(found.weights - reference(wanted)).max() < 1e-12
    assert np.abs(found.weights).max() > 0.1


MULTILEVEL = {"engine": "virtual", "cluster": BESIDE, "partition": "multilevel", "workers": 4}


@pytest.mark.parametrize("fields", [
    {}, {"servers": 2, "partition": "two-step", "placement": "parsa"}, {**VIRTUAL, "sync": "ssp:2"},
    {**VIRTUAL, "servers": 4, "partition": "multilevel"}, {**VIRTUAL, "servers": 2, "sync": "local:3", "pushes": 90},
    *({**MULTILEVEL, "placement": placement, "servers": servers}
      for placement, servers in (("even", 1), ("even", 2), ("parsa", 4))),
], ids=str)  # fmt: skip
def test_every_message_is_as_long_as_was_predicted(fields):
    """Of each range of keys, one for each server: nothing where a batch has none of them, and nothing crosses the
    network between a worker and the server beside it."""
    wanted = keyed(**fields)
    experiment, outcome = resolve(wanted), finished(wanted)
    ranges = [part.slices[0] for part in experiment.parts]
    assert len(ranges) == wanted.servers
    dataset, batches = schedule(wanted)
    steps = 3 if wanted.sync == "local:3" else 1
    crossing = requested = 0

    def keys(worker: int, iteration: int, index: int) -> tuple[np.ndarray, int]:
        rows = [batches[worker].at(iteration * steps + at) for at in range(steps)]
        own, part = dataset.train_x.keys_of(np.concatenate(rows)), ranges[index]
        own = own if experiment.places is None else np.sort(experiment.places[own])
        return own[(own >= part.start) & (own < part.stop)] - part.start, part.stop - part.start

    for push in pushes_of(outcome).itertuples():
        worker, iteration, index = push.worker, push.iteration, push.range
        own, count = keys(worker, iteration, index)
        after, _ = keys(worker, iteration + 1, index)
        assert push.bytes_up == push_bytes(own, count) + 4 * len(own)  # float64
        assert push.bytes_down == (reply_bytes(after) + 4 * len(after) if push.bytes_down_raw else 0)
        crossing += push.bytes_down * (wanted.cluster != BESIDE or index != worker)
    for kind, worker, index, iteration in outcome.arrivals[:, :4].astype(int).tolist():
        own, count = keys(worker, iteration, index)
        size = push_bytes(own, count) + 4 * len(own) if kind == PUSHED else request_bytes(own, count)
        requested += size * (kind == PULLED)
        crossing += size * (wanted.cluster != BESIDE or index != worker)
    assert outcome.facts["requested_bytes"] == requested
    assert outcome.facts["network_bytes"] == crossing


def test_it_does_not_matter_for_the_weights_where_keys_lie():
    """Nor for what is said of them: they are evaluated and kept in the order of the data's keys."""
    fields = {"servers": 3, "partition": "two-step"}
    even, other = (in_process(keyed(**VIRTUAL, **fields, placement=rule)) for rule in ("even", "parsa"))
    assert np.array_equal(other.weights, even.weights)
    assert np.array_equal(other.accuracy[:, [0, 2, 3]], even.accuracy[:, [0, 2, 3]])


# --- evaluation, on the weights of the keys that it reads ------------------------------------------------------------


class Normed(Linear):
    """Its scores are standardized by running statistics, which are estimated on training examples."""

    def __init__(self) -> None:
        super().__init__(KEYS)
        self.norm = torch.nn.BatchNorm1d(2, affine=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(super().forward(x) + torch.tensor([0.0, 0.1]))


@pytest.mark.parametrize(("fields", "few", "off"), [
    ({"servers": 3, "partition": "two-step"}, {"placement": "parsa"}, 0.0),
    ({"model": Normed}, {}, 1e-12)], ids=str)  # fmt: skip
def test_an_evaluation_of_few_keys_is_one_of_the_whole_model(fields, few, off):
    found, whole = (in_process(keyed(**VIRTUAL, **fields, **more)) for more in (few, {"pull": "whole"}))
    assert found.accuracy[:, [0, 2, 3]] == pytest.approx(whole.accuracy[:, [0, 2, 3]], rel=off, abs=0.0)
    assert found.accuracy[-1, 3] != found.accuracy[0, 3]


@pytest.mark.parametrize("sync", ["dssp:1,2", "eager:rmw=off", "backup:1", "elastic:4"])
def test_every_policy_runs_on_keys(sync):
    wanted = keyed(**VIRTUAL, sync=sync)
    found = in_process(wanted)
    assert judged(wanted, found) == ("valid", ())
    assert found.accuracy[-1, 3] < found.accuracy[0, 3]


OF_NET = 42  # of the tiny net
FREE = {"compute_s": 0.02, "compute_sigma": 0.3, "slow": {0: 2.0}}  # what is sent takes no time
THIN = {**FREE, "bandwidth_bit_s": 1e5, "latency_s": 0.01}


def ranged(size: object, **fields: object) -> Run:
    return tiny(**{"engine": "virtual", "prune": f"range:{size}", "pull": "range", **fields})


# --- what is applied --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sync", "cluster"), [
    ("bsp", THIN), ("ssp:3", FREE), ("asp", THIN), ("eager", FREE), ("eager:2", THIN), ("local:2", THIN)])  # fmt: skip
def test_all_keys_are_plain_training_to_the_bit(sync, cluster):
    fields = {"sync": sync, "cluster": cluster, "schedule": "linear"}
    one, two = in_process(tiny(engine="virtual", **fields)), in_process(ranged(OF_NET, **fields))
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
    """Five keys of one entry, whose sum is the loss: the gradient of each is 1, whatever the weights are."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(5, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w.sum() + torch.zeros(len(x), 1)


def mean(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return output.mean()


@pytest.mark.parametrize("sync", ["bsp", "ssp:1", "eager", "elastic:4"])
def test_each_gradient_is_applied_once_and_in_time(sync):
    """After n iterations of each worker a key lacks at most K - 1 of its gradients, and has none twice."""
    cluster = {"compute_s": 0.02, "bandwidth_bit_s": 1e4}
    outcome = in_process(ranged(2, model=Constant, loss=mean, metric="loss", sync=sync, workers=2, pushes=40,
                                learning_rate=1.0, push_weight=None if sync == "bsp" else 1.0,
                                cluster=cluster))  # fmt: skip
    expected, weight = np.zeros(5), 0.5 if sync == "bsp" else 1.0
    for _, own in pushes_of(outcome).groupby("worker"):
        last = np.array([0, 0, 0, 0, 0])
        for iteration in sorted(own.iteration):
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
