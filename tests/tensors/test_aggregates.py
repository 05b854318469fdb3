"""What a server makes of the pushes of a step, where that is not their mean."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pslab.config.spec import build
from pslab.protocol.messages import Pull, Push
from pslab.protocol.server import Step
from pslab.tensors.aggregates import Estimates, Vote, at_server, named
from pslab.tensors.codec import Entries, prepare
from pslab.tensors.matrices.frames import MatrixFrames, frames_of
from pslab.tensors.pruning.pruner import Pruner
from pslab.tensors.update.store import Part
from pslab.tensors.update.vectors import inside, mean
from pslab.tensors.workload.keyspace import Keyspace

WHOLE = Part((slice(0, 3),))
NONE, BSP, SHELL = build("quantize", "none"), build("sync", "bsp"), nn.Identity()


def step(workers: int, turn: int = 0, aggregate: bool = True) -> Step:
    return Step(0, tuple(Push(worker, 0, turn, turn) for worker in range(workers)), aggregate, turn + 1)


def values(gradients: list[Entries]) -> list[float]:
    (found,) = gradients
    return found.values.tolist()


def test_the_majority_of_signs_decides():
    pushes = [torch.tensor(signs) for signs in ((1.0, -1.0, 1.0), (1.0, -1.0, -1.0), (-1.0, 1.0, 1.0))]
    assert values(Vote(WHOLE).adjust(step(3), pushes)) == [1, -1, 1]
    assert values(Vote(WHOLE).adjust(step(2), pushes[1:])) == [1, 1, 1]  # ties
    assert Vote(WHOLE).adjust(step(1, aggregate=False), pushes[:1]) == pushes[:1]


@given(st.lists(st.lists(st.sampled_from([-1.0, 1.0]), min_size=3, max_size=3), min_size=1, max_size=9))
def test_a_vote_is_a_sign_that_no_order_of_workers_changes(signs: list[list[float]]):
    found = values(Vote(WHOLE).adjust(step(len(signs)), [torch.tensor(each) for each in signs]))
    assert found == values(Vote(WHOLE).adjust(step(len(signs)), [torch.tensor(each) for each in signs[::-1]]))
    assert all(vote == (1 if sum(column) >= 0 else -1) for vote, column in zip(found, np.transpose(signs), strict=True))


def test_estimates_of_a_gradient_as_in_the_specification():
    """By hand: of (1, .2), (1, .2), (.5, .2) the worker sends (1, 0), (0, .2), (-.5, 0)."""
    pruner = Pruner(build("prune", "ef21:50%"), [slice(0, 2)], 2, torch.float64)
    server, sent = Estimates(Part((slice(0, 2),)), torch.float64), []
    for number, gradient in enumerate(([1.0, 0.2], [1.0, 0.2], [0.5, 0.2])):
        indices, own = pruner.prune(torch.tensor(gradient, dtype=torch.float64), number)
        sent.append(torch.zeros(2, dtype=torch.float64).index_copy_(0, indices, own).tolist())
        (found,) = server.adjust(step(1), [Entries(2, indices.numpy(), own.numpy())])
        np.testing.assert_allclose(found.values, -pruner.residual, atol=0)
    np.testing.assert_allclose(sent, [[1, 0], [0, 0.2], [-0.5, 0]], atol=1e-15)
    np.testing.assert_allclose(found.values, [0.5, 0.2], atol=1e-15)


@given(st.integers(1, 4), st.integers(0, 99))
def test_the_servers_estimate_is_the_mean_of_the_workers(workers: int, seed: int):
    rng, size = np.random.default_rng(seed), 20
    pruners = [Pruner(build("prune", "ef21:20%"), [slice(0, 8), slice(8, size)], size, torch.float64)
               for _ in range(workers)]  # fmt: skip
    server = Estimates(Part((slice(0, size),)), torch.float64)
    for turn in range(6):
        pushes = []
        for pruner in pruners:
            indices, own = pruner.prune(torch.from_numpy(rng.standard_normal(size)), turn)
            assert len(indices) == 2 + 3
            pushes.append(Entries(size, indices.numpy(), own.numpy()))
        (found,) = server.adjust(step(workers, turn), pushes)
    mean = sum(-pruner.residual for pruner in pruners) / workers
    np.testing.assert_allclose(found.values, mean.numpy(), atol=1e-12)


def test_signs_of_coefficients_as_in_the_specification():
    """A worker sends {0: .5}, another one {1: -1}."""
    keyspace = Keyspace.of(nn.Linear(1, 4, bias=False))
    rule, parts = build("prune", "demo:topk=1,chunk=4,decay=0.5"), [Part((slice(0, 4),))]
    pushes = [Entries(4, np.array([0]), np.float32([0.5])), Entries(4, np.array([1]), np.float32([-1]))]
    for by, wanted in (("senders", [-1, -1, 1, 1]), ("all", [-1, -1, 1, 1])):
        rule = build("prune", f"demo:topk=1,chunk=4,by={by}")
        made = frames_of(build("quantize", "none"), rule, parts, keyspace)
        (own,) = at_server(rule, NONE, BSP, parts, keyspace, SHELL, made, 0)
        assert values(own.adjust(step(2), pushes)) == wanted
    pushes[1] = Entries(4, np.array([0, 1]), np.float32([0.1, -0.6]))
    both = [made.decoded(Entries(4, np.arange(4), np.float32([0.3, -c, 0, 0])), 0, 0).values for c in (0.3, 0.6)]
    assert np.sign(both[0]).tolist() != np.sign(both[1]).tolist()  # whose mean it is matters for this one
    for by, wanted in (("all", both[0]), ("senders", both[1])):
        rule = build("prune", f"demo:topk=1,chunk=4,by={by}")
        (own,) = at_server(rule, NONE, BSP, parts, keyspace, SHELL, made, 0)
        assert values(own.adjust(step(2), pushes)) == np.sign(wanted).tolist()


@pytest.mark.parametrize("workers", [1, 3])
def test_an_averaged_factor_is_that_of_all_workers_and_comes_back_with_the_weights(workers: int):
    """Against the algorithm itself, in float64: residual, power iteration, mean, by turns."""
    prepare()
    keyspace = Keyspace.of(nn.Linear(12, 20, bias=False).double())
    rule, quantize, parts = build("prune", "powersgd:2"), build("quantize", "none"), [Part((slice(0, 240),))]
    made = frames_of(quantize, rule, parts, keyspace)
    assert isinstance(made, MatrixFrames)
    (server,) = at_server(rule, quantize, BSP, parts, keyspace, SHELL, made, 0)
    kept, buffer = [np.zeros(made.kept) for _ in range(workers)], memoryview(bytearray(made.largest(0)))
    residuals, factor, applied, total = np.zeros((workers, 240)), None, np.zeros(240), np.zeros(240)
    rng = np.random.default_rng(0)
    for turn in range(5):
        gradients, pushes, matrices = rng.standard_normal((workers, 240)), [], []
        for worker in range(workers):
            v = residuals[worker] + gradients[worker]
            size = made.write(buffer, 0, Entries(240, None, v), worker, turn, kept[worker])
            frame = memoryview(bytearray(buffer[:size]))
            pushes.append(made.read(frame, 0, turn))
            residuals[worker] = v - made.sent(frame, 0, turn, kept=kept[worker]).values
            matrices.append(v.reshape(20, 12))
        (found,) = server.adjust(step(workers, turn), pushes)
        if factor is not None:
            q = np.linalg.qr(factor)[0]
            mean = np.mean(matrices, axis=0)
            wanted, factor = (mean @ q @ q.T, mean @ q) if turn % 2 else (q @ q.T @ mean, mean.T @ q)
            np.testing.assert_allclose(found.values, wanted.ravel(), atol=1e-12)
        else:
            factor = np.mean([each.values for each in pushes], axis=0).reshape(12, 2)
        for own in kept:
            own[: made.stated(0, turn + 1)[0]] = server.stated(turn + 1)
        # the sum of what was applied and of the mean residual is the sum of the mean gradients
        applied, total = applied + found.values, total + gradients.mean(0)
        np.testing.assert_allclose(applied + residuals.mean(0), total, atol=1e-12)


class Rows(nn.Module):
    """Two weights of an embedding, and two of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(2, 1), nn.Linear(2, 1, bias=False)


@pytest.mark.parametrize(("average", "layer"), [("mean", [2.25, 1]), ("rda", [3.08322072, 1.02774024])])
def test_changes_count_by_the_steps_since_their_worker_was_sent_the_range(average, layer):
    """Three exchanges of 4 steps, and one; those of an embedding have no one direction."""
    sync, dense = build("sync", f"decoupled:4,overlap=0,average={average}"), build("prune", "none")
    keyspace, parts = Keyspace.of(Rows()), [Part((slice(0, 4),))]
    (own,) = at_server(dense, NONE, sync, parts, keyspace, Rows(), frames_of(NONE, dense, parts, keyspace), 0)
    own.answered(Pull(0, 0, 3, 0))
    own.answered(Pull(1, 0, 5, 0))
    pushes = [torch.tensor([3.0, 0, 3, 0]), torch.tensor([0.0, 4, 0, 4])]
    found = mean([inside(parts[0], each) for each in own.adjust(step(2, 5), pushes)])
    np.testing.assert_allclose(found, [2.25, 1, *layer], rtol=1e-6)
    assert own.adjust(step(1, 5), pushes[:1]) == pushes[:1]


def test_rules_name_what_the_server_makes_of_their_pushes():
    texts = "none", "static:1%", "lowrank:2", "powersgd:2", "demo", "ef21:1%", "sketch:cols=9"
    found = {text: named(build("prune", text), NONE, BSP) for text in texts}
    assert found == {"none": "", "static:1%": "", "lowrank:2": "", "powersgd:2": "factors", "demo": "coefficients",
                     "ef21:1%": "estimates", "sketch:cols=9": "sketches"}  # fmt: skip
    assert {text: named(build("prune", "none"), build("quantize", text), BSP)
            for text in ("sign", "signum", "efsign")} == {"sign": "vote", "signum": "vote", "efsign": ""}  # fmt: skip
    assert named(build("prune", "none"), NONE, build("sync", "decoupled:4")) == "changes"
