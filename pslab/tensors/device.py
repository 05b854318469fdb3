"""The devices of tensors: the CPU, whose memory workers and servers share, and GPUs, which have copies."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from pslab.errors import ConfigError


@dataclass(frozen=True)
class Device:
    """The CPU: its memory is the one that workers and server share, so a tensor is there already.

    A device with memory of its own starts its work and its copies in order, and does not wait for them. What stands on
    the CPU is complete after `fetch` or `synchronize`.
    """

    separate: ClassVar[bool] = False  #: whether it has memory of its own, to and from which tensors are copied

    def of(self, worker: int) -> Device:
        """The device of one worker, where there are several."""
        return self

    @property
    def place(self) -> torch.device:
        """The torch device."""
        return torch.device("cpu")

    def prepare(self) -> None:
        """Let this process compute what it computes again: on the CPU it does by itself."""
        if torch.are_deterministic_algorithms_enabled():  # for a run before
            torch.use_deterministic_algorithms(False)

    def free_bytes(self) -> list[int]:
        """The memory that is free on each of these devices, if it is their own."""
        return []

    def to(self, here: torch.Tensor) -> torch.Tensor:
        """A tensor on the CPU, on the device."""
        return here

    def put(self, here: torch.Tensor, there: torch.Tensor) -> None:
        """Copy a tensor on the CPU into one on the device. The first may be changed at once."""
        there.copy_(here)

    def fetch(self, *there: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Tensors on the device, complete, on the CPU. On the CPU itself they are the same ones."""
        return there

    def synchronize(self) -> None:
        """Wait until all that was started on the device is done."""


@dataclass(frozen=True)
class Cuda(Device):
    """A CUDA device. Several workers on one are normal: of n devices, worker i computes on number i mod n.

    Copies go through page-locked memory, of which torch keeps a cache, so they overlap with what the CPU does.
    """

    separate: ClassVar[bool] = True
    number: int = 0

    def of(self, worker: int) -> Device:
        """ConfigError on a host on which torch sees none, which it names: others may have one."""
        if not torch.cuda.is_available():
            raise ConfigError("device", "cuda", no_cuda(f"on {platform.node()}, the host of worker {worker}"))
        return Cuda(worker % torch.cuda.device_count())

    @property
    def place(self) -> torch.device:
        return torch.device("cuda", self.number)

    def prepare(self) -> None:
        """Let torch use deterministic operations and full precision; it warns of an operation that has no such form.
        A model that needs TensorFloat-32 can switch it on when it is made."""
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS is first used
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.benchmark = False
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False

    def free_bytes(self) -> list[int]:
        return [torch.cuda.mem_get_info(number)[0] for number in range(torch.cuda.device_count())]

    def to(self, here: torch.Tensor) -> torch.Tensor:
        return here.pin_memory().to(self.place, non_blocking=True)

    def put(self, here: torch.Tensor, there: torch.Tensor) -> None:
        there.copy_(here.pin_memory(), non_blocking=True)

    def fetch(self, *there: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = tuple(each.to("cpu", non_blocking=True) for each in there)  # into page-locked memory
        self.synchronize()
        return found

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.place)


def no_cuda(where: str = "here") -> str:
    """What is wrong with a run on CUDA devices where there are none."""
    return f"torch sees no CUDA device {where}; use device='cpu'"


DEVICES: dict[str, Device] = {"cpu": Device(), "cuda": Cuda()}  #: by the names that a Run may give


def zeros(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """torch.zeros on the CPU; pages that are never written use no memory."""
    return torch.from_numpy(np.zeros(shape, str(dtype).removeprefix("torch.")))


@contextmanager
def one_thread() -> Iterator[None]:
    """torch on one thread, as in a worker and in the server. Two threads give other bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
