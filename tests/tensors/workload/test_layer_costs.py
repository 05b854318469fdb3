"""The shares of the layers in an iteration, and the modules that first use each parameter."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pslab.tensors.workload.keyspace import Keyspace
from pslab.tensors.workload.layer_costs import Uses, shares
from pslab.tensors.workload.models import CNN, MLP
from pslab.tensors.workload.torchvision_ops import torchvision, with_operators


class Attention(nn.Module):
    """The forward of its output projection is never called, since the attention uses the parameters itself."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.output = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output(self.attention(x, x, x, need_weights=False)[0].mean(1))


def found(module: nn.Module, x: torch.Tensor) -> tuple[tuple[float, float], ...]:
    return shares(module, Keyspace.of(module), x)


def test_linear_layers_cost_their_products():
    module = MLP(784, 64, 10)
    got, sizes = found(module, torch.zeros(2, 1, 28, 28)), [784 * 64, 64 * 64, 64 * 64, 640]
    assert sum(map(sum, got)) == pytest.approx(1)
    assert [forward / got[0][0] for forward, _ in got] == pytest.approx([n / sizes[0] for n in sizes], rel=0.05)
    assert [backward / forward for forward, backward in got] == pytest.approx([1, 2, 2, 2])


def test_convolutions_cost_their_operations_and_not_their_size():
    got = found(CNN(), torch.zeros(2, 1, 28, 28))
    assert max(range(5), key=lambda layer: got[layer][0]) == 2  # conv2
    assert 0 < got[1][0] < 0.001  # a normalization
    assert got[4][0] < 0.01 < 2890 / 16186  # the last layer has many parameters and few operations


def test_parameters_of_a_module_that_is_not_called_cost_part_of_their_user():
    got = found(Attention(), torch.zeros(2, 5, 16))
    assert len(got) == 3
    assert got[0][0] / got[1][0] == pytest.approx(3, rel=0.01)  # three projections in, one out


def test_uses_records_the_first_user_and_removes_its_hooks():
    module = Attention()
    uses = Uses(module)
    uses.watch(lambda: module(torch.zeros(2, 5, 16)))
    assert {name: at for name, at in uses.first.items() if "weight" in name} == {
        "attention.in_proj_weight": "attention", "attention.out_proj.weight": "attention", "output.weight": "output",
    }  # fmt: skip
    assert not module._forward_hooks
    assert not module._forward_pre_hooks


def test_shares_of_a_large_model_on_the_meta_device():
    with torch.device("meta"):
        module = with_operators(lambda: torchvision().models.vgg16(weights=None))
        got = found(module, torch.empty(1, 3, 224, 224))
    convolutions = sum(map(sum, got[:13]))
    assert len(got) == 16
    assert convolutions > 0.98  # of the operations; 11 % of the parameters
