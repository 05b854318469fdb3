"""Where tensors lie, on the CPU."""

from __future__ import annotations

import pytest
import torch

from pslab.lab.runs.machine import resident_bytes
from pslab.tensors.device import zeros


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zeros_take_memory_where_they_are_written(dtype: torch.dtype):
    before = resident_bytes()
    many = zeros(1 << 25, 2, dtype=dtype)
    assert many.dtype == dtype
    assert many.shape == (1 << 25, 2)
    many[12345, 1] = 3.0
    assert many[12344:12347].tolist() == [[0.0, 0.0], [0.0, 3.0], [0.0, 0.0]]
    if before is not None:
        assert resident_bytes() - before < many.nbytes / 8
