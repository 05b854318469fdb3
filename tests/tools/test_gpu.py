"""The page of a GPU, on a machine that has none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_without_a_gpu_it_says_so_in_one_line_and_fails():
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "tests/tools/gpu.py"], cwd=ROOT, env=environment, capture_output=True,
                          text=True)  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "torch sees no CUDA device here; use device='cpu'\n")
