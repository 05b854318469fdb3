"""Where tensors lie, on the CPU."""

from __future__ import annotations

import os
import platform
import re
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from apart import elsewhere

from pslab.errors import ConfigError
from pslab.lab.runs.machine import resident_bytes
from pslab.tensors.device import Cuda, Device, one_thread, zeros


def test_zeros_take_memory_where_they_are_written():
    before = resident_bytes()
    many = zeros(1 << 24, 2, dtype=torch.float64)
    assert (many.dtype, many.shape) == (torch.float64, (1 << 24, 2))
    many[12345, 1] = 3.0
    assert many[12344:12347].tolist() == [[0.0, 0.0], [0.0, 3.0], [0.0, 0.0]]
    if before is not None:
        assert resident_bytes() - before < many.nbytes / 8


def test_a_gpu_computes_the_same_again_and_the_cpu_what_it_did(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    try:
        Cuda().prepare()
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()  # what has no such form is computed, and said
        assert not torch.backends.cudnn.benchmark
        assert not torch.backends.cudnn.allow_tf32
        assert not torch.backends.cuda.matmul.allow_tf32
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    finally:
        Device().prepare()  # the same process, for a run on the CPU
    assert not torch.are_deterministic_algorithms_enabled()


def test_torch_has_as_many_threads_after_one_thread_as_before():
    with one_thread():  # as in all tests, once this one is over
        torch.set_num_threads(2)
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2


def test_a_worker_on_a_host_without_a_cuda_device_says_which_host_lacks_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    words = f"torch sees no CUDA device on {re.escape(platform.node())}, the host of worker 3; use device='cpu'"
    with pytest.raises(ConfigError, match=words):
        Cuda().of(3)


@pytest.mark.parametrize("refuses", [False, True])
def test_a_runs_memory_is_locked_once_and_that_of_the_run_before_no_longer(monkeypatch: pytest.MonkeyPatch, refuses):
    """Memory that cannot be locked is copied through other memory."""
    locked, asked = dict[int, int](), list[int]()

    def lock(at: int, size: int, flags: int) -> int:
        asked.append(at)
        locked.update({} if refuses else {at: size})
        return 2 * refuses

    functions = SimpleNamespace(cudaHostRegister=lock, cudaHostUnregister=locked.pop)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: functions)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda each: each.data_ptr() in locked)
    a, b, run, found = torch.zeros(3), torch.zeros(5), object(), []
    with elsewhere():
        for owner, blocks in (
            (run, [a, b]), (run, [a]),  # another worker in this process computes on the same weights
            (object(), [b]), (object(), []),  # at the same place, whose pages may be others by now
        ):  # fmt: skip
            Cuda().pin(owner, blocks)
            found.append((dict(locked), len(asked)))
    at_a, at_b = {a.data_ptr(): 12}, {b.data_ptr(): 20}
    assert found == ([({}, 2), ({}, 3), ({}, 4), ({}, 4)] if refuses else
                     [({**at_a, **at_b}, 2), ({**at_a, **at_b}, 2), (at_b, 3), ({}, 3)])  # fmt: skip
