"""Fragments: the layers of each, when workers wait for one, and which pushes a quorum merges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulate import simulate
from tiny import tiny
from torch import nn
from whole import in_process

from pslab.config.spec import build
from pslab.engines.emulation.compute_times import ComputeTimes
from pslab.errors import ConfigError
from pslab.lab.judge import tables_of
from pslab.lab.runs.resolve import resolve
from pslab.policies.methods.streaming import Streaming

SENT = {"workers": 2, "pushes": 96, "engine": "virtual", "dtype": "float64", "learning_rate": 0.01,
        "sync": "streaming:8,2,overlap=2", "cluster": "steady"}  # fmt: skip


def tables(run: Any) -> dict[str, Any]:
    return tables_of(run, in_process(run))[0]


GPT = [("bytes", 16384), ("places", 4096), *((f"blocks.{block}.{name}", size) for block in range(4) for name, size in (
    ("norm1", 64), ("attend", 12288), ("widen", 16384))), ("norm", 64)]  # fmt: skip


def test_blocks_are_dealt_out_behind_what_is_outside_of_them_and_balanced_fills_the_smallest_fragment():
    """The largest layer first, and of equal ones the first name."""
    for sync, blocks in (("6,3", [1, 2, 1, 2]), ("6,3,layout=sequential", [1, 1, 2, 2]), ("6,2", [1, 1, 1, 1]),
                         ("6,1", [0, 0, 0, 0]), ("10,5,layout=sequential", [1, 2, 3, 4])):  # fmt: skip
        wanted = 0, 0, *(each for block in blocks for each in [block] * 3), 0
        assert build("sync", f"streaming:{sync}").fragment_of(GPT) == wanted
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
    fragment_of = policy.fragment_of(layers)
    sums = [sum(size for size, own in zip(sizes, fragment_of, strict=True) if own == each) for each in range(fragments)]
    assert min(sums) > 0
    assert layout != "balanced" or max(sums) - min(sums) <= max(sizes)


def test_the_ranges_of_a_fragment_are_its_layers():
    deep = nn.Sequential(nn.Flatten(), nn.Linear(49, 8), nn.Linear(8, 8), nn.Linear(8, 10))
    experiment = resolve(tiny(**{**SENT, "model": deep, "sync": "streaming:6,2"}))
    assert sum(part.size for part in experiment.parts) == experiment.keyspace.size
    assert [len(part.slices) for part in experiment.parts] == [2, 1]  # layers 0 and 2, layer 1


@pytest.mark.parametrize(("overlap", "waits"), [(0, True), (4, False)])
def test_nobody_waits_once_the_steps_after_a_push_take_longer_than_its_transfer(overlap, waits):
    cluster = {"compute_s": 0.02, "compute_sigma": 0.0, "latency_s": 0.015}
    run = tiny(**{**SENT, "sync": f"streaming:10,2,overlap={overlap}", "cluster": cluster, "pushes": 100})
    phases = tables(run)["phases"]
    end_s = phases[(phases.worker == 0) & (phases.phase == "compute")].end_s.max()
    assert end_s == pytest.approx(50 * 0.02 + 9 * 0.03 * waits - 0.02 * overlap, abs=1e-4)


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


def test_a_merge_waits_for_a_quorum_and_a_late_push_is_part_of_the_next():
    for compute_s, until_s, merges in (
        # Pushes of iteration 0 at 2, 3, 5 and 20 s; 0 and 1 go on at 3 s, and push at 5 and 6 s.
        ([2, 3, 5, 20], 6, [[(0, 0), (1, 0)], [(0, 1), (2, 0)]]),
        # 2 waits from 4 s until the push of 0 at 5 s, 1 from 6 s until that of 0 at 7 s.
        ([2, 3, 4], 8, [[(0, 0), (1, 0)], [(0, 1), (2, 0)], [(0, 2), (1, 1)]]),
    ):
        steps = simulate(build("sync", "decoupled:1,quorum=2"), compute_s, until_s).steps
        assert all(step.aggregate for step in steps)
        assert [[(push.worker, push.iteration) for push in step.pushes] for step in steps] == merges


def test_a_quorum_of_one_merges_each_push_and_one_of_all_workers_or_more_makes_rounds():
    trace = simulate(build("sync", "decoupled:1"), [1, 2, 7], 21)
    assert [len(step.pushes) for step in trace.steps] == [1] * (21 + 10 + 3)
    assert {*trace.waited.values()} == {0}
    wanted = simulate(build("sync", "bsp"), [2, 3, 7], 30)
    for quorum in (3, 9):
        found = simulate(build("sync", f"decoupled:1,quorum={quorum}"), [2, 3, 7], 30)
        assert (found.pushes, found.waited, found.steps) == (wanted.pushes, wanted.waited, wanted.steps)


def test_workers_take_two_steps_after_a_push_if_as_many_fit():
    syncs = "decoupled:24", "decoupled:24,12", "decoupled:24,24", "decoupled:24,overlap=5", "decoupled:24,overlap=0"
    assert [build("sync", sync).overlap for sync in syncs] == [2, 1, 0, 5, 0]
