"""Streaming DiLoCo: what is sent when, and the layers of each fragment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny
from torch import nn
from whole import in_process

from pslab.config.spec import build
from pslab.engines.emulation.compute_times import ComputeTimes
from pslab.engines.virtual import engine as virtual
from pslab.engines.worker.tensors import Producer
from pslab.errors import ConfigError
from pslab.lab.judge import tables_of
from pslab.lab.runs.resolve import resolve
from pslab.policies.methods.streaming import Streaming

# --- what is sent, and when -------------------------------------------------------------------------------------------

SENT = {"workers": 2, "pushes": 96, "engine": "virtual", "dtype": "float64", "learning_rate": 0.01,
        "sync": "streaming:8,2,overlap=2", "cluster": "steady"}  # fmt: skip


def tables(run: Any) -> dict[str, Any]:
    return tables_of(run, in_process(run))[0]


def test_each_iteration_pushes_and_pulls_one_fragment_in_turn():
    pushes = tables(tiny(**SENT))["pushes"]
    assert (pushes.range == pushes.iteration % 2).all()
    assert [*pushes.groupby("iteration").size()] == [2] * 12
    sizes = [part.size for part in resolve(tiny(**SENT)).parts]
    assert sorted(set(pushes.bytes_up_raw)) == sorted(8 * size for size in sizes)


@pytest.mark.parametrize("more", [
    {"prune": "static:10%"}, {"quantize": "e3m0:residual=on"},
    {"prune": "static:20%", "quantize": "int8:residual=on", "pull": "changed"},
])  # fmt: skip
def test_what_is_sent_of_each_fragment_and_what_is_left_add_up_to_the_changes(more, monkeypatch):
    run = tiny(**{**SENT, **more})
    experiment = resolve(run)
    parts, size = experiment.parts, experiment.keyspace.size
    changes, sent = torch.zeros(2, size, dtype=torch.float64), torch.zeros(2, size, dtype=torch.float64)
    until: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}  # by worker and iteration: changes, residual
    plain, applied = Producer.payloads, virtual.TensorShard.apply

    def payloads(self: Any, iteration: int, loss: float) -> Any:
        for s in parts[iteration % 2].slices:
            changes[self._worker][s] += self._gradients[self._buffer(iteration)][s]
        found = plain(self, iteration, loss)
        until[self._worker, iteration] = changes[self._worker].clone(), self._memories["residual"].clone()
        return found

    def apply(self: Any, step: Any, rate: float, computing: Any) -> None:
        for push in step.pushes:
            parts[push.range].add(sent[push.worker], self._gradient(push), 1.0)
        applied(self, step, rate, computing)

    monkeypatch.setattr(Producer, "payloads", payloads)
    monkeypatch.setattr(virtual.TensorShard, "apply", apply)
    last = int(in_process(run).pushes[:, 2].max())
    for worker in (0, 1):
        total, left = until[worker, last]
        assert float(total.norm()) > 0.01
        assert float(left.norm()) > 1e-4
        np.testing.assert_allclose(sent[worker] + left, total, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("overlap", "waits"), [(0, True), (4, False)])
def test_nobody_waits_once_the_steps_after_a_push_take_longer_than_its_transfer(overlap, waits):
    cluster = {"compute_s": 0.02, "compute_sigma": 0.0, "latency_s": 0.015}
    run = tiny(**{**SENT, "sync": f"streaming:10,2,overlap={overlap}", "cluster": cluster, "pushes": 100})
    phases = tables(run)["phases"]
    own = phases[(phases.worker == 0) & (phases.phase == "compute")].sort_values("begin_s")
    idle_s = own.begin_s.to_numpy()[1:] - own.end_s.to_numpy()[:-1]
    assert bool(idle_s.max() > 0.02) is waits
    assert own.end_s.max() == pytest.approx(50 * 0.02 + 9 * 0.03 * waits - 0.02 * overlap, abs=1e-4)


def test_every_step_takes_a_draw_of_the_cluster_and_its_own_optimizer_step():
    cluster = {"compute_s": 0.02, "compute_sigma": 0.3, "apply_s": 0.003}
    run = tiny(**{**SENT, "cluster": cluster, "inner": "sgd"})
    phases = tables(run)["phases"]
    times = ComputeTimes(resolve(run).cluster, run.seed, 1)
    drawn_s = [times.draw() for _ in range(44)]
    own = phases[(phases.worker == 1) & (phases.phase == "compute") & (phases.iteration < 11)]
    spent_s = (own.end_s - own.begin_s).groupby(own.iteration).sum()
    assert [*own.groupby("iteration").size()] == [2] * 11  # until its push, and after it
    np.testing.assert_allclose(spent_s, np.add.reduceat(drawn_s, range(0, 44, 4)) + 4 * 0.003, rtol=1e-9)


# --- what is refused --------------------------------------------------------------------------------------------------


# --- fragments --------------------------------------------------------------------------------------------------------

GPT = [("bytes", 16384), ("places", 4096), *((f"blocks.{block}.{name}", size) for block in range(4) for name, size in (
    ("norm1", 64), ("attend", 12288), ("widen", 16384))), ("norm", 64)]  # fmt: skip


@pytest.mark.parametrize(("sync", "blocks"), [
    ("streaming:6,3", [1, 2, 1, 2]), ("streaming:6,3,layout=sequential", [1, 1, 2, 2]), ("streaming:6,2", [1, 1, 1, 1]),
    ("streaming:6,1", [0, 0, 0, 0]), ("streaming:10,5,layout=sequential", [1, 2, 3, 4])])  # fmt: skip
def test_blocks_are_dealt_out_behind_what_is_outside_of_them(sync, blocks):
    assert build("sync", sync).fragment_of(GPT) == (0, 0, *(each for block in blocks for each in [block] * 3), 0)


def test_balanced_gives_the_largest_layer_to_the_smallest_fragment_and_of_equal_ones_the_first_name():
    balanced = build("sync", "streaming:4,2,layout=balanced")
    assert balanced.fragment_of([("b", 5), ("a", 5), ("c", 3), ("d", 3)]) == (1, 0, 0, 1)
    assert balanced.fragment_of([("c", 9), ("a", 5), ("b", 4)]) == (0, 1, 1)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=30), st.integers(1, 8),
       st.sampled_from(["strided", "sequential", "balanced"]))  # fmt: skip
def test_no_fragment_is_empty_and_balanced_ones_differ_by_a_layer_at_most(sizes, fragments, layout):
    policy, layers = Streaming(fragments, fragments, layout=layout), [(f"{n}", size) for n, size in enumerate(sizes)]
    if len(sizes) < fragments:
        with pytest.raises(ConfigError):
            policy.fragment_of(layers)
        return
    found = policy.fragment_of(layers)
    sums = [sum(size for size, own in zip(sizes, found, strict=True) if own == each) for each in range(fragments)]
    assert min(sums) > 0
    assert layout != "balanced" or max(sums) - min(sums) <= max(sizes)


def test_ranges_of_fragments_cover_the_model_and_their_layers():
    experiment = resolve(tiny(**{**SENT, "model": deep, "sync": "streaming:6,2"}))
    first, second = experiment.parts
    assert sorted(s.start for part in (first, second) for s in part.slices)[0] == 0
    assert first.size + second.size == experiment.keyspace.size
    assert [len(part.slices) for part in (first, second)] == [2, 1]  # layers 0 and 2, layer 1


def deep() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(49, 8), nn.Linear(8, 8), nn.Linear(8, 10))
