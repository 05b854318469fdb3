"""Answers to pulls as differences: a worker holds what the server knows that it holds, and what is lost waits."""

from __future__ import annotations

import functools
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import check_refused
from torch import nn

from pslab.protocol.messages import NO_WORKER, Pull
from pslab.protocol.rotation import Rotation
from pslab.protocol.server import Reply
from pslab.tensors.compression import compression, frame
from pslab.tensors.compression.downlink import DownlinkRules, HeldWeights, downlink_rules
from pslab.tensors.compression.sparse import Static
from pslab.tensors.compression.uncompressed import Plain
from pslab.tensors.entries import Entries
from pslab.tensors.update.part import Part
from pslab.tensors.workload.keyspace import Keyspace

RULES = ("int8", "static:20%", "static:20%+fp16", "std:1", "efsign", "qsgd:4,residual=on", "adaq:30%+onebit",
         "natural:residual=on")  # fmt: skip


class Side:
    """A server's view of some workers, and the workers."""

    def __init__(self, text: str | DownlinkRules, keyspace: Keyspace, workers: int, *, shared: bool = False,
                 cuts: tuple[int, ...] = (), fragments: int = 1) -> None:  # fmt: skip
        rules = downlink_rules(text) if isinstance(text, str) else text
        assert rules is not None
        self.parts = tuple(Part((slice(*each),)) for each in pairwise([0, *cuts, keyspace.size]))
        made = compression(rules.prune, rules.quantize, self.parts, keyspace)
        assert made is not None
        made.forget()
        self.rules = made
        self.weights = torch.zeros(keyspace.size, dtype=keyspace.dtype)
        self.server = HeldWeights(made, self.parts, self.weights, 0 if shared else workers, Rotation(fragments))
        self.workers = [self.weights.clone() for _ in range(workers)]
        self.place = memoryview(bytearray(max(made.largest(index) for index in range(len(self.parts)))))

    def pull(self, worker: int, iteration: int, before: int, version: int, index: int = 0) -> int:
        """A worker that holds a version asks for another: the size of the frame, or 0 if it gets all."""
        reply = Reply(Pull(worker, index, iteration, before), version, NO_WORKER)
        size = self.server.lay(reply, self.weights, self.place)
        own, part = self.workers[worker], self.parts[index]
        if size:
            part.add(own, self.read(index, self.place[:size], iteration), 1.0)
        else:
            for there, here in zip(part.views(own), part.views(self.server.of(worker)), strict=True):
                there.copy_(here)
        return size

    def read(self, index: int, sent: memoryview, iteration: int) -> Entries:
        return self.rules.read(index, frame.read(sent), torch.empty(0), step=iteration)


def keyspace(dtype: torch.dtype = torch.float32) -> Keyspace:
    return Keyspace.of(nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3)).to(dtype))


def test_the_largest_difference_is_sent_as_in_the_specification():
    """By hand: of w = (1, .2), (1.5, .9), (1.5, .9) the worker is sent (1, 0), (0, .9), (.5, 0)."""
    side = Side(DownlinkRules(Static(0.5), Plain()), Keyspace.of(nn.Linear(2, 1, bias=False).double()), 1)
    held = []
    for version, weights in enumerate(((1, 0.2), (1.5, 0.9), (1.5, 0.9)), 1):
        side.weights.copy_(torch.tensor(weights, dtype=torch.float64))
        assert side.pull(0, version, version - 1, version)
        held.append(side.workers[0].tolist())
    assert held == [[1, 0], [1, 0.9], [1.5, 0.9]]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("text", RULES)
def test_a_worker_holds_to_the_bit_what_the_server_knows(text: str, shared: bool):
    side, rng = Side(text, keyspace(), 3, shared=shared, cuts=(37,)), np.random.default_rng(0)
    for version in range(1, 9):
        side.weights.add_(torch.from_numpy(rng.standard_normal(len(side.weights)).astype(np.float32)))
        for worker in range(3):
            for index in range(2):
                assert 0 < side.pull(worker, version, version - 1, version, index) <= side.rules.largest(index)
            assert torch.equal(side.workers[worker], side.server.of(worker))


@pytest.mark.parametrize("text", RULES)
def test_what_is_lost_waits_until_all_of_it_has_come(text: str):
    side = Side(text, keyspace(torch.float64), 1)
    side.weights.copy_(torch.from_numpy(np.random.default_rng(1).standard_normal(len(side.weights))))
    exact, version = side.weights.clone(), 0
    for version in range(1, 200):
        side.pull(0, version, version - 1, version)
    assert torch.equal(side.weights, exact)  # the server's own are never rounded
    assert (side.workers[0] - exact).abs().max() < 1e-4


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["pull", "lost", "left", "step", "step"])), max_size=40),
       st.booleans())  # fmt: skip
def test_whoever_leaves_comes_back_or_loses_an_answer_never_holds_something_else(
    events: list[tuple[int, str]], shared: bool
):
    side, version, rng = Side("static:20%+int8", keyspace(), 3, shared=shared), 0, np.random.default_rng(0)
    has, asked = [0, 0, 0], [1, 1, 1]  # the versions that they hold, and the iterations whose weights they ask for
    for worker, event in events:
        if event == "step":
            side.weights.add_(torch.from_numpy(rng.standard_normal(len(side.weights)).astype(np.float32)))
            version += 1
        elif event == "left":  # its memory is as it was when the run started, or torn
            side.server.leave(worker)
            side.workers[worker].fill_(float("nan"))
            has[worker] = 0
        elif event == "lost":
            before = side.workers[worker].clone()
            side.pull(worker, asked[worker], has[worker], version)
            side.workers[worker].copy_(before)
        else:
            side.pull(worker, asked[worker], has[worker], version)
            assert torch.equal(side.workers[worker], side.server.of(worker))
            has[worker], asked[worker] = version, asked[worker] + 1


@pytest.mark.parametrize("shared", [False, True])
def test_of_fragments_in_turn_the_last_answer_lies_a_rotation_back(shared: bool):
    side = Side("int8", keyspace(), 2, shared=shared, cuts=(35,), fragments=2)
    for iteration in range(1, 9):
        side.weights += torch.linspace(-1, 1, len(side.weights))
        index, turn = (iteration - 1) % 2, (iteration + 1) // 2
        for worker in range(2):
            assert side.pull(worker, iteration, turn - 1, turn, index) > 0
            held = side.parts[index].views(side.workers[worker])[0]
            assert torch.equal(held, side.parts[index].views(side.server.of(worker))[0])


def test_weights_that_are_not_finite_are_sent_whole_and_an_empty_answer_moves_nothing():
    side = Side("int8", keyspace(), 2)
    side.weights.fill_(1.0)
    reply = Reply(Pull(0, 0, 1, 0), 1, NO_WORKER, empty=True)
    assert side.server.lay(reply, side.weights, side.place) == 0
    assert not side.workers[0].any()
    assert side.pull(0, 2, 1, 2) > 0  # the next difference is to what was held
    assert torch.equal(side.workers[0], side.server.of(0))
    assert side.workers[0].min() > 0.9
    side.weights.fill_(float("inf"))
    assert side.pull(1, 1, 0, 1) == 0
    assert torch.equal(side.workers[1], side.weights)


def test_rules_that_cannot_make_differences_are_refused():
    lacks = ("sign", "signum", "dgc:1%", "lowrank:2", "ef21:1%", "range:5", "static:1%,warm_up=2",
             "dynamic:3,mode=literal")  # fmt: skip
    check_refused(("downlink", functools.partial(downlink_rules, text), words) for text, words in (
        ("int88", "did you mean 'int8'"), ("static:1%+std:2", "two rules of one kind"),
        ("int8+fp16", "two rules of one kind"), *((text, "which replies lack") for text in lacks),
        ("qsgd:4", "use residual=on"), ("terngrad", "use residual=on"), ("static", "static:1%"),
        ("", "unknown name")))  # fmt: skip
