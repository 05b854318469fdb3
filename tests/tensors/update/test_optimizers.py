"""Optimizers by name, elementwise, and delayed Nesterov against torch's and its closed form."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import check_refused
from scalar import scalar, traced
from tiny import tiny

from pslab.lab.runs.resolve import resolve
from pslab.tensors.update.delayed_nesterov import DelayedNesterov
from pslab.tensors.update.optimizers import ELEMENTWISE, resolve_optimizer

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


def test_weights_after_each_push():
    for activation, expected in ((0.0, [-0.25, -1.9, -2.4, -4.61]), (0.25, [-0.25, -1.675, -2.4, -4.1825])):
        found = weights_after_each(DelayedNesterov, [1, 3, 2, 2], momentum=0.9, period=2, activation=activation)
        assert found == pytest.approx(expected, abs=1e-12)


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


def test_a_period_that_is_not_given_is_the_number_of_workers_that_push_alone_and_divides_a_push_once(monkeypatch):
    for sync, optimizer, period in (("asp", "dn", 3), ("asp", "dn:period=2", 2), ("backup:1", "dn", 1)):
        assert resolve(tiny(workers=3, sync=sync, optimizer=optimizer)).optimizer.options["period"] == period
    optimizer = {"optimizer": "dn:momentum=0,period=2"}
    found = [traced(monkeypatch, scalar("asp", 0.0, 4.0, pushes=4, **more))[0][-1][-1]
             for more in ({}, optimizer, {**optimizer, "push_weight": 1.0})]  # fmt: skip
    assert found == pytest.approx([found[0]] * 3)
