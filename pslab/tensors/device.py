"""The devices of tensors: the CPU, with memory that workers and servers share, and GPUs, with their own memory."""

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
    """The CPU, and the interface of a device. Workers and servers share the CPU's memory, so tensors are not copied.

    Operations and copies on a GPU are started in order, and no call waits for their end. Reading a number from a
    tensor on the GPU (`item`, `float`, `cpu`) waits for all operations that were started before.
    """

    separate: ClassVar[bool] = False  #: whether tensors must be copied to and from the device

    def of(self, worker: int) -> Device:
        """Return the device that a worker uses."""
        return self

    @property
    def place(self) -> torch.device:
        """The torch device."""
        return torch.device("cpu")

    def prepare(self) -> None:
        """Make computations of this process repeatable; on the CPU they already are."""
        if torch.are_deterministic_algorithms_enabled():  # left enabled by an earlier run on a GPU
            torch.use_deterministic_algorithms(False)

    def free_bytes(self) -> list[int]:
        """Return the free memory of each GPU in bytes; empty for the CPU."""
        return []

    def pin(self, run: object, here: list[torch.Tensor]) -> None:
        """Register memory of a run, until another run registers memory, so that copies to a GPU need no buffer."""

    def to(self, here: torch.Tensor) -> torch.Tensor:
        """Copy a tensor from the CPU to the device; on the CPU return the tensor itself."""
        return here

    def put(self, here: torch.Tensor, there: torch.Tensor) -> None:
        """Copy `here`, on the CPU, into `there`, on the device. `here` must not change until the copy is complete: on a
        GPU, until a number has been read from the GPU."""
        there.copy_(here)

    def get(self, there: torch.Tensor, here: torch.Tensor) -> None:
        """Copy `there`, on the device, into `here`, on the CPU; from a GPU, complete once a number is read from it."""
        here.copy_(there)


@dataclass(frozen=True)
class Cuda(Device):
    """A CUDA device. Of n devices, worker i uses number i mod n, so several workers may share a device.

    Copies overlap with computation on the CPU only if the CPU's memory is page-locked. `pin` page-locks memory; other
    tensors are first copied to a page-locked buffer of torch.
    """

    separate: ClassVar[bool] = True
    number: int = 0

    def of(self, worker: int) -> Device:
        """Return the device that a worker uses; ConfigError with this host's name if torch sees no CUDA device."""
        if not torch.cuda.is_available():
            raise ConfigError("device", "cuda", no_cuda(f"on {platform.node()}, the host of worker {worker}"))
        return Cuda(worker % torch.cuda.device_count())

    @property
    def place(self) -> torch.device:
        return torch.device("cuda", self.number)

    def prepare(self) -> None:
        """Let torch use deterministic operations and full precision, and warn of operations without a deterministic
        form. A model that needs TensorFloat-32 can enable it when it is built."""
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS is first used
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.benchmark = False
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False

    def free_bytes(self) -> list[int]:
        return [torch.cuda.mem_get_info(number)[0] for number in range(torch.cuda.device_count())]

    def pin(self, run: object, here: list[torch.Tensor]) -> None:
        """Register memory with CUDA. Release the memory of an earlier run first: its pages may have been freed since,
        but the device would still read them."""
        global _pinned
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        if _pinned[0] is not run:
            for block in _pinned[1]:
                runtime.cudaHostUnregister(block.data_ptr())
            _pinned = run, []
        for block in here:
            if block.is_pinned():  # already registered by another worker in this process
                continue
            with torch.cuda.device(self.place):  # so that no other device gets a context
                refused = int(runtime.cudaHostRegister(block.data_ptr(), block.nbytes, 0))
            if not refused:
                _pinned[1].append(block)
            else:  # such as at the user's limit of locked memory: copies then go through torch's memory
                with suppress(RuntimeError):  # CUDA reports that error at its next launch: absorb it here
                    torch.ones(1, device=self.place)

    def to(self, here: torch.Tensor) -> torch.Tensor:
        return sent(here, self.place)

    def put(self, here: torch.Tensor, there: torch.Tensor) -> None:
        there.copy_(here.pin_memory(), non_blocking=True)  # the same memory if that is page-locked

    def get(self, there: torch.Tensor, here: torch.Tensor) -> None:
        here.copy_(there, non_blocking=True)


#: The run whose memory this process has registered, and that memory; the reference prevents its unmapping.
_pinned: tuple[Any, list[torch.Tensor]] = (None, [])


def sent(here: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor on the CPU as a tensor on a device, without waiting for the copy."""
    return here if device.type == "cpu" else here.pin_memory().to(device, non_blocking=True)


def no_cuda(where: str = "here") -> str:
    """Return the message that torch sees no CUDA device, with the way out."""
    return f"torch sees no CUDA device {where}; use device='cpu'"


DEVICES: dict[str, Device] = {"cpu": Device(), "cuda": Cuda()}  #: by their names in Run


def zeros(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Return torch.zeros on the CPU, whose pages use no memory until they are written."""
    return torch.from_numpy(np.zeros(shape, str(dtype).removeprefix("torch.")))


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread in the block, as workers and servers do; two threads would give other bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
