"""Steps of workers and servers: optimizers by name, delayed Nesterov, local steps, means, and consensus ADMM."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import check_refused
from scalar import scalar, traced
from tiny import tiny

from pslab.lab.runs.resolve import resolve
from pslab.policies.methods.admm import ADMM
from pslab.policies.methods.local_sgd import LocalSGD
from pslab.policies.sync.asp import ASP
from pslab.protocol.messages import Push
from pslab.protocol.server import Step
from pslab.tensors.entries import Entries
from pslab.tensors.update.changes import over_users
from pslab.tensors.update.consensus import Consensus, Solving
from pslab.tensors.update.delayed_nesterov import DelayedNesterov
from pslab.tensors.update.optimizers import ELEMENTWISE, resolve_optimizer
from pslab.tensors.update.part import Part
from pslab.tensors.update.steps import Iteration, LocalSteps
from pslab.tensors.update.vectors import mean_over_users, radial_directional

REFUSED = [
    ("lbfgs", "loss as a function"), ("muon", "whole matrices"), ("sgd:lr=1", "learning_rate"), ("sdg", "'sgd'"),
    ("sgd:momentun=1", "'momentum'"), ("sgd:momentum=x", "must be a number"), ("sgd:momentum=-1", "refuses"),
    ("sgd:0.9", "by name"), (torch.optim.LBFGS, "must be a name"),
    ("dn:momentum=1", "momentum=1 must be at least 0 and below 1"), ("dn:period=0", "whole number of at least 1"),
    ("dn:period=1.5", "whole number"), ("dn:period=2,activation=0.6", "from 0 to 1 / period"),
    ("dn:perod=2", "did you mean 'period'"), ("dm", "dn"),
]  # fmt: skip


def test_options_are_read_by_name_and_others_are_refused():
    spec = resolve_optimizer("adam:betas=(0.8;0.99),amsgrad=True")
    assert (spec.cls, spec.options) == (torch.optim.Adam, {"betas": (0.8, 0.99), "amsgrad": True})
    assert resolve_optimizer(torch.optim.RMSprop).cls is torch.optim.RMSprop  # a class in place of its name
    check_refused(("optimizer", functools.partial(resolve_optimizer, value), words) for value, words in REFUSED)


def test_steps_of_slices_equal_steps_of_the_whole_tensor():
    for name in ELEMENTWISE:
        spec = resolve_optimizer(name)
        whole, parts = torch.linspace(-1, 1, 12).double(), torch.linspace(-1, 1, 12).double()
        one, two = spec.make([whole], 0.1), spec.make([parts[:5], parts[5:]], 0.1)
        for step in range(4):
            gradient = torch.sin(torch.arange(12.0).double() * (step + 1))
            whole.grad = gradient
            for group in two.param_groups:
                for piece, part in zip(group["params"], (gradient[:5], gradient[5:]), strict=True):
                    piece.grad = part
            one.step()
            two.step()
        assert torch.equal(whole, parts), name


def weights_after_each(optimizer: type[torch.optim.Optimizer], pushed: list[float], **options: object) -> list[float]:
    """The weight, 0 at first, after each of some gradients."""
    weight, weights = torch.zeros(1, dtype=torch.float64), []
    made = optimizer([weight], lr=0.5, **options)  # type: ignore[arg-type]
    for each in pushed:
        weight.grad = torch.tensor([each], dtype=torch.float64)
        made.step()
        weights.append(float(weight))
    return weights


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-10, 10), min_size=1, max_size=12), st.floats(0, 0.99), st.integers(1, 5))
def test_a_whole_period_moves_the_weights_by_its_mean_and_the_momentum_as_torchs_does(pushed, momentum, period):
    found, m = [0.0, *weights_after_each(DelayedNesterov, pushed, momentum=momentum, period=period)], 0.0
    for begin in range(0, len(pushed) - period + 1, period):
        mean = sum(pushed[begin : begin + period]) / period
        m = momentum * m + mean
        assert found[begin + period] - found[begin] == pytest.approx(-0.5 * (mean + momentum * m), abs=1e-12)
    if momentum:
        found = weights_after_each(DelayedNesterov, pushed, momentum=momentum, period=1)
        wanted = weights_after_each(torch.optim.SGD, pushed, momentum=momentum, nesterov=True)
        assert found == pytest.approx(wanted, rel=1e-12, abs=1e-12)


def test_weights_after_each_push_and_a_period_that_is_the_number_of_workers_and_divides_a_push_once():
    for activation, expected in ((0.0, [-0.25, -1.9, -2.4, -4.61]), (0.25, [-0.25, -1.675, -2.4, -4.1825])):
        found = weights_after_each(DelayedNesterov, [1, 3, 2, 2], momentum=0.9, period=2, activation=activation)
        assert found == pytest.approx(expected, abs=1e-12)
    for sync, optimizer, period in (("asp", "dn", 3), ("asp", "dn:period=2", 2), ("backup:1", "dn", 1)):
        assert resolve(tiny(workers=3, sync=sync, optimizer=optimizer)).optimizer.options["period"] == period
    optimizer = {"optimizer": "dn:momentum=0,period=2"}
    found = [traced(scalar("asp", 0.0, 4.0, pushes=4, **more))[0][-1]
             for more in ({}, optimizer, {**optimizer, "push_weight": 1.0})]  # fmt: skip
    assert found == pytest.approx([found[0]] * 3)


def test_nothing_is_kept_before_it_is_committed():
    seen, weights, gradient = list[float](), torch.zeros(1), torch.empty(1)

    def at(batch: int) -> float:
        seen.append(float(weights))
        gradient.fill_(1.0)
        return float(batch)

    steps = LocalSteps(1.0, torch.zeros(1), torch.zeros(1), False)
    made = Iteration(range(2), (0.5, 0.5), at, weights, gradient, True, False)
    for _ in range(2):  # the gradient was not finite, say: the iteration is computed again
        assert steps.run(made) == 0.5
        assert weights == 0
    assert seen == [0, -0.5, 0, -0.5]
    steps.commit(made)
    steps.run(made._replace(fetched=False, pushed=True))
    assert (gradient, seen[-2:]) == (4, [-1, -1.5])


ONE, OTHER = Entries(3, np.array([0, 1]), np.array([1.0, 2.0])), Entries(3, np.array([0]), np.array([3.0]))


def test_a_mean_is_over_the_vectors_that_hold_an_entry_where_the_policy_averages():
    for vectors, mean, users in (
        ([ONE, OTHER], [2, 2], [2, 1]), ([torch.tensor([1.0, 2.0]), torch.tensor([3.0, 0.0])], [2, 1], [2, 2]),
        ([torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64), OTHER], [2, 2, 3], [2, 1, 1]),
    ):  # fmt: skip
        found, counts = mean_over_users(vectors)
        assert (found.tolist() if isinstance(found, torch.Tensor) else found.values.tolist()) == mean
        assert counts.tolist() == users
    (found,) = over_users(LocalSGD(2), Part((slice(0, 3),)), [ONE, OTHER])
    assert (found.indices.tolist(), found.values.tolist()) == ([0, 1], [2, 2])
    assert over_users(ASP(), Part((slice(0, 3),)), [ONE, OTHER]) == [ONE, OTHER]


def test_a_radial_directional_mean_by_hand():
    for vectors, weights, wanted in (
        (((3.0, 0.0), (0.0, 4.0)), (3.0, 1.0), (3.08322072, 1.02774024)),
        (((2.0, 0.0), (-2.0, 0.0)), (1.0, 1.0), (0, 0)), (((3.0, 0.0), (-1.0, 0.0)), (1.0, 1.0), (1, 0)),  # the mean
        (((0.0, 0.0), (0.0, 0.0)), (1.0, 1.0), (0, 0)),
    ):  # fmt: skip
        found = radial_directional([torch.tensor(vector) for vector in vectors], weights).tolist()
        np.testing.assert_allclose(found, wanted, atol=1e-7)


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
