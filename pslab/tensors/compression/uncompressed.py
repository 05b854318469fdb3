"""The rules of an uncompressed push."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pslab.tensors.compression.rule import At, Parts, Rule

START = 24  # bytes of a frame of one part, without the part itself


@dataclass(frozen=True)
class Everything(Rule):
    """No pruning: all entries are sent."""

    summable = True

    def select(self, v: torch.Tensor, at: At | None = None) -> torch.Tensor:
        """Return all indices of v."""
        return torch.arange(len(v), device=v.device)


@dataclass(frozen=True)
class Plain(Rule):
    """No quantization: values are sent unchanged."""

    summable = True

    def compress(self, v: torch.Tensor, at: At) -> Parts:
        return [v.clone()]

    def decompress(self, parts: Parts, at: At) -> torch.Tensor:
        return parts[0].view(at.dtype)


def dense_bytes(n: int, itemsize: int) -> int:
    """Return the length of a frame of n values, in bytes."""
    return START + n * itemsize
