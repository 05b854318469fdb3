"""Running statistics: of which norms they are recomputed, to what, and which other buffers are refused."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from tiny import global_states, net
from torch import Tensor, nn

from pslab.errors import ConfigError
from pslab.tensors.random_streams import generator
from pslab.tensors.workload.models import running_norms
from pslab.tensors.workload.running_statistics import recompute

BATCHES = [3 + 2 * torch.randn(16, 4, 6, generator=generator(0, "x", i)) for i in range(8)]
SAMPLE = BATCHES[0][:2]


class Own(nn.Module):
    """Centres its input by an exponential moving mean of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("middle", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.middle = 0.9 * self.middle + 0.1 * x.mean((0, 1))
        return x - self.middle


class Scaled(nn.BatchNorm1d):
    """A norm with one more buffer, which counts the passes of training."""

    def __init__(self) -> None:
        super().__init__(4)
        self.register_buffer("passes", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        self.passes += self.training
        return super().forward(x) / self.passes


class Frozen(nn.Sequential):
    """A module that keeps its BatchNorm in evaluation mode, as one does with weights that were trained before."""

    def train(self, mode: bool = True) -> Frozen:
        super().train(mode)
        self[0].eval()
        return self


class Queue(nn.Module):
    """What it remembers is for training alone."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.last.copy_(x.mean((0, 1)))
        return x


class Doubled(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = super().forward(x)
        return 2 * y


def renewed(module: nn.Module) -> nn.Module:
    recompute(module, running_norms(module, SAMPLE), lambda: iter(BATCHES))
    assert not any(each.training for each in module.modules())
    return module


def batch_norms() -> nn.Module:
    return Doubled(nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Tanh(), nn.Sequential(nn.BatchNorm1d(4, momentum=0.3)))


def test_batch_norm_gets_the_plain_mean_over_the_batches_to_the_bit() -> None:
    module, reference = renewed(batch_norms()), batch_norms().eval()
    for norm in (reference[0], reference[3][0]):
        norm.momentum = None  # torch's own plain mean
        norm.train()
    with torch.no_grad():
        for x in BATCHES:
            reference(x)
    assert reference[0].running_mean.abs().min() > 2
    for name, value in reference.named_buffers():
        assert torch.equal(module.get_buffer(name), value), name


def test_a_norm_that_is_called_twice_gets_the_plain_mean_over_its_calls() -> None:
    norm, reference = nn.BatchNorm1d(4), nn.BatchNorm1d(4, momentum=None)
    renewed(nn.Sequential(norm, nn.Tanh(), norm))
    for x in BATCHES:
        reference(reference(x).tanh())
    torch.testing.assert_close((norm.running_mean, norm.running_var), (reference.running_mean, reference.running_var))
    assert norm.momentum == 0.1


def test_instance_norm_gets_the_plain_mean_over_the_batches() -> None:
    module = renewed(nn.InstanceNorm1d(4, track_running_stats=True))
    each = torch.stack([x.mean((0, 2)) for x in BATCHES])
    torch.testing.assert_close(module.running_mean, each.mean(0))
    each = torch.stack([x.var(2).mean(0) for x in BATCHES])
    torch.testing.assert_close(module.running_var, each.mean(0))


def test_a_second_mean_does_not_contain_the_first() -> None:
    module, found = batch_norms(), []
    for _ in range(2):
        found.append([buffer.clone() for buffer in renewed(module).buffers()])
    assert all(map(torch.equal, *found))


class Fixed(nn.BatchNorm1d):
    """Uses its first statistics in training, too."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.batch_norm(x, self.running_mean, self.running_var)


class Adversarial(nn.Sequential):
    """Differentiates in each pass of training."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            x = x.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(super().forward(x).sum(), x)
            x = x.detach() + 0.1 * gradient.sign()
        found: Tensor = super().forward(x)
        return found


def test_a_model_that_differentiates_in_training_is_tried_as_it_trains() -> None:
    assert running_norms(Adversarial(nn.BatchNorm1d(4), nn.Linear(6, 2)), SAMPLE) == ("0",)


@pytest.mark.parametrize(
    ("model", "norm"), [(Frozen, nn.BatchNorm1d(4)), (nn.Sequential, nn.BatchNorm1d(4, momentum=0.0)),
                        (nn.Sequential, Fixed(4))], ids=["evaluation mode", "momentum 0", "own forward"])  # fmt: skip
def test_a_norm_that_training_leaves_as_it_is_stays_as_it_is(model: type[nn.Sequential], norm: nn.Module) -> None:
    module = model(norm, nn.BatchNorm1d(4))
    module[0].running_mean += 7
    assert running_norms(module, SAMPLE) == ("1",)
    assert (renewed(module)[0].running_mean == 7).all()


@pytest.mark.parametrize(
    "module", [net(), nn.LayerNorm(6), nn.InstanceNorm1d(4), nn.BatchNorm1d(4, track_running_stats=False)],
    ids=["linear", "layer norm", "instance norm", "batch norm"],
)  # fmt: skip
def test_a_model_without_statistics_is_not_passed_through(module: nn.Module) -> None:
    x = torch.zeros(2, 7, 7) if isinstance(module, nn.Sequential) else SAMPLE

    def none() -> Iterator[Tensor]:
        raise AssertionError("passed through")

    assert running_norms(module, x) == ()
    recompute(module, (), none)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("module", "problem"),
    [(Own, "0.middle of Own"), (Scaled, "0.passes of Scaled"),
     (lambda: nn.utils.spectral_norm(nn.Linear(6, 5)), "0.weight_u of Linear")],
    ids=["a mean", "a counter", "spectral norm"],
)  # fmt: skip
def test_other_buffers_that_training_changes_and_evaluation_reads_are_refused(
    module: Callable[[], nn.Module], problem: str
) -> None:
    with pytest.raises(ConfigError, match=f"buffer {problem} changes in training.*use one of these") as error:
        running_norms(nn.Sequential(module()), SAMPLE)
    assert error.value.field == "model"


@pytest.mark.parametrize("module", [Queue(), batch_norms()], ids=["own", "batch norm"])
def test_trying_changes_nothing(module: nn.Module) -> None:
    before, states = copy.deepcopy(module), global_states()
    running_norms(module, SAMPLE)
    assert all(map(torch.equal, module.buffers(), before.buffers()))
    assert [each.training for each in module.modules()] == [each.training for each in before.modules()]
    assert global_states() == states
