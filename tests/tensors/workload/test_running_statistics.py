"""Running statistics: of which norms they are recomputed, and to what."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from tiny import global_states
from torch import Tensor, nn

from pslab.tensors.random_streams import generator
from pslab.tensors.workload.models import running_norms
from pslab.tensors.workload.running_statistics import recompute

BATCHES = [3 + 2 * torch.randn(16, 4, 6, generator=generator(0, "x", i)) for i in range(8)]
SAMPLE = BATCHES[0][:2]


class Frozen(nn.Sequential):
    """A module that keeps its BatchNorm in evaluation mode, as one does with weights that were trained before."""

    def train(self, mode: bool = True) -> Frozen:
        super().train(mode)
        self[0].eval()
        return self


class Fixed(nn.BatchNorm1d):
    """Uses its first statistics in training, too."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.batch_norm(x, self.running_mean, self.running_var)


class Adversarial(nn.Sequential):
    """Differentiates in each pass of training."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            (gradient,) = torch.autograd.grad(super().forward(x := x.clone().requires_grad_()).sum(), x)
            x = x.detach() + 0.1 * gradient.sign()
        return super().forward(x)


def renewed(module: nn.Module) -> nn.Module:
    recompute(module, running_norms(module, SAMPLE), lambda: iter(BATCHES))
    assert not any(each.training for each in module.modules())
    return module


def test_instance_norm_gets_the_plain_mean_over_the_batches():
    module = renewed(nn.InstanceNorm1d(4, track_running_stats=True))
    torch.testing.assert_close(module.running_mean, torch.stack([x.mean((0, 2)) for x in BATCHES]).mean(0))
    torch.testing.assert_close(module.running_var, torch.stack([x.var(2).mean(0) for x in BATCHES]).mean(0))


def test_norms_that_training_leaves_as_they_are_stay_as_they_are():
    assert running_norms(Adversarial(nn.BatchNorm1d(4), nn.Linear(6, 2)), SAMPLE) == ("0",)
    for model, norm in ((Frozen, nn.BatchNorm1d(4)), (nn.Sequential, nn.BatchNorm1d(4, momentum=0.0)),
                        (nn.Sequential, Fixed(4))):  # fmt: skip
        module = model(norm, nn.BatchNorm1d(4))
        module[0].running_mean += 7
        assert running_norms(module, SAMPLE) == ("1",)
        assert (renewed(module)[0].running_mean == 7).all()


def test_a_model_without_statistics_is_not_passed_through():
    def batches() -> Iterator[Tensor]:
        raise AssertionError("passed through")

    for module in (nn.LayerNorm(6), nn.InstanceNorm1d(4), nn.BatchNorm1d(4, track_running_stats=False)):
        assert running_norms(module, SAMPLE) == ()
        recompute(module, (), batches)


def test_trying_changes_nothing():
    module = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5), nn.BatchNorm1d(4, momentum=0.3))
    before, states = copy.deepcopy(module), global_states()
    running_norms(module, SAMPLE)
    assert all(map(torch.equal, module.buffers(), before.buffers()))
    assert [each.training for each in module.modules()] == [each.training for each in before.modules()]
    assert global_states() == states
