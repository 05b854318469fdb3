"""Consensus ADMM: its vectors on both halves, with keys that only some workers have."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from pslab.policies.methods.admm import ADMM
from pslab.protocol.messages import Push
from pslab.protocol.server import Step
from pslab.tensors.entries import Entries
from pslab.tensors.update.consensus import Consensus, Solving
from pslab.tensors.update.part import Part
from pslab.tensors.update.steps import Iteration

EXACT = {"steps": 60, "balance": False}  # steps at rate 1/2 on a quadratic: exact to the last digits


class Round:
    """Workers with the losses |x - a|^2 / 2 on some keys each, and a server, without an engine."""

    def __init__(self, policy: ADMM, keys: int, *targets: dict[int, float]) -> None:
        self.policy, self.targets, self.rounds = policy, targets, 0
        self.z, rho = torch.zeros(keys, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
        self.xs, self.us = ([torch.zeros(len(own), dtype=torch.float64) for own in targets] for _ in range(2))
        self.stated = [torch.zeros(4, dtype=torch.float64) for _ in targets]
        self.server = Consensus(policy, Part((slice(0, keys),)), self.z, self.stated, rho)
        self.workers = [Solving(*own, rho) for own in zip(self.xs, self.us, self.stated, strict=True)]

    def __call__(self) -> None:
        """One round."""
        pushes = [self._push(worker) for worker in range(len(self.targets))]
        self.rounds += 1
        step = Step(0, tuple(Push(w, 0, self.rounds - 1, 0) for w in range(len(pushes))), True, self.rounds)
        (change,) = self.server.adjust(step, pushes)
        where = slice(None) if change.indices is None else torch.from_numpy(change.indices)
        self.z[where] -= torch.from_numpy(change.values)
        self.server.state_rho()

    def _push(self, worker: int) -> Entries:
        keys = np.array(sorted(self.targets[worker]))
        a = torch.tensor([self.targets[worker][key] for key in keys], dtype=torch.float64)
        weights, gradient = self.z[torch.from_numpy(keys)].clone(), torch.empty(len(keys), dtype=torch.float64)

        def at(batch: int) -> float:
            gradient.copy_(weights - a)
            return float((gradient**2).sum() / 2)

        course = Iteration(range(self.policy.steps), [0.5] * self.policy.steps, at, weights, gradient, True, True)
        self.workers[worker].run(course)
        self.workers[worker].commit(course)
        dense = len(keys) == len(self.z)
        return Entries(len(self.z), None if dense else keys, gradient.numpy())


def test_a_key_that_one_worker_has_is_its_own():
    for l2, shared, single in ((0.0, [1, 1.5, 1.75], [1, 1.5, 1.75]), (1.0, [2 / 3, 1], [0.5, 0.75])):
        rounds = Round(ADMM(l2=l2, **EXACT), 2, {0: 0.0, 1: 2.0}, {0: 4.0})
        for each in zip(shared, single, strict=True):
            rounds()
            assert rounds.z.tolist() == pytest.approx(each, abs=1e-12)


def test_the_residuals_of_a_round_are_known_in_the_next():
    rounds = Round(ADMM(**EXACT), 2, {0: 0.0, 1: 2.0}, {0: 4.0})
    for _ in range(3):
        rounds()
    found = rounds.server.facts()["residuals"]
    assert [row[:2] for row in found] == [[1, 1.0], [2, 1.0]]
    assert [row[2] for row in found] == pytest.approx([math.sqrt(2), math.sqrt(2) / 2])
    assert [row[3] for row in found] == pytest.approx([math.sqrt(3), math.sqrt(3) / 2])
    # |x|^2 of the first round is that of 0, 1 and 2; |z|^2, as often as workers have it, of 1, 1, 1; |u|^2 of -1, 0, 1
    assert found[0][4:] == pytest.approx([math.sqrt(2 / 5), math.sqrt(3 / 2)])


@pytest.mark.parametrize(("rho", "better"), [(1e-3, 2.0), (1e3, 0.5)])
def test_a_bad_rho_is_balanced_and_small_residuals_end_it(rho, better):
    """It changes by a factor of two where one relative residual is ten times the other; what u stands for stays."""
    balanced, fixed = (Round(ADMM(60, rho, balance=balance, stop=0.01), 1, {0: 0.0}, {0: 4.0})
                       for balance in (True, False))  # fmt: skip
    for _ in range(30):
        balanced()
        fixed()
    found = balanced.server.residuals
    changes = [after[1] / before[1] for before, after in itertools.pairwise(found)]
    assert {*changes} == {1.0, better}
    assert all(1.0 in pair for pair in itertools.pairwise(changes))  # a change shows in the next round, and not before
    assert abs(float(balanced.z) - 2) < abs(float(fixed.z) - 2) or abs(float(balanced.z) - 2) < 1e-6
    assert [row[1] for row in fixed.server.residuals] == [rho] * 29
    assert balanced.server.converged is (max(found[-1][4:]) <= 0.01)


def test_an_iteration_that_is_computed_again_is_the_same():
    rounds = Round(ADMM(**EXACT), 1, {0: 0.0}, {0: 4.0})
    rounds()
    before = [tensor.clone() for tensor in (*rounds.xs, *rounds.us, *rounds.stated)]
    solving, weights, gradient = rounds.workers[1], rounds.z.clone(), torch.empty(1, dtype=torch.float64)

    def at(batch: int) -> float:
        gradient.copy_(weights - 4)
        return 0.0

    pushed = []
    for _ in range(2):
        solving.run(Iteration(range(60), [0.5] * 60, at, weights, gradient, True, True))
        pushed.append(gradient.clone())
        assert torch.equal(weights, rounds.z)
    assert torch.equal(*pushed)
    assert all(map(torch.equal, before, (*rounds.xs, *rounds.us, *rounds.stated)))
