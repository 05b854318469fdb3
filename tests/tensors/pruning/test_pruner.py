"""The pruner: what is sent and the residual add up to the gradients, layer by layer, with and without momentum."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pslab.tensors.finite import NonFinite, is_finite
from pslab.tensors.pruning.pruner import Pruner, Setting, memories, zeros
from pslab.tensors.pruning.range_push import RangePruner, Ranges, keys_of
from pslab.tensors.pruning.rules import (
    DGC,
    BothSigns,
    Dense,
    Deviation,
    Dynamic,
    PruningRule,
    RandomK,
    Static,
    Threshold,
)
from pslab.tensors.workload.keyspace import Keyspace

RULES: list[PruningRule | Ranges] = [
    Dense(), Static(0.01), Static(0.3), Deviation(1), Deviation(3), Dynamic(1), Dynamic(5), Static(0.3, mode="frozen"),
    Dynamic(mode="ratchet"), Dynamic(mode="literal"), Dynamic(mode="decay"), Static(0.05, warm_up=3),
    DGC(0.05, momentum=0.0, warm_up=0), DGC(0.05, momentum=0.0, warm_up=9), Ranges(2), Ranges(10**6),
    Threshold(2.0), RandomK(0.1), BothSigns(0.1),
]  # fmt: skip
MOMENTA = [DGC(0.05), DGC(0.05, nesterov=True)]
BY_LAYER = [rule for rule in RULES if not isinstance(rule, Ranges)]


def gradients(size: int, dtype: torch.dtype, seed: int = 0) -> Iterator[torch.Tensor]:
    """A worker's gradients, and kinds that are never drawn at random."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(6):
        yield torch.randint(-9, 10, (size,), generator=generator).to(dtype)
    yield torch.zeros(size, dtype=dtype)
    yield -torch.randint(1, 99, (size,), generator=generator).to(dtype)
    yield torch.full((size,), 3, dtype=dtype)
    single = torch.zeros(size, dtype=dtype)
    single[-1] = -1
    yield single


def in_layers(*sizes: int) -> list[slice]:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]


class InTurn(RangePruner):
    """A pruner that takes the next range in each iteration."""

    def __init__(self, rule: Ranges, keyspace: Keyspace, *more: Any, **others: Any) -> None:
        super().__init__(rule, keyspace, *more, **others)
        self.count = keyspace.keys

    def prune(self, gradient: torch.Tensor, iteration: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys = keys_of(min(int(self.rule.size), self.count), self.count, iteration)
        return super().prune(gradient, iteration)


def pruner_of(rule: PruningRule | Ranges, *sizes: int, dtype: torch.dtype = torch.float32, **more: Any) -> Any:
    """A pruner of layers of these sizes, whose entries are keys of a rule of ranges."""
    if isinstance(rule, Ranges):
        layers = [nn.Linear(1, size, bias=False, dtype=dtype) for size in sizes if size]
        return InTurn(rule, Keyspace.of(nn.Sequential(*layers)), dtype, **more)
    return Pruner(rule, in_layers(*sizes), sum(sizes), dtype, **more)


# --- the pruner -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [*RULES, *MOMENTA], ids=str)
@pytest.mark.parametrize("sizes", [(1,), (1, 1, 5), (300, 1, 7000), (0, 64, 0)])
def test_sent_and_residual_add_up_to_the_gradients(rule: PruningRule | Ranges, sizes: tuple[int, ...]) -> None:
    """Whoever goes on with the memories, and layer by layer as in a backward pass."""
    size, layers = sum(sizes), in_layers(*sizes)
    for dtype in (torch.float32, torch.float64):
        kept = {name: zeros(memory, "cpu") for name, memory in memories(rule, len(sizes), size, dtype).items()}
        pruner, parts = (pruner_of(rule, *sizes, dtype=dtype) for _ in range(2))
        computed, sent = torch.zeros(size, dtype=dtype), torch.zeros(size, dtype=dtype)
        for iteration, gradient in enumerate(gradients(size, dtype)):
            before = gradient.clone()
            indices, values = pruner.prune(gradient, iteration)
            others = [pruner_of(rule, *sizes, dtype=dtype, kept=kept).prune(gradient, iteration)]
            if not isinstance(rule, Ranges):
                each = [parts.prune_layer(n, gradient[layers[n]], iteration) for n in reversed(range(len(sizes)))]
                others.append(tuple(torch.cat(found[::-1]) for found in zip(*each, strict=True)))
            assert torch.equal(gradient, before)
            gradient.zero_()  # what is sent are copies
            assert all(torch.equal(indices, other[0]) and torch.equal(values, other[1]) for other in others)
            assert (indices.dtype, values.dtype) == (torch.int64, dtype)
            assert bool((indices[1:] > indices[:-1]).all())
            computed += before
            sent[indices] += values
            if rule not in MOMENTA:
                residual = torch.zeros(size, dtype=dtype) if pruner.residual is None else pruner.residual
                assert torch.equal(sent + residual, computed)  # exact, since all are integers
                assert not residual[indices].any()


def test_each_layer_is_pruned_by_itself() -> None:
    gradient = torch.cat((torch.ones(100), 1000 * torch.ones(100)))
    gradient[7], gradient[150] = 2, 3000
    assert Pruner(Static(0.01), in_layers(100, 100), 200).prune(gradient, 0)[0].tolist() == [7, 150]
    assert Pruner(Static(0.005), in_layers(200), 200).prune(gradient, 0)[0].tolist() == [150]


def test_without_a_residual_unsent_entries_are_dropped() -> None:
    pruner = Pruner(Static(0.25, residual=False), in_layers(4), 4)
    gradient = torch.tensor([1.0, -3, 2, 0])
    assert pruner.residual is None
    for _ in range(3):
        indices, values = pruner.prune(gradient, 0)
        assert (indices.tolist(), values.tolist()) == ([1], [-3])
    assert gradient.tolist() == [1, -3, 2, 0]


@pytest.mark.parametrize("rule", [*RULES, Static(0.1, residual=False), DGC(0.1), DGC(0.1, clip=1.0)], ids=str)
def test_a_gradient_that_is_not_finite_changes_no_memory(rule: PruningRule | Ranges) -> None:
    pruner = pruner_of(rule, 50, 50)
    pruner.prune(torch.randn(100, generator=torch.Generator().manual_seed(4)), 0)
    before = {name: kept.clone() for name, kept in pruner.kept.items()}
    for bad in (float("nan"), float("inf"), -float("inf")):
        gradient = torch.ones(100)
        gradient[99] = bad
        with pytest.raises(NonFinite, match="NaN or infinite"):
            pruner.prune(gradient, 0)
        assert all(torch.equal(kept, before[name]) for name, kept in pruner.kept.items())
    pruner.prune(torch.ones(100), 0)


@pytest.mark.parametrize(
    "rule", [Static(0.01), Dynamic(mode="ratchet"), DGC(0.1), DGC(0.1, masking=False), Ranges(2)], ids=str)
@pytest.mark.parametrize("by_layer", [False, True], ids=["whole", "by_layer"])
def test_a_sum_with_a_memory_that_overflows_is_refused(rule: PruningRule | Ranges, by_layer: bool) -> None:
    pruner, gradient = pruner_of(rule, 50, 50), torch.linspace(1e38, 3e38, 100)
    by_layer = by_layer and not isinstance(rule, Ranges)
    with pytest.raises(NonFinite, match="sum with the residual"):
        _push_finite(lambda i: pruner.prune_layer(1, gradient[50:], i) if by_layer else pruner.prune(gradient, i))


def test_a_momentum_that_overflows_is_refused_where_nothing_is_pruned() -> None:
    pruner = Pruner(DGC(0.1), in_layers(100), 100, tensors=[(slice(0, 100), 1)])
    with pytest.raises(NonFinite, match="momentum"):
        _push_finite(lambda i: pruner.prune(torch.full((100,), 2e38), i))


def _push_finite(push: Callable[[int], tuple[torch.Tensor, torch.Tensor]]) -> None:
    for iteration in range(20):
        _, values = push(iteration)
        assert is_finite(values)


def test_is_finite() -> None:
    assert is_finite(torch.full((1000,), 3e38))  # but their sum is not
    assert is_finite(torch.empty(0))
    for bad in (float("nan"), float("inf"), -float("inf")):
        v = torch.zeros(5000)
        v[4321] = bad
        assert not is_finite(v)
    assert not is_finite(torch.tensor([float("inf"), -float("inf"), 1]))


@dataclass(frozen=True)
class Fixed:
    """A user's rule that always selects the same."""

    found: object
    residual: bool = True

    def select(self, v: torch.Tensor) -> object:
        return self.found


@pytest.mark.parametrize("found", [[3, 1], np.array([1, 3]), torch.tensor([3, 1], dtype=torch.int32),
                                   torch.tensor([0, 1, 0, 1, 0], dtype=torch.bool)])  # fmt: skip
def test_a_users_rule_may_give_indices_in_any_form(found: object) -> None:
    indices, values = Pruner(Fixed(found), in_layers(5, 5), 10).prune(torch.arange(10.0), 0)
    assert (indices.tolist(), values.tolist()) == ([1, 3, 6, 8], [1, 3, 6, 8])


@pytest.mark.parametrize("found", [[1, 1], [-1], [5], [0, 7]])
def test_invalid_indices_of_a_users_rule_are_refused(found: list[int]) -> None:
    with pytest.raises(ValueError, match="distinct indices from 0 to 4"):
        Pruner(Fixed(found), in_layers(5, 5), 10).prune(torch.ones(10), 0)


def test_layers_that_leave_entries_out_are_refused() -> None:
    for layers in ([slice(0, 4)], [slice(1, 5)], [slice(0, 3), slice(2, 5)], [slice(0, 2), slice(3, 5)], []):
        with pytest.raises(ValueError, match="from 0 to 5"):
            Pruner(Static(0.1), layers, 5)
    Pruner(Static(0.1), [slice(2), slice(2, 5)], 5)


def test_a_gradient_of_another_model_is_refused() -> None:
    pruner = Pruner(Static(0.1), in_layers(5), 5)
    for gradient in (torch.ones(4), torch.ones(5, 1), torch.ones(5, dtype=torch.float64)):
        with pytest.raises(ValueError, match=r"\(5,\), torch.float32 is expected"):
            pruner.prune(gradient, 0)


# --- layers and memories ----------------------------------------------------------------------------------------------


def test_prune_layer_checks_its_gradient() -> None:
    pruner = Pruner(Static(0.1), in_layers(5, 5), 10)
    with pytest.raises(ValueError, match=r"\(5,\)"):
        pruner.prune_layer(0, torch.ones(10), 0)
    with pytest.raises(NonFinite):
        pruner.prune_layer(1, torch.full((5,), float("nan")), 0)
    with pytest.raises(ValueError, match="norm of the model's gradient"):
        Pruner(DGC(0.1, clip=1.0), in_layers(5, 5), 10).prune_layer(0, torch.ones(5), 0)


# --- momentum, tensors, clipping, warm-up, random samples -------------------------------------------------------------


def dense(pruned: tuple[torch.Tensor, torch.Tensor], size: int) -> torch.Tensor:
    indices, values = pruned
    return torch.zeros(size, dtype=values.dtype).index_copy_(0, indices, values)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("masking", [False, True])
def test_sent_and_residual_add_up_to_the_momenta(nesterov: bool, masking: bool) -> None:
    """Exactly, because all of them are binary fractions."""
    size, rule = 400, DGC(0.1, momentum=0.5, nesterov=nesterov, masking=masking, warm_up=0)
    pruner, generator = Pruner(rule, in_layers(100, 300), size, torch.float64), torch.Generator().manual_seed(5)
    sent, computed, u = (torch.zeros(size, dtype=torch.float64) for _ in range(3))
    for iteration in range(20):
        gradient = torch.randint(-9, 10, (size,), generator=generator).double()
        u = (u + gradient) / 2 if nesterov else u / 2 + gradient
        computed += u + gradient if nesterov else u
        found = pruner.prune(gradient, iteration)
        sent += dense(found, size)
        u[found[0]] = u[found[0]] * (not masking)
        assert torch.equal(pruner.kept["momentum"], u)
        assert torch.equal(sent + pruner.kept["residual"], computed)


def test_tensors_of_one_dimension_are_sent_unpruned() -> None:
    tensors = [(slice(0, 60), 2), (slice(60, 66), 1), (slice(66, 67), 0), (slice(67, 127), 3)]
    pruner = Pruner(DGC(0.1, momentum=0.5), in_layers(66, 61), 127, tensors=tensors)
    gradient = torch.arange(1.0, 128)
    sent = [*range(54, 67), *range(121, 127)], [*range(48, 54), *range(60, 67), *range(115, 121)]
    for u, expected in zip((1, 1.5), sent, strict=True):  # the momentum of what was sent is 0
        indices, values = pruner.prune(gradient, 99)
        assert indices.tolist() == expected  # a tenth of each matrix, and everything else
        assert torch.equal(values[6:13], u * gradient[60:67])
    assert torch.equal(pruner.kept["momentum"][60:67], 1.5 * gradient[60:67])  # not masked
    assert not pruner.kept["residual"][60:67].any()
    by_layer = Pruner(Static(0.1), in_layers(66, 61), 127, tensors=tensors)
    assert by_layer.prune(gradient, 0)[0].tolist() == [*range(59, 66), *range(120, 127)]


def test_random_entries_are_the_same_for_all_workers_and_drawn_of_each_tensor() -> None:
    tensors, gradient = [(slice(0, 60), 2), (slice(60, 70), 1), (slice(70, 127), 2)], torch.arange(1.0, 128)

    def sent(iteration: int, worker: int = 0, seed: int = 0, residual: bool = True) -> list[list[float]]:
        setting = Setting(seed=seed, worker=worker)
        pruner = Pruner(RandomK(0.1, residual), in_layers(70, 57), 127, tensors=tensors, setting=setting)
        return [found.tolist() for found in pruner.prune(gradient, iteration)]

    indices, values = sent(2)
    assert values == [1.0 + index for index in indices]
    assert [sum(s.start <= index < s.stop for index in indices) for s, _ in tensors] == [6, 1, 6]
    assert sent(2, worker=1) == sent(2) != sent(3) != sent(3, seed=1)
    scaled = [60 / 6] * 6 + [10.0] + [57 / 6] * 6  # so that the mean over all draws is the gradient
    assert sent(2, residual=False)[1] == pytest.approx([v * factor for v, factor in zip(values, scaled, strict=True)])


def test_gradients_are_clipped_before_the_momentum() -> None:
    gradient, setting = torch.tensor([3.0, 4, 0, 0]), Setting(workers=4)
    for clip, scale in ((10.0, 1.0), (5.0, 0.5), (1.0, 0.1), (100.0, 1.0)):
        pruner = Pruner(DGC(1.0, momentum=0.5, clip=clip), in_layers(2, 2), 4, setting=setting)
        assert dense(pruner.prune(gradient, 0), 4).tolist() == pytest.approx([3 * scale, 4 * scale, 0, 0])
        assert dense(pruner.prune(torch.zeros(4), 1), 4).tolist() == [0, 0, 0, 0]  # masked
    assert gradient.tolist() == [3, 4, 0, 0]


def test_warm_ups_follow_the_epochs() -> None:
    for rule, shares in ((Static(0.01, warm_up=2), (25, 25, 7, 7, 1, 1)), (DGC(0.01, warm_up=1), (25, 25, 1, 1, 1, 1))):
        pruner = Pruner(rule, in_layers(100), 100, setting=Setting(epoch_iterations=2))
        for iteration, share in enumerate(shares):
            gradient = torch.randn(100, generator=torch.Generator().manual_seed(iteration))
            sent = len(pruner.prune(gradient, iteration)[0])
            assert sent == share if isinstance(rule, Static) else 0.8 * share <= sent <= share


def test_every_worker_gradient_and_seed_draws_another_sample() -> None:
    gradient = torch.randn(20_000, generator=torch.Generator().manual_seed(8))

    def sent(iteration: int, **setting: int) -> list[int]:
        pruner = Pruner(DGC(0.001, warm_up=0), in_layers(20_000), 20_000, setting=Setting(**setting))
        return pruner.prune(gradient, iteration)[0].tolist()

    assert sent(0) == sent(0, worker=0, seed=0)
    assert len({tuple(sent(iteration, worker=worker, seed=seed))
                for iteration in (0, 1) for worker in (0, 1) for seed in (0, 1)}) > 3  # fmt: skip


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_sends_the_same() -> None:
    layers = in_layers(300, 1, 7000)
    for rule in (*BY_LAYER, DGC(0.05)):
        here, there = Pruner(rule, layers, 7301), Pruner(rule, layers, 7301, device="cuda")
        for gradient in gradients(7301, torch.float32):
            for ours, theirs in zip(here.prune(gradient, 0), there.prune(gradient.cuda(), 0), strict=True):
                assert torch.equal(ours, theirs.cpu())
