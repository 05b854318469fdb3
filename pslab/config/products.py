"""The library that multiplies matrices on this machine's CPU, chosen without torch: the last bits depend on it.

MKL is torch's default. On AMD processors with AVX-512 it reaches half of their speed, 100 GFLOP/s a core, while oneDNN,
which torch also includes, reaches 205 to 230; on other processors MKL is faster (with AVX2 by 3 to 20 %, batch 64).
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from pslab.errors import ConfigError

MKL, ONEDNN = "mkl", "onednn"
CHOICE = "PSLAB_PRODUCTS"  # an environment variable that forces one library
PROCESSOR = Path("/proc/cpuinfo")


def here() -> str:
    """Return the library that multiplies the matrices of runs on this machine, except runs that need MKL.

    Raises:
        ConfigError: the environment variable names an unknown library.
    """
    forced = os.environ.get(CHOICE, "")
    if forced not in ("", MKL, ONEDNN):
        raise ConfigError(CHOICE, forced, f"must be {MKL} or {ONEDNN}; unset it, and the processor decides")
    return forced or fastest()


@lru_cache(maxsize=4)
def fastest(processor: Path = PROCESSOR) -> str:
    """Return the faster library for this processor by a fixed rule: all hosts of a kind choose the same one."""
    try:
        words = processor.read_text().partition("\n\n")[0].split()
    except OSError:
        return MKL
    return ONEDNN if {"AuthenticAMD", "avx512f"} <= set(words) else MKL
