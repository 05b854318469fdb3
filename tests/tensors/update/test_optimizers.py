"""Optimizers by name: elementwise ones only."""

from __future__ import annotations

import pytest
import torch

from pslab.errors import ConfigError
from pslab.tensors.update.optimizers import ELEMENTWISE, resolve_optimizer


def test_options_are_read():
    spec = resolve_optimizer("adam:betas=(0.8;0.99),amsgrad=True")
    assert spec.cls is torch.optim.Adam
    assert spec.options == {"betas": (0.8, 0.99), "amsgrad": True}


def test_plain_sgd_is_known():
    assert resolve_optimizer("sgd").plain_sgd
    assert resolve_optimizer("sgd:momentum=0").plain_sgd
    assert not resolve_optimizer("sgd:momentum=0.9").plain_sgd
    assert not resolve_optimizer("adam").plain_sgd


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_every_listed_optimizer_is_elementwise(name):
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
    assert torch.equal(whole, parts)


def test_a_class_may_stand_for_its_name():
    assert resolve_optimizer(torch.optim.RMSprop).cls is torch.optim.RMSprop


@pytest.mark.parametrize(
    ("value", "words"),
    [("lbfgs", "loss as a function"), ("muon", "whole matrices"), ("sgd:lr=1", "learning_rate"), ("sdg", "'sgd'"),
     ("sgd:momentun=1", "'momentum'"), ("sgd:momentum=x", "not a number"), ("sgd:momentum=-1", "refuses"),
     ("sgd:0.9", "by name"), (torch.optim.LBFGS, "must be a name")],
)  # fmt: skip
def test_refused(value, words):
    with pytest.raises(ConfigError, match=words):
        resolve_optimizer(value)
