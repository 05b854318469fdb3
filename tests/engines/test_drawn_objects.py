"""Objects of a user, drawn: a run trains them as plain torch does on the same batches, or refuses them by name."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from pslab.config.run import Run
from pslab.errors import ConfigError
from pslab.lab.runs.run import run
from pslab.tensors.device import one_thread
from pslab.tensors.workload.data import Batches

N, TEST, FEATURES, STEPS, RATE = 24, 13, 6, 4, 0.1


class Doubled(torch.autograd.Function):
    """Twice the input, whose gradient is clipped."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return (2 * gradient).clamp(-0.1, 0.1)


class Own(nn.Module):
    """Two layers with a part in between that is drawn."""

    def __init__(self, between: Callable[[torch.Tensor], torch.Tensor], outputs: int) -> None:
        super().__init__()
        self.first, self.last, self.between = nn.Linear(FEATURES, 5), nn.Linear(5, outputs), between
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.between(self.first(x) * self.scale))


class Tied(nn.Module):
    """Two layers that share their weight."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.a, self.b, self.last = nn.Linear(FEATURES, 6), nn.Linear(6, 6), nn.Linear(6, outputs)
        self.b.weight = self.a.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.b(self.a(x).tanh()))


def frozen(outputs: int) -> nn.Module:
    module = nn.Sequential(nn.Linear(FEATURES, 5), nn.ReLU(), nn.Linear(5, outputs))
    module[0].requires_grad_(False)
    return module


def hooked(outputs: int) -> nn.Module:
    module = nn.Sequential(nn.Linear(FEATURES, 5), nn.Linear(5, outputs))
    module[0].register_forward_hook(lambda layer, given, output: output.tanh())
    return module


def clipped(outputs: int) -> nn.Module:
    module = nn.Linear(FEATURES, outputs)
    module.weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    return module


def penalized(module: nn.Module) -> Callable[..., torch.Tensor]:
    return lambda output, target: functional.mse_loss(output, target) + sum(p.pow(2).sum() for p in module.parameters())


def rmse(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).pow(2).mean().sqrt()


def worst(output: torch.Tensor, target: torch.Tensor) -> np.floating[Any]:
    return np.abs(output.numpy() - target.numpy()).max()


rmse.lower_is_better = worst.lower_is_better = True  # type: ignore[attr-defined]

#: name -> (what makes it, whether it is refused)
MODELS: dict[str, tuple[Callable[[int], nn.Module], bool]] = {
    "linear": (lambda outputs: nn.Linear(FEATURES, outputs), False),
    "layer norm": (lambda outputs: nn.Sequential(nn.LayerNorm(FEATURES), nn.Linear(FEATURES, outputs)), False),
    "batch norm": (lambda outputs: nn.Sequential(nn.BatchNorm1d(FEATURES), nn.Linear(FEATURES, outputs)), False),
    "tied": (Tied, False), "frozen": (frozen, False), "module hook": (hooked, False),
    "tanh": (lambda outputs: Own(torch.tanh, outputs), False),
    "own function": (lambda outputs: Own(Doubled.apply, outputs), False),
    "checkpointed": (lambda outputs: Own(lambda x: checkpoint(torch.sigmoid, x, use_reentrant=False), outputs), False),
    "convolution": (lambda outputs: nn.Sequential(nn.Unflatten(1, (1, FEATURES)), nn.Conv1d(1, 3, 3), nn.Flatten(),
                                                  nn.Linear(12, outputs)), False),
    "parameter hook": (clipped, True), "lazy": (lambda outputs: nn.LazyLinear(outputs), True),
    "weight norm": (lambda outputs: nn.utils.parametrizations.weight_norm(nn.Linear(FEATURES, outputs)), True),
}  # fmt: skip
LOSSES: dict[str, tuple[Any, bool]] = {
    "mse": ("mse", False), "l1 module": (nn.L1Loss(), False), "huber": (nn.HuberLoss(delta=0.5), False),
    "callable": (lambda output, target: (output - target).pow(4).mean(), False),
    "sum": (nn.MSELoss(reduction="sum"), True), "broadcast": (lambda o, t: (o - t[:, 0]).pow(2).mean(), True),
    "holds the model": (penalized, True),
}  # fmt: skip
METRICS: dict[str, Any] = {"loss": "loss", "rmse": rmse, "worst": worst}
Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def loaders(form: str, x: torch.Tensor, y: torch.Tensor, u: torch.Tensor, v: torch.Tensor) -> Any:
    """The same examples, given in this form; others stand beside those that are not to be seen."""
    rows, test = TensorDataset(torch.cat([x, u]), torch.cat([y, v])), DataLoader(TensorDataset(u, v), batch_size=3)
    if form == "tensors":
        return x, y, u, v
    options: dict[str, dict[str, Any]] = {
        "subset": {"dataset": Subset(rows, range(N)), "shuffle": True},
        "sampler": {"dataset": rows, "sampler": SubsetRandomSampler(list(range(N))), "batch_size": 5},
        "concatenated": {"dataset": ConcatDataset([Subset(rows, range(9)), Subset(rows, range(9, N))])},
        "dropped last": {"dataset": TensorDataset(x, y), "batch_size": N, "drop_last": True, "pin_memory": False},
        "weighted": {"dataset": rows, "sampler": WeightedRandomSampler([1.0] * N + [0.0] * TEST, N)},
        "own batches": {"dataset": rows, "batch_sampler": [[0, 1], [2, 3]]},
    }
    return DataLoader(**options[form]), test


DATA = {"tensors": False, "subset": False, "sampler": False, "concatenated": False, "dropped last": False,
        "weighted": True, "own batches": True}  # fmt: skip


def drawn(seed: int) -> Iterator[Any]:
    """A model, a loss, a metric and a form of data: three of four cases hold nothing that is refused."""
    rng = np.random.default_rng(seed)
    for table in (MODELS, LOSSES, METRICS, DATA):
        bad = {name for name, row in table.items() if (row[1] if isinstance(row, tuple) else row is True)}
        names = [name for name in table if seed % 4 == 0 or name not in bad]
        yield names[rng.integers(len(names))]


@one_thread()
def in_torch(module: nn.Module, loss: Any, x: torch.Tensor, y: torch.Tensor, given: Run) -> None:
    """Train by the mean gradient of the workers' batches."""
    batches = [Batches(len(y), given.workers, worker, given.batch_size, given.seed) for worker in range(given.workers)]
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for step in range(STEPS):
        sums = [torch.zeros_like(parameter) for parameter in trained]
        for own in batches:
            rows = torch.from_numpy(own.at(step))
            gradients = torch.autograd.grad(loss(module.train()(x[rows]), y[rows]), trained)
            for total, gradient in zip(sums, gradients, strict=True):
                total += gradient / given.workers
        with torch.no_grad():
            for parameter, total in zip(trained, sums, strict=True):
                parameter -= RATE * total


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 200), marks=pytest.mark.slow)],
                         ids=["some", "many"])  # fmt: skip
def test_a_run_trains_what_a_user_brings_as_torch_does_or_refuses_it_by_name(seeds: range, tmp_path):
    refused = 0
    for seed in seeds:
        model, loss, metric, form = drawn(seed)
        generator, outputs = torch.Generator().manual_seed(seed), 1 + seed % 2
        x, y = torch.randn(N, FEATURES, generator=generator), torch.randn(N, outputs, generator=generator)
        u, v = torch.randn(TEST, FEATURES, generator=generator), torch.randn(TEST, outputs, generator=generator)
        torch.manual_seed(seed)
        module = MODELS[model][0](outputs)
        objective = LOSSES[loss][0]
        given = objective(module) if loss == "holds the model" else objective
        workers = 1 + seed % 3
        broken = MODELS[model][1] or (LOSSES[loss][1] and not (loss == "broadcast" and outputs > 1)) or DATA[form]
        wanted: dict[str, Any] = {
            "model": module, "data": lambda x=x, y=y, u=u, v=v, form=form: loaders(form, x, y, u, v), "loss": given,
            "metric": METRICS[metric], "workers": workers, "batch_size": 4, "learning_rate": RATE, "seed": seed,
            "pushes": STEPS * workers, "engine": "virtual", "cluster": "lab", "keep_weights": True,
        }  # fmt: skip
        case = f"seed {seed}: {model}, {loss}, {metric}, {form}, {workers} workers"
        if broken or loss == "broadcast":
            refused += 1
            with pytest.raises(ConfigError):
                run(Run(**wanted), results=tmp_path, progress=False)
            continue
        plain = copy.deepcopy(module)
        in_torch(plain, functional.mse_loss if given == "mse" else given, x, y, Run(**wanted))
        result = run(Run(**wanted), results=tmp_path, progress=False)
        for name, value in result.state_dict().items():
            if "running" not in name and "num_batches" not in name:
                torch.testing.assert_close(value, plain.state_dict()[name], rtol=1e-4, atol=1e-6, msg=case)
        if model != "batch norm":
            with torch.no_grad():
                output = plain.eval()(u)
                right = float((functional.mse_loss if given == "mse" else given)(output, v) if metric == "loss"
                              else METRICS[metric](output, v))  # fmt: skip
            assert math.isclose(result.final, right, rel_tol=1e-4), case
    assert 0 < refused < len(seeds)
