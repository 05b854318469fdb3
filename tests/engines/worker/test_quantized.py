"""A worker's quantized pushes: what a code loses goes back to the residual, whatever was pruned before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tiny import tiny
from tools.audit.verdict import audit
from torch import nn
from torch.nn import functional
from whole import in_process

from pslab.config.table import ROWS
from pslab.lab.judge import tables_of
from pslab.lab.runs.resolve import resolve
from pslab.tensors.device import one_thread
from pslab.tensors.workload.data import Batches, batch

VIRTUAL = {"engine": "virtual", "cluster": "lab", "dtype": "float64", "workers": 1}
WITH_RESIDUAL = [f"{row.example or name}{',' if row.example else ':'}residual=on"
                 for name, row in ROWS["quantize"].items() if name not in ("none", "terngrad")]  # fmt: skip


def test_signs_with_error_feedback_train_as_a_loop_of_their_own():
    """Of one worker (Karimireddy et al., ICML 2019), step by step and tensor by tensor."""
    wanted = tiny(**VIRTUAL, pushes=12, quantize="efsign", learning_rate=0.05)
    experiment, outcome = resolve(wanted), in_process(wanted)
    data, weights = experiment.dataset, experiment.weights.clone()
    residual, gradient = torch.zeros_like(weights), torch.zeros_like(weights)
    batches = Batches(len(data.train_y), 1, 0, wanted.batch_size, wanted.seed)
    with one_thread():
        for step in range(wanted.pushes):
            experiment.keyspace.bind(experiment.shell, weights, gradient.zero_())
            rows = torch.from_numpy(batches.at(step))
            x = batch(data.train_x[rows], torch.float64, data.mean, data.std)
            functional.cross_entropy(experiment.shell(x), data.train_y[rows]).backward()
            residual += gradient
            for slot in experiment.keyspace.parameters:
                own = slice(slot.offset, slot.offset + slot.size)
                v = residual[own]
                sent = torch.where(v < 0, -1.0, 1.0) * v.abs().mean().float().double()
                residual[own] = v - sent
                weights[own] -= wanted.learning_rate * sent
    # a sum of magnitudes in another order may be rounded to the next float32
    np.testing.assert_allclose(outcome.weights, weights.numpy(), rtol=1e-5, atol=1e-7)


def words() -> Any:
    """The means of eight words each, of the first 12 of 20 words; of the last ones nobody has any."""
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randint(12, (64, 8), generator=generator), torch.randn(64, 3, generator=generator)
    return x, y, x, y


def bag() -> nn.Module:
    return nn.EmbeddingBag(20, 3)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("quantize", "beta"), [("sign", 0.0), ("signum:0.5", 0.5), ("sign:residual=on", 0.0)])
def test_signs_by_majority_are_torchs_and_rows_that_nobody_has_stay(quantize: str, beta: float, workers: int):
    wanted = tiny(**{**VIRTUAL, "workers": workers}, pushes=12, quantize=quantize, learning_rate=0.01, batch_size=1,
                  model=bag, data=words, loss="mse", metric="loss")  # fmt: skip
    experiment, outcome = resolve(wanted), in_process(wanted)
    (x, y, *_), weights = words(), experiment.weights.clone()
    kept = torch.zeros(workers, len(weights), dtype=torch.float64)
    batches = [Batches(64, workers, worker, 1, wanted.seed) for worker in range(workers)]
    with one_thread():
        for step in range(12 // workers):
            for worker, own in enumerate(batches):
                table = weights.reshape(20, 3).clone().requires_grad_()
                rows = torch.from_numpy(own.at(step))
                functional.mse_loss(functional.embedding_bag(x[rows], table), y[rows].double()).backward()
                assert table.grad is not None
                if "residual" in quantize:
                    kept[worker] += table.grad.reshape(-1)
                else:
                    kept[worker] = beta * kept[worker] + (1 - beta) * table.grad.reshape(-1)
            signs = kept.sign()
            kept -= signs * ("residual" in quantize)
            tie = (signs.sum(0) == 0) & signs.any(0)
            weights -= 0.01 * torch.where(tie, 1.0, signs.sum(0).sign())
    np.testing.assert_allclose(outcome.weights, weights.numpy(), rtol=0, atol=1e-12)
    assert np.array_equal(outcome.weights[36:], experiment.weights[36:].numpy())
    assert (outcome.weights[:36] != experiment.weights[:36].numpy()).any()


@pytest.mark.parametrize(
    "fields",
    [{"quantize": "int8"}, {"quantize": "inceptionn"}, {"quantize": "qsgd:4", "prune": "static:10%"},
     {"quantize": "uniform8", "prune": "std:2", "ranges": "layers"},
     {"quantize": "e3m0:64", "prune": "threshold:0.02", "pull": "changed"}, {"quantize": "onebit", "prune": "adaq:5%"},
     {"quantize": "efsign", "prune": "randomk:5%", "servers": 2}, {"prune": "randomk:5%", "ranges": "layers:400"},
     {"quantize": "int8", "prune": "range:7", "pull": "range", "sync": "eager"},
     {"quantize": "fp8", "sync": "downpour:2,2"}, {"quantize": "sign", "learning_rate": 0.001},
     {"quantize": "signum:0.8", "model": bag, "data": words, "loss": "mse", "metric": "loss", "ranges": "layers:30"},
     {"prune": "lowrank:2", "sync": "asp"}, {"prune": "lowrank:1,after=2", "quantize": "fp16"},
     {"prune": "powersgd:2", "sync": "local:2"}, {"prune": "powersgd:1", "quantize": "inceptionn", "ranges": "layers"},
     {"downlink": "static:5%+fp16", "sync": "asp"}, {"downlink": "uniform8", "sync": "downpour:2,2"},
     {"prune": "demo:topk=4,chunk=16", "learning_rate": 0.003}, {"prune": "ef21:5%", "quantize": "int8"},
     {"prune": "sketch:cols=60", "pull": "changed", "quantize": "int8", "learning_rate": 0.01}],
    ids=lambda fields: " ".join(str(getattr(each, "__name__", each)) for each in fields.values()),
)  # fmt: skip
def test_the_record_of_a_quantized_run_is_valid_and_one_with_other_bytes_is_not(fields: dict[str, Any]):
    wanted = tiny(engine="virtual", cluster="lab", pushes=24, **fields)
    tables = tables_of(wanted, in_process(wanted))
    assert tables[2]["verdict"] == "valid", tables[2]["violations"]
    pushes, facts = tables[0]["pushes"], tables[2]
    for bytes_up in (7.0, pushes.bytes_up_raw.max() * 3 + 50_000):
        forged = {**tables[0], "pushes": pushes.assign(bytes_up=bytes_up)}
        assert any("a frame of those takes" in each for each in audit(wanted, forged, facts).violations)
