"""The devices of tensors: the CPU, whose memory workers and servers share, and GPUs, which have copies."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from pslab.errors import ConfigError


@dataclass(frozen=True)
class Device:
    """The CPU: its memory is the one that workers and server share, so a tensor is there already.

    A device with memory of its own starts its work and its copies in order, and does not wait for them. Reading a
    number of a tensor on the device (`item`, `float`, `cpu`) waits for all that was started before.
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

    def pin(self, run: object, here: list[torch.Tensor]) -> None:
        """Let copies between this memory on the CPU and the device pass through no other memory, until another run."""

    def to(self, here: torch.Tensor) -> torch.Tensor:
        """A tensor on the CPU, on the device."""
        return here

    def put(self, here: torch.Tensor, there: torch.Tensor) -> None:
        """Copy a tensor on the CPU into one on the device. The first must stay as it is until a number is read of the
        device."""
        there.copy_(here)

    def get(self, there: torch.Tensor, here: torch.Tensor) -> None:
        """Copy a tensor on the device into one on the CPU, which is complete once a number is read of the device."""
        here.copy_(there)


@dataclass(frozen=True)
class Cuda(Device):
    """A CUDA device. Several workers on one are normal: of n devices, worker i computes on number i mod n.

    Copies overlap with what the CPU does if its memory is page-locked: a run's, by `pin`, or torch's, which it keeps in
    a cache and through which all other copies to the device go.
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

    def pin(self, run: object, here: list[torch.Tensor]) -> None:
        """Register memory with CUDA. The memory of an earlier run is released first: its pages may have been
        given back since, and the device would go on reading the old ones."""
        global _pinned
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        if _pinned[0] is not run:
            for block in _pinned[1]:
                runtime.cudaHostUnregister(block.data_ptr())
            _pinned = run, []
        for block in here:
            if block.is_pinned():  # by another worker in this process
                continue
            with torch.cuda.device(self.place):  # so that no other device gets a context
                refused = int(runtime.cudaHostRegister(block.data_ptr(), block.nbytes, 0))
            if not refused:
                _pinned[1].append(block)
            else:  # as where a user may lock no more: copies go through torch's memory
                with suppress(RuntimeError):  # the next launch reports that error: let it be this one
                    torch.ones(1, device=self.place)

    def to(self, here: torch.Tensor) -> torch.Tensor:
        return sent(here, self.place)

    def put(self, here: torch.Tensor, there: torch.Tensor) -> None:
        there.copy_(here.pin_memory(), non_blocking=True)  # the same memory if that is page-locked

    def get(self, there: torch.Tensor, here: torch.Tensor) -> None:
        here.copy_(there, non_blocking=True)


#: The run whose memory this process has registered, and that memory, which is not unmapped while it is registered.
_pinned: tuple[Any, list[torch.Tensor]] = (None, [])


def sent(here: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor on the CPU, on a device, without waiting for it."""
    return here if device.type == "cpu" else here.pin_memory().to(device, non_blocking=True)


def no_cuda(where: str = "here") -> str:
    """Return why no run can use CUDA here, in words, or "" if it can."""
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
