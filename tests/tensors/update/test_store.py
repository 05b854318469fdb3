"""The store: dense and sparse steps, ranges of several slices, and what changed since a version."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pslab.tensors.entries import Entries
from pslab.tensors.update.optimizers import ELEMENTWISE, resolve_optimizer
from pslab.tensors.update.part import Part
from pslab.tensors.update.store import WeightStore

PARTS = (Part((slice(0, 6), slice(10, 14))), Part((slice(6, 10), slice(14, 20))))
WHOLE = (Part((slice(0, 20),)),)
OPTIMIZERS = ["sgd", "sgd:momentum=0.9", "rmsprop:weight_decay=0.1", *ELEMENTWISE]


def random(seed: int) -> torch.Tensor:
    return torch.randn(20, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def pushed(form: str, part: Part, vector: torch.Tensor) -> torch.Tensor | Entries:
    """A gradient as a flat vector, as all entries of a range, or as those of it that are not zero."""
    indices = vector.nonzero().flatten()
    if form == "sparse":
        return part.inside(indices.numpy(), vector[indices].numpy())
    return vector if form == "flat" else Entries(part.size, None, torch.cat(part.views(vector)).numpy())


pushes = st.tuples(st.sampled_from(["flat", "dense", *["sparse"] * 4]),
                   st.dictionaries(st.integers(0, 19), st.integers(-9, 9), max_size=4))  # fmt: skip
steps = st.lists(st.tuples(st.integers(0, 1), st.lists(pushes, min_size=1, max_size=3)), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([WHOLE, PARTS]), st.sampled_from(OPTIMIZERS), steps)
def test_steps_are_those_of_torch_optim_and_changes_bring_any_older_copy_up_to_date(parts, optimizer, history):
    spec, alone = resolve_optimizer(optimizer), random(0)
    store = WeightStore(random(0), parts, spec, track_changes=True)
    views = [part.views(alone) for part in parts]
    made = [spec.make(each, 0.1) for each in views]
    versions, copies = [0] * len(parts), [([0] * len(parts), store.weights.clone())]
    for drawn, given_pushes in history:
        index = drawn % len(parts)
        vectors = [torch.zeros(20, dtype=torch.float64) for _ in given_pushes]
        for vector, (_, values) in zip(vectors, given_pushes, strict=True):
            vector[list(values)] = torch.tensor([*values.values()], dtype=torch.float64)
        for view, gradient in zip(views[index], parts[index].views(torch.stack(vectors).mean(0)), strict=True):
            view.grad = gradient
        made[index].step()
        store.step(index, [pushed(form, parts[index], vector)
                           for vector, (form, _) in zip(vectors, given_pushes, strict=True)], 0.1)  # fmt: skip
        assert torch.allclose(store.weights, alone, rtol=1e-12, atol=1e-14)
        versions[index] += 1
        copies.append((versions.copy(), store.weights.clone()))
    for then, copy in copies:
        for index, part in enumerate(parts):
            changed = store.changed(index, then[index])
            whole = Entries(part.size, None, torch.cat(part.views(store.weights)).numpy())
            part.put(copy, whole if changed is None else changed)
        assert torch.equal(copy, store.weights)


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
