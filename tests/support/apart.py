"""Devices whose memory is their own, on every machine: the CPU behind explicit copies.

`Apart` holds ordinary tensors, in any process. Within `elsewhere()`, in this process, `Strict` holds tensors that
say that they are on a GPU: they have no `numpy()`, do not mix with the CPU's, and every wait for them is noted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.overrides import TorchFunctionMode

from pslab.tensors.device import Cuda, Device

CUDA = torch.device("cuda", 0)
READS = ("item", "__float__", "__int__", "__bool__", "__index__", "tolist", "nonzero", "equal", "is_nonzero",
         "masked_select", "unique", "bincount")  # fmt: skip
MIXES = ("copy_", "__getitem__", "__setitem__", "__set__", "as_subclass")  # what takes tensors of both, as on a GPU


@dataclass(frozen=True)
class Apart(Device):
    """What is not copied there is not there, and what is not fetched does not come back."""

    separate: ClassVar[bool] = True

    def to(self, here: torch.Tensor) -> torch.Tensor:
        return here.clone()


@dataclass(frozen=True)
class Strict(Cuda):
    """A GPU, as far as Python can tell, also where torch sees none."""

    def of(self, worker: int) -> Device:
        return self

    def pin(self, run: object, here: list[torch.Tensor]) -> None:
        """Lock no memory."""


class Elsewhere(torch.Tensor):
    """A tensor that says it is on a GPU."""

    device = CUDA  # type: ignore[assignment]
    is_cuda = True  # type: ignore[assignment]

    def numpy(self, **more: Any) -> Any:
        raise TypeError("can't convert cuda device type tensor to numpy")


class OnDevice(TorchFunctionMode):
    """Makes tensors for device="cuda" on the CPU, as `Elsewhere`, and notes what waits for that device."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []

    def __torch_function__(self, called: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, given = getattr(called, "__name__", ""), dict(kwargs or {})
        flat = [part for each in args for part in (each if isinstance(each, list | tuple) else [each])]
        there = [each for each in flat if isinstance(each, Elsewhere)]
        here = [each for each in flat if type(each) is torch.Tensor and each.ndim]
        if there and here and name not in MIXES:
            raise RuntimeError(f"{name}: expected all tensors to be on the same device")
        indexed = name in ("__getitem__", "__setitem__") and any(each.dtype == torch.bool for each in flat[1:]
                                                                 if isinstance(each, torch.Tensor))  # fmt: skip
        blocks = not given.get("non_blocking")
        if there and (name in READS or indexed or (name == "copy_" and here and blocks)):
            self.waits.append(name)
        if name == "pin_memory":
            return args[0]
        if there and (name == "cpu" or (name == "to" and torch.device("cpu") in flat)):
            self.waits.append(name)
            return args[0].as_subclass(torch.Tensor).clone()
        devices = [each for each in (*flat, given.get("device")) if isinstance(each, torch.device)]
        moved = any(each.type == "cuda" for each in devices)
        if not moved or name == "_parse_to":  # a module, which then moves its tensors
            return called(*args, **given)
        if name in ("to", "tensor") and not there and blocks:
            self.waits.append(name)
        args = tuple(torch.device("cpu") if isinstance(each, torch.device) else each for each in args)
        made = called(*args, **{**given, **({"device": "cpu"} if "device" in given else {})})
        return (made.clone() if name == "to" and not there else made).as_subclass(Elsewhere)


@contextmanager
def elsewhere() -> Iterator[list[str]]:
    """Tensors may be made on the device; what is yielded are the names of functions that have waited for it."""
    with OnDevice() as mode:
        yield mode.waits
