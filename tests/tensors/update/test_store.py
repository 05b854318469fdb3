"""The store: dense and sparse steps, ranges of several slices, and what changed since a version."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pslab.tensors.codec import Entries
from pslab.tensors.update.optimizers import resolve_optimizer
from pslab.tensors.update.store import Part, WeightStore

PARTS = (Part((slice(0, 6), slice(10, 14))), Part((slice(6, 10), slice(14, 20))))
WHOLE = (Part((slice(0, 20),)),)


def random(seed: int) -> torch.Tensor:
    return torch.randn(20, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def entries(*pairs: tuple[int, float], n: int = 20) -> Entries:
    return Entries(n, np.array([i for i, _ in pairs]), np.array([v for _, v in pairs]))


def dense(e: Entries) -> torch.Tensor:
    full = torch.zeros(e.n, dtype=torch.float64)
    full[torch.from_numpy(e.indices)] = torch.from_numpy(e.values)
    return full


@pytest.mark.parametrize("optimizer", ["sgd", "sgd:momentum=0.9", "adam", "adagrad", "rmsprop:weight_decay=0.1"])
@pytest.mark.parametrize("parts", [WHOLE, PARTS])
def test_steps_equal_those_of_torch_optim(optimizer, parts):
    spec = resolve_optimizer(optimizer)
    store, alone = WeightStore(random(0), parts, spec), random(0)
    made = spec.make([alone], 0.1)
    for step in range(5):
        gradients = [random(10 * step + g) for g in range(3)]
        alone.grad = torch.stack(gradients).mean(0)
        made.step()
        for index in range(len(parts)):
            store.step(index, gradients, 0.1)
    assert torch.allclose(store.weights, alone, rtol=1e-13, atol=0)


@pytest.mark.parametrize("optimizer", ["sgd", "sgd:momentum=0.9", "adam"])
def test_sparse_steps_equal_dense_steps(optimizer):
    spec = resolve_optimizer(optimizer)
    here, there = WeightStore(random(0), WHOLE, spec), WeightStore(random(0), WHOLE, spec)
    for step in range(4):
        some = [entries((step, 1.0), (7, -2.0)), entries((7, 0.5), (19, 3.0))]
        here.step(0, some, 0.1)
        there.step(0, [dense(e) for e in some], 0.1)
    assert torch.allclose(here.weights, there.weights, rtol=1e-13, atol=1e-15)


def test_a_step_changes_only_its_range():
    store = WeightStore(random(0), PARTS, resolve_optimizer("adam"))
    store.step(0, [random(1)], 0.1)
    moved = store.weights != random(0)
    assert moved.tolist() == [i < 6 or 10 <= i < 14 for i in range(20)]


def test_inside_and_put_translate_positions():
    indices = torch.tensor([1, 5, 6, 12, 19])
    inside = [part.inside(indices.numpy(), indices.double().numpy()) for part in PARTS]
    assert [e.indices.tolist() for e in inside] == [[1, 5, 8], [0, 9]]
    assert [e.values.tolist() for e in inside] == [[1.0, 5.0, 12.0], [6.0, 19.0]]
    back = torch.zeros(20, dtype=torch.float64)
    for part, e in zip(PARTS, inside, strict=True):
        part.put(back, e)
    assert back.nonzero().flatten().tolist() == [1, 5, 6, 12, 19]


@pytest.mark.parametrize("optimizer", ["sgd", "sgd:momentum=0.9", "adam"])
@pytest.mark.parametrize("parts", [WHOLE, PARTS])
def test_changed_brings_any_older_copy_up_to_date(optimizer, parts):
    store = WeightStore(random(0), parts, resolve_optimizer(optimizer), track_changes=True)
    copies = {0: store.weights.clone()}
    for step in range(6):
        for index, part in enumerate(parts):
            store.step(index, [entries((step % part.size, 1.0), n=part.size)], 0.1)
        copies[step + 1] = store.weights.clone()
    for version, copy in copies.items():
        for index, part in enumerate(parts):
            changed = store.changed(index, version)
            if changed is None:
                for there, new in zip(part.views(copy), part.views(store.weights), strict=True):
                    there.copy_(new)
            else:
                part.put(copy, changed)
        assert torch.equal(copy, store.weights)


def test_changed_is_cached_until_the_next_step():
    store = WeightStore(random(0), WHOLE, resolve_optimizer("sgd"), track_changes=True)
    store.step(0, [entries((3, 1.0))], 0.1)
    first = store.changed(0, 0)
    assert store.changed(0, 0) is first  # so that it is encoded once
    store.step(0, [entries((3, 1.0), (5, 1.0))], 0.1)
    second = store.changed(0, 0)
    assert second.indices.tolist() == [3, 5]
    assert second.values[0] == store.weights[3] != first.values[0]
    store.step(0, [random(1)], 0.1)
    store.step(0, [entries((6, 1.0))], 0.1)
    assert store.changed(0, 2) is None  # the dense step is among them
    assert store.changed(0, 3).indices.tolist() == [6]


def test_the_log_of_the_last_steps_has_what_a_look_at_all_elements_finds():
    n, random_ = 4000, np.random.default_rng(0)
    store = WeightStore(torch.zeros(n), (Part((slice(0, n),)),), resolve_optimizer("sgd"), track_changes=True)
    history = [np.zeros(n, np.bool_)]
    for step in range(40):
        sizes = [n] if step == 20 else [0] if step == 30 else random_.integers(1, 90, 2)
        chosen = [np.sort(random_.choice(n, size, replace=False)) for size in sizes]
        given = [Entries(n, each, np.ones(len(each), np.float32)) for each in chosen]
        store.step(0, [torch.ones(n)] if step == 20 else given, 0.1)
        history.append(np.isin(np.arange(n), np.concatenate(chosen)))
        for since in range(step + 2):
            found, wanted = store.changed(0, since), sum(history[since + 1 :], np.zeros(n, np.bool_))
            if step >= 20 and since <= 20:
                assert found is None
            else:
                assert np.array_equal(found.indices, np.flatnonzero(wanted))


def test_changed_includes_weights_that_only_momentum_moves():
    store = WeightStore(random(0), WHOLE, resolve_optimizer("sgd:momentum=0.9"), track_changes=True)
    store.step(0, [entries((3, 1.0))], 0.1)
    store.step(0, [entries((4, 1.0))], 0.1)
    assert store.changed(0, 1).indices.tolist() == [3, 4]


def test_changed_needs_track_changes():
    with pytest.raises(ValueError, match="track"):
        WeightStore(random(0), WHOLE, resolve_optimizer("sgd")).changed(0, 0)
