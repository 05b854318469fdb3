"""A device with memory of its own computes what the CPU does, on every engine: the same bits where it is a stand-in."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from apart import Apart, Elsewhere, Strict, elsewhere
from drawn_cases import case
from tiny import finished, net, tiny
from torch import nn
from whole import laid_out

from pslab.config.run import Run
from pslab.engines.experiment.experiment import Experiment, Outcome
from pslab.engines.experiment.job import Job
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.experiment.wire import WHOLE
from pslab.engines.local.worker import Selecting
from pslab.engines.virtual import parallel_runs
from pslab.engines.worker.layered import LayeredProducer
from pslab.engines.worker.modes import producer_of
from pslab.engines.worker.tensors import Pulled
from pslab.lab.runs.resolve import resolve
from pslab.tensors.device import Device
from pslab.tensors.finite import NonFinite

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["stand-in", pytest.param("cuda", marks=needs_cuda)]
UNEVEN = {"preset": "lab", "slow": {1: 2.0}}
THIN = {**UNEVEN, "bandwidth_bit_s": 2e6}


def normalized() -> nn.Module:
    """A model with buffers, which stay on the device."""
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(49), nn.Linear(49, 16), nn.Dropout(0.1), nn.Linear(16, 10))


LOCAL: list[dict[str, Any]] = [
    {}, {"ranges": "layers"}, {"prune": "static:5%", "pull": "changed"}, {"prune": "range:5", "pull": "range"},
    {"rate": "adagrad:worker"}, {"cluster": "lab"},  # whose workers have weights of their own on the CPU, too
    {"prune": "std:1", "pull": "changed", "ranges": "layers", "cluster": "lab"}, {"sync": "local:3"},
    {"prune": "range:5,local_apply=off", "pull": "range"},
]  # fmt: skip


def on(device: str, run: Run) -> Experiment:
    """The experiment of a run whose workers compute on a device. In 64 bits, so that a GPU's sums make no difference
    to what is selected."""
    if device == "stand-in":
        return dataclasses.replace(resolve(run), device=Apart())
    return resolve(run.but(device=device))


def check_same(there: Outcome, here: Outcome, device: str, words: str, tables: tuple[str, ...] = ("weights",)) -> None:
    assert len(here.weights) > 0
    for name in tables:
        ours, theirs = getattr(there, name), getattr(here, name)
        if device == "stand-in":
            assert ours.tobytes() == theirs.tobytes(), f"{name} of {words}"
        else:
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-9, err_msg=f"{name} of {words}")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("many", [LOCAL[:3], pytest.param(LOCAL[3:], marks=pytest.mark.slow)], ids=["some", "more"])
def test_workers_with_memory_of_their_own_train_as_on_the_cpu_under_a_barrier(many, device):
    for fields in many:
        run = tiny(dtype="float64", pushes=12, workers=2, **fields)
        check_same(finished(on(device, run)), finished(run), device, str(fields))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 60), marks=pytest.mark.slow)],
                         ids=["some", "more"])  # fmt: skip
def test_virtual_workers_with_memory_of_their_own_leave_what_the_cpu_leaves(seeds, device):
    plain = {"engine": "virtual", "dtype": "float64", "cluster": UNEVEN, "pushes": 24, "sync": "asp"}
    runs = [*(case(3000 + seed).but(dtype="float64") for seed in seeds), tiny(**plain, model=normalized),
            tiny(**{**plain, "cluster": THIN}, prune="range:fit", pull="range")]  # fmt: skip
    experiments = [*(on(device, run) for run in runs), *map(resolve, runs)]
    found = {number: news for number, news in parallel_runs.conduct(experiments, lambda: None)
             if isinstance(news, Outcome)}  # fmt: skip
    for number, run in enumerate(runs):
        check_same(found[number], found[number + len(runs)], device, str(run.plain()),
                   ("weights", "phases", "pushes", "accuracy"))  # fmt: skip
    on_hosts = finished(on(device, runs[-1]))  # gradients by hosts, weights at their parent
    check_same(on_hosts, found[2 * len(runs) - 1], device, "hosts", ("weights", "pushes"))


@pytest.mark.parametrize(("apart", "spent", "waited"), [
    (False, [(0.5, 0.2), (0.2, 0.2), (0.1, 0.2)], [0.3, 0.0, 0.0]),
    (True, [(0.5, 0.2), (0.2, 0.2), (0.6, 0.0)], [0.0, 0.0, 0.4]),  # a thread does not know what its device does
])  # fmt: skip
def test_what_selection_waits_for_others_is_an_overrun_on_a_device_too(apart, spent, waited):
    selecting = Selecting(apart)
    assert [selecting.waited_s(*each) for each in spent] == pytest.approx(waited)


# --- what is waited for, and when -------------------------------------------------------------------------------------


def placed(device: Device, **fields: Any) -> tuple[Job, int, Arena, Arena]:
    job, context = laid_out(dataclasses.replace(resolve(tiny(workers=1, **fields)), device=device))
    return job, 0, context.arena, context.data


THESIS = {"model": "mlp", "data": "mnist:train=64,test=16", "prune": "static:1%", "pull": "changed"}


@pytest.mark.parametrize(("fields", "most"), [
    ({}, 3),  # for the loss, for whether the gradient is finite, and for what is selected
    ({"ranges": "layers"}, 3), ({"prune": "none", "quantize": "int8", "pull": "whole"}, 3),
    ({"prune": "none", "pull": "whole"}, 2),
], ids=["static", "layers", "int8", "dense"])  # fmt: skip
def test_an_iteration_waits_for_its_device_a_few_times(fields: dict[str, Any], most: int):
    with elsewhere() as waits:
        worker, counts = producer_of(*placed(Strict(), **{**THESIS, **fields})), list[int]()
        worker.warm_up()
        for iteration in range(3):
            waits.clear()
            worker.install(Pulled(0, iteration, WHOLE))
            if isinstance(worker, LayeredProducer):  # it pushes meanwhile
                worker.attend(lambda layer: None, lambda: None,
                              lambda layer, loss, at=iteration: worker.payloads_of(at, loss, layer))  # fmt: skip
                worker.gradient(iteration)
            else:
                worker.payloads(iteration, worker.gradient(iteration))
            counts.append(len(waits))
    assert counts == [most] * 3


def test_a_gradient_that_is_not_finite_leaves_the_residual_as_it_was():
    job, *_ = placed(Device(), prune="static:5%", ranges="layers")
    residual, gradient = torch.ones(job.layout.size), torch.zeros(job.layout.size)
    gradient[-1] = torch.inf
    there, kept = gradient.as_subclass(Elsewhere), {"residual": residual.as_subclass(Elsewhere)}
    with elsewhere(), pytest.raises(NonFinite, match="the gradient is not finite"):
        job.compression.pushes([0, 1], there, kept, worker=0, step=0, turn=0, epoch=0.0)
    assert (residual == 1).all()


EVENTS: list[str] = []


class Telling(nn.Module):
    """It notes when the backward pass comes to the first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.flat, self.first, self.tanh, self.last = net(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(self.flat(x))
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: EVENTS.append("backward"))
        return self.last(self.tanh(hidden))


@pytest.mark.parametrize("device", [Device(), Apart()])
def test_a_layered_worker_takes_gradients_as_they_are_ready_and_of_a_device_once_all_are(device: Device):
    EVENTS.clear()  # a model may name no list that is not as a worker's process would find it
    made, events = producer_of(*placed(device, ranges="layers", model=Telling)), EVENTS
    made.warm_up()
    EVENTS.clear()
    made.attend(lambda layer: events.append(f"needs {layer}"), lambda: events.append("turns"),
                lambda layer, loss: events.append(f"takes {layer}, {math.isfinite(loss)}"))  # fmt: skip
    made.gradient(0)
    taken = ["backward", "takes 1, True"] if device.separate else ["takes 1, True", "backward"]
    assert events == ["needs 0", "needs 1", "turns", *taken, "takes 0, True"]
