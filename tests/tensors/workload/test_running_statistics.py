"""Running statistics: which buffers of a model are estimated anew, what comes of it, and what is refused."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from tiny import global_states, net
from torch import Tensor, nn

from pslab.errors import ConfigError
from pslab.tensors.random_streams import generator
from pslab.tensors.workload.running_statistics import Estimate, Running, running_of

BATCHES = [3 + 2 * torch.randn(16, 4, 6, generator=generator(0, "x", i)) for i in range(8)]
SAMPLE = BATCHES[0][:2]


class Own(nn.Module):
    """Centres its input by an exponential moving mean of its own."""

    def __init__(self, momentum: float = 0.1) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("middle", torch.zeros(6))
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.passes += 1
            self.middle = (1 - self.momentum) * self.middle + self.momentum * x.mean((0, 1))
        return x - self.middle


class Cumulative(Own):
    """The plain mean over all batches so far; the counter is read in training alone."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.passes += 1
            self.middle += (x.mean((0, 1)) - self.middle) / self.passes
        return x - self.middle


class Counting(Own):
    """What it does in evaluation depends on how many passes there were."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / (1 + float(self.passes))


class Within(nn.Module):
    """The mean of its own module changes where this one is in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.own = Own()

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.own.middle += 0.1 * (x.mean((0, 1)) - self.own.middle)
        return x - self.own.middle


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
    found = running_of(module, SAMPLE)
    assert Estimate(module, found).renew(lambda: iter(BATCHES)) == []
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


@pytest.mark.parametrize("momentum", [0.5, 0.1, 0.02])
def test_a_mean_of_its_own_settles_whatever_its_start(momentum: float) -> None:
    each = torch.stack([x.mean((0, 1)) for x in BATCHES])
    weights = (1 - momentum) ** torch.arange(7, -1, -1.0)
    long_run = (weights[:, None] * each).sum(0) / weights.sum()  # of endless passes over the batches
    for start in (0.0, 9.0):
        module = Own(momentum)
        module.middle += start
        assert (renewed(module).middle - long_run).abs().max() <= 0.005 * (long_run - start).abs().max()


def test_a_second_estimate_begins_where_the_first_did() -> None:
    module = Own()
    estimate, found = Estimate(module, running_of(module, SAMPLE)), []
    for _ in range(2):
        estimate.renew(lambda: BATCHES)
        found.append([buffer.clone() for buffer in module.buffers()])
    assert all(map(torch.equal, *found))


def test_a_counter_that_only_training_reads_is_no_statistic() -> None:
    assert running_of(Cumulative(), SAMPLE) == Running(changed=("middle", "passes"), settled=("middle",))
    torch.testing.assert_close(renewed(Cumulative()).middle, torch.stack(BATCHES).mean((0, 1, 2)))
    assert running_of(Queue(), SAMPLE).settled == ()


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_norm_of_a_spectrum_belongs_to_the_weights() -> None:
    module = nn.utils.spectral_norm(nn.Linear(6, 5))
    assert running_of(module, SAMPLE).settled == ("weight_u", "weight_v")
    estimate = Estimate(module, running_of(module, SAMPLE))
    with torch.no_grad():
        module.weight_orig.copy_(torch.randn(5, 6, generator=generator(1, "w")))
    assert estimate.renew(lambda: BATCHES) == []
    module(SAMPLE)
    assert float(torch.linalg.matrix_norm(module.weight.detach(), 2)) == pytest.approx(1, rel=1e-3)


class Fixed(nn.BatchNorm1d):
    """Uses its first statistics in training, too."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.batch_norm(x, self.running_mean, self.running_var)


class Skipped(nn.BatchNorm1d):
    """Is left out in the first passes of training, as by a stochastic depth: what it would change is not known."""

    def __call__(self, x: Tensor) -> Tensor:
        self.calls = getattr(self, "calls", 0) + 1
        return x if self.calls < 3 else super().__call__(x)


def test_a_norm_that_was_not_called_is_estimated_all_the_same() -> None:
    assert running_of(nn.Sequential(Skipped(4)), SAMPLE).norms == ("0",)


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
    assert running_of(Adversarial(nn.BatchNorm1d(4), nn.Linear(6, 2)), SAMPLE).norms == ("0",)


@pytest.mark.parametrize(
    ("model", "norm"), [(Frozen, nn.BatchNorm1d(4)), (nn.Sequential, nn.BatchNorm1d(4, momentum=0.0)),
                        (nn.Sequential, Fixed(4))], ids=["evaluation mode", "momentum 0", "own forward"])  # fmt: skip
def test_a_norm_that_training_leaves_as_it_is_stays_as_it_is(model: type[nn.Sequential], norm: nn.Module) -> None:
    module = model(norm, nn.BatchNorm1d(4))
    module[0].running_mean += 7
    assert running_of(module, SAMPLE).norms == ("1",)
    assert (renewed(module)[0].running_mean == 7).all()


@pytest.mark.parametrize(
    "module", [net(), nn.LayerNorm(6), nn.InstanceNorm1d(4), nn.BatchNorm1d(4, track_running_stats=False)],
    ids=["linear", "layer norm", "instance norm", "batch norm"],
)  # fmt: skip
def test_a_model_without_statistics_is_not_passed_through(module: nn.Module) -> None:
    x = torch.zeros(2, 7, 7) if isinstance(module, nn.Sequential) else SAMPLE

    def none() -> Iterator[Tensor]:
        raise AssertionError("passed through")

    found = running_of(module, x)
    assert found == Running()
    assert Estimate(module, found).renew(none) == []


@pytest.mark.parametrize(
    ("module", "problem"),
    [(Own(0.001), r"buffer 0\.middle changes in training, is read in evaluation, and does not settle within 1024"),
     (Counting(), r"buffer 0\.passes changes .* does not settle"),
     (Within(), r"buffer 0\.own\.middle .* its own module alone is in training mode")],
    ids=["slow", "counter", "parent's mode"],
)  # fmt: skip
def test_what_cannot_be_estimated_is_refused_by_name(module: nn.Module, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as error:
        running_of(nn.Sequential(module), SAMPLE)
    assert error.value.field == "model"


@pytest.mark.parametrize("module", [Own(), batch_norms()], ids=["own", "batch norm"])
def test_trying_changes_nothing(module: nn.Module) -> None:
    before, states = copy.deepcopy(module), global_states()
    running_of(module, SAMPLE)
    assert all(map(torch.equal, module.buffers(), before.buffers()))
    assert [each.training for each in module.modules()] == [each.training for each in before.modules()]
    assert global_states() == states
