"""A device whose memory is its own, on every machine: the CPU behind explicit copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from pslab.tensors.device import Device


@dataclass(frozen=True)
class Apart(Device):
    """What is not copied there is not there, and what is not fetched does not come back."""

    separate: ClassVar[bool] = True

    def to(self, here: torch.Tensor) -> torch.Tensor:
        return here.clone()

    def fetch(self, *there: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(each.clone() for each in there)
