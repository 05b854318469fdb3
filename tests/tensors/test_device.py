"""Where tensors lie, on the CPU."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator

import pytest
import torch

from pslab.errors import ConfigError
from pslab.lab.runs.machine import resident_bytes
from pslab.tensors.device import Cuda, Device, one_thread, zeros


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zeros_take_memory_where_they_are_written(dtype: torch.dtype):
    before = resident_bytes()
    many = zeros(1 << 24, 2, dtype=dtype)
    assert many.dtype == dtype
    assert many.shape == (1 << 24, 2)
    many[12345, 1] = 3.0
    assert many[12344:12347].tolist() == [[0.0, 0.0], [0.0, 3.0], [0.0, 0.0]]
    if before is not None:
        assert resident_bytes() - before < many.nbytes / 8


@pytest.fixture
def as_before() -> Iterator[None]:
    """What torch promises is for the whole process."""
    yield
    Device().prepare()


def test_a_gpu_computes_the_same_again_and_the_cpu_what_it_did(as_before, monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    Cuda().prepare()
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.is_deterministic_algorithms_warn_only_enabled()  # what has no such form is computed, and said
    assert not torch.backends.cudnn.benchmark
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    Device().prepare()  # the same process, for a run on the CPU
    assert not torch.are_deterministic_algorithms_enabled()


def test_torch_has_as_many_threads_after_one_thread_as_before():
    torch.set_num_threads(2)
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


def test_a_worker_on_a_host_without_a_cuda_device_says_which_host_lacks_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    words = f"torch sees no CUDA device on {re.escape(platform.node())}, the host of worker 3; use device='cpu'"
    with pytest.raises(ConfigError, match=words):
        Cuda().of(3)
