"""Gradients that are added to a pruner's memory as they are computed leave the bits of those that are added later."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from contexts import laid_out
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ownpolicies import Largest
from tiny import tiny
from torch import nn

from pslab.config.products import CHOICE, MKL, ONEDNN
from pslab.config.run import Run
from pslab.engines.experiment.job import Job
from pslab.engines.experiment.shared_memory import Arena
from pslab.engines.worker import tensors
from pslab.engines.worker.tensors import Producer
from pslab.errors import ConfigError
from pslab.lab.runs.resolve import resolve
from pslab.tensors.codec import decode
from pslab.tensors.device import one_thread
from pslab.tensors.finite import NonFinite
from pslab.tensors.pruning.pruner import Pruner, Setting
from pslab.tensors.workload.straight import Place, sums_alike

INPUTS, WIDE = 7 * 7, 96  # of which layers are large enough


class Plain(nn.Module):
    def __init__(self, hidden: int = WIDE, bias: bool = True) -> None:
        super().__init__()
        self.first, self.middle = nn.Linear(INPUTS, hidden, bias=bias), nn.Linear(hidden, hidden, bias=bias)
        self.last = nn.Linear(hidden, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.middle(self.first(x.flatten(1)).relu()).relu())  # type: ignore[no-any-return]


class Changing(Plain):
    """What a layer does depends on the batch: it is used once, twice, not at all, on sequences, or its weights are."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, kind = self.first(x.flatten(1)).relu(), int(x.abs().sum() * 1000) % 5
        if kind == 1:
            hidden = self.middle(hidden).relu()
        if kind == 2:
            return self.last(hidden)  # type: ignore[no-any-return]
        if kind == 3:
            hidden = hidden + self.middle(hidden.unsqueeze(1)).squeeze(1)
        if kind == 4:
            return self.last(self.middle(hidden).relu()) + self.middle.weight.square().mean()  # type: ignore[no-any-return]
        return self.last(self.middle(hidden).relu())  # type: ignore[no-any-return]


class Mixed(Plain):
    """Layers of other kinds before and between them, one of which draws numbers."""

    def __init__(self, hidden: int = WIDE, bias: bool = True) -> None:
        super().__init__(hidden, bias)
        self.start, self.norm, self.drop = nn.Conv2d(1, 1, 3, padding=1), nn.BatchNorm1d(hidden), nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(self.start(x.reshape(-1, 1, 7, 7)).flatten(1))
        return self.last(self.drop(self.norm(hidden)).relu())  # type: ignore[no-any-return]


def producer(run: Run, ordinary: bool = False) -> tuple[Producer, Job, Arena]:
    """A worker in this process, and where its tensors lie."""
    job, arena, data = laid_out(resolve(run))
    with pytest.MonkeyPatch.context() as patch:
        if ordinary:
            patch.setattr(Pruner, "sums", None)
            patch.setattr(tensors, "Setting", lambda *fields, skips: Setting(*fields, skips=True))
        found = Producer(job, 0, arena, data)
    found.warm_up()
    return found, job, arena


def iterations(run: Run, count: int, ordinary: bool = False) -> list[tuple[bytes, float, list[bytes], set[int]]]:
    """Of some iterations, on weights that the pushes change: the frame, the loss, the memories, and what was summed."""
    worker, job, arena = producer(run, ordinary)
    layout, found = job.layout, []
    weights = arena.tensor(layout.used[0], layout.size, layout.dtype)
    weights.copy_(arena.tensor(layout.server, layout.size, layout.dtype))
    for iteration in range(count):
        loss = worker.gradient(iteration)
        summed = set() if worker._computing is None else set(worker._computing.summed)
        ((size_bytes, *_),), _ = worker.payloads(iteration, loss)
        frame = bytes(arena.bytes(layout.up[0][iteration % len(layout.up[0])], size_bytes))
        job.parts[0].add(weights, decode(bytearray(frame), n=layout.size), -0.1)
        found.append((frame, loss, [memory.numpy().tobytes() for memory in worker._memories.values()], summed))
    return found


RULES = ("static:5%", "static:5%,mode=frozen", "static:1%,warm_up=1", "std:1", "std:2.5", "dynamic:5",
         "dynamic:mode=ratchet", "dgc:5%,warm_up=0", "dgc:5%,masking=off", "dgc:5%,nesterov=on", "dgc:5%,momentum=0",
         "dgc:5%,clip=1", "static:5%,residual=off", Largest(), "range:40")  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(model=st.sampled_from([Plain, Changing, Mixed]), hidden=st.integers(64, 200), bias=st.booleans(),
       rule=st.sampled_from(RULES), batch_size=st.sampled_from([2, 7, 16, 64, 130, 256]),
       more=st.sampled_from([{}, {"dtype": "float64"}, {"on_nonfinite": "skip"}, {"sync": "local:2"},
                             {"rate": "adagrad"}, {"on_death": "restart", "engine": "local"}]),
       library=st.sampled_from([MKL, ONEDNN]))  # fmt: skip
@example(model=Plain, hidden=WIDE, bias=True, rule="static:5%", batch_size=16, more={}, library=MKL)
@example(model=Changing, hidden=WIDE, bias=True, rule="dgc:5%,warm_up=0", batch_size=16, more={}, library=MKL)
@example(model=Changing, hidden=WIDE, bias=True, rule="dgc:5%,warm_up=0", batch_size=16, more={}, library=ONEDNN)
def test_what_is_pushed_and_kept_has_the_bits_of_gradients_that_are_added_later(
    model: Callable[..., nn.Module], hidden: int, bias: bool, rule: object, batch_size: int, more: dict[str, object],
    library: str,
) -> None:
    fields = {"engine": "virtual", "cluster": "lab", "workers": 1, **more}
    pull = {"pull": "range"} if rule == "range:40" else {}
    run = tiny(model=partial(model, hidden, bias), batch_size=batch_size, prune=rule, **fields, **pull)
    with one_thread(), pytest.MonkeyPatch.context() as patch:
        patch.setenv(CHOICE, library)
        try:
            ours, other = iterations(run, 7), iterations(run, 7, ordinary=True)
        except ConfigError:  # rules and rates that exclude each other
            return
    for (*mine, _), (*theirs, summed) in zip(ours, other, strict=True):
        assert mine == theirs
        assert not summed


def wide(**fields: object) -> Run:
    return tiny(**{"engine": "virtual", "cluster": "lab", "workers": 1, "model": Plain, "prune": "static:5%", **fields})


@pytest.mark.parametrize("rule", ["static:5%", "std:3", "dynamic:5", "dgc:5%"])
def test_what_linear_layers_add_is_not_read_from_their_gradients(rule: str) -> None:
    """Where this processor's products are such, that of both large layers; the small one's costs nothing."""
    factor = 0.9 if rule.startswith("dgc") else 1.0
    with one_thread():
        alike = {number for number, inputs in enumerate((INPUTS, WIDE))
                 if sums_alike(16, Place(torch.zeros(WIDE, inputs), None, factor))}  # fmt: skip
        assert all(summed == alike for *_, summed in iterations(wide(prune=rule), 3))


def test_what_onednn_multiplies_is_added_whatever_the_layer(monkeypatch) -> None:
    monkeypatch.setenv(CHOICE, ONEDNN)
    with one_thread():
        assert all(summed == {0, 1, 2} for *_, summed in iterations(wide(), 3))


@pytest.mark.parametrize("fields", [
    {"on_nonfinite": "skip"}, {"sync": "local:2"}, {"rate": "adagrad"}, {"prune": "dgc:5%,clip=1"},
    {"prune": "dgc:5%,nesterov=on"}, {"prune": "dgc:5%,momentum=0"}, {"prune": "static:5%,residual=off"},
    {"prune": Largest()},
], ids=lambda fields: "-".join(map(str, fields.values()))[:30])  # fmt: skip
def test_where_the_bare_gradient_is_needed_nothing_is_added_before(fields: dict[str, object]) -> None:
    assert not any(summed for *_, summed in iterations(wide(**fields), 2))


@pytest.mark.parametrize("rule", ["static:5%", "static:30%", "std:1", "std:3", "dynamic:5", "dynamic:1", "dgc:5%",
                                  "dynamic:mode=literal", "static:5%,mode=frozen"])  # fmt: skip
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_gradient_that_is_not_finite_is_told_by_the_sum_and_not_sent(rule: str, bad: float) -> None:
    with one_thread():
        worker, _, _ = producer(wide(prune=rule))
        for iteration in range(3):  # the last ones leave guesses for the next
            worker.payloads(iteration, worker.gradient(iteration))
        loss = worker.gradient(3)
        worker._memories["momentum" if rule.startswith("dgc") else "residual"][7 * INPUTS] = bad
        with pytest.raises(NonFinite, match="NaN or infinite"):
            worker.payloads(3, loss)


def test_warming_up_leaves_the_memories_as_they_are() -> None:
    worker, _, _ = producer(wide())
    assert not any(memory.any() for memory in worker._memories.values())
