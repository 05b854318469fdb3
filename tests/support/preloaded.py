"""Modules that the fork server of a test session imports once, beside torch: children of most tests need them, and
begin in milliseconds instead of in a second of a core."""

from __future__ import annotations

import pslab.engines.processes.preload  # first, as in every fork server

# isort: split
import ownpolicies  # noqa: F401
import pytest  # noqa: F401  # children load the modules of tests whose models and policies they get
import sabotage  # noqa: F401
import torch

import pslab.engines.local.server
import pslab.engines.local.worker
import pslab.engines.virtual.parallel_runs  # noqa: F401
from pslab.tensors.compression import bits

torch.set_num_threads(1)  # no other thread may run when it forks
for dtype in (torch.float32, torch.float64):
    bits.prepare(dtype)
