"""Small models that machines might get wrong: of the digits of `tiny`."""

from __future__ import annotations

import torch
from torch import nn


class Attention(nn.Module):
    """Its output projection calls no hook; its rows are a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.attention = nn.Linear(7, 8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.output = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.project(x.squeeze(1))
        return self.output((x + self.attention(x, x, x, need_weights=False)[0]).mean(1))


class Odd(nn.Module):
    """Its layers are called in another order than they are named: one twice, one as a bare weight."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.first, self.bare = nn.Linear(49, 10), nn.Linear(49, 49), nn.Linear(49, 49, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(torch.tanh(self.first(x.flatten(1))))
        return self.last(x @ self.bare.weight.T)


def batch_norm() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(49), nn.Linear(49, 10))


def convolution() -> nn.Module:
    """A model with buffers, which no process may share."""
    return nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(100, 10))
