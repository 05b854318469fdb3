"""Workers that pull and push just the keys of their batches: right weights, and the bytes that were predicted."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from conducted import judged
from memory import peak_bytes
from tiny import finished
from whole import in_process

from pslab.config.run import Run
from pslab.engines.experiment.experiment import Outcome
from pslab.engines.experiment.job import Job
from pslab.engines.experiment.layout import Layout
from pslab.engines.experiment.shared_dataset import SharedDataset
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.server.evaluate import Evaluator
from pslab.engines.server.ledger import PULLED, PUSH_COLUMNS, PUSHED
from pslab.lab.runs import resolve as resolving
from pslab.lab.runs.resolve import resolve
from pslab.lab.runs.run import run
from pslab.tensors.device import Device
from pslab.tensors.partitioning.traffic import exchanged, push_bytes, reply_bytes, request_bytes
from pslab.tensors.sparse import SparseInputs
from pslab.tensors.workload.data import Batches, Dataset, resolve_data
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


@pytest.mark.parametrize("fields", [VIRTUAL, {}, {**VIRTUAL, "partition": "two-step"},
                                    {"partition": "multilevel"}], ids=str)  # fmt: skip
def test_a_run_ends_with_the_weights_of_logistic_regression(fields):
    """Those of keys that no batch holds are never touched."""
    wanted = keyed(**fields)
    found = finished(wanted)
    assert judged(wanted, found) == {"verdict": "valid"}
    assert np.abs(found.weights - reference(wanted)).max() < 1e-12
    assert np.abs(found.weights).max() > 0.1


@pytest.mark.one_of(2)
@pytest.mark.parametrize("fields", [VIRTUAL, {}, {**VIRTUAL, "sync": "ssp:2"}, {**VIRTUAL, "partition": "two-step"},
                                    {**VIRTUAL, "sync": "local:3", "pushes": 90},
                                    {**VIRTUAL, "servers": 4, "partition": "multilevel"}, {"servers": 2},
                                    {**VIRTUAL, "servers": 2, "sync": "local:3", "pushes": 90},
                                    {"servers": 2, "partition": "two-step", "placement": "parsa"}],
                         ids=str)  # fmt: skip
def test_every_message_is_as_long_as_was_predicted(tmp_path, fields):
    """Of each range of keys, one for each server: nothing where a batch has none of them."""
    wanted = keyed(**fields)
    experiment = resolve(wanted)
    ranges = [part.slices[0] for part in experiment.parts]
    assert len(ranges) == wanted.servers
    found = run(wanted, results=tmp_path, progress=False)
    dataset, batches = schedule(wanted)
    steps = 3 if wanted.sync == "local:3" else 1

    def keys(worker: int, iteration: int, index: int) -> tuple[np.ndarray, int]:
        rows = [batches[worker].at(iteration * steps + at) for at in range(steps)]
        own, part = dataset.train_x.keys_of(np.concatenate(rows)), ranges[index]
        own = own if experiment.places is None else np.sort(experiment.places[own])
        return own[(own >= part.start) & (own < part.stop)] - part.start, part.stop - part.start

    asked, unanswered = 0, list[int]()
    for push in found.pushes.itertuples():
        own, count = keys(push.worker, push.iteration, push.range)
        assert push.bytes_up == push_bytes(own, count) + 4 * len(own)  # float64
        after, _ = keys(push.worker, push.iteration + 1, push.range)
        if push.bytes_down_raw:
            assert push.bytes_down == reply_bytes(after) + 4 * len(after)
            asked += request_bytes(after, count)
        else:
            unanswered.append(request_bytes(after, count))
    assert len(unanswered) <= WORKERS * len(ranges)
    assert asked <= found.manifest["requested_bytes"] <= asked + sum(unanswered)


def test_what_crosses_the_network_is_what_was_predicted():
    for placement, servers in (("even", 1), ("even", 2), ("even", 4), ("parsa", 2), ("parsa", 4)):
        for cluster in (BESIDE, "lab"):
            wanted = keyed(engine="virtual", cluster=cluster, workers=4, pushes=40, dtype="float32",
                           partition="multilevel", placement=placement, servers=servers)  # fmt: skip
            outcome = in_process(wanted)
            assert outcome.facts["network_bytes"] == predicted(wanted, outcome), wanted.plain()


def predicted(wanted: Run, outcome: Outcome) -> int:
    """The bytes of all that came and was answered, by the batches and the servers' keys alone."""
    (dataset, batches), experiment, found = schedule(wanted), resolve(wanted), 0
    starts = np.array([0, *(part.slices[0].stop for part in experiment.parts)])
    places = np.arange(KEYS) if experiment.places is None else experiment.places

    def add(worker: float, index: float, iteration: float, what: int) -> int:
        if wanted.cluster == BESIDE and index == worker:
            return 0
        own = np.sort(places[dataset.train_x.keys_of(batches[int(worker)].at(int(iteration)))])
        return int(exchanged(own, starts)[int(index), what])

    for kind, worker, index, iteration, *_ in outcome.arrivals.tolist():
        found += add(worker, index, iteration, {PUSHED: 0, PULLED: 1}[kind])
    for push in outcome.pushes.tolist():
        row = dict(zip(PUSH_COLUMNS, push, strict=True))
        found += add(row["worker"], row["range"], row["iteration"] + 1, 2) if row["bytes_down_raw"] else 0
    return found


def test_it_does_not_matter_for_the_weights_where_keys_lie(tmp_path):
    """Nor for what is said of them: they are evaluated and kept in the order of the data's keys."""
    fields = {"servers": 3, "partition": "two-step"}
    even, other = (in_process(keyed(**VIRTUAL, **fields, placement=rule)) for rule in ("even", "parsa"))
    assert np.array_equal(other.weights, even.weights)
    assert np.array_equal(other.accuracy[:, [0, 2, 3]], even.accuracy[:, [0, 2, 3]])
    local = run(keyed(**fields, placement="parsa"), results=tmp_path, progress=False)
    assert np.array_equal(local.weights, even.weights)
    assert np.array_equal(local.accuracy[["pushes", "accuracy", "loss"]].to_numpy(), even.accuracy[:, [0, 2, 3]])


# --- evaluation, on the weights of the keys that it reads ------------------------------------------------------------


class Normed(Linear):
    """Its scores are standardized by running statistics, which are estimated on training examples."""

    def __init__(self) -> None:
        super().__init__(KEYS)
        self.norm = torch.nn.BatchNorm1d(2, affine=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(super().forward(x) + torch.tensor([0.0, 0.1]))


@pytest.mark.parametrize("fields", [{}, {"servers": 3}, {"servers": 3, "partition": "two-step", "placement": "parsa"},
                                    {"model": Normed}], ids=str)  # fmt: skip
def test_an_evaluation_of_few_keys_is_one_of_the_whole_model(fields):
    wanted = keyed(**VIRTUAL, **fields)
    outcome, experiment = in_process(wanted), resolve(wanted)
    whole = dataclasses.replace(experiment, run=wanted.but(pull="whole"), places=None)
    data, snapshots = Arena(), Arena()
    job = Job.of(whole, Layout.of(whole), SharedDataset.store(data, whole.dataset))
    snapshots.reserve(job.layout.snapshot_bytes)
    job.layout.snapshot_in(snapshots, 0).copy_(torch.from_numpy(outcome.weights))
    found = Evaluator(job, data, Device()).snapshot(0, snapshots)
    assert outcome.accuracy[-1, 2:].tolist() == list(found)
    assert outcome.accuracy[-1, 3] != outcome.accuracy[0, 3]


def _wide(keys: int) -> Dataset:
    """The rows of DATA, whose keys lie far from each other."""
    narrow = resolve_data(DATA)
    train, test = (SparseInputs(keys, x.starts, x.keys * (keys // KEYS), x.values)
                   for x in (narrow.train_x, narrow.test_x))  # fmt: skip
    return dataclasses.replace(narrow, train_x=train, test_x=test)


@pytest.mark.slow
def test_a_hundred_million_keys_take_little_more_memory_than_themselves(tmp_path, monkeypatch):
    """Of all processes together, at their peak, beside what they take for few keys; shared pages count once."""
    fields: dict[str, Any] = {"servers": 4, "workers": 2, "sync": "asp", "dtype": "float32", "keep_weights": False,
                              "pushes": 200}  # fmt: skip

    def peak(keys: int, seed: int) -> int:
        monkeypatch.setattr(resolving, "_dataset", lambda run: _wide(keys))
        with peak_bytes() as found:
            assert run(keyed(**fields, seed=seed), results=tmp_path, progress=False).manifest["verdict"] == "valid"
        return found[0]

    run(keyed(**fields, seed=9), results=tmp_path, progress=False)  # whose processes stay
    few = peak(KEYS, 0)
    assert peak(100_000_000, 1) - few <= 1.3 * 4 * 100_000_000


@pytest.mark.one_of(3)
@pytest.mark.parametrize("sync", ["asp", "ssp:2", "dssp:1,2", "eager:rmw=off", "backup:1", "local:2", "elastic:4"])
def test_every_policy_runs_on_keys(sync):
    wanted = keyed(**VIRTUAL, sync=sync)
    found = in_process(wanted)
    assert judged(wanted, found) == {"verdict": "valid"}
    assert found.accuracy[-1, 3] < found.accuracy[0, 3]


@pytest.mark.slow
def test_the_functions_of_python_are_learned_as_well_as_by_the_reference(tmp_path):
    """Accuracy .77 and log loss .475 within 36 rounds of 16 workers."""
    wanted = keyed(**VIRTUAL, data="functions", workers=16, batch_size=32, learning_rate=1.0, rate="adagrad:server",
                   pushes=36 * 16, eval_every=36 * 16, dtype="float32", partition="multilevel")  # fmt: skip
    found = run(wanted, results=tmp_path, progress=False)
    assert found.accuracy.accuracy.iloc[-1] >= 0.77
    assert found.accuracy.loss.iloc[-1] <= 0.475
