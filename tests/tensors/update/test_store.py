"""The store and the state of rates, against torch.optim and references on dense vectors for any history."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pslab.protocol.messages import Push
from pslab.protocol.server import Step
from pslab.tensors.entries import Entries
from pslab.tensors.update import rate_state
from pslab.tensors.update.directions import REFRESH
from pslab.tensors.update.optimizers import ELEMENTWISE, resolve_optimizer
from pslab.tensors.update.part import Part
from pslab.tensors.update.store import WeightStore
from pslab.tensors.update.vectors import cuts, inside, outside

PARTS = (Part((slice(0, 6), slice(10, 14))), Part((slice(6, 10), slice(14, 20))))
UNCUT = (Part((slice(0, 20),)),)
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
@given(st.sampled_from([UNCUT, PARTS]), st.sampled_from(OPTIMIZERS), steps)
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


SIZE = 6
WHOLE = (Part((slice(0, SIZE),)),)
RANGES = (Part((slice(0, 2), slice(3, 5))), Part((slice(2, 3), slice(5, 6))))
LAYERS, FLAT = (slice(0, 3), slice(3, SIZE)), (slice(0, SIZE),)


class Rate:
    """A rate that needs `needs`, in which stale pushes have smaller shares if it `damps`."""

    eps, clamp = 1e-10, 10.0

    def __init__(self, needs: str, damps: bool = False) -> None:
        self.needs, self.damps = needs, damps

    def share(self, staleness: int, pushes: int) -> float:
        return 1 / (1 + staleness * self.damps)


class Server:
    """A server with a rate: workers pull and push complete vectors. `moved` is the sum of all that was applied."""

    def __init__(self, rate, *, parts=WHOLE, layers=LAYERS, workers=2):
        self.parts, self.version = parts, 0
        self.states = rate_state.at_server(rate, parts, layers, torch.float64)
        self.store = WeightStore(torch.zeros(SIZE, dtype=torch.float64), parts, resolve_optimizer("sgd"))
        self.held, self.computing = dict.fromkeys(range(workers), 0), dict.fromkeys(range(workers), 0)

    @property
    def moved(self) -> torch.Tensor:
        return -self.store.weights

    def push(self, *pushes, sparse=False) -> torch.Tensor:
        """Apply (worker, vector) pairs as one step; returns the change of the weights."""
        before = self.moved.clone()
        self.version += 1
        for worker, _ in pushes:
            self.computing.pop(worker, None)
        vectors = [torch.as_tensor(v, dtype=torch.float64) for _, v in pushes]
        for index, part in enumerate(self.parts):
            messages = tuple(Push(worker, index, 0, self.held[worker]) for worker, _ in pushes)
            gradients = [entries(part, v) for v in vectors] if sparse else vectors
            kept = [outside(inside(part, g)).values.copy() for g in gradients]
            applied = self.states[index].adjust(Step(index, messages, len(pushes) > 1, self.version), gradients,
                                                list(self.computing.values()))  # fmt: skip
            self.store.step(index, applied, 1.0)
            for g, values in zip(gradients, kept, strict=True):
                assert np.array_equal(outside(inside(part, g)).values, values)  # unchanged: they belong to the workers
            if sparse:
                assert all(g.indices is not None for g in applied)
                for g in gradients:
                    g.values.fill(1e9)  # the workers write into this memory again
        for v in vectors:
            v.fill_(1e9)
        return self.moved - before

    def pull(self, worker):
        self.held[worker] = self.computing[worker] = self.version


def entries(part: Part, vector: torch.Tensor) -> Entries:
    """The entries that are not zero."""
    indices = vector.nonzero().flatten()
    return part.inside(indices.numpy(), vector[indices].numpy())


def full(*values: float) -> list[float]:
    return [*values, *[0.0] * (SIZE - len(values))]


turns = st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True),
                           st.lists(st.integers(-8, 8), min_size=SIZE, max_size=SIZE)), min_size=1,
                 max_size=25)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(turns, st.booleans(), st.sampled_from([WHOLE, RANGES]))
def test_weights_are_the_sum_of_the_means_of_all_versions(history, sparse, parts):
    """In each turn some workers push, or pull if they have pushed; no mean is kept that nobody may still join."""
    server, joins, joined = Server(Rate("versions"), workers=3, parts=parts), [0, 0, 0], dict[int, list[torch.Tensor]]()
    for workers, values in history:
        pushing = [worker for worker in workers if worker in server.computing]
        for worker in set(workers) - set(pushing):
            joins[worker] = max(joined, default=-1) + 1
            server.pull(worker)
        if pushing:
            vectors = [torch.tensor([v + (v != 0) * w for v in values], dtype=torch.float64) for w in pushing]
            for worker, vector in zip(pushing, vectors, strict=True):
                joined.setdefault(joins[worker], []).append(vector)
            server.push(*zip(pushing, [v.clone() for v in vectors], strict=True), sparse=sparse)
            wanted = sum(torch.stack(pushes).mean(0) for pushes in joined.values())
            assert torch.allclose(server.moved, wanted, rtol=1e-11, atol=1e-11)
            joinable = {joins[worker] for worker in server.computing}
            assert all(here.means.keys() <= joinable for here in server.states)


def test_a_push_whose_version_was_dropped_joins_the_oldest():
    server, moved = Server(Rate("versions"), workers=3), []
    for worker, value in ((0, 4), (0, 2), (2, 6)):
        server.push((worker, full(value)))
        moved.append(float(server.moved[0]))
        server.pull(0)
        if value == 4:
            server.pull(1)
            del server.computing[2]  # it has left, but the server still holds its push
    assert moved == [4, 6, 8]  # the mean of 2 and 6: worker 1 may still join them


@pytest.mark.parametrize(("parts", "sparse"), [(WHOLE, False), (RANGES, True)])
def test_squares_by_hand(parts, sparse):
    server, found = Server(Rate("squares"), parts=parts), []
    for value in (3, 4, 0):
        server.push((0, full(value, 0, 0, value)), sparse=sparse)
        found.append((0.1 * server.moved[[0, 3]]).tolist())
    assert np.array(found) == pytest.approx(np.array([[0.1, 0.1], [0.18, 0.18], [0.18, 0.18]]), rel=1e-9)
    server = Server(Rate("squares"), parts=parts)
    server.push((0, full(6)), (1, full(0, 8)), sparse=sparse)
    assert server.push((0, full(4)), sparse=sparse)[0] == pytest.approx(0.8)  # the mean of a superstep was 3: 4 / 5
    squares = rate_state.at_worker(Rate("own squares"), lambda: torch.zeros(3, dtype=torch.float64))
    gradient = torch.tensor([3.0, 1.0, 0.0], dtype=torch.float64)
    assert squares.divide(gradient, out=gradient).tolist() == pytest.approx([1, 1, 0])
    assert squares.divide(torch.tensor([4.0, 1.0, 0.0]), out=gradient).tolist() == pytest.approx([0.8, 2**-0.5, 0])
    assert squares.total.tolist() == [25, 2, 0]


@settings(max_examples=60, deadline=None)
@given(turns, st.booleans(), st.sampled_from([(WHOLE, LAYERS), (WHOLE, FLAT), (RANGES, LAYERS)]))
def test_directions_keep_the_length_of_the_sum(history, sparse, cut):
    """In each piece of a layer that a range has; a worker whose turn it is twice leaves in between."""
    (parts, layers), rate = cut, Rate("directions", damps=True)
    server = Server(rate, workers=3, parts=parts, layers=layers)
    pieces = [[i for s in part.slices for i in range(s.start, s.stop) if i in range(layer.start, layer.stop)]
              for part in parts for layer in layers]  # fmt: skip
    latest: dict[int, tuple[torch.Tensor, float]] = {}
    for (worker, *others), values in history:
        gradient = torch.tensor([v + (v != 0) * worker for v in values], dtype=torch.float64)
        latest[worker] = gradient, rate.share(server.version - server.held[worker], 1)
        moved = server.push((worker, gradient.clone()), sparse=sparse)
        server.pull(worker)
        for piece in filter(None, pieces):
            summed = [(g[piece], alpha) for g, alpha in latest.values() if g[piece].any()]
            if not gradient[piece].any():
                assert not moved[piece].any()
                continue
            directed = sum(alpha * g / g.norm() for g, alpha in summed).norm()
            total, length = sum(g for g, _ in summed).norm(), float(gradient[piece].norm())
            assert moved[piece].norm() <= 10 * length * (1 + 1e-9)
            if directed > 1e-6:  # t times each share of a direction keeps the sum's length, unless it is clamped
                t = float(total / directed)
                expected = min(t * latest[worker][1], 10 * length)
                assert moved[piece].tolist() == pytest.approx((expected * gradient[piece] / length).tolist(), abs=1e-7)
        for gone in others[:1] if len(others) == 2 else ():
            latest.pop(gone, None)
            for state in server.states:
                state.leave(gone)


def test_directions_that_cancel_are_clamped_no_rounding_errors_add_up_and_a_rate_without_needs_has_no_state():
    server = Server(Rate("directions"), layers=FLAT)
    server.push((0, full(1)))
    assert server.push((1, full(-4))).tolist() == pytest.approx(full(-1.5))  # 3, by equal shares of 2
    server.push((0, full(1, 1e-6)))
    assert server.push((1, full(-4))).tolist() == pytest.approx(full(-40))
    server = Server(Rate("directions"), layers=FLAT)
    for worker in (0, 1):
        server.push((worker, torch.full((SIZE,), 1e17)))
    for turn in range(2 * REFRESH):
        server.push((turn % 2, full(3) if turn % 2 else full(0, 4)))
    server.store.weights.zero_()
    assert server.push((1, full(3))).tolist() == pytest.approx(full(12.5**0.5), rel=1e-12)
    assert [cuts(part, layers) for part, layers in ((RANGES[0], LAYERS), (RANGES[1], LAYERS),
                                                    (RANGES[1], (slice(0, 2), slice(2, SIZE))))] == [
        [slice(0, 2), slice(2, 4)], [slice(0, 1), slice(1, 2)], [slice(0, 2)]]  # fmt: skip
    assert rate_state.at_server(object(), WHOLE, LAYERS, torch.float64) == []
    assert rate_state.at_server(Rate("own squares"), WHOLE, LAYERS, torch.float64) == []
    assert rate_state.at_worker(Rate("squares"), lambda: torch.zeros(1)) is None
