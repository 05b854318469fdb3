"""Pruned training from end to end: deep gradient compression against a sequential reference that shares no code with
it, and what lasts under every rule, wherever it is computed."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from tiny import Swells, digits, finished, tiny
from torch.nn import functional
from whole import in_process

from pslab.config.run import Run
from pslab.engines.server.ledger import PUSH_COLUMNS
from pslab.lab.runs.resolve import resolve
from pslab.tensors.compression.sparse import DGC
from pslab.tensors.random_streams import seed_of
from pslab.tensors.workload.data import Batches, Dataset, batch

LASTING = ["dgc:5%,warm_up=1", "static:5%,mode=frozen", "dynamic:mode=ratchet", "dynamic:mode=decay,warm_up=1"]
CLUSTER = {"compute_s": 0.01, "compute_sigma": 0.3}


@lru_cache(maxsize=1)
def noisy() -> Dataset:
    """Digits without two pixels that are always equal: whose gradients are equal too, so that rounding would choose."""
    clean, generator = digits(), torch.Generator().manual_seed(0)
    noise = torch.randint(0, 128, clean.train_x.shape, generator=generator, dtype=torch.uint8)
    return replace(clean, train_x=clean.train_x // 2 + noise)


class Reference:
    """Deep gradient compression after Lin et al. (ICLR 2018), for W workers in one loop, tensor by tensor."""

    def __init__(self, wanted: Run, rule: DGC, decay: float = 0.0) -> None:
        self.run, self.rule, self.data, self.decay = wanted, rule, noisy(), decay
        experiment = resolve(wanted)
        self.slots, flat = experiment.keyspace.parameters, experiment.weights.double()
        self.weights = [flat[s.offset : s.offset + s.size].view(s.shape).clone().requires_grad_() for s in self.slots]
        of = [[torch.zeros(s.size, dtype=torch.float64) for s in self.slots] for _ in range(2 * wanted.workers)]
        self.u, self.v = of[: wanted.workers], of[wanted.workers :]
        examples = len(self.data.train_y)
        self.batches = [Batches(examples, wanted.workers, w, wanted.batch_size, wanted.seed)
                        for w in range(wanted.workers)]  # fmt: skip
        self.sent = [0] * wanted.workers

    def train(self, iterations: int) -> np.ndarray:
        for iteration in range(iterations):
            pushes = [self.push(worker, iteration) for worker in range(self.run.workers)]
            rate = self.run.learning_rate * (1 - iteration / iterations)  # linear
            with torch.no_grad():
                for number, weights in enumerate(self.weights):
                    mean = sum(push[number] for push in pushes) / self.run.workers
                    weights -= rate * (mean.view(weights.shape) + self.decay * weights)
        return torch.cat([weights.detach().flatten() for weights in self.weights]).numpy()

    def push(self, worker: int, iteration: int) -> list[torch.Tensor]:
        rows = torch.from_numpy(self.batches[worker].at(iteration))
        x = batch(self.data.train_x[rows], torch.float64, self.data.mean, self.data.std)
        first, first_bias, second, second_bias = self.weights
        out = functional.linear(torch.tanh(functional.linear(x.flatten(1), first, first_bias)), second, second_bias)
        gradients = torch.autograd.grad(functional.cross_entropy(out, self.data.train_y[rows]), self.weights)
        norm = math.sqrt(sum(float((g * g).sum()) for g in gradients))
        limit = math.inf if self.rule.clip is None else self.rule.clip * self.run.workers**-0.5
        scale, rule, pushed = min(1.0, limit / (norm + 1e-6)), self.rule, []
        for number, gradient in enumerate(gradients):
            g, u, v = gradient.flatten() * scale, self.u[worker][number], self.v[worker][number]
            u[:] = rule.momentum * (u + g) if rule.nesterov else rule.momentum * u + g
            step = u + g if rule.nesterov else u
            if gradient.dim() <= 1:
                pushed.append(step.clone())
                self.sent[worker] += len(u)
                continue
            v += step
            mask = self.mask(v, worker, iteration, self.slots[number].offset)
            pushed.append(v * mask)
            v *= ~mask
            u *= ~mask if rule.masking else 1
            self.sent[worker] += int(mask.sum())
        return pushed

    def mask(self, v: torch.Tensor, worker: int, iteration: int, offset: int) -> torch.Tensor:
        epoch, n = iteration // (len(self.data.train_y) // (self.run.workers * self.run.batch_size)), len(v)
        listed = [0.25, 0.0625, 0.015625, 0.004, 0.001]
        ratio = max(listed[epoch], self.rule.fraction) if epoch < self.rule.warm_up else self.rule.fraction
        wanted, largest = math.ceil(n * ratio), v.abs()
        enough = math.ceil(2 / ratio)
        stride = 1
        if n > enough:
            least = max(math.ceil(0.01 * n), enough)
            stride = math.ceil(n / least / 32) * 32 + 1
            while n // stride < least:
                stride -= 8
        draw = seed_of(self.run.seed, "sample", worker, iteration, offset)
        samples = largest[draw % stride :: stride].sort(descending=True).values
        threshold = float(samples[math.ceil(n // stride * ratio) - 1])
        for _ in range(10):
            if int((largest >= threshold).sum()) >= 0.8 * wanted:
                break
            threshold *= 0.8
        mask = largest >= threshold
        if int(mask.sum()) > wanted:
            mask = torch.zeros(n, dtype=torch.bool)
            mask[largest.topk(wanted).indices] = True
        return mask


FLOAT32 = {"dtype": "float32", "pull": "whole"}
DECAY = 0.01  # by the server, as the authors do


@pytest.mark.one_of(3)
@pytest.mark.parametrize(("options", "iterations", "fields"), [
    ("warm_up=0", 20, {}), ("warm_up=2", 40, {}), ("clip=0.7,warm_up=1", 20, {}),  # an epoch has 16
    ("clip=0.7,warm_up=1", 10, FLOAT32), ("nesterov=on,warm_up=0", 20, {}), ("masking=off,warm_up=0", 20, {}),
    ("warm_up=1", 10, {"optimizer": f"sgd:weight_decay={DECAY}", "pull": "whole"}), ("momentum=0", 40, {}),
    ("clip=0.5,nesterov=on,warm_up=2", 40, {}),
])  # fmt: skip
def test_dgc_is_the_sequential_reference(options: str, iterations: int, fields: dict[str, Any]) -> None:
    wanted = tiny(**{"data": noisy, "prune": f"dgc:5%,{options}", "engine": "virtual", "dtype": "float64", "seed": 4,
                     "cluster": CLUSTER, "pushes": 4 * iterations, "learning_rate": 0.1, "schedule": "linear",
                     "pull": "changed", **fields})  # fmt: skip
    experiment = resolve(wanted)
    reference = Reference(wanted, experiment.prune, DECAY if "optimizer" in fields else 0.0)
    expected, outcome = reference.train(iterations), in_process(wanted)
    if fields == FLOAT32:
        np.testing.assert_allclose(outcome.weights, expected, atol=2e-6)
        return
    np.testing.assert_allclose(outcome.weights, expected, rtol=1e-10, atol=1e-12)
    pushes = dict(zip(PUSH_COLUMNS, outcome.pushes.T, strict=True))
    sent = pushes["density"] * experiment.keyspace.size
    assert [round(sent[pushes["worker"] == worker].sum()) for worker in range(4)] == reference.sent
    assert np.abs(outcome.weights - experiment.weights.numpy()).max() > 0.05


@pytest.mark.one_of(2)
@pytest.mark.parametrize("prune", LASTING)
def test_pruned_layers_leave_the_bits_of_whole_pushes(prune: str) -> None:
    wanted = tiny(prune=prune, engine="virtual", cluster="lab", pushes=40, pull="changed")
    whole, layered = (in_process(wanted.but(ranges=ranges)) for ranges in ("whole", "layers"))
    np.testing.assert_array_equal(whole.weights, layered.weights)


@pytest.mark.parametrize("engine", ["virtual", "local"])
def test_a_residual_that_overflows_is_a_divergence(engine):
    """Finite gradients, of which a worker keeps more than there are numbers for."""
    wanted = tiny(engine=engine, cluster=CLUSTER, workers=2, model=Swells, prune="static:1%", learning_rate=1e-40)
    outcome = finished(wanted)
    assert outcome.facts["outcome"] == "diverged"
    assert np.isfinite(outcome.weights).all()


@pytest.mark.parametrize("sync", ["bsp", "local:2"])
def test_a_warm_up_is_counted_in_batches_however_many_a_push_is_made_of(sync: str) -> None:
    wanted = tiny(sync=sync, prune="static:1%,warm_up=1", engine="virtual", cluster=CLUSTER, pushes=80, pull="changed")
    pushes = in_process(wanted).pushes
    iterations, density = (pushes[:, PUSH_COLUMNS.index(name)] for name in ("iteration", "density"))
    epoch = 1024 // (4 * 16) // (2 if sync == "local:2" else 1)  # in pushes
    assert iterations.max() > epoch
    assert ((density > 0.2) == (iterations < epoch)).all()
