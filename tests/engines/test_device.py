"""A device with memory of its own computes what the CPU does, on every engine: the same bits where it is a stand-in."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from apart import Apart
from contexts import context_of_a_server, laid_out
from tiny import finished, tiny
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from pslab.config.run import Run
from pslab.engines.experiment.experiment import Experiment, Outcome
from pslab.engines.local.worker import Selecting
from pslab.engines.server.evaluate import Evaluating
from pslab.engines.virtual import parallel_runs
from pslab.engines.worker.tensors import Producer
from pslab.lab.runs.resolve import resolve
from pslab.tensors import device as devices
from pslab.tensors.device import Device

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


EVENTS: list[str] = []


@dataclasses.dataclass(frozen=True)
class Watched(Apart):
    """It notes when it is waited for."""

    def synchronize(self) -> None:
        EVENTS.append("synchronize")


class Operators(TorchDispatchMode):
    """It notes what torch computes, and what is read from it."""

    def __torch_dispatch__(self, operator, types, arguments=(), named=None):
        EVENTS.append(operator.overloadpacket.__name__)
        return operator(*arguments, **(named or {}))


def producer(device: Device, **fields: Any) -> Producer:
    """Worker 0 of a run, all of it in this process."""
    job, arena, data = laid_out(dataclasses.replace(resolve(tiny(workers=1, **fields)), device=device))
    return Producer(job, 0, arena, data)


def test_the_loss_is_read_after_the_backward_pass_and_a_wait_for_the_device():
    made = producer(Watched())
    made.warm_up()
    EVENTS.clear()
    with Operators():
        made.gradient(0)
    backward, read = EVENTS.index("_log_softmax_backward_data"), EVENTS.index("_local_scalar_dense")
    assert EVENTS.index("_log_softmax") < backward < EVENTS.index("synchronize") < read
    assert EVENTS[EVENTS.index("synchronize") :] == ["synchronize", "_local_scalar_dense"]


def test_a_layered_worker_looks_at_its_clock_when_the_device_has_done_what_came_before():
    made = producer(Watched(), ranges="layers")
    made.warm_up()
    made.attend(lambda layer: EVENTS.append("needs"), lambda: EVENTS.append("turns"),
                lambda layer, loss: EVENTS.append("ready"))  # fmt: skip
    EVENTS.clear()
    made.gradient(0)
    assert EVENTS == ["synchronize", "needs"] * 2 + ["synchronize", "turns"] + ["synchronize", "ready"] * 2 + [
        "synchronize"]  # fmt: skip
