"""Optimizers by name: their options are read, and those that are not elementwise are refused."""

from __future__ import annotations

import pytest
import torch

from pslab.errors import ConfigError
from pslab.tensors.update.optimizers import ELEMENTWISE, resolve_optimizer


def test_options_are_read_by_name():
    spec = resolve_optimizer("adam:betas=(0.8;0.99),amsgrad=True")
    assert spec.cls is torch.optim.Adam
    assert spec.options == {"betas": (0.8, 0.99), "amsgrad": True}
    assert resolve_optimizer(torch.optim.RMSprop).cls is torch.optim.RMSprop  # a class in place of its name


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_steps_of_slices_equal_steps_of_the_whole_tensor(name):
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


@pytest.mark.parametrize(
    ("value", "words"),
    [("lbfgs", "loss as a function"), ("muon", "whole matrices"), ("sgd:lr=1", "learning_rate"), ("sdg", "'sgd'"),
     ("sgd:momentun=1", "'momentum'"), ("sgd:momentum=x", "not a number"), ("sgd:momentum=-1", "refuses"),
     ("sgd:0.9", "by name"), (torch.optim.LBFGS, "must be a name")],
)  # fmt: skip
def test_unusable_optimizers_are_refused(value, words):
    with pytest.raises(ConfigError, match=words):
        resolve_optimizer(value)
