"""A device with memory of its own computes what the CPU does, on every engine: the same bits where it is a stand-in."""

from __future__ import annotations

import dataclasses
import math
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from apart import Apart, Elsewhere, Strict, elsewhere
from contexts import context_of_a_server, laid_out
from tiny import finished, net, tiny
from torch import nn

from pslab.config.run import Run
from pslab.engines.experiment.experiment import Experiment, Outcome
from pslab.engines.experiment.job import Job
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.experiment.wire import WHOLE, PushInfo
from pslab.engines.local.worker import Selecting
from pslab.engines.server.evaluate import Evaluating
from pslab.engines.virtual import parallel_runs
from pslab.engines.worker.layered import LayeredProducer
from pslab.engines.worker.modes import producer_of
from pslab.engines.worker.tensors import Producer, Pulled
from pslab.lab.runs.resolve import resolve
from pslab.tensors import device as devices
from pslab.tensors.device import Device
from pslab.tensors.finite import NonFinite

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["stand-in", pytest.param("cuda", marks=needs_cuda)]
UNEVEN = {"preset": "lab", "slow": {1: 2.0}}
THIN = {**UNEVEN, "bandwidth_bit_s": 2e6}

def normalized() -> nn.Module:
    """A model with buffers, which stay on the device."""
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(49), nn.Linear(49, 16), nn.Dropout(0.1), nn.Linear(16, 10))


BARRIER: list[dict[str, Any]] = [
    {},
    {"cluster": "lab"},  # a worker has weights of its own on the CPU, too
    {"ranges": "layers"},
    {"sync": "local:3"},
    {"rate": "adagrad:worker"},
    {"prune": "static:5%", "pull": "changed"},
    {"prune": "std:1", "pull": "changed", "ranges": "layers", "cluster": "lab"},
    {"prune": "range:5", "pull": "range"},
    {"prune": "range:5,local_apply=off", "pull": "range"},
]
VIRTUAL: list[dict[str, Any]] = [
    {"sync": "asp"},
    {"sync": "eager"},
    {"sync": "ssp:1", "prune": "static:5%", "pull": "changed"},
    {"sync": "eager", "prune": "dgc:5%,warm_up=1", "pull": "changed"},
    {"sync": "asp", "prune": "dynamic:mode=ratchet"},
    {"sync": "eager", "prune": "range:fit", "pull": "range", "cluster": THIN},
    {"sync": "asp", "ranges": "layers:500", "order": "front"},
    {"sync": "ssp:1", "cluster": {**UNEVEN, "leave": {1: 0.1}, "join": {1: 0.2}}},
    {"sync": "asp", "model": normalized},
]
MORE: list[dict[str, Any]] = [
    *({"sync": sync, **more} for sync in ("ssp:1", "dssp:1,2", "elastic:5", "backup:1", "local:2")
      for more in ({}, {"prune": "static:5%", "pull": "changed"})),
    *({"sync": "asp", "prune": prune} for prune in ("static:5%,mode=frozen", "std:1,residual=off", "dynamic")),
    *({"sync": sync, "prune": f"range:{rule}", "pull": "range", "cluster": THIN}
      for sync in ("asp", "eager") for rule in ("5", "5,local_apply=off", "5,residual=off")),
    {"sync": "ssp:1", "ranges": "layers", "prune": "static:5%", "pull": "changed"},
    *({"sync": "asp", "rate": rate} for rate in ("adagrad:server", "split", "dynsgd")),
]  # fmt: skip


def in_words(fields: dict[str, Any]) -> str:
    return " ".join(str(getattr(value, "__name__", value)) for value in fields.values()) or "plain"


def on(device: str, run: Run) -> Experiment:
    """The experiment of a run whose workers compute on a device. In 64 bits, so that a GPU's sums make no difference
    to what is selected."""
    if device == "stand-in":
        return dataclasses.replace(resolve(run), device=Apart())
    return resolve(run.but(device=device))


def check_same(there: Outcome, here: Outcome, device: str, tables: tuple[str, ...] = ("weights",)) -> None:
    assert len(here.weights) > 0
    for name in tables:
        ours, theirs = getattr(there, name), getattr(here, name)
        if device == "stand-in":
            assert ours.tobytes() == theirs.tobytes(), name
        else:
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-9, err_msg=name)


@pytest.mark.one_of(10)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("fields", BARRIER, ids=in_words)
@pytest.mark.parametrize("engine", ["local", "virtual"])
def test_workers_with_memory_of_their_own_train_as_on_the_cpu_under_a_barrier(engine, fields, device):
    cluster = {"cluster": {"compute_s": 0.02}} if engine == "virtual" else {}
    run = tiny(engine=engine, dtype="float64", pushes=12, workers=2, **{"sync": "bsp", **cluster, **fields})
    check_same(finished(on(device, run)), finished(run), device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("many", [pytest.param(VIRTUAL, id="some"),
                                  pytest.param(MORE, id="more", marks=pytest.mark.slow)])  # fmt: skip
def test_virtual_workers_with_memory_of_their_own_leave_what_the_cpu_leaves(many, device):
    runs = [tiny(**{"engine": "virtual", "dtype": "float64", "cluster": UNEVEN, "pushes": 24, **fields})
            for fields in many]  # fmt: skip
    experiments = [*(on(device, run) for run in runs), *map(resolve, runs)]
    found = {place: news for place, news in parallel_runs.conduct(experiments, lambda: None)
             if isinstance(news, Outcome)}  # fmt: skip
    for place, fields in enumerate(many):
        try:
            check_same(found[place], found[place + len(runs)], device, ("weights", "phases", "pushes", "accuracy"))
        except AssertionError as error:
            raise AssertionError(in_words(fields)) from error


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_of_hosts_with_memory_of_their_own_are_those_of_the_cpu(device):
    run = tiny(engine="virtual", dtype="float64", sync="ssp:1", cluster=UNEVEN, pushes=24)
    check_same(finished(on(device, run)), finished(run), device, ("weights", "pushes"))


@dataclasses.dataclass(frozen=True)
class Several(Apart):
    """One of three devices, which notes who is given it."""

    number: int = 0

    def of(self, worker: int) -> Device:
        GIVEN.append(worker % 3)
        return Several(worker % 3)

    def prepare(self) -> None:
        GIVEN.append("prepared")


GIVEN: list[Any] = []


def test_evaluators_spread_over_the_devices_and_prepare_theirs(monkeypatch):
    monkeypatch.setitem(devices.DEVICES, "cuda", Several())
    job, context, _ = context_of_a_server()
    context.snapshots.reserve(job.layout.snapshot_bytes)
    job.layout.snapshot_in(context.snapshots, 0).fill_(0.1)
    for number in (0, 1, 2, 4):
        GIVEN.clear()
        Evaluating(context._replace(number=number), job).evaluate(0, "cuda")
        assert [number % 3, "prepared"] == GIVEN


def test_a_worker_prepares_its_device_before_it_computes():
    GIVEN.clear()
    producer(Several()).warm_up()
    assert "prepared" in GIVEN


@pytest.mark.parametrize(("apart", "spent", "waited"), [
    (False, [(0.5, 0.2), (0.2, 0.2), (0.1, 0.2)], [0.3, 0.0, 0.0]),
    (True, [(0.5, 0.2), (0.2, 0.2), (0.6, 0.0)], [0.0, 0.0, 0.4]),  # a thread does not know what its device does
])  # fmt: skip
def test_what_selection_waits_for_others_is_an_overrun_on_a_device_too(apart, spent, waited):
    selecting = Selecting(apart)
    assert [selecting.waited_s(*each) for each in spent] == pytest.approx(waited)


# --- what is waited for, and when ----------------------------------------------------------------------------------


def producer(device: Device, **fields: Any) -> Producer:
    """Worker 0 of a run, all of it in this process."""
    return producer_of(*placed(device, **fields))


def placed(device: Device, **fields: Any) -> tuple[Job, int, Arena, Arena]:
    job, arena, data = laid_out(dataclasses.replace(resolve(tiny(workers=1, **fields)), device=device))
    return job, 0, arena, data


def pushed(device: Device, iterations: int = 3, **fields: Any) -> tuple[list[bytes], list[list[str]]]:
    """What a worker pushes in some iterations, as bytes in the memory that the server reads; and of each iteration what
    waited for the device."""
    with elsewhere() as waits:
        job, _, arena, _ = given = placed(device, **fields)
        worker, found, each = producer_of(*given), list[bytes](), list[list[str]]()
        worker.warm_up()
        if isinstance(worker, LayeredProducer):
            worker.attend(lambda layer: None, lambda: None, lambda *ready: take(*ready))
        for iteration in range(iterations):
            payloads = dict[int, PushInfo]()

            def take(layer: int, loss: float, at: int = iteration, into: dict[int, PushInfo] = payloads) -> None:
                into |= dict(zip(job.ranges_of[layer], worker.payloads_of(at, loss, layer)[0], strict=True))

            waits.clear()
            worker.install(Pulled(0, iteration, WHOLE))
            loss = worker.gradient(iteration)  # a layered worker pushes meanwhile
            payloads = payloads or dict(enumerate(worker.payloads(iteration, loss)[0]))
            for index, payload in sorted(payloads.items()):
                whole, own = payload.size_bytes == WHOLE, job.parts[index].slices[0]
                at = job.layout.gradients[0][0] + own.start * job.layout.dtype.itemsize if whole else (
                    job.layout.up[0][0] + job.layout.frames[index][0])  # fmt: skip
                size = own.stop - own.start if whole else payload.size_bytes
                found.append(bytes(arena.bytes(at, size * job.layout.dtype.itemsize if whole else size)))
            each.append(list(waits))
    return found, each


THESIS = {"model": "mlp", "data": "mnist:train=64,test=16", "prune": "static:1%", "pull": "changed"}


@pytest.mark.parametrize(("fields", "most"), [
    (THESIS, 3),  # for the loss, for whether the gradient is finite, and for what is selected
    ({**THESIS, "ranges": "layers"}, 3),
    ({**THESIS, "prune": "none", "quantize": "int8", "pull": "whole"}, 3),
    ({**THESIS, "prune": "randomk:1%"}, 3),
    ({**THESIS, "prune": "none", "pull": "whole"}, 2),
], ids=["static", "layers", "int8", "randomk", "dense"])  # fmt: skip
def test_an_iteration_waits_for_its_device_a_few_times(fields: dict[str, Any], most: int):
    frames, waits = pushed(Strict(), **fields)
    assert [len(each) for each in waits] == [most] * 3, waits
    assert frames == pushed(Device(), **fields)[0]


SPARSE = ("static:5%", "static:5%,mode=frozen", "std:1", "dynamic", "dynamic:mode=ratchet", "dgc:5%,warm_up=0",
          "threshold:0.01", "randomk:5%", "adaq:5%", "ef21:5%", "lowrank:1", "powersgd:1", "demo:topk=3,chunk=4",
          "sketch:cols=20,rows=3")  # fmt: skip
CODES = ("fp16", "bf16", "int8", "uint8", "fp8", "e3m0", "qsgd:4", "terngrad", "onebit", "efsign", "sign", "signum",
         "natural", "uniform8", "quantile:16", "dynamic8", "inceptionn")  # fmt: skip


@pytest.mark.parametrize("fields", [*({"prune": rule} for rule in SPARSE), *({"quantize": code} for code in CODES),
                                    {"prune": "static:5%", "quantize": "qsgd:4,residual=on"}], ids=in_words)
def test_every_rule_compresses_on_a_device_what_it_does_on_the_cpu(fields: dict[str, Any]):
    assert pushed(Strict(), dtype="float64", **fields)[0] == pushed(Device(), dtype="float64", **fields)[0]


def test_a_gradient_that_is_not_finite_leaves_the_residual_as_it_was():
    job, *_ = placed(Device(), prune="static:5%", ranges="layers")
    residual, gradient = torch.ones(job.layout.size), torch.zeros(job.layout.size)
    gradient[-1] = torch.inf
    there, kept = gradient.as_subclass(Elsewhere), {"residual": residual.as_subclass(Elsewhere)}
    with elsewhere(), pytest.raises(NonFinite, match="the gradient is not finite"):
        job.compression.pushes([0, 1], there, kept, worker=0, step=0, turn=0, epoch=0.0)
    assert (residual == 1).all()


NO_LOOPS = """
import dataclasses, sys
from apart import Apart
from contexts import laid_out
from tiny import tiny
from pslab.engines.server.shard import TensorShard
from pslab.engines.worker.modes import producer_of
from pslab.lab.runs.resolve import resolve

job, arena, data = laid_out(dataclasses.replace(resolve(tiny(workers=1, quantize="int8")), device=Apart()))
worker, server = producer_of(job, 0, arena, data), TensorShard(job, arena)
worker.warm_up()
worker.payloads(0, worker.gradient(0))
assert "pslab.tensors.compression.loops" not in sys.modules
"""


def test_where_no_push_has_positions_no_loop_is_compiled_for_a_device():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", NO_LOOPS], env=environment, check=True)


def test_images_travel_to_the_device_as_bytes():
    came = list[torch.dtype]()

    class Noting(Strict):
        def to(self, here: torch.Tensor) -> torch.Tensor:
            came.append(here.dtype)
            return super().to(here)

    with elsewhere():
        worker = producer(Noting(), model="mlp:64", data="mnist:train=64,test=16")
        came.clear()
        worker.gradient(0)
    assert came == [torch.uint8, torch.int64]


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
    made, events = producer(device, ranges="layers", model=Telling), EVENTS
    made.warm_up()
    EVENTS.clear()
    made.attend(lambda layer: events.append(f"needs {layer}"), lambda: events.append("turns"),
                lambda layer, loss: events.append(f"takes {layer}, {math.isfinite(loss)}"))  # fmt: skip
    made.gradient(0)
    taken = ["backward", "takes 1, True"] if device.separate else ["takes 1, True", "backward"]
    assert events == ["needs 0", "needs 1", "turns", *taken, "takes 0, True"]
