"""Streaming DiLoCo: vectors by hand, the policies that it contains, its fragments, and its limits."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scalar import Scalar, scalar
from tiny import tiny
from torch import nn
from whole import in_process

from pslab.config.spec import build
from pslab.engines.emulation.compute_times import ComputeTimes
from pslab.engines.experiment.experiment import Outcome
from pslab.engines.virtual import engine as virtual
from pslab.engines.worker.courses import Courses
from pslab.engines.worker.tensors import Producer
from pslab.errors import ConfigError
from pslab.lab.judge import tables_of
from pslab.lab.runs.resolve import resolve
from pslab.policies.methods.streaming import Streaming
from pslab.tensors.update.fragments import FragmentSteps
from pslab.tensors.update.inner import resolve_inner
from pslab.tensors.update.own_weights import own_weights
from pslab.tensors.update.part import Part
from pslab.tensors.update.steps import Course

PLAIN = {"inner": "sgd", "optimizer": "sgd:momentum=0", "outer_learning_rate": 1.0}
ALPHA_HALF = "streaming:4,2,overlap=1,alpha=0.5"
VECTORS = [  # policy, targets of each worker; after each iteration its fragment, the server's weight, the workers' own
    (ALPHA_HALF, ((0.0, 0.0), (4.0, 8.0)), [
        (0, 1.0, (0.5, 2.0)), (1, 3.5, (1.75, 5.5)), (0, 1.90625, (0.96875, 2.890625)),
        (1, 3.953125, (2.03125, 5.8984375))]),
    ("streaming:4,2,overlap=1", ((0.0, 0.0), (4.0, 8.0)), [
        (0, 1.0, (1.0, 1.0)), (1, 3.5, (3.5, 3.5)), (0, 1.875, (1.875, 1.875)), (1, 3.9375, (3.9375, 3.9375))]),
    ("streaming:2,1,overlap=1,merge=carry", ((0.0,), (4.0,)), [
        (0, 1.0, (1.0, 2.0)), (0, 1.75, (1.5, 2.25)), (0, 1.9375, (1.5625, 2.375))]),
]  # fmt: skip


class Hand:
    """A worker whose gradient of f = |w - a|^2 / 2 is w - a, and the weights on which it takes each of them."""

    def __init__(self, sync: Streaming, target: tuple[float, ...]) -> None:
        size, dtype = len(target), torch.float64
        self.sync, self.target = sync, torch.tensor(target, dtype=dtype)
        self.weights, self.gradient = torch.zeros(size, dtype=dtype), torch.zeros(size, dtype=dtype)
        kept = {name: memory.zeros("cpu") for name, memory in own_weights(sync, size, dtype).items()}
        parts = [Part((slice(index, index + 1),)) for index in range(size)]
        self.steps = FragmentSteps(sync, parts, resolve_inner("sgd", False), kept, dtype)
        self.seen: list[torch.Tensor] = []

    def at(self, batch: int) -> float:
        self.seen.append(self.weights.clone())
        self.gradient.copy_(self.weights - self.target)
        return 0.0

    def course(self, iteration: int) -> Course:
        late = self.sync.overlap if iteration else 0
        end = self.sync.gradients_before(iteration + 1) - self.sync.overlap
        batches = list(range(self.sync.gradients_before(iteration) - late, end))
        return Course(batches, [0.5] * len(batches), self.at, self.weights, self.gradient, True, True,
                      iteration=iteration, late=late)  # fmt: skip

    def change(self, iteration: int) -> torch.Tensor:
        """What it pushes; its own weights after the merge are those of the first step that is not late."""
        self.seen, course = [], self.course(iteration)
        self.steps.run(course)
        self.steps.commit(course)
        return self.gradient.clone()


@pytest.mark.parametrize(("sync", "targets", "slots"), VECTORS)
@pytest.mark.parametrize("early", [False, True])
def test_weights_of_server_and_workers_after_each_fragment(sync, targets, slots, early):
    policy, server = build("sync", sync), torch.zeros(len(targets[0]), dtype=torch.float64)
    workers = [Hand(policy, target) for target in targets]
    for iteration, (fragment, weight, _) in enumerate(slots):
        changes = [worker.change(iteration)[fragment] for worker in workers]
        if iteration:
            before, _, own = slots[iteration - 1]
            assert [float(worker.seen[policy.overlap - policy.steps][before]) for worker in workers] == list(own)
        server[fragment] -= sum(changes) / len(changes)
        assert float(server[fragment]) == weight
        for worker in workers:
            if early:  # before the weights are here
                worker.steps.follow(worker.course(iteration + 1))
            worker.weights[fragment] = server[fragment]


class Two(nn.Module):
    """Two weights, 0 at the beginning, of a layer each; the second one's target is twice the first one's."""

    def __init__(self) -> None:
        super().__init__()
        self.p0, self.p1 = Scalar(), Scalar()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.p0(x) + self.p1(2 * x)
        return found


@pytest.mark.parametrize(("sync", "targets", "slots"), VECTORS)
def test_a_run_has_these_weights(sync, targets, slots, monkeypatch):
    found: list[tuple[int, float]] = []

    class Recording(virtual.TensorShard):
        def apply(self, step: Any, rate: float, computing: Any) -> None:
            super().apply(step, rate, computing)
            found.append((step.range, float(self.weights[step.range])))

    monkeypatch.setattr(virtual, "TensorShard", Recording)
    policy, model = build("sync", sync), {"model": Two} if len(targets[0]) > 1 else {}
    run = scalar(sync, 0.0, 4.0, **PLAIN, **model, pushes=2 * policy.steps * len(slots))
    outcome = in_process(run)
    assert found == [(fragment, weight) for fragment, weight, _ in slots]
    assert outcome.facts["pushes"] == outcome.facts["accepted"] == run.pushes


def trained(**fields: Any) -> Outcome:
    run = tiny(**{"engine": "virtual", "cluster": "steady", "pushes": 96, "dtype": "float64", "learning_rate": 0.01,
                  **fields})  # fmt: skip
    outcome = in_process(run)
    facts = tables_of(run, outcome)[2]
    assert facts["verdict"] == "valid", facts
    return outcome


@pytest.mark.parametrize(("sync", "alike"), [
    ("streaming:6", "diloco:6"), ("streaming:6,1,merge=replace", "diloco:6"), ("streaming:6,1,merge=carry", "diloco:6"),
    ("streaming:6,2,overlap=1", "streaming:6,2,overlap=1,merge=replace"),
    ("streaming:6,2,merge=carry", "streaming:6,2,merge=replace"),
])  # fmt: skip
def test_policies_that_are_the_same_have_the_same_bits(sync, alike):
    found, wanted = trained(sync=sync), trained(sync=alike)
    assert found.weights.tobytes() == wanted.weights.tobytes()
    assert found.accuracy.tobytes() == wanted.accuracy.tobytes()


@pytest.mark.parametrize(("sync", "other"), [
    ("streaming:6,2", "diloco:6"), ("streaming:6,2", "diloco:3"), ("streaming:6,1,overlap=2", "diloco:6"),
    ("streaming:6,2,overlap=1,merge=carry", "streaming:6,2,overlap=1"), ("streaming:6,1,alpha=0.5", "diloco:6"),
    ("streaming:6,2,overlap=1,alpha=0.5", "streaming:6,2,overlap=1"),
])  # fmt: skip
def test_fragments_overlap_and_merge_each_change_the_run(sync, other):
    assert trained(sync=sync).weights.tobytes() != trained(sync=other).weights.tobytes()


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


# --- processes that end, and workers that come ------------------------------------------------------------------------


def test_a_worker_that_joins_begins_with_all_fragments_and_a_new_optimizer(monkeypatch):
    cluster = {"compute_s": 0.01, "compute_sigma": 0.0, "leave": {1: 0.1}, "join": {1: 0.25}}
    seen: dict[int, tuple[torch.Tensor, torch.Tensor, dict[str, Any]]] = {}
    plain = FragmentSteps._steps

    def steps(self: Any, course: Course, which: range, state: Any) -> Any:
        if which and self.worker == 1:
            seen.setdefault(course.iteration, (course.weights.clone(), which, dict(state)))
        return plain(self, course, which, state)

    made = Courses.__init__

    def init(self: Any, job: Any, worker: int, *given: Any, **named: Any) -> None:
        made(self, job, worker, *given, **named)
        self._local.worker = worker

    monkeypatch.setattr(FragmentSteps, "_steps", steps)
    monkeypatch.setattr(Courses, "__init__", init)
    run = tiny(**{**SENT, "cluster": cluster, "pushes": 200})
    outcome = in_process(run)
    assert tables_of(run, outcome)[2]["verdict"] == "valid"
    (joined,) = outcome.arrivals[outcome.arrivals[:, 0] == 3, 3].astype(int)
    assert joined - 1 not in seen or seen[joined][2] == {}
    assert (len(seen[joined][1]), seen[joined][2]) == (2, {})  # none that follow a push, nothing that is kept
    assert len(seen[joined + 1][2]) > 0


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fields", "problem"), [
    ({"sync": "streaming:10,4"}, "fragments=4: must divide the period of 10 steps, as 5 does"),
    ({"sync": "streaming:10,2,overlap=5"}, "overlap=5: must be less than the 5 steps between two pushes"),
    ({"sync": "streaming:10,2,merge=carry,alpha=0.5"}, "alpha=0.5: is of merge=mix"),
    ({"sync": "streaming:10,2,merge=mean"}, "allowed: carry, mix, replace"),
    ({"sync": "streaming:10,2,layout=stridden"}, "did you mean 'strided'"),
    ({"sync": "streaming:9,3,layout=balanced"}, "fragments=3: the model makes 2 of its layers: use 2, or fewer"),
    ({"sync": "streaming:9,3"}, "fragments=3: the model makes 2 of its blocks by layout=strided: use 2, or fewer"),
    ({"sync": "streaming:4,2", "servers": 3}, "servers=3"),
    ({"sync": "streaming:4,2", "ranges": "layers"}, "use ranges='whole'"),
    ({"sync": "streaming:4,2", "prune": "dgc:5%"}, "whose momentum is the server's"),
    ({"sync": "streaming:4,2", "rate": "dynsgd"}, "which outer_learning_rate scales"),
    ({"sync": "streaming:4,2", "pull": "keys"}, "pull='keys'"),
])  # fmt: skip
def test_what_does_not_go_together_is_refused(fields, problem):
    with pytest.raises(ConfigError) as caught:
        resolve(tiny(**{"engine": "virtual", "cluster": "lab", **fields}))
    assert problem in re.sub(r"\s+", " ", str(caught.value))


# --- fragments --------------------------------------------------------------------------------------------------------

GPT = [("bytes", 16384), ("places", 4096), *((f"blocks.{block}.{name}", size) for block in range(4) for name, size in (
    ("norm1", 64), ("attend", 12288), ("widen", 16384))), ("norm", 64)]  # fmt: skip


@pytest.mark.parametrize(("sync", "blocks"), [
    ("streaming:6,3", [1, 2, 1, 2]), ("streaming:6,3,layout=sequential", [1, 1, 2, 2]), ("streaming:6,2", [1, 1, 1, 1]),
    ("streaming:6,1", [0, 0, 0, 0]), ("streaming:10,5,layout=sequential", [1, 2, 3, 4])])  # fmt: skip
def test_blocks_are_dealt_out_behind_what_is_outside_of_them(sync, blocks):
    assert build("sync", sync).fragment_of(GPT) == (0, 0, *(each for block in blocks for each in [block] * 3), 0)


def test_without_anything_outside_of_blocks_they_are_dealt_out_to_all_fragments():
    layers = [(f"{number}", 10) for number in range(4)]
    assert build("sync", "streaming:4,2").fragment_of(layers) == (0, 1, 0, 1)
    assert build("sync", "streaming:4,2,layout=sequential").fragment_of(layers) == (0, 0, 1, 1)
    assert build("sync", "streaming:4,2").fragment_of([("hidden", 9), ("more", 9), ("output", 3)]) == (0, 1, 0)


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
